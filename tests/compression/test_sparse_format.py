"""Streams come back to the bit, and are as short as they should be."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from spikeslab.compression.sparse_format import (
    LONG,
    expand,
    from_rows,
    join_planes,
    pack_masks,
    split_planes,
    squeeze,
    to_rows,
    unpack_masks,
)


@given(st.binary(max_size=300), st.integers(0, 400))
def test_squeezed_bytes_expand_again(noise: bytes, zeros: int) -> None:
    data = noise + bytes(zeros)
    assert len(squeeze(data)) <= len(data)
    assert expand(squeeze(data), len(data)) == data


@pytest.mark.parametrize("size", [999, 1001])
def test_a_stream_of_another_length_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match=f"a stream must hold {size} bytes"):
        expand(squeeze(bytes(1000)), size)


@given(st.lists(st.lists(st.booleans(), max_size=20), max_size=5))
def test_masks_come_back(parts: list[list[bool]]) -> None:
    masks = [np.array(part, dtype=bool) for part in parts]
    expected = [bit for part in parts for bit in part]
    assert unpack_masks(pack_masks(masks), len(expected)).tolist() == expected


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64]
)
@pytest.mark.parametrize("shape", [[], [0], [3], [2, 3, 4]])
def test_planes_come_back(dtype: torch.dtype, shape: list[int]) -> None:
    tensor = torch.randn(shape).mul(3).to(dtype)
    rows = to_rows(tensor)
    again = from_rows(join_planes(split_planes(rows), len(rows)), dtype, shape)
    assert again.dtype == dtype
    assert torch.equal(again, tensor)


def test_a_random_mask_is_close_to_its_entropy() -> None:
    density, size = 1 / 12, 200_000
    mask = np.random.default_rng(0).random(size) < density
    entropy = -density * math.log2(density) - (1 - density) * math.log2(1 - density)
    assert len(pack_masks([mask])) < 1.06 * entropy * size / 8


def test_exponents_shrink_by_half_and_mantissas_stay_as_they_are() -> None:
    lengths = [len(plane) for plane in split_planes(to_rows(torch.randn(20_000)))]
    assert lengths[0] == lengths[1] == 20_000
    assert lengths[3] < 10_000


def test_a_long_stream_is_packed_only_where_a_sample_shrinks() -> None:
    noise = np.random.default_rng(0).bytes(LONG + 1)
    assert squeeze(noise) is noise
    half = noise[: LONG // 2] + bytes(LONG)
    assert len(squeeze(half)) < 0.4 * len(half)
    assert expand(squeeze(half), len(half)) == half
