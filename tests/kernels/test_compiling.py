"""Compilation of functions by numba."""

from __future__ import annotations

import pytest

pytest.importorskip("numba")

from numba import njit

from spikeslab.kernels import compiling


def test_a_function_is_compiled_where_numba_may_write_to_no_folder(monkeypatch) -> None:
    def refuse(function, cache=False, **options):
        if cache:
            raise RuntimeError("cannot cache function 'double': no locator available")
        return njit(function, **options)

    monkeypatch.setattr(compiling, "njit", refuse)
    double = compiling.compile_cached(error_model="numpy")(lambda x: 2 * x)
    assert double(3) == 6
    assert double.nopython_signatures
