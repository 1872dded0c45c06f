"""Zeros shared out among layers: exact totals, the rule by hand, floors."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import spikeslab as ss
from spikeslab.errors import ArgumentValueError
from spikeslab.functional.thresholds import apportion
from spikeslab.pruning import allocation

shapes = st.lists(
    st.one_of(
        st.tuples(st.integers(1, 20), st.integers(1, 20)),
        st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(1, 3), st.integers(1, 3)),
    ),
    min_size=1,
    max_size=6,
)


@given(shapes=shapes, floor=st.one_of(st.integers(1, 30), st.floats(0.01, 0.9)), share=st.floats(0, 1))
def test_totals_are_exact_and_floors_hold(shapes, floor, share) -> None:
    sizes = [math.prod(shape) for shape in shapes]
    keep = allocation.floors(sizes, floor)
    zeros = int(share * (sum(sizes) - sum(keep)))
    for counts in (allocation.per_layer(zeros, sizes, keep), allocation.erk(zeros, shapes, keep)):
        assert sum(counts) == zeros
        assert all(0 <= count <= size - k for count, size, k in zip(counts, sizes, keep, strict=True))


@given(sizes=st.lists(st.integers(1, 300), min_size=1, max_size=8), data=st.data())
def test_per_layer_without_floors_that_bind_is_proportional(sizes, data) -> None:
    zeros = data.draw(st.integers(0, sum(sizes) - len(sizes)))
    shares = [zeros * size / sum(sizes) for size in sizes]
    if all(share <= size - 1 for share, size in zip(shares, sizes, strict=True)):
        assert allocation.per_layer(zeros, sizes, [1] * len(sizes)) == apportion(zeros, sizes)


@given(shapes=shapes, floor=st.integers(1, 10))
def test_no_layer_gives_a_zero_back_as_the_sparsity_grows(shapes, floor) -> None:
    sizes = [math.prod(shape) for shape in shapes]
    keep = allocation.floors(sizes, floor)
    before, old = [0] * len(sizes), [0] * len(sizes)
    for zeros in range(0, sum(sizes) - sum(keep) + 1, 7):
        free = allocation.erk(zeros, shapes, keep)
        assert all(new >= last - 1 for new, last in zip(free, old, strict=True))  # but for the rounding
        counts = allocation.erk(zeros, shapes, keep, before)
        assert sum(counts) == zeros
        assert all(new >= last for new, last in zip(counts, before, strict=True))
        before, old = counts, free


def test_the_erk_rule_by_hand() -> None:
    """Densities in the ratio of sum to product of the dimensions, as the paper's formula has it."""
    shapes = [(16, 8, 3, 3), (32, 16, 3, 3), (10, 40)]
    sizes = [1152, 4608, 400]
    zeros = round(0.9 * sum(sizes))  # 5544 of 6160, 616 kept
    raw = [(16 + 8 + 3 + 3) / 1152, (32 + 16 + 3 + 3) / 4608, 50 / 400]
    epsilon = 616 / (30 + 54 + 50)
    assert max(epsilon * r for r in raw) < 1
    expected = [size - epsilon * r * size for size, r in zip(sizes, raw, strict=True)]
    counts = allocation.erk(zeros, shapes, keep=[1, 1, 1])
    assert sum(counts) == zeros
    assert counts == pytest.approx(expected, abs=1)


def test_a_layer_that_erk_would_overfill_is_dense_and_the_others_share_the_rest() -> None:
    shapes, sizes = [(4, 4), (30, 30), (60, 60)], [16, 900, 3600]
    zeros = 3400  # 1116 kept: epsilon = 1100 / 180 after the first is full
    counts = allocation.erk(zeros, shapes, keep=[1, 1, 1])
    epsilon = (sum(sizes) - zeros - 16) / (60 + 120)
    assert epsilon * 8 / 16 > 1
    assert counts[0] == 0
    assert counts[1:] == pytest.approx([900 - epsilon * 60, 3600 - epsilon * 120], abs=1)


def test_a_layer_at_its_floor_makes_the_others_pay() -> None:
    assert allocation.per_layer(900, [1000, 100], keep=[1, 60]) == [860, 40]
    assert allocation.per_layer(500, [1000, 100], keep=[1, 50]) == [455, 45]


def test_floors_are_a_number_or_a_share() -> None:
    assert allocation.floors([70, 30, 3], 0.1) == [7, 3, 1]
    assert allocation.floors([70, 30, 3], 5) == [5, 5, 3]
    for floor in (0, 1.5):
        with pytest.raises(ValueError, match=rf"^floor must be an integer >= 1 or .* in \(0, 1\), but got {floor}\.$"):
            allocation.floors([70], floor)


class TestInThePruner:
    def network(self) -> nn.Module:
        return nn.Sequential(nn.Conv2d(4, 8, 3), nn.Conv2d(8, 16, 3), nn.Linear(20, 10))

    @pytest.mark.parametrize("scope", ["layer", "global", "erk"])
    @pytest.mark.parametrize("mode", ["projected", "masked"])
    def test_every_scope_ends_on_the_networks_target_and_keeps_the_floors(self, scope: str, mode: str) -> None:
        torch.manual_seed(0)
        model = self.network()
        with torch.no_grad():
            model[1].weight.mul_(1e-3)  # a ranking of all weights together would take nearly all of it
        total = sum(parameter.numel() for parameter in model.parameters())
        weights = ss.select_weights(model, "*.weight")
        schedule = ss.cubic_sparsity(0.8, total=10)
        pruner = ss.Pruner(weights, schedule, scope=scope, floor=0.1, mode=mode, network=model)
        for step in range(1, 12):
            pruner.step()
            assert pruner.sparsity().network_zeros == round(schedule(step) * total)
        kept = [int(weight.count_nonzero()) for weight in weights.values()]
        assert all(k >= math.ceil(0.1 * w.numel()) for k, w in zip(kept, weights.values(), strict=True))
        if scope == "global":
            assert kept[1] == math.ceil(0.1 * 1152)

    def test_erk_is_the_rule(self) -> None:
        model = self.network()
        weights = ss.select_weights(model, "*.weight")
        ss.Pruner(weights, 0.9, scope="erk").step()
        found = [int((weight == 0).sum()) for weight in weights.values()]
        assert found == allocation.erk(sum(found), [tuple(w.shape) for w in weights.values()], [1, 1, 1])
        assert sum(found) == round(0.9 * (288 + 1152 + 200))

    def test_a_sparsity_that_the_floors_cannot_reach_is_refused_at_once(self) -> None:
        weights = ss.select_weights(self.network(), "*.weight")
        with pytest.raises(ArgumentValueError) as error:
            ss.Pruner(weights, ss.cubic_sparsity(0.95, total=10), floor=0.1)
        assert str(error.value) == (
            "sparsity must be at most 0.89939, since 3 layers must keep 165 weights in all, but got 0.95, which is "
            "1558 zeros of 1640."
        )
