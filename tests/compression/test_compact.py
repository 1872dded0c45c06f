"""A compacted network is smaller by exactly what is dead, and computes the same, borders included."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from pruned_networks import NETWORKS, LeNet, deviation, kill, plain, randomise, widths
from torch import Tensor, nn
from torch.nn.utils import prune

from spikeslab.compression import LayerSize, compact
from spikeslab.paper.cifar10 import resnet20
from spikeslab.paper.images import CNN


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-4)])
@pytest.mark.parametrize("fold", [True, False])
@pytest.mark.parametrize("name", NETWORKS)
def test_the_outputs_are_those_of_the_masked_network(name, fold, dtype, tolerance) -> None:
    build, shapes = NETWORKS[name]
    model = kill(randomise(build()), 0.4).to(dtype)
    result = compact(model, torch.zeros(shapes[0], dtype=dtype), fold=fold)
    for shape in shapes:
        assert deviation(model, result.model, torch.randn(shape, dtype=dtype)) < tolerance
    before, after = result.report.parameters
    assert after < 0.75 * before
    assert after == sum(parameter.numel() for parameter in result.model.parameters())
    assert [note for note in result.report.notes if "stays" not in note] == []


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_without_dead_channels_keeps_every_width(name) -> None:
    build, shapes = NETWORKS[name]
    result = compact(randomise(build()), torch.zeros(shapes[0]))
    assert widths(result) == {layer: (size.inputs, size.outputs) for layer, size in result.report.before.items()}


class Drawn(nn.Module):
    """A network of blocks as they were drawn: convolution, normalisation, activation, residual, pooling."""

    def __init__(self, blocks: list[tuple[int, int, bool, str, str]]) -> None:
        super().__init__()
        self.kinds = blocks
        channels = 2
        for index, (width, padding, norm, _, kind) in enumerate(blocks):
            width = channels if kind == "residual" else width
            padding = 1 if kind == "residual" else padding
            setattr(self, f"conv{index}", nn.Conv2d(channels, width, 3, padding=padding, bias=not norm))
            setattr(self, f"norm{index}", nn.BatchNorm2d(width) if norm else nn.Identity())
            channels = width
        self.fc1, self.fc2 = nn.Linear(channels * 4, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        for index, (*_, activation, kind) in enumerate(self.kinds):
            y = getattr(self, f"norm{index}")(getattr(self, f"conv{index}")(x))
            x = getattr(torch, activation)(y + x if kind == "residual" else y)
            if kind == "pooled":
                x = F.avg_pool2d(x, 3, 1, 1)
        x = F.adaptive_max_pool2d(x, 2).flatten(1)
        return self.fc2(self.fc1(x).relu())


blocks = st.lists(
    st.tuples(
        st.integers(1, 6),
        st.integers(0, 1),
        st.booleans(),
        st.sampled_from(["relu", "tanh", "sigmoid", "abs"]),
        st.sampled_from(["plain", "residual", "pooled"]),
    ),
    min_size=1,
    max_size=5,
)


@given(blocks=blocks, share=st.floats(0, 1), fold=st.booleans(), seed=st.integers(0, 10**6))
def test_any_network_with_any_dead_channels(blocks, share, fold, seed) -> None:
    torch.manual_seed(seed)
    model = kill(randomise(Drawn(blocks)), share, seed).double()
    result = compact(model, torch.zeros(1, 2, 14, 14).double(), fold=fold)
    for shape in ((2, 2, 14, 14), (1, 2, 13, 16)):
        assert deviation(model, result.model, torch.randn(shape).double()) < 1e-10
    assert all((size.inputs >= 1) == (size.outputs >= 1) for size in result.report.after.values())
    again = compact(result.model, torch.zeros(1, 2, 14, 14).double(), fold=fold)
    assert again.report.parameters[1] == result.report.parameters[1]  # nothing is left to remove


def test_zero_filters_and_unread_channels_go_one_by_one() -> None:
    model = nn.Sequential(nn.Conv2d(1, 5, 3), nn.ReLU(), nn.Conv2d(5, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2))
    with torch.no_grad():
        model[0].weight[1] = 0.0  # sees nothing
        model[2].weight[:, 3] = 0.0  # its input 3 is not read
        model[5].weight[:, 8:12] = 0.0  # channel 2 at its four places
        model[5].weight[:, 12:15] = 0.0  # channel 3 at three of four: stays
    result = compact(model, torch.zeros(1, 1, 6, 6))
    assert widths(result) == {"0": (1, 3), "2": (3, 3), "5": (12, 2)}
    assert result.report.before["2"] == LayerSize(5, 4, 5 * 4 * 9 + 4, 5 * 4 * 9 * 4)
    assert result.report.after["2"] == LayerSize(3, 3, 3 * 3 * 9 + 3, 3 * 3 * 9 * 4)
    assert result.report.parameters == (50 + 184 + 34, 30 + 84 + 26)
    assert result.report.multiply_adds == (5 * 9 * 16 + 720 + 32, 3 * 9 * 16 + 324 + 24)
    assert deviation(model, result.model, torch.randn(3, 1, 6, 6)) < 1e-5


def test_what_only_dead_channels_read_is_dead() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2))
    with torch.no_grad():
        model[4].weight[:, :3] = 0.0
        model[2].weight[3:, :4] = 0.0  # units 3 and 4 read 4 and 5; the first four are read by dead units only
    assert widths(compact(model, torch.zeros(1, 4))) == {"0": (4, 2), "2": (2, 2), "4": (2, 2)}


def test_constants_in_front_of_padding_are_carried_by_one_channel() -> None:
    model = nn.Sequential(nn.Conv2d(1, 6, 3, padding=1), nn.Sigmoid(), nn.Conv2d(6, 2, 3, padding=1)).double()
    with torch.no_grad():
        model[0].weight[:4] = 0.0
        model[0].bias[:4] = torch.tensor([-1.0, 0.0, 1.0, 2.0])
    result = compact(model, torch.zeros(1, 1, 5, 5).double())
    assert widths(result) == {"0": (1, 3), "2": (3, 2)}
    assert deviation(model, result.model, torch.randn(2, 1, 7, 4).double()) < 1e-13


@pytest.mark.parametrize(("padding", "activation", "left"), [(1, "ReLU", 2), (0, "Sigmoid", 2), (1, "Sigmoid", 3)])
def test_a_constant_costs_a_channel_only_where_padding_would_show(padding, activation, left) -> None:
    act = getattr(nn, activation)()
    model = nn.Sequential(nn.Conv2d(1, 5, 3, padding=1), act, nn.Conv2d(5, 2, 3, padding=padding)).double()
    with torch.no_grad():
        model[0].weight[2:] = 0.0
        model[0].bias[2:] = -1.0
    result = compact(model, torch.zeros(1, 1, 5, 5).double())
    assert widths(result)["0"] == (1, left)
    assert deviation(model, result.model, torch.randn(2, 1, 7, 4).double()) < 1e-13


@pytest.mark.parametrize(
    ("pool", "left"),
    [
        (nn.AvgPool2d(3, 1, 1), 5),  # the padding counts: not constant at the border
        (nn.AvgPool2d(3, 1, 1, count_include_pad=False), 2),
        (nn.AvgPool2d(2), 2),
        (nn.AvgPool2d(2, divisor_override=3), 5),
        (nn.MaxPool2d(3, 1, 1), 2),
        (nn.AdaptiveAvgPool2d(3), 2),
        (nn.Upsample(scale_factor=2), 2),
    ],
)
def test_a_constant_passes_a_pooling_that_does_not_count_its_padding(pool, left) -> None:
    model = nn.Sequential(nn.Conv2d(1, 5, 3), nn.Sigmoid(), pool, nn.Conv2d(5, 2, 1)).double()
    nn.init.zeros_(model[0].weight[2:])
    result = compact(model, torch.zeros(1, 1, 8, 8).double())
    assert widths(result)["0"] == (1, left)
    assert deviation(model, result.model, torch.randn(2, 1, 8, 9).double()) < 1e-13


@pytest.mark.parametrize("name", ["0", "3", "8", "12", "14"])
def test_a_layer_that_is_all_zero_keeps_one_channel_and_so_do_those_before_it(name) -> None:
    model = randomise(plain(norm=False)).double()
    nn.init.zeros_(model.get_submodule(name).weight)
    result = compact(model, torch.zeros(1, 3, 10, 10).double())
    order = ["0", "3", "8", "12", "14"]
    dead = order[: order.index(name) + 1]
    assert all(result.report.after[layer].outputs == (4 if layer == "14" else 1) for layer in dead)
    assert deviation(model, result.model, torch.randn(2, 3, 9, 11).double()) < 1e-12


def test_half_of_the_inner_channels_of_resnet20() -> None:
    model = randomise(resnet20())
    with torch.no_grad():
        for name, module in model.named_modules():
            if name.startswith("layer") and name.endswith(".conv1"):
                module.weight[::2] = 0.0
            elif name.startswith("layer") and name.endswith(".bn1"):
                module.bias.fill_(-9.0)  # dead after ReLU: no carrier
    result = compact(model, torch.zeros(1, 3, 32, 32))
    for name, size in result.report.before.items():
        now = result.report.after[name]
        inner = name.startswith("layer") and "downsample" not in name
        assert now.outputs == (size.outputs // 2 if inner and name.endswith("conv1") else size.outputs)
        assert now.inputs == (size.inputs // 2 if inner and name.endswith("conv2") else size.inputs)


def test_the_class_stays_and_the_model_is_not_changed() -> None:
    model = kill(randomise(resnet20()), 0.4).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    result = compact(model, torch.zeros(2, 3, 8, 8))
    assert type(result.model) is type(model)
    assert not any(module.training for module in result.model.modules())
    assert all(module.training for module in model.modules())
    assert model.state_dict().keys() == before.keys()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("build", [CNN, LeNet])
def test_the_result_exports_copies_pickles_and_loads(build) -> None:
    x = torch.randn(2, 1, 28, 28)
    smaller = compact(kill(randomise(build()), 0.5), x).model
    exported = torch.export.export(smaller, (x,)).module()
    with torch.no_grad():
        expected = smaller(x)
        torch.testing.assert_close(exported(x), expected)
        other = copy.deepcopy(smaller)
        for parameter in other.parameters():
            parameter.zero_()
        other.load_state_dict(smaller.state_dict())
        torch.testing.assert_close(other(x), expected)
        torch.testing.assert_close(pickle.loads(pickle.dumps(smaller))(x), expected)


def test_it_can_be_trained_on() -> None:
    smaller = compact(kill(randomise(plain(norm=True)), 0.5), torch.zeros(1, 3, 10, 10)).model.train()
    smaller(torch.randn(2, 3, 10, 10)).square().sum().backward()
    assert all(parameter.grad is not None for parameter in smaller.parameters())


def test_a_network_of_torch_prune_is_compacted_once_its_masks_are_applied() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    prune.ln_structured(model[0], "weight", amount=0.5, n=2, dim=0)
    with pytest.raises(ValueError, match=r"^model must be a module that copy.deepcopy can copy, .*finalize\(model\)"):
        compact(model, torch.zeros(1, 3))
    prune.remove(model[0], "weight")
    assert widths(compact(model, torch.zeros(1, 3))) == {"0": (3, 2), "2": (2, 2)}


@pytest.mark.parametrize(
    ("model", "example", "error", "message"),
    [
        ("net", torch.zeros(1, 3), TypeError, "model must be a torch.nn.Module, but got str."),
        (
            nn.Linear(3, 2),
            [1.0],
            TypeError,
            "example_input must be a batch, or a tuple or mapping of batches, but got list.",
        ),
        (
            nn.Linear(3, 2),
            torch.zeros(1, 4),
            ValueError,
            "example_input must be what the model takes, but got the shape (1, 4), on which it fails: mat1 and mat2 "
            "shapes cannot be multiplied (1x4 and 3x2).",
        ),
    ],
)
def test_bad_input(model, example, error, message) -> None:
    with pytest.raises(error) as caught:
        compact(model, example)
    assert str(caught.value) == message
