"""What all pruners have in common: modes, the count of steps, states, copies."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn
from weights import distinct, zeros

import spikeslab as ss
from spikeslab.errors import ArgumentValueError


def test_projected_weights_may_return_and_masked_ones_may_not() -> None:
    for mode, returned in (("projected", True), ("masked", False)):
        weight = nn.Parameter(torch.tensor([0.1, 1.0, 2.0, 3.0]))
        pruner = ss.Pruner([weight], 0.25, mode=mode)
        pruner.step()
        assert weight.tolist() == [0.0, 1.0, 2.0, 3.0]
        with torch.no_grad():
            weight[0] = 10.0
        pruner.step()
        assert weight.tolist() == ([10.0, 0.0, 2.0, 3.0] if returned else [0.0, 1.0, 2.0, 3.0])


def test_a_masked_pruner_keeps_its_zeros_when_the_schedule_goes_back() -> None:
    (weight,) = distinct((10,))
    pruner = ss.Pruner([weight], lambda k: 0.5 if k == 1 else 0.2, mode="masked")
    pruner.step()
    pruner.step()
    assert zeros(weight) == 5


def test_freezing_keeps_the_present_zeros() -> None:
    (weight,) = distinct((10,))
    pruner = ss.Pruner([weight], 0.5)
    pruner.step()
    frozen = weight == 0
    pruner.freeze()
    with torch.no_grad():
        weight.add_(100.0)
    pruner.step()
    assert torch.equal(weight == 0, frozen)


def test_it_counts_the_samplers_steps_where_it_knows_it() -> None:
    (weight,) = distinct((100,))
    sampler = ss.SGLD([weight], lr=0.0, num_data=10)
    pruner = ss.Pruner([weight], lambda k: k / 100, sampler=sampler)
    pruner.step()  # before any step of the sampler, the sparsity is that of the first
    assert zeros(weight) == 1
    for _ in range(3):
        weight.grad = torch.ones(100)  # with zeros and on an empty state it would be no step
        sampler.step()
    pruner.step()
    pruner.step()
    assert zeros(weight) == 3


@pytest.mark.parametrize("mode", ["projected", "masked"])
def test_resume_continues_exactly(mode: str) -> None:
    def run(weights: list[nn.Parameter], pruner: ss.Pruner, steps: range) -> None:
        for step in steps:
            generator = torch.Generator().manual_seed(step)
            for weight in weights:
                with torch.no_grad():
                    weight.add_(0.5 * torch.randn(weight.shape, generator=generator))
            pruner.step()

    def make() -> tuple[list[nn.Parameter], ss.Pruner]:
        torch.manual_seed(0)
        weights = [nn.Parameter(torch.randn(20)), nn.Parameter(torch.randn(5, 5))]
        return weights, ss.Pruner(weights, ss.cubic_sparsity(0.8, total=20), mode=mode)

    whole, first, second = make(), make(), make()
    run(*whole, range(20))
    run(*first, range(8))
    state = copy.deepcopy(first[1].state_dict())
    values = [weight.detach().clone() for weight in first[0]]
    run(*first, range(8, 12))
    with torch.no_grad():
        for weight, value in zip(second[0], values, strict=True):
            weight.copy_(value)
    second[1].load_state_dict(state)
    run(*second, range(8, 20))
    assert all(torch.equal(a, b) for a, b in zip(whole[0], second[0], strict=True))
    assert whole[1].steps == second[1].steps == 20


def test_a_state_of_other_weights_is_refused_and_changes_nothing() -> None:
    ours, theirs = ss.Pruner(distinct((4,)), 0.5, mode="masked"), ss.Pruner(distinct((6,)), 0.5, mode="masked")
    theirs.step()
    with pytest.raises(ArgumentValueError) as error:
        ours.load_state_dict(theirs.state_dict())
    assert str(error.value) == (
        "state_dict must be for the weights ['weights[0]'] of shapes [(4,)], but got ['weights[0]'] of shapes [(6,)]."
    )
    assert ours.steps == 0


def test_a_pruner_refuses_to_be_pickled_and_is_copied_with_the_model() -> None:
    model = nn.Linear(4, 4)
    pruner = ss.Pruner([model.weight], 0.5)
    with pytest.raises(TypeError, match=r"^Pruner cannot be pickled or copied alone: .*sampler, pruner"):
        pickle.dumps(pruner)
    twin_model, twin = copy.deepcopy((model, pruner))
    twin.step()
    assert (zeros(twin_model.weight), zeros(model.weight)) == (8, 0)
