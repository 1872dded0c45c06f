"""Heads and feed-forward units are pruned to an exact share, and the prior has one indicator for each."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from structures import ATTENTIONS, HIDDEN, Transformer, mobilenet
from torch import nn

import spikeslab as ss
from spikeslab.errors import ArgumentValueError
from spikeslab.pruning import ChannelPruner, find_units, unit_prior


def transformer() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    return Transformer(ATTENTIONS["projected"](), gated=True), torch.randn(4, 6, 5)


@pytest.mark.parametrize("scope", ["layer", "global", "erk"])
def test_units_are_pruned_to_an_exact_share_and_the_least_heads_first(scope) -> None:
    model, x = transformer()
    units = find_units(model, x)
    with torch.no_grad():
        for layer in (model.attention.q, model.attention.k, model.attention.v):
            layer.weight[4:8] *= 0.01
        model.attention.out.weight[:, 4:8] *= 0.01
    pruner = ChannelPruner(model, 8 / 23, units=units, scope=scope)
    pruner.step()
    living = pruner.count_live_channels()
    assert sum(living.values()) == 3 + HIDDEN - 8
    assert min(living.values()) >= 1
    if living["attention.q.weight"] == 2:
        assert not model.attention.v.weight[4:8].any()
        assert not model.attention.out.weight[:, 4:8].any()
        assert bool(model.attention.out.weight[:, :4].all())
    small = ss.compact(model, x).model
    torch.testing.assert_close(small(x), model.eval()(x))
    assert small.feed.up.out_features == living["feed.up.weight"]
    total = sum(p.numel() for p in (model.attention.q.weight, model.attention.out.weight))
    assert pruner.sparsity().sparse_total == 4 * total // 2 + 2 * model.feed.up.weight.numel()


def test_frozen_heads_stay_dead_and_a_checkpoint_holds_their_masks() -> None:
    model, x = transformer()
    pruner = ChannelPruner(model, 0.5, units=find_units(model, x))
    pruner.step()
    pruner.freeze()
    dead = [bool((model.attention.v.weight[4 * head : 4 * head + 4] == 0).all()) for head in range(3)]
    other = ChannelPruner(model, 0.5, units=find_units(model, x))
    other.load_state_dict(pruner.state_dict())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    other.step()
    assert [bool((model.attention.v.weight[4 * head : 4 * head + 4] == 0).all()) for head in range(3)] == dead


def test_one_indicator_for_each_head_over_all_of_its_weights() -> None:
    model, x = transformer()
    units = find_units(model, x)
    prior = unit_prior(model, units, v0=0.01, v1=1.0, adapt=ss.EM(), sigma_coupling="fixed")
    assert {name: tuple(rho.shape) for name, rho in prior.rho.items()} == {
        "attention.q.weight": (3,), "feed.up.weight": (HIDDEN,),
    }  # fmt: skip
    sampler = ss.SGHMC(model.parameters(), lr=0.01, num_data=100, prior=prior)
    with torch.no_grad():
        for name in ("q", "k", "v"):
            getattr(model.attention, name).weight[:4] *= 1e-3
        model.attention.out.weight[:, :4] *= 1e-3
    model(x).square().mean().backward()
    sampler.step()
    rho = prior.rho["attention.q.weight"]
    assert float(rho[0]) < 1e-6
    assert float(rho[1:].min()) > 1.0 - 1e-6


def test_gates_of_batch_normalisation_are_a_plain_prior_and_mixed_ones_are_joint() -> None:
    torch.manual_seed(0)
    model = mobilenet()
    units = find_units(model, torch.zeros(2, 3, 16, 16))
    prior = unit_prior(model, units, v0=0.01, v1=1.0)
    assert tuple(prior.rho["0.weight"].shape) == (8,)  # two normalisations write the first stage
    inner = {name: family for name, family in units.items() if "widen" in name}
    plain = unit_prior(model, inner, v0=0.01, v1=1.0)
    assert plain.weights["3.widen.0.weight"] is model[3].depthwise[1].weight


def test_units_and_followers_exclude_each_other() -> None:
    model, x = transformer()
    with pytest.raises(ArgumentValueError) as error:
        ChannelPruner(model, 0.5, units=find_units(model, x), followers={"feed.up.weight": None})
    assert str(error.value) == "units must not go with followers, but got both."


@pytest.mark.parametrize("scope", ["layer", "global"])
@pytest.mark.parametrize("multiple", [4, 8])
def test_widths_are_multiples_nearest_to_the_shares(scope, multiple) -> None:
    torch.manual_seed(0)
    model = mobilenet().eval()
    x = torch.randn(2, 3, 16, 16)
    units = {name: replace(family, multiple=multiple) for name, family in find_units(model, x).items()}
    schedule = ss.cubic_sparsity(0.5, total=8)
    exact = ChannelPruner(copy.deepcopy(model), schedule, units=find_units(model, x), scope=scope)
    pruner = ChannelPruner(model, schedule, units=units, scope=scope, mode="masked")
    for _ in range(10):
        pruner.step()
        exact.step()
    living, free = pruner.count_live_channels(), exact.count_live_channels()
    for name, family in units.items():
        if family.count >= multiple:
            assert living[name] % multiple == 0 or living[name] == family.count
            assert abs(living[name] - free[name]) <= multiple or scope == "global"
    small = ss.compact(model, x).model
    torch.testing.assert_close(small(x), model(x), rtol=1e-4, atol=1e-4)


def test_a_head_is_as_wide_as_its_rows() -> None:
    model, x = transformer()
    units = {name: replace(family, multiple=8) for name, family in find_units(model, x).items()}
    pruner = ChannelPruner(model, 0.4, units=units)
    pruner.step()
    # Four wide, so that two heads are eight; 12 of 20 units are as near to 8 as to 16.
    assert pruner.count_live_channels() == {"attention.q.weight": 2, "feed.up.weight": 8}
