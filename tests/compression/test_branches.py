"""A residual branch that adds a constant is gone after compacting, and the network computes the same."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from pruned_networks import randomise
from torch import Tensor, fx, nn

from spikeslab.compression import LayerSize, compact
from spikeslab.compression.shift import Shift
from spikeslab.models import resnet20

GONE = LayerSize(0, 0, 0, 0)


class Block(nn.Module):
    """A stem and one residual block; ``join`` is what it does with branch and shortcut."""

    def __init__(self, join, shortcut: nn.Module | None = None) -> None:
        super().__init__()
        self.join = join
        self.stem = nn.Conv2d(1, 4, 3, padding=1)
        self.inner, self.outer = nn.Conv2d(4, 5, 3, padding=1), nn.Conv2d(5, 4, 3, padding=1)
        self.shortcut = shortcut or nn.Identity()
        self.fc = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).relu()
        return self.fc(self.join(self.outer(self.inner(x).relu()), self.shortcut(x), x).mean(dim=(2, 3)))


def add_and_rectify(branch: Tensor, shortcut: Tensor, x: Tensor) -> Tensor:
    return (branch + shortcut).relu()


def other_way_round(branch: Tensor, shortcut: Tensor, x: Tensor) -> Tensor:
    return torch.relu(torch.add(shortcut, branch))


def only_add(branch: Tensor, shortcut: Tensor, x: Tensor) -> Tensor:
    return shortcut + branch


def rectify_in_place(branch: Tensor, shortcut: Tensor, x: Tensor) -> Tensor:
    return F.relu(branch + shortcut, inplace=True) - x


def overwrite_the_sum(branch: Tensor, shortcut: Tensor, x: Tensor) -> Tensor:
    return (branch + shortcut).mul_(2.0) - x


def overwrite_the_branch(branch: Tensor, shortcut: Tensor, x: Tensor) -> Tensor:
    return branch.add_(shortcut).relu_()


def overwrite_the_shortcut(branch: Tensor, shortcut: Tensor, x: Tensor) -> Tensor:
    total = shortcut.add_(branch)
    return total - 2.0 * x


def broadcast(branch: Tensor, shortcut: Tensor, x: Tensor) -> Tensor:
    return shortcut + branch.mean(dim=(2, 3), keepdim=True)


JOINS = [
    add_and_rectify, other_way_round, only_add, rectify_in_place, overwrite_the_sum, overwrite_the_branch,
    overwrite_the_shortcut, broadcast,
]  # fmt: skip


def dead(model: Block, constant: bool) -> Block:
    """The network with a branch that adds zeros, or one number for each channel."""
    model = randomise(model).double().eval()
    nn.init.zeros_(model.outer.weight)
    if not constant:
        nn.init.zeros_(model.outer.bias)
    return model


@torch.no_grad()
def deviation(model: nn.Module, other: nn.Module, x: Tensor) -> float:
    return float((copy.deepcopy(model)(x.clone()) - other(x.clone())).abs().max())


@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize("join", JOINS)
def test_the_outputs_stay_the_same(join, constant) -> None:
    model = dead(Block(join), constant)
    result = compact(model, torch.zeros(1, 1, 6, 6).double())
    assert deviation(model, result.model, torch.randn(2, 1, 5, 8).double()) < 1e-12


@pytest.mark.parametrize("join", [add_and_rectify, other_way_round, only_add, rectify_in_place, overwrite_the_sum])
def test_the_branch_is_gone_and_a_shift_is_left_where_it_is_not_zero(join) -> None:
    for constant in (True, False):
        result = compact(dead(Block(join), constant), torch.zeros(1, 1, 6, 6).double())
        assert result.report.after["inner"] == result.report.after["outer"] == GONE
        shifts = [module for module in result.model.modules() if isinstance(module, Shift)]
        assert len(shifts) == (constant or join is overwrite_the_sum)
        left = sum(parameter.numel() for parameter in result.model.parameters())
        assert left == result.report.parameters[1] == 4 * 9 + 4 + 4 * 2 + 2 + 4 * len(shifts)


def test_a_rectifier_that_would_rectify_again_goes_and_one_behind_a_shift_stays() -> None:
    for constant, count in ((False, 1), (True, 2)):
        graph = compact(dead(Block(add_and_rectify), constant), torch.zeros(1, 1, 6, 6).double()).model.graph
        assert sum(node.target == "relu" for node in graph.nodes) == count


def test_the_constant_of_a_branch_moves_into_the_bias_of_a_layer_on_the_shortcut() -> None:
    model = dead(Block(add_and_rectify, nn.Sequential(nn.Conv2d(4, 4, 1, bias=False), nn.BatchNorm2d(4))), True)
    result = compact(model, torch.zeros(1, 1, 6, 6).double())
    assert not any(isinstance(module, Shift) for module in result.model.modules())
    assert result.report.after["inner"] == GONE
    assert deviation(model, result.model, torch.randn(2, 1, 5, 8).double()) < 1e-12


def test_a_branch_whose_border_shows_the_padding_stays() -> None:
    model = randomise(Block(add_and_rectify)).double().eval()
    nn.init.zeros_(model.inner.weight)
    nn.init.ones_(model.inner.bias)  # a constant that is not zero, in front of a convolution that pads
    result = compact(model, torch.zeros(1, 1, 6, 6).double())
    assert result.report.after["outer"].inputs == 1
    assert deviation(model, result.model, torch.randn(2, 1, 5, 8).double()) < 1e-12


def test_a_layer_with_a_hook_is_still_called() -> None:
    model = dead(Block(add_and_rectify), True)
    calls = []
    model.inner.register_forward_hook(lambda *_: calls.append(1))
    result = compact(model, torch.zeros(1, 1, 6, 6).double())
    calls.clear()
    assert deviation(model, result.model, torch.randn(2, 1, 5, 8).double()) < 1e-12
    assert len(calls) == 2
    assert result.report.after["outer"] == GONE


def test_channels_of_a_shift_go_with_the_stream() -> None:
    model = dead(Block(add_and_rectify), True)
    with torch.no_grad():
        model.fc.weight[:, 1] = 0.0
    result = compact(model, torch.zeros(1, 1, 6, 6).double())
    (shift,) = (module for module in result.model.modules() if isinstance(module, Shift))
    assert shift.bias.shape == (3, 1, 1)
    assert deviation(model, result.model, torch.randn(2, 1, 5, 8).double()) < 1e-12
    again = compact(result.model, torch.zeros(1, 1, 6, 6).double())
    assert again.report.parameters == (result.report.parameters[1],) * 2


def dead_blocks() -> nn.Module:
    """A ResNet20 that has lost a block of each stage."""
    model = randomise(resnet20()).eval()
    with torch.no_grad():
        for block in (model.layer1[1], model.layer2[0], model.layer3[2]):
            for tensor in (block.conv1.weight, block.bn1.weight, block.bn1.bias):
                tensor.zero_()
    return model


def test_dead_blocks_of_resnet20_are_gone() -> None:
    model, x = dead_blocks(), torch.randn(2, 3, 32, 32)
    result = compact(model, x)
    gone = {name for name, size in result.report.after.items() if size == GONE}
    assert gone == {f"{block}.{conv}" for block in ("layer1.1", "layer2.0", "layer3.2") for conv in ("conv1", "conv2")}
    with torch.no_grad():
        expected = model(x)
        torch.testing.assert_close(result.model(x), expected, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(pickle.loads(pickle.dumps(result.model))(x), result.model(x))
        torch.testing.assert_close(torch.export.export(result.model, (x,)).module()(x), result.model(x))
    assert isinstance(result.model, fx.GraphModule)
    (row,) = (row for row in result.report.table().rows if row["layer"] == "layer1.1.conv1")
    assert (row["inputs"], row["outputs"], row["multiply_adds_after"]) == ("16 → 0", "16 → 0", 0)
