"""The kernels against plain numpy in float64 and their order of summation."""

from __future__ import annotations

import math

import numpy as np
import pytest

pytest.importorskip("numba")

from spikeslab.kernels import _threads as parallel
from spikeslab.kernels import fused
from spikeslab.kernels.philox import BLOCK_BYTES, count_blocks
from spikeslab.kernels.philox_numba import fill_normal

DTYPES = [np.float32, np.float64]
SIZES = [1, 7, 511, 512, 513, 1024, 1025, 5000]
LR, MOMENTUM, STD, OMEGA = 0.1, 0.9, 0.3, 0.2
ELASTIC_NET = (0.3, -0.2, 0.1, 0.05)
LOG_ODDS = (8.0, -0.5, -2.0)


class Tensors:
    """Some weights with everything that may belong to them."""

    def __init__(self, dtype: type, size: int, *, buffer: bool, latents: bool, std: float = STD, omega: float = OMEGA):
        rng = np.random.default_rng(size)
        self.dtype, self.size = dtype, size
        self.w, self.g, self.buffer, self.rho, self.rho_bar = (
            np.ascontiguousarray(x, dtype=dtype)
            for x in (*rng.normal(size=(3, size)), rng.random(size), rng.random(size))
        )
        self.w[::5] = 0.0
        blocks = math.ceil(self.w.nbytes / BLOCK_BYTES)
        addresses = [x.ctypes.data for x in (self.w, self.g, self.buffer, self.rho, self.rho_bar)]
        if not buffer:
            addresses[2] = 0
        if not latents:
            addresses[3] = 0
        self.table = np.array([[*addresses, size, 3, 0, 0]], dtype=np.int64)
        self.factors = np.array([[LR, MOMENTUM, std, *ELASTIC_NET, *LOG_ODDS, omega]])
        self.sums = np.zeros((blocks, 5))

    def update(self, threads: int = 1) -> bool:
        """Whether the new weights are finite."""
        arguments = np.empty(0, self.dtype), self.table, self.factors, self.sums, np.uint64(5), np.uint64(6)
        return all(parallel.run(lambda first, last: fused.update(*arguments, first, last), len(self.sums), threads))

    def finite(self) -> dict[str, bool]:
        like, blocks = np.empty(0, self.dtype), len(self.sums)
        return {name: fused.are_finite(like, self.table, column, 0, blocks) for column, name in enumerate("wg")}


def reference(t: Tensors, *, buffer: bool, std: float = STD, omega: float = OMEGA) -> dict[str, np.ndarray]:
    noise = np.empty(t.size, t.dtype)
    fill_normal(noise, 5, 6, 3)
    w, g, b, rho, bar = (x.astype(np.float64) for x in (t.w, t.g, t.buffer, t.rho, t.rho_bar))
    l1, l1_slope, l2, l2_slope = ELASTIC_NET
    g = g + (l1 + l1_slope * bar) * np.sign(w) + (l2 + l2_slope * bar) * w
    if buffer:
        b = MOMENTUM * b + g - std * noise
        w = w - LR * b
    else:
        w = w - LR * g + std * noise
    linear, quadratic, offset = LOG_ODDS
    magnitude = np.abs(w)
    new = 1 / (1 + np.exp(-(magnitude * (linear + quadratic * magnitude) + offset)))
    rho = rho + omega * (new - rho)
    bar = bar + omega * (rho - bar)
    sums = np.array([magnitude.sum(), (w**2).sum(), (bar * magnitude).sum(), (bar * w**2).sum(), rho.sum()])
    return {"w": w, "buffer": b, "rho": rho, "rho_bar": bar, "sums": sums}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("buffer", "omega", "std"), [(True, 0.2, STD), (False, 0.2, STD), (True, 1.0, 0.0)])
def test_an_update_with_latents_is_that_of_the_equations(dtype, size, buffer, omega, std) -> None:
    tensors = Tensors(dtype, size, buffer=buffer, latents=True, omega=omega, std=std)
    expected = reference(tensors, buffer=buffer, omega=omega, std=std)
    tensors.update()
    tolerance = 30 * np.finfo(dtype).eps
    for name in ("w", "buffer", "rho", "rho_bar"):
        np.testing.assert_allclose(getattr(tensors, name), expected[name], rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(tensors.sums.sum(0), expected["sums"], rtol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
def test_without_latents_they_stay_and_no_sums_are_written(dtype) -> None:
    tensors = Tensors(dtype, 3000, buffer=True, latents=False)
    expected = reference(tensors, buffer=True)
    before = tensors.rho.copy(), tensors.rho_bar.copy()
    tensors.update()
    np.testing.assert_allclose(tensors.w, expected["w"], rtol=1e-4, atol=1e-5)
    assert np.array_equal(tensors.rho, before[0])
    assert np.array_equal(tensors.rho_bar, before[1])
    assert not tensors.sums.any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_sum_of_rho_alone_is_that_among_all_and_changes_nothing_else(dtype) -> None:
    every, alone = (Tensors(dtype, 5000, buffer=True, latents=True) for _ in range(2))
    alone.sums = np.zeros((len(every.sums), 1))
    every.update()
    alone.update()
    assert every.sums[:, 4].all()
    assert np.array_equal(alone.sums[:, 0], every.sums[:, 4])
    for name in ("w", "buffer", "rho", "rho_bar"):
        assert np.array_equal(getattr(every, name), getattr(alone, name))


@pytest.mark.parametrize("dtype", DTYPES)
def test_threads_do_not_change_a_bit(dtype) -> None:
    one, many = (Tensors(dtype, 300_001, buffer=True, latents=True) for _ in range(2))
    one.update(threads=1)
    many.update(threads=4)
    for name in ("w", "buffer", "rho", "rho_bar", "sums"):
        assert np.array_equal(getattr(one, name), getattr(many, name))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("position", [0, 1023, 1024, 2999])
@pytest.mark.parametrize("name", ["w", "g"])
def test_what_is_not_finite_is_found(dtype, value, position, name) -> None:
    tensors = Tensors(dtype, 3000, buffer=True, latents=True)
    tensors.w[5], tensors.g[6], tensors.g[7] = np.finfo(dtype).max, -np.finfo(dtype).max, np.finfo(dtype).tiny / 4
    assert tensors.finite() == {"w": True, "g": True}
    getattr(tensors, name)[position] = value
    assert tensors.finite() == {"w": name != "w", "g": name != "g"}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("latents", [True, False])
@pytest.mark.parametrize("buffer", [True, False])
@pytest.mark.parametrize("position", [0, 1023, 1024, 99_999])
def test_an_update_says_whether_its_weights_are_finite(dtype, latents, buffer, position) -> None:
    tensors = Tensors(dtype, 100_000, buffer=buffer, latents=latents)
    assert tensors.update(threads=2)
    tensors.g[position] = np.finfo(dtype).max
    tensors.factors[0, 0] = 100.0  # the lr: the step is finite, what it leads to is not
    assert tensors.finite() == {"w": True, "g": True}
    assert not tensors.update(threads=2)
    assert np.isinf(tensors.w[position])


@pytest.mark.parametrize("dtype", DTYPES)
def test_responsibilities_saturate_and_are_never_nan(dtype) -> None:
    tensors = Tensors(dtype, 1024, buffer=False, latents=True, std=0.0, omega=1.0)
    tensors.w[:] = np.geomspace(1e-8, 1e6, 1024)
    tensors.g[:] = 0.0
    tensors.factors[0, 3:7] = 0.0
    for odds, end in (((1 / 0.005, -0.5 / 1e-5, 0.0), 0.0), ((200.0, 0.0, -3.0), 1.0)):
        tensors.factors[0, 7:10] = odds
        tensors.update()
        assert np.isfinite(tensors.rho).all()
        assert ((tensors.rho >= 0) & (tensors.rho <= 1)).all()
        assert abs(tensors.rho[-1] - end) < 1e-30
        assert np.array_equal(tensors.rho, tensors.rho_bar)  # omega = 1


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cut", [1, 511, 512, 1023, 1024, 1500, 2900])
def test_parts_of_a_tensor_move_as_the_whole(dtype, cut):
    """A shard begins anywhere in a block; the blocks of its noise are those of the whole tensor."""
    whole, parts = (Tensors(dtype, 3001, buffer=True, latents=True) for _ in range(2))
    whole.update()
    size, width = BLOCK_BYTES // np.dtype(dtype).itemsize, np.dtype(dtype).itemsize
    sums = np.zeros(5)
    for first, last in ((0, cut), (cut, 3001)):
        row = parts.table.copy()
        row[0, :5] += first * width
        row[0, 5], row[0, 8] = last - first, first
        blocks = count_blocks(first, last - first, width)
        own = np.zeros((blocks, 5))
        arguments = np.empty(0, dtype), row, parts.factors, own, np.uint64(5), np.uint64(6)
        assert all(fused.update(*arguments, k, k + 1) for k in range(blocks))
        assert fused.are_finite(np.empty(0, dtype), row, 0, 0, blocks)
        parts.w[last - 1], kept = np.nan, parts.w[last - 1]
        assert not fused.are_finite(np.empty(0, dtype), row, 0, blocks - 1, blocks)
        parts.w[last - 1] = kept
        assert blocks == (last - 1) // size - first // size + 1
        sums += own.sum(axis=0)
    for name in ("w", "buffer", "rho", "rho_bar"):
        assert np.array_equal(getattr(parts, name), getattr(whole, name)), name
    np.testing.assert_allclose(sums, whole.sums.sum(axis=0), rtol=1e-5)
