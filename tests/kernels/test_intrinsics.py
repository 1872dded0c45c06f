"""Powers of two for the kernels, against those of a longer float."""

from __future__ import annotations

import numpy as np
import pytest

numba = pytest.importorskip("numba")

from spikeslab.kernels._intrinsics import LARGEST_F32, LARGEST_F64, exp2  # noqa: E402


@numba.njit
def apply(x, out):
    for i in range(x.size):
        out[i] = exp2(x[i])


@pytest.mark.parametrize(("dtype", "largest"), [(np.float32, LARGEST_F32), (np.float64, LARGEST_F64)])
def test_powers_of_two_are_accurate_to_two_units_in_the_last_place(dtype, largest) -> None:
    x = np.concatenate([np.linspace(-largest, largest, 200_001), np.linspace(-2, 2, 100_001)]).astype(dtype)
    out = np.empty_like(x)
    apply(x, out)
    exact = np.exp2(x.astype(np.longdouble))
    assert float(np.max(np.abs(out - exact) / np.spacing(exact.astype(dtype)))) <= 2
    assert out[200_001 + 50_000] == 1.0
    assert np.array_equal([exp2(value) for value in x[::10_000]], out[::10_000])
