"""One noise: the NumPy definition, compiled loops and torch draw the same words and the same normals."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from spikeslab.kernels import philox, philox_torch
from spikeslab.kernels.philox_torch import Range, draw_blocks, draw_ranges, normals_at

CPU = torch.device("cpu")
DTYPES = {np.float32: torch.float32, np.float64: torch.float64}
SEED, STEP, STREAM = 2**63 + 12345, 2**32 - 2, 77
OFFSETS = (0, 1, 777, 1024, 2**33 - 700, 2**40 + 12345)
every_dtype = pytest.mark.parametrize("dtype", DTYPES)


def units(a: np.ndarray, b: np.ndarray) -> int:
    """Largest difference in units in the last place."""
    kind = np.int32 if a.dtype == np.float32 else np.int64
    assert a.dtype == b.dtype
    return int(np.abs(a.view(kind).astype(object) - b.view(kind).astype(object)).max())


def by_torch(dtype: type, offset: int, size: int) -> np.ndarray:
    (drawn,) = draw_ranges([Range(STREAM, offset, size)], SEED, STEP, DTYPES[dtype], CPU, draw_blocks)
    return drawn.numpy()


def by_numpy(dtype: type, offset: int, size: int) -> np.ndarray:
    return philox.normals(np.arange(offset, offset + size), SEED, STEP, STREAM, dtype)


def by_numba(dtype: type, offset: int, size: int) -> np.ndarray:
    kernels = pytest.importorskip("spikeslab.kernels.philox_numba")
    out = np.empty(size, dtype)
    kernels.fill_normal(out, SEED, STEP, STREAM, offset)
    return out


@every_dtype
@pytest.mark.parametrize("offset", OFFSETS)
def test_words_of_torch_and_numpy_are_equal(dtype, offset) -> None:
    counters = np.arange(offset, offset + 5000)
    expected = philox.words(counters.astype(np.uint64), SEED, STEP, STREAM, dtype)
    got = philox_torch.words(torch.from_numpy(counters), SEED & philox.MASK32, SEED >> 32, STEP, STREAM, DTYPES[dtype])
    for own, other in zip(got, expected, strict=True):
        assert np.array_equal(own.numpy(), other.astype(np.int64))


def test_words_of_numba_and_numpy_are_equal() -> None:
    kernels = pytest.importorskip("spikeslab.kernels.philox_numba")
    out = np.zeros(512, np.uint64)
    first = 2**32 - 256
    kernels._philox_words(out, *(np.uint64(v) for v in (first, 0, STEP, STREAM, SEED & philox.MASK32, SEED >> 32)))
    counters = np.arange(first, first + 256).astype(np.uint64)
    w0, w1, w2, w3 = philox.words(counters, SEED, STEP, STREAM, np.float32)
    assert np.array_equal(out, np.concatenate([w0 << np.uint64(32) | w1, w2 << np.uint64(32) | w3]))


@every_dtype
@pytest.mark.parametrize("offset", OFFSETS)
@pytest.mark.parametrize("draw", [by_torch, by_numba])
def test_normals_agree_to_two_units_in_the_last_place(dtype, offset, draw) -> None:
    assert units(draw(dtype, offset, 100_000), by_numpy(dtype, offset, 100_000)) <= (0 if dtype == np.float32 else 2)


@every_dtype
def test_many_normals_of_torch_and_numba_agree(dtype) -> None:
    size = 1 << 20
    assert units(by_torch(dtype, 5, size), by_numba(dtype, 5, size)) <= (0 if dtype == np.float32 else 2)


@every_dtype
def test_any_elements_are_those_of_the_range(dtype) -> None:
    index = torch.randint(0, 5000, (3000,), generator=torch.Generator().manual_seed(0))
    got = normals_at(index + 2**35, SEED, STEP, STREAM, DTYPES[dtype])
    assert np.array_equal(got.numpy(), by_torch(dtype, 2**35, 5000)[index.numpy()])


@every_dtype
def test_ranges_that_are_drawn_together_are_those_drawn_alone(dtype) -> None:
    ranges = [Range(STREAM, 0, 3), Range(4, 9, 0), Range(STREAM, 1000, 70_000), Range(0, 2**34 + 5, 1030)]
    together = draw_ranges(ranges, SEED, STEP, DTYPES[dtype], CPU, draw_blocks)
    for one, drawn in zip(ranges, together, strict=True):
        (alone,) = draw_ranges([one], SEED, STEP, DTYPES[dtype], CPU, draw_blocks)
        assert len(drawn) == one.size
        assert torch.equal(drawn, alone)


@every_dtype
@pytest.mark.parametrize("offset", [1, 500, 1023, 1024, 1025, 3000])
def test_a_part_is_cut_out_of_the_whole(dtype, offset) -> None:
    for draw in (by_torch, by_numba):
        assert np.array_equal(draw(dtype, offset, 5000), draw(dtype, 0, offset + 5000)[offset:])


@pytest.mark.slow
@every_dtype
def test_a_compiler_changes_no_more_than_the_last_units(dtype) -> None:
    size = 1 << 16
    (drawn,) = draw_ranges(
        [Range(STREAM, 0, size)], SEED, STEP, DTYPES[dtype], CPU, torch.compile(draw_blocks, fullgraph=True)
    )
    assert units(drawn.numpy(), by_torch(dtype, 0, size)) <= (0 if dtype == np.float32 else 2)
