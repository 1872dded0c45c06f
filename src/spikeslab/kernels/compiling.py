"""Compilation of functions by numba, kept on disk where numba may write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from numba import njit

Function = TypeVar("Function", bound=Callable[..., Any])


def compile_cached(**options: Any) -> Callable[[Function], Function]:
    """Return a decorator that compiles a function, without the interpreter's lock, and keeps the machine code on disk.

    Where numba finds no folder that it may write to, as in a read-only installation without a home folder, every
    process compiles anew.

    Args:
        **options: Further options of ``numba.njit``.
    """

    def decorate(function: Function) -> Function:
        try:
            compiled: Function = njit(function, cache=True, nogil=True, **options)
        except RuntimeError:
            compiled = njit(function, nogil=True, **options)
        return compiled

    return decorate
