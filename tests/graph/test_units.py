"""Units that can go: with their parameters at zero compacting removes exactly them, in every family."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from pruned_networks import deviation, randomise
from structures import ATTENTIONS, HIDDEN, ResNetA, Transformer, mobilenet, resnext
from torch import Tensor, nn

from spikeslab.compression import compact
from spikeslab.graph.units import UnitFamily, find_removable, find_units
from spikeslab.paper.cifar10 import resnet20
from spikeslab.paper.images import BatchNormCNN
from spikeslab.pruning import free_channel_layers

TOKENS, IMAGES = torch.zeros(2, 7, 5).double(), torch.zeros(2, 3, 16, 16).double()
NETWORKS: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    **{name: (lambda make=make: Transformer(make(), gated=True), TOKENS) for name, make in ATTENTIONS.items()},
    "resnext": (resnext, IMAGES),
    "mobilenet": (mobilenet, IMAGES),
    "efficientnet": (lambda: mobilenet(nn.SiLU), IMAGES),
    "resnet with option A": (lambda: ResNetA(blocks=2), IMAGES),
    "resnet20": (resnet20, IMAGES),
}


def build(name: str) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    make, example = NETWORKS[name]
    return randomise(make()).double().eval(), example


@torch.no_grad()
def kill(model: nn.Module, units: dict[str, UnitFamily], share: float = 0.4) -> dict[str, Tensor]:
    """Zero some units of each family, but never all; return which."""
    parameters, dead = dict(model.named_parameters()), {}
    for name, family in units.items():
        dead[name] = torch.rand(family.count) < share
        dead[name][0], dead[name][-1] = True, False
        for part in family.members:
            part.zero_(parameters[part.name], dead[name])
    return dead


@pytest.mark.parametrize("name", NETWORKS)
def test_dead_units_go_and_no_others(name) -> None:
    model, example = build(name)
    units, fixed = find_removable(model, example)
    assert fixed == []
    before = {key: tuple(value.shape) for key, value in model.named_parameters()}
    dead = kill(model, units)
    result = compact(model, example, fold=False)
    after = {key: tuple(value.shape) for key, value in result.model.named_parameters()}
    gone: dict[tuple[str, int], int] = {}
    for key, family in units.items():
        for part in family.members:
            count = int(dead[key].sum()) * part.places.shape[1]
            gone[part.name, part.dim] = gone.get((part.name, part.dim), 0) + count
    for (parameter, dim), count in gone.items():
        assert before[parameter][dim] - after[parameter][dim] == count
    assert deviation(model, result.model, torch.randn_like(example)) < 1e-12


@pytest.mark.parametrize("name", NETWORKS)
def test_no_place_is_in_two_units_and_gates_die_with_their_unit(name) -> None:
    model, example = build(name)
    taken: set[tuple[str, int, int]] = set()
    for family in find_units(model, example).values():
        members = {(part.name, part.dim): part.places for part in family.members}
        for (parameter, dim), places in members.items():
            assert len(places) == family.count
            own = {(parameter, dim, place) for place in places.flatten().tolist()}
            assert len(own) == places.numel()
            assert not own & taken
            taken |= own
        for gate in family.gates:
            assert torch.equal(gate.places, members[gate.name, gate.dim])


def test_the_families_of_a_transformer_are_heads_and_units() -> None:
    model, example = build("projected")
    units = find_units(model, example)
    assert {name: family.count for name, family in units.items()} == {
        "attention.q.weight": 3, "feed.up.weight": HIDDEN,
    }  # fmt: skip
    gates = [(part.name, part.dim) for part in units["attention.q.weight"].gates]
    layers = [f"attention.{name}.weight" for name in "qkv"]
    assert gates == [*((name, 0) for name in layers), ("attention.out.weight", 1)]
    assert [part.name for part in units["feed.up.weight"].gates] == ["feed.up.weight", "feed.gate.weight"]


def test_the_families_of_a_residual_network_with_padded_shortcuts() -> None:
    model, example = build("resnet with option A")
    units = find_units(model, example)
    stages = {name: family.count for name, family in units.items() if name == "conv1.weight" or "conv2" in name}
    assert stages == {"conv1.weight": 8, "blocks.2.conv2.weight": 8, "blocks.4.conv2.weight": 16}
    gates = [part.name for part in units["blocks.2.conv2.weight"].gates]
    assert gates == [f"blocks.{block}.bn2.weight" for block in (2, 3, 4, 5)]
    (second,) = (part for part in units["blocks.2.conv2.weight"].gates if part.name == "blocks.2.bn2.weight")
    assert second.places.flatten().tolist() == [*range(4), *range(12, 16)]  # the others are those of the first stage


def test_the_gate_of_a_depthwise_convolution_is_the_last_normalisation() -> None:
    units = find_units(*build("mobilenet"))
    assert [part.name for part in units["3.widen.0.weight"].gates] == ["3.depthwise.1.weight"]


@pytest.mark.parametrize("name", ["resnet20", "batch norm"])
def test_free_channels_are_among_the_units(name) -> None:
    model, example = build("resnet20") if name == "resnet20" else (BatchNormCNN(), torch.zeros(2, 1, 28, 28))
    units = find_units(model.eval(), example)
    for weight, norm in free_channel_layers(model).items():
        (gate,) = units[weight].gates
        assert gate.name == (f"{norm}.weight" if norm else weight)


def test_units_that_a_sigmoid_would_revive_are_none() -> None:
    model = nn.Sequential(nn.Linear(3, 5), nn.Sigmoid(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 2))
    assert list(find_units(model, torch.zeros(2, 3))) == ["2.weight"]


def test_a_family_whose_number_the_code_fixes_is_not_removable() -> None:
    class Fixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.last = nn.Linear(3, 6), nn.Linear(6, 5), nn.Linear(5, 2)

        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x).relu()
            if len(x) > 0:  # not for symbols
                x = x.view(len(x), 6)
            return self.last(self.second(x).relu())

    units, fixed = find_removable(Fixed(), torch.zeros(2, 3))
    assert (list(units), fixed) == (["second.weight"], ["first.weight"])
