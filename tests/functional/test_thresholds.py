"""Exact counts, ties included."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from spikeslab.errors import ArgumentValueError
from spikeslab.functional.thresholds import apportion, smallest, smallest_overall

# Few different values, so that most examples have ties at the threshold.
values = st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0]), min_size=1, max_size=40)


@given(values=values, data=st.data())
def test_smallest_marks_exactly_count_entries_and_none_larger_than_one_it_spares(values, data) -> None:
    scores = torch.tensor(values)
    count = data.draw(st.integers(0, len(values)))
    mask = smallest(scores, count)
    assert int(mask.sum()) == count
    if 0 < count < len(values):
        assert scores[mask].max() <= scores[~mask].min()


@given(layers=st.lists(values, min_size=1, max_size=5), data=st.data())
def test_overall_ranking_is_exact_and_never_takes_a_whole_layer(layers, data) -> None:
    scores = [torch.tensor(layer) for layer in layers]
    room = sum(len(layer) - 1 for layer in layers)
    count = data.draw(st.integers(0, room))
    before = [score.clone() for score in scores]
    masks = smallest_overall(scores, count)
    assert sum(int(mask.sum()) for mask in masks) == count
    assert all(not mask.all() for mask in masks)
    # Each layer spares a largest entry; of all others, none that goes is larger than one that stays.
    for mask, score in zip(masks, scores, strict=True):
        assert score[~mask].max() == score.max()
    gone = torch.cat([score[mask] for score, mask in zip(scores, masks, strict=True)])
    stays = [sorted(score[~mask].tolist())[:-1] for score, mask in zip(scores, masks, strict=True)]
    if len(gone) and any(stays):
        assert float(gone.max()) <= min(value for layer in stays for value in layer)
    assert all(torch.equal(score, old) for score, old in zip(scores, before, strict=True))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_masks_have_the_shape_of_the_scores_in_any_dtype_and_layout(dtype) -> None:
    scores = torch.randn(4, 3, 2, 2).abs().to(dtype).to(memory_format=torch.channels_last)
    for mask in (smallest(scores, 10), smallest_overall([scores], 10)[0]):
        assert mask.shape == scores.shape
        assert int(mask.sum()) == 10
        assert scores[mask].max() <= scores[~mask].min()


@given(sizes=st.lists(st.integers(1, 300), min_size=1, max_size=8), data=st.data())
def test_apportion_is_exact_proportional_and_keeps_a_weight_in_every_layer(sizes, data) -> None:
    total = data.draw(st.integers(0, sum(sizes) - len(sizes)))
    counts = apportion(total, sizes)
    assert sum(counts) == total
    assert all(0 <= count <= size - 1 for count, size in zip(counts, sizes, strict=True))
    shares = [total * size / sum(sizes) for size in sizes]
    if all(share <= size - 1 for share, size in zip(shares, sizes, strict=True)):
        assert all(abs(count - share) < 1 for count, share in zip(counts, shares, strict=True))


@given(sizes=st.lists(st.integers(1, 40), min_size=1, max_size=6))
def test_apportion_takes_back_no_zero_that_a_layer_must_keep(sizes) -> None:
    kept = [0] * len(sizes)
    for total in range(sum(sizes) - len(sizes) + 1):
        counts = apportion(total, sizes, kept)
        assert sum(counts) == total
        assert all(old <= new <= size - 1 for old, new, size in zip(kept, counts, sizes, strict=True))
        kept = counts


def test_apportion_alone_suffers_the_alabama_paradox() -> None:
    """Why ``at_least`` exists: one zero more in all, one zero less in the fourth layer."""
    sizes = [49, 57, 27, 3, 17]
    assert apportion(19, sizes) == [6, 7, 3, 1, 2]
    assert apportion(20, sizes) == [6, 8, 4, 0, 2]
    assert apportion(20, sizes, [6, 7, 3, 1, 2])[3] == 1


def test_too_many_zeros_are_refused() -> None:
    message = "zeros must be at most 3 of 6 weights, since 3 layers keep 3 weights, but got 4."
    with pytest.raises(ArgumentValueError) as error:
        apportion(4, [4, 1, 1])
    assert str(error.value) == message
