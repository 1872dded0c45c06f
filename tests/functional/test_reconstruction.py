"""Sparse regression of a layer on itself: identities of the sweeps, exact changes, and supports."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from spikeslab.functional.patterns import Pattern, keep_largest
from spikeslab.functional.reconstruction import (
    Tableau,
    damp,
    exchange,
    find_support,
    inclusion_probabilities,
    reconstruction_error,
    refit,
)

INPUTS = 8


@pytest.fixture
def gram() -> Tensor:
    torch.manual_seed(0)
    x = torch.randn(50, INPUTS, dtype=torch.float64) @ torch.randn(INPUTS, INPUTS, dtype=torch.float64)
    return x.T @ x


@pytest.fixture
def target() -> Tensor:
    return torch.randn(INPUTS, dtype=torch.float64, generator=torch.manual_seed(1))


def error(target: Tensor, gram: Tensor, support: Tensor) -> float:
    """Return E of the best weights on a support, by least squares."""
    change = refit(target.unsqueeze(0), gram, support.unsqueeze(0))[0] - target
    return float(change @ gram @ change)


def mask(*inputs: int) -> Tensor:
    return torch.zeros(INPUTS, dtype=torch.bool).index_fill(0, torch.tensor(inputs), True)


def test_refit_minimises_the_error(gram, target):
    support = mask(0, 2, 5)
    weights = refit(target.unsqueeze(0), gram, support.unsqueeze(0))[0]
    assert weights[~support].eq(0.0).all()
    torch.testing.assert_close(
        (gram @ (weights - target))[support], torch.zeros(3, dtype=torch.float64), atol=1e-8, rtol=0
    )


def test_sweeps_give_the_regression_on_the_new_support(gram, target):
    tableau, support = Tableau(target, gram, mask(0, 2, 5)), mask(0, 2, 5)
    for pivot in (1, 2, 7, 0, 2, 1):
        tableau.sweep(pivot)
        support[pivot] = not support[pivot]
        assert tableau.support.equal(support)
        expected = refit(target.unsqueeze(0), gram, support.unsqueeze(0))[0]
        torch.testing.assert_close(tableau.weights, expected)


def test_costs_and_gains_are_the_changes_of_the_error(gram, target):
    support = mask(1, 3, 4, 6)
    before, changes = error(target, gram, support), Tableau(target, gram, support).changes
    for index in range(INPUTS):
        other = support.clone()
        other[index] = not other[index]
        change = error(target, gram, other) - before
        assert float(changes[index]) == pytest.approx(change if support[index] else -change, rel=1e-8)


@pytest.mark.parametrize("group", [None, 4])
def test_an_exchange_is_the_best_of_all_pairs(gram, target, group):
    support = mask(0, 1, 6, 7)
    pairs = [
        (leave, enter)
        for leave, enter in itertools.product(support.nonzero()[:, 0].tolist(), (~support).nonzero()[:, 0].tolist())
        if group is None or leave // group == enter // group
    ]

    def swap(pair: tuple[int, int]) -> Tensor:
        other = support.clone()
        other[pair[0]], other[pair[1]] = False, True
        return other

    best = min(pairs, key=lambda pair: error(target, gram, swap(pair)))
    assert error(target, gram, swap(best)) < error(target, gram, support)
    assert Tableau(target, gram, support).find_exchange(group) == best


@pytest.mark.parametrize("pattern", [Pattern(12), Pattern(2, group=4)])
def test_exchanges_end_where_no_pair_helps(gram, pattern):
    dense = torch.randn(4, INPUTS, dtype=torch.float64, generator=torch.manual_seed(2))
    start = keep_largest(dense, pattern)
    found = exchange(dense, gram, start, pattern)
    assert int(found.sum()) == int(start.sum())
    if pattern.group is not None:
        assert found.view(-1, pattern.group).sum(1).eq(pattern.keep).all()
    for row in range(4):
        assert error(dense[row], gram, found[row]) <= error(dense[row], gram, start[row])
        if 0 < int(found[row].sum()) < INPUTS:
            assert Tableau(dense[row], gram, found[row]).find_exchange(pattern.group) is None


def test_inputs_that_do_not_overlap_keep_the_weights_of_largest_effect():
    dense = torch.randn(6, INPUTS, generator=torch.manual_seed(3))
    gram = torch.diag(torch.arange(1.0, INPUTS + 1.0))
    assert find_support(dense, gram, Pattern(20)).equal(keep_largest(dense * gram.diagonal().sqrt(), Pattern(20)))


def test_inputs_that_are_copies_of_others_go_first(gram):
    """The weights of two pairs of equal inputs are joined; by magnitude both of a pair stay, and the fifth goes."""
    copies = torch.eye(INPUTS, dtype=torch.float64)[[0, 1, 2, 3, 4, 5, 0, 1]]
    joint = copies @ gram @ copies.T
    dense = torch.tensor([[0.5, 0.5, 0.3, 0.0, 0.0, 0.0, 0.5, 0.5]], dtype=torch.float64)
    damped, pattern = damp(joint, 1e-9), Pattern(3)
    support = exchange(dense, damped, find_support(dense, damped, pattern), pattern)
    assert reconstruction_error(refit(dense, damped, support), dense, joint) < 1e-6
    assert reconstruction_error(refit(dense, damped, keep_largest(dense, pattern)), dense, joint) > 1e-3


def test_an_input_that_is_always_zero_does_not_hinder():
    x = torch.randn(50, 4, generator=torch.manual_seed(4))
    x[:, 2] = 0.0
    dense = torch.randn(3, 4)
    weights = refit(dense, damp(x.T @ x), torch.ones(3, 4, dtype=torch.bool))
    torch.testing.assert_close(weights, dense)


def test_inclusion_probabilities_are_those_of_the_model_given_all_others(gram, target):
    """The odds are those of two supports under exp(-E/price - size), with the price as the last change that counts."""
    dense = torch.stack([target, target.flip(0)])
    support = torch.stack([mask(1, 3, 4), mask(0, 7)])
    changes = torch.stack([Tableau(dense[row], gram, support[row]).changes for row in range(2)])
    price = float(changes.flatten().sort(descending=True).values[4])
    found = inclusion_probabilities(dense, gram, support)
    assert int(found.ge(0.5).sum()) == 5
    for row, index in itertools.product(range(2), range(INPUTS)):
        kept, left = support[row].clone(), support[row].clone()
        kept[index], left[index] = True, False
        odds = [-error(dense[row], gram, each) / price - int(each.sum()) for each in (kept, left)]
        assert float(found[row, index].logit()) == pytest.approx(odds[0] - odds[1], abs=1e-6)


def test_inclusion_probabilities_of_the_diagonal_take_inputs_one_by_one(gram, target):
    diagonal, support = gram.diagonal(), mask(1, 3, 4).unsqueeze(0)
    expected = inclusion_probabilities(target.unsqueeze(0), torch.diag(diagonal), support)
    torch.testing.assert_close(inclusion_probabilities(target.unsqueeze(0), diagonal, support), expected)


def test_inclusion_probabilities_of_rows_without_or_with_all_weights(gram, target):
    dense, support = target.repeat(2, 1), torch.tensor([[False], [True]]).expand(2, INPUTS)
    assert inclusion_probabilities(dense, gram, support).isfinite().all()
    assert inclusion_probabilities(dense, gram, torch.zeros_like(support)).isfinite().all()
