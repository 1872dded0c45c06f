"""Exact sparsity, ties included, that never empties a layer."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import spikeslab as ss


def zeros(tensor: Tensor) -> int:
    return int((tensor == 0).sum())


def distinct(*shapes: tuple[int, ...]) -> list[nn.Parameter]:
    """Weights without zeros and without ties."""
    total = sum(torch.Size(shape).numel() for shape in shapes)
    values = (torch.randperm(total) + 1.0) * torch.where(torch.rand(total) < 0.5, -1.0, 1.0)
    parts = values.split([torch.Size(shape).numel() for shape in shapes])
    return [nn.Parameter(part.view(shape).clone()) for part, shape in zip(parts, shapes, strict=True)]


layers = st.lists(st.lists(st.sampled_from([-1.0, 0.5, 1.0, 2.0]), min_size=1, max_size=30), min_size=1, max_size=4)


@pytest.mark.parametrize("scope", ["layer", "global"])
@pytest.mark.parametrize("mode", ["projected", "masked"])
@given(layers=layers, share=st.floats(0, 0.999))
def test_it_ends_on_exactly_round_s_total_zeros_with_ties_and_never_empties_a_layer(scope, mode, layers, share) -> None:
    weights = [nn.Parameter(torch.tensor(layer)) for layer in layers]
    total, room = sum(len(layer) for layer in layers), sum(len(layer) - 1 for layer in layers)
    share = min(share, room / total)
    if round(share * total) > room:
        return
    before = [weight.detach().clone() for weight in weights]
    pruner = ss.Pruner(weights, share, scope=scope, mode=mode)
    pruner.step()
    assert sum(zeros(weight) for weight in weights) == round(share * total) == pruner.sparsity().sparse_zeros
    assert all(zeros(weight) < weight.numel() for weight in weights)
    for weight, old in zip(weights, before, strict=True):
        alive = weight != 0
        assert torch.equal(weight[alive], old[alive])  # what stays is unchanged
        if scope == "layer" and alive.any() and (~alive).any():
            assert old[~alive].abs().max() <= old[alive].abs().min()


def test_per_layer_pruning_has_the_same_rate_in_each_and_the_right_total() -> None:
    weights = distinct((10, 10), (30,), (7,))
    pruner = ss.Pruner(weights, 0.7)
    pruner.step()
    assert [zeros(weight) for weight in weights] == [70, 21, 5]
    assert pruner.sparsity().sparse_zeros == round(0.7 * 137)


def test_global_pruning_ranks_all_weights_together() -> None:
    small, large = nn.Parameter(0.01 * torch.arange(1.0, 11)), nn.Parameter(torch.arange(1.0, 11))
    ss.Pruner([small, large], 0.4, scope="global").step()
    assert (zeros(small), zeros(large)) == (8, 0)
    ss.Pruner([small, large], 0.6, scope="global").step()
    assert (zeros(small), zeros(large)) == (9, 3)  # the last small weight is spared


def test_sparsity_can_be_that_of_the_whole_network() -> None:
    model = nn.Sequential(nn.Linear(10, 10), nn.Linear(10, 5))
    with torch.no_grad():
        for param in model.parameters():
            param.copy_(param.abs() + 0.1)
    total = 110 + 55
    pruner = ss.Pruner(ss.select_weights(model, "0.weight"), 0.5, network=model)
    pruner.step()
    sparsity = pruner.sparsity()
    assert sparsity.network_zeros == zeros(model[0].weight) == round(0.5 * total)
    assert sparsity.network_total == total
    assert sparsity.network == pytest.approx(0.5, abs=1 / total)
    assert sparsity.sparse == zeros(model[0].weight) / 100
    assert sparsity.layers == {"0.weight": zeros(model[0].weight) / 100}


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


@pytest.mark.parametrize("scope", ["layer", "global"])
def test_a_masked_weight_never_returns_while_the_sparsity_grows(scope: str) -> None:
    """Hamilton's method alone would take a zero back from the fourth layer of these sizes."""
    weights = distinct((49,), (57,), (27,), (3,), (17,))
    pruner = ss.Pruner(weights, lambda k: k / 153, scope=scope, mode="masked")
    dead = [torch.zeros_like(weight, dtype=torch.bool) for weight in weights]
    for step in range(1, 148):
        pruner.step()
        assert sum(zeros(weight) for weight in weights) == step
        for weight, mask in zip(weights, dead, strict=True):
            assert not weight[mask].any()
            mask |= weight == 0
            with torch.no_grad():
                weight.add_(torch.randn_like(weight))  # the sampler moves everything, pruned or not


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


def test_it_follows_the_papers_schedule() -> None:
    weights = distinct((20, 50), (500,))
    pruner = ss.Pruner(weights, ss.exponential_sparsity(0.917, decay=0.99, every=50))
    for step in range(1, 301):
        pruner.step()
        assert pruner.sparsity().sparse_zeros == round(0.917 * (1 - 0.99 ** (step / 50)) * 1500)


def test_a_shared_parameter_is_pruned_and_counted_once() -> None:
    model = nn.Sequential(nn.Linear(10, 10, bias=False), nn.Linear(10, 10, bias=False))
    model[1].weight = model[0].weight
    pruner = ss.Pruner([model[0].weight, model[1].weight], 0.5, network=model)
    pruner.step()
    assert (pruner.sparsity().sparse_total, pruner.sparsity().network_total) == (100, 100)
    assert zeros(model[1].weight) == 50


@pytest.mark.parametrize("scope", ["layer", "global"])
def test_channels_last_weights_are_pruned_by_magnitude(scope: str) -> None:
    weight = nn.Parameter(distinct((4, 3, 5, 5))[0].detach().to(memory_format=torch.channels_last))
    ss.Pruner([weight], 0.5, scope=scope).step()
    assert zeros(weight) == 150
    assert weight.abs()[weight != 0].min() == 151


def test_it_counts_the_samplers_steps_where_it_knows_it() -> None:
    (weight,) = distinct((100,))
    sampler = ss.SGLD([weight], lr=0.0, num_data=10)
    pruner = ss.Pruner([weight], lambda k: k / 100, sampler=sampler)
    pruner.step()  # before any step of the sampler, the sparsity is that of the first
    assert zeros(weight) == 1
    for _ in range(3):
        weight.grad = torch.zeros(100)
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
    with pytest.raises(ValueError, match="state_dict") as error:
        ours.load_state_dict(theirs.state_dict())
    assert str(error.value) == (
        "state_dict must be for the weights ['weights[0]'] of shapes [(4,)], but got ['weights[0]'] of shapes [(6,)]."
    )
    assert ours.steps == 0


@pytest.mark.parametrize("sparsity", [-0.1, 1.0, 1.5, float("nan")])
def test_a_sparsity_outside_the_unit_interval_is_refused(sparsity: float) -> None:
    with pytest.raises(ValueError, match="sparsity") as error:
        ss.Pruner(distinct((4,)), sparsity)
    assert str(error.value) == f"sparsity must be a number in [0, 1), but got {sparsity}."


@pytest.mark.parametrize("sparsity", [-0.1, 1.0])
def test_a_schedule_that_leaves_the_unit_interval_stops_and_changes_no_weight(sparsity: float) -> None:
    (weight,) = distinct((4,))
    before = weight.detach().clone()
    with pytest.raises(ValueError, match=rf"^sparsity must be a number in \[0, 1\), but got {sparsity}\.$"):
        ss.Pruner([weight], lambda k: sparsity).step()
    assert torch.equal(weight, before)


@pytest.mark.parametrize("sparsity", [0.95, ss.cubic_sparsity(0.95, total=10)])
def test_a_sparsity_that_would_empty_a_layer_is_refused_at_once(sparsity) -> None:
    with pytest.raises(ValueError, match="sparsity") as error:
        ss.Pruner(distinct((10,), (2,)), sparsity)
    assert str(error.value) == (
        "sparsity must be at most 0.833333, since 2 layers must keep 2 weights in all, but got 0.95, which is 11 zeros "
        "of 12."
    )


def test_other_bad_arguments_are_refused() -> None:
    weights = distinct((4,))
    with pytest.raises(ValueError, match=r"^scope must be one of 'layer', 'global', 'erk', but got 'row'\.$"):
        ss.Pruner(weights, 0.5, scope="row")
    with pytest.raises(ValueError, match=r"^mode must be one of 'projected', 'masked', but got 'soft'\.$"):
        ss.Pruner(weights, 0.5, mode="soft")
    with pytest.raises(ValueError, match=r"^weights must be parameters of the network, but some are not\.$"):
        ss.Pruner(weights, 0.5, network=nn.Linear(2, 2))


def test_momentum_of_a_projected_weight_may_bring_it_back_in_a_real_chain() -> None:
    """Pruning inside a chain ends on its target in both modes; only the masked one has monotone zeros."""
    for mode in ("projected", "masked"):
        torch.manual_seed(0)
        weight = nn.Parameter(torch.randn(200))
        sampler = ss.SGHMC([weight], lr=0.3, num_data=10, seed=0)
        pruner = ss.Pruner([weight], ss.exponential_sparsity(0.5, decay=0.5, every=5, total=20), mode=mode)
        returned = 0
        for _ in range(30):
            before = weight == 0
            weight.grad = weight.detach().clone()
            sampler.step()
            pruner.step()
            returned += int((before & (weight != 0)).sum())
        assert zeros(weight) == 100
        assert (returned > 0) == (mode == "projected")
