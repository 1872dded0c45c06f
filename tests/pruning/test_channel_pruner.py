"""Dead channels are dead for every input, and as many as asked for."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import spikeslab as ss
from spikeslab.errors import ArgumentValueError
from spikeslab.paper.cifar10 import resnet20
from spikeslab.paper.demo import DigitsCNN
from spikeslab.priors import GroupSpikeSlab
from spikeslab.pruning import ChannelPruner, channel_gates


def small() -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12 * 16, 10),
    )  # fmt: skip
    with torch.no_grad():
        model[1].weight.uniform_(0.5, 1.5)
        model[1].bias.uniform_(0.5, 1.5)
    return model


def dead(weight: torch.Tensor) -> torch.Tensor:
    return (weight == 0).flatten(1).all(dim=1)


def test_a_dead_channel_is_zero_for_every_input_also_behind_the_normalisation() -> None:
    model = small()
    ChannelPruner(model, 0.5).step()
    gone = dead(model[0].weight)
    assert int(gone.sum()) == 4
    for training in (True, False):
        model.train(training)
        behind = model[1](model[0](torch.randn(5, 1, 8, 8)))
        assert (behind[:, gone] == 0).all()
        assert (behind[:, ~gone].flatten(2).std(dim=2) > 0).all()
    assert (model[3].bias == 0).tolist() == dead(model[3].weight).tolist()


def test_the_gate_ranks_channels_and_the_filter_on_request() -> None:
    for by, expected in (("gate", [0, 2]), ("filter", [1, 3])):
        model = small()
        with torch.no_grad():
            model[1].weight[[0, 2]] = 0.1
            model[0].weight[[1, 3]] *= 0.01
        ChannelPruner(model, 0.25, followers={"0.weight": "1"}, by=by).step()
        assert dead(model[0].weight).nonzero().flatten().tolist() == expected


@pytest.mark.parametrize("scope", ["layer", "global", "erk"])
@pytest.mark.parametrize("mode", ["projected", "masked"])
def test_it_follows_the_schedule_exactly_and_keeps_its_floor(scope: str, mode: str) -> None:
    model = small()
    with torch.no_grad():
        model[3].weight.mul_(1e-3)
    schedule = ss.cubic_sparsity(0.7, total=8)
    pruner = ChannelPruner(model, schedule, scope=scope, mode=mode, min_channels=3)
    for step in range(1, 11):
        pruner.step()
        living = pruner.count_live_channels()
        assert 20 - sum(living.values()) == round(schedule(step) * 20)
        assert min(living.values()) >= 3
    assert living == ({"0.weight": 3, "3.weight": 3} if scope == "global" else living)


def test_layers_compare_by_the_standard_deviation_of_their_outputs() -> None:
    """The first layer's outputs vary by 1 and 2, those of the wide one by 1.5, though its weights are smaller."""
    model = nn.Sequential(nn.Linear(4, 10), nn.ReLU(), nn.Linear(10, 400), nn.ReLU(), nn.Linear(400, 10))
    with torch.no_grad():
        model[0].weight.fill_(1.0 / 4**0.5)
        model[0].weight[:5] *= 2.0
        model[2].weight.fill_(1.5 / 10**0.5)
    pruner = ChannelPruner(model, 5 / 410, scope="global")
    pruner.step()
    assert dead(model[0].weight).tolist() == [False] * 5 + [True] * 5


def test_frozen_channels_stay_dead_and_projected_ones_may_return() -> None:
    for frozen in (True, False):
        model = small()
        pruner = ChannelPruner(model, 0.5, followers={"0.weight": "1"})
        pruner.step()
        gone = dead(model[0].weight)
        if frozen:
            pruner.freeze()
        with torch.no_grad():
            model[0].weight.add_(1.0)
            model[1].weight.add_(torch.where(gone, 10.0, 0.0))
            model[1].bias.add_(1.0)
        pruner.step()
        assert torch.equal(dead(model[0].weight), gone if frozen else ~gone)
        assert torch.equal(model[1].bias == 0, gone if frozen else ~gone)


def test_resume_continues_exactly() -> None:
    def run(model: nn.Module, pruner: ChannelPruner, steps: range) -> None:
        for step in steps:
            generator = torch.Generator().manual_seed(step)
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
            pruner.step()

    def make() -> tuple[nn.Module, ChannelPruner]:
        model = small()
        return model, ChannelPruner(model, ss.cubic_sparsity(0.6, total=8), mode="masked", scope="erk")

    whole, first, second = make(), make(), make()
    run(*whole, range(12))
    run(*first, range(5))
    second[0].load_state_dict(first[0].state_dict())
    second[1].load_state_dict(copy.deepcopy(first[1].state_dict()))
    run(*second, range(5, 12))
    assert all(torch.equal(a, b) for a, b in zip(whole[0].parameters(), second[0].parameters(), strict=True))


def test_sparsity_counts_weights_over_the_network() -> None:
    model = resnet20()
    pruner = ChannelPruner(model, 0.5)
    pruner.step()
    assert all(n in (8, 16, 32) for n in pruner.count_live_channels().values())
    sparsity = pruner.sparsity()
    assert sparsity.sparse == 0.5
    assert sparsity.network_total == 272_474


def test_gates_are_scales_where_there_are_some_and_filters_elsewhere() -> None:
    model = small()
    gates = channel_gates(model)
    assert list(gates) == ["0.weight", "3.weight"]
    assert gates["0.weight"] is model[1].weight
    assert gates["3.weight"] is model[3].weight
    prior = GroupSpikeSlab(gates, v0=1e-3, v1=1.0)
    assert [tuple(rho.shape) for rho in prior.rho.values()] == [(8,), (12,)]


def test_bad_input_is_refused_in_one_sentence() -> None:
    model = small()
    with pytest.raises(ArgumentValueError) as error:
        ChannelPruner(model, 0.9, min_channels=2)
    assert str(error.value) == (
        "sparsity must be at most 0.8, since 2 layers must keep 4 channels in all, but got 0.9, which is 18 zeros of "
        "20."
    )
    for settings, message in (
        ({"min_channels": 0}, r"^min_channels must be an integer >= 1, but got 0\.$"),
        ({"by": "size"}, r"^by must be one of 'gate', 'filter', but got 'size'\.$"),
        (
            {"followers": {"9.weight": None}},
            r"^followers must name weights of layers of the model, but got '9\.weight'\.$",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            ChannelPruner(model, 0.5, **settings)
    with pytest.raises(ArgumentValueError) as error:
        ChannelPruner(model, 0.5, followers={"3.weight": "1"})
    assert str(error.value) == (
        "followers must give '3.weight' a batch normalisation with a scale and a shift for each of its 12 channels, "
        "or None, but got '1'."
    )
    with pytest.raises(ArgumentValueError) as error:
        ChannelPruner(nn.Linear(3, 2), 0.5)
    assert str(error.value) == (
        "model must have a layer with free channels, but got none: name one in Python, as in {'conv1.weight': 'bn1'}."
    )


def test_half_of_the_channels_go_and_the_digits_are_still_read() -> None:
    pytest.importorskip("sklearn")
    from spikeslab.paper.demo import load_digits

    data = load_digits()
    torch.manual_seed(0)
    model = DigitsCNN()
    prior = GroupSpikeSlab(
        channel_gates(model),
        v0=0.001,
        v1=1.0,
        rho=1.0,
        b=1.0,
        sigma_coupling="fixed",
        adapt=ss.SA(ss.polynomial(1.0, power=0.75, offset=100)),
    )
    sampler = ss.SGHMC(
        model.parameters(), lr=ss.cosine(0.1, total=170), num_data=len(data.x_train), temperature=0.01, prior=prior,
        weight_decay=1e-3, seed=0,
    )  # fmt: skip
    pruner = ChannelPruner(model, ss.cubic_sparsity(0.5, total=120))
    for step in range(170):  # ten epochs
        rows = torch.randint(len(data.x_train), (64,))
        sampler.zero_grad()
        nn.functional.cross_entropy(model(data.x_train[rows]), data.y_train[rows]).backward()
        sampler.step()
        pruner.step()
        if step == 120:
            pruner.freeze()
    assert pruner.count_live_channels() == {"conv1.weight": 16, "conv2.weight": 32, "fc1.weight": 64}
    right = model(data.x_test).argmax(dim=1) == data.y_test
    assert float(right.float().mean()) > 0.93  # dense: 0.97 to 0.99
