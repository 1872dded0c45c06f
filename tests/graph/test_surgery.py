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
from spikeslab.graph.layers import ChannelBias
from spikeslab.paper.cifar10 import resnet20

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


def overwrite_an_alias(branch: Tensor, shortcut: Tensor, x: Tensor) -> Tensor:
    return F.dropout(branch + shortcut, training=False).neg_() - x


def overwrite_the_shortcut_later(branch: Tensor, shortcut: Tensor, x: Tensor) -> Tensor:
    total = branch + shortcut
    return total - x.neg_()


def overwrite_what_was_rectified(branch: Tensor, shortcut: Tensor, x: Tensor) -> Tensor:
    shortcut.neg_()
    return (branch + shortcut).relu() + x


def rectify_into_a_copy(branch: Tensor, shortcut: Tensor, x: Tensor) -> Tensor:
    total = branch + shortcut
    return total.relu().mul_(2.0) - total


def read_twice(branch: Tensor, shortcut: Tensor, x: Tensor) -> Tensor:
    total = branch + shortcut
    return total + total.mean(dim=(2, 3), keepdim=True)


def broadcast(branch: Tensor, shortcut: Tensor, x: Tensor) -> Tensor:
    return shortcut + branch.mean(dim=(2, 3), keepdim=True)


JOINS = [
    add_and_rectify, other_way_round, only_add, rectify_in_place, overwrite_the_sum, overwrite_the_branch,
    overwrite_the_shortcut, overwrite_an_alias, overwrite_the_shortcut_later, overwrite_what_was_rectified,
    rectify_into_a_copy, read_twice, broadcast,
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
        shifts = [module for module in result.model.modules() if isinstance(module, ChannelBias)]
        in_place = join in (rectify_in_place, overwrite_the_sum)  # the sum has to be a tensor of its own
        assert len(shifts) == (constant or in_place)
        left = sum(parameter.numel() for parameter in result.model.parameters())
        assert left == result.report.parameters[1] == 4 * 9 + 4 + 4 * 2 + 2 + 4 * len(shifts)


def test_a_rectifier_that_would_rectify_again_goes_and_one_behind_a_shift_stays() -> None:
    for constant, count in ((False, 1), (True, 2)):
        graph = compact(dead(Block(add_and_rectify), constant), torch.zeros(1, 1, 6, 6).double()).model.graph
        assert sum(node.target == "relu" for node in graph.nodes) == count


def test_the_constant_of_a_branch_moves_into_the_bias_of_a_layer_on_the_shortcut() -> None:
    model = dead(Block(add_and_rectify, nn.Sequential(nn.Conv2d(4, 4, 1, bias=False), nn.BatchNorm2d(4))), True)
    result = compact(model, torch.zeros(1, 1, 6, 6).double())
    assert not any(isinstance(module, ChannelBias) for module in result.model.modules())
    assert result.report.after["inner"] == GONE
    assert deviation(model, result.model, torch.randn(2, 1, 5, 8).double()) < 1e-12


def test_a_branch_whose_border_shows_the_padding_stays() -> None:
    model = randomise(Block(add_and_rectify)).double().eval()
    nn.init.zeros_(model.inner.weight)
    nn.init.ones_(model.inner.bias)  # a constant that is not zero, in front of a convolution that pads
    result = compact(model, torch.zeros(1, 1, 6, 6).double())
    assert result.report.after["outer"].inputs == 1
    assert deviation(model, result.model, torch.randn(2, 1, 5, 8).double()) < 1e-12


@pytest.mark.parametrize("name", ["", "inner", "shortcut", "stem"])
def test_a_network_with_hooks_keeps_its_branches(name) -> None:
    model = dead(Block(add_and_rectify), True)
    calls = []
    model.get_submodule(name).register_forward_hook(lambda *_: calls.append(1))
    result = compact(model, torch.zeros(1, 1, 6, 6).double())
    calls.clear()
    assert deviation(model, result.model, torch.randn(2, 1, 5, 8).double()) < 1e-12
    assert len(calls) == 2
    assert result.report.after["outer"] != GONE


def test_channels_of_a_shift_go_with_the_stream() -> None:
    model = dead(Block(add_and_rectify), True)
    with torch.no_grad():
        model.fc.weight[:, 1] = 0.0
    result = compact(model, torch.zeros(1, 1, 6, 6).double())
    (shift,) = (module for module in result.model.modules() if isinstance(module, ChannelBias))
    assert shift.bias.shape == (3,)
    assert deviation(model, result.model, torch.randn(2, 1, 5, 8).double()) < 1e-12
    again = compact(result.model, torch.zeros(1, 1, 6, 6).double())
    assert again.report.parameters == (result.report.parameters[1],) * 2


class Sum(nn.Module):
    """A residual sum of two modules, in front of another."""

    def __init__(self, rest: nn.Module, branch: nn.Module, head: nn.Module | None = None) -> None:
        super().__init__()
        self.rest, self.branch, self.head = rest, branch, head or nn.Identity()
        for parameter in branch.parameters():
            nn.init.zeros_(parameter)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rest(x) + self.branch(x))


class ToHalf(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.half())


class Standardised(nn.Conv2d):
    """A convolution of a class of its own, which fx looks into."""

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.weight - self.weight.mean(dim=(1, 2, 3), keepdim=True), self.bias, padding=1)


class Squeezed(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.mean(dim=(2, 3), keepdim=True))


class Position(nn.Module):
    """Reads no input, and so has a batch of one."""

    def __init__(self) -> None:
        super().__init__()
        self.position, self.conv = nn.Parameter(torch.randn(1, 4, 6, 6)), nn.Conv2d(4, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(self.position)


UNLIKE = {
    "a linear layer over the last dimension": (nn.Linear(7, 7), nn.Conv1d(5, 5, 1), (2, 5, 7), (3, 5, 7)),
    "another dtype": (ToHalf(nn.Linear(4, 4).half()), nn.Linear(4, 4), (2, 4), (3, 4)),
    "a parametrization": (nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)), nn.Linear(4, 4), (2, 4), (3, 4)),
    "one pixel": (Squeezed(nn.Conv2d(4, 4, 1)), nn.Conv2d(4, 4, 1), (2, 4, 1, 1), (2, 4, 6, 6)),
    "no batch": (Position(), nn.Conv2d(4, 4, 1), (1, 4, 6, 6), (3, 4, 6, 6)),
    "no input": (nn.Conv2d(4, 4, 1), Position(), (1, 4, 6, 6), (3, 4, 6, 6)),
}


@pytest.mark.parametrize("case", UNLIKE)
def test_a_sum_that_broadcasts_or_promotes_stays_right(case) -> None:
    rest, branch, shape, other = UNLIKE[case]
    model = Sum(rest, branch).eval()
    result = compact(model, torch.zeros(shape))
    for size in (shape, other):
        x = torch.randn(size)
        with torch.no_grad():
            expected, got = model(x), result.model(x)
        assert got.shape == expected.shape
        assert got.dtype == expected.dtype
        torch.testing.assert_close(got, expected)


def test_a_layer_of_a_class_of_its_own_stays_one() -> None:
    model = nn.Sequential(Standardised(2, 4, 3), Sum(nn.Identity(), nn.Conv2d(4, 4, 1), nn.Conv2d(4, 2, 1))).eval()
    result = compact(model, torch.zeros(1, 2, 6, 6))
    assert result.report.after["0"] == result.report.before["0"]
    assert type(result.model[0]) is Standardised  # whoever counts modules still finds it


def test_a_shift_has_the_dtype_of_its_sum_and_is_trained_like_the_others() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.arange(4), requires_grad=False)  # the first parameter is no float
            self.residual = Sum(nn.ReLU(), nn.Linear(4, 4), nn.Linear(4, 2))

        def forward(self, x: Tensor) -> Tensor:
            return self.residual(x[:, self.table])

    model = Mixed().double().requires_grad_(False)
    nn.init.constant_(model.residual.branch.bias, 1000.3)
    smaller = compact(model, torch.zeros(2, 4).double()).model
    (shift,) = (module for module in smaller.modules() if isinstance(module, ChannelBias))
    assert shift.bias.dtype == torch.float64
    assert not shift.bias.requires_grad
    assert shift.bias.ndim == 1  # a bias, not a matrix of weights
    assert deviation(model, smaller, torch.randn(3, 4).double()) < 1e-10


@pytest.mark.filterwarnings("error")
def test_a_sum_inside_a_branch_that_goes() -> None:
    inner = Sum(nn.Identity(), nn.Conv2d(4, 4, 1))
    model = Sum(nn.ReLU(), nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), inner), nn.Conv2d(4, 2, 1)).eval()
    result = compact(model, torch.zeros(1, 4, 6, 6))
    assert {name for name, size in result.report.after.items() if size != GONE} == {"head"}
    assert deviation(model, result.model, torch.randn(2, 4, 6, 6)) < 1e-6


def test_what_is_gone_is_not_said_to_stay() -> None:
    class PreActivation(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.conv = nn.BatchNorm2d(4), nn.Conv2d(4, 4, 3, padding=1)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.conv(self.norm(x).relu())

    model = nn.Sequential(nn.Conv2d(2, 4, 1), PreActivation(), nn.Conv2d(4, 2, 1)).eval()
    assert compact(model, torch.zeros(1, 2, 6, 6)).report.notes != ()
    nn.init.zeros_(model[1].conv.weight)
    assert compact(model, torch.zeros(1, 2, 6, 6)).report.notes == ()


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
