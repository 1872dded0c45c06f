"""Both ways of taking a step."""

from __future__ import annotations

import importlib.util

import pytest

from spikeslab.samplers import base


@pytest.fixture(params=["fused", "torch"])
def either_path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a test with the fused update and without it: where numba is installed, no default reaches torch's path."""
    if request.param == "torch":
        monkeypatch.setattr(base, "load_kernels", lambda *_, **__: None)
    elif importlib.util.find_spec("numba") is None:
        pytest.skip("the fused update needs numba, which is not installed")
