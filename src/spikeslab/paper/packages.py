"""Which packages are there."""

from __future__ import annotations

import warnings
from importlib import import_module
from importlib.util import find_spec
from typing import Any


def is_installed(package: str) -> bool:
    """Whether ``package`` can be imported.

    >>> is_installed("torch"), is_installed("a_package_that_nobody_wrote")
    (True, False)
    """
    return find_spec(package) is not None


def load(package: str) -> Any:
    """Import a package that may be missing where nobody asks for it; what it warns of is not our user's concern."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return import_module(package)
