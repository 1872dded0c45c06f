"""What ``import spikeslab`` offers, and what it must not load."""

from __future__ import annotations

import subprocess
import sys

import pytest

import spikeslab as ss

LAZY = "import sys, spikeslab; print(*{'torch', 'numpy', 'typer', 'spikeslab.samplers'} & set(sys.modules))"


def test_all_names_are_there_and_shown() -> None:
    assert all(hasattr(ss, name) for name in ss.__all__)
    assert set(ss.__all__) <= set(dir(ss))
    from spikeslab.compression import compress

    assert ss.compress is compress


def test_other_names_are_not() -> None:
    with pytest.raises(AttributeError, match=r"^module 'spikeslab' has no attribute 'compresss'$"):
        ss.compresss  # noqa: B018


def test_the_import_loads_nothing_before_a_name_is_used() -> None:
    found = subprocess.run([sys.executable, "-c", LAZY], capture_output=True, text=True, check=True)
    assert found.stdout == "\n"
