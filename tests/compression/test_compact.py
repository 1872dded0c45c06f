"""A compacted network is smaller by exactly what is dead, and computes the same, borders included."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from pruned_networks import NETWORKS, LeNet, kill, plain, randomise
from torch import Tensor, fx, nn
from torch.nn.utils import prune

from spikeslab.compression import Compacted, LayerSize, compact
from spikeslab.errors import SpikeSlabWarning
from spikeslab.paper.cifar10 import resnet20
from spikeslab.paper.images import CNN


@torch.no_grad()
def deviation(model: nn.Module, smaller: nn.Module, x: Tensor) -> float:
    """Largest difference of the outputs, relative to the largest output."""
    expected, got = copy.deepcopy(model).eval()(x), smaller(x)
    assert expected.shape == got.shape
    return float((expected - got).abs().max() / expected.abs().max())


def widths(result: Compacted) -> dict[str, tuple[int, int]]:
    return {name: (size.inputs, size.outputs) for name, size in result.report.after.items()}


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


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, padding=1)
        self.inner, self.outer = nn.Conv2d(4, 5, 3, padding=1), nn.Conv2d(5, 4, 3, padding=1)
        self.fc = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).relu()
        x = (x + self.outer(self.inner(x).relu())).relu()
        return self.fc(x.mean(dim=(2, 3)))


def test_a_residual_channel_goes_only_if_every_summand_is_dead() -> None:
    model = randomise(Residual()).double()
    with torch.no_grad():
        model.stem.weight[0], model.stem.bias[0] = 0.0, -1.0  # one summand only
        model.stem.weight[1], model.stem.bias[1] = 0.0, -1.0
        model.outer.weight[1] = 0.0  # both
        model.inner.weight[2], model.inner.bias[2] = 0.0, -1.0  # inside the branch
    result = compact(model, torch.zeros(1, 1, 6, 6).double())
    assert widths(result) == {"stem": (1, 3), "inner": (3, 4), "outer": (4, 3), "fc": (3, 2)}
    assert deviation(model, result.model, torch.randn(2, 1, 5, 8).double()) < 1e-13
    assert isinstance(result.model, Residual)


def test_a_residual_channel_that_only_feeds_itself_goes() -> None:
    model = randomise(Residual()).double()
    with torch.no_grad():
        model.fc.weight[:, 2] = 0.0  # not read at the end
        model.inner.weight[:, 2] = 0.0
        model.inner.weight[3, 2] = 1.0  # read by inner channel 3
        model.outer.weight[:, 3] = 0.0
        model.outer.weight[2, 3] = 1.0  # which is read by channel 2 only
    result = compact(model, torch.zeros(1, 1, 6, 6).double())
    assert widths(result) == {"stem": (1, 3), "inner": (3, 4), "outer": (4, 3), "fc": (3, 2)}
    assert deviation(model, result.model, torch.randn(2, 1, 5, 8).double()) < 1e-13


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


def test_a_fixed_size_in_a_view_is_rewritten() -> None:
    model = kill(randomise(LeNet()), 0.5)
    result = compact(model, torch.zeros(1, 1, 28, 28))
    assert isinstance(result.model, fx.GraphModule)
    assert result.model.state_dict().keys() == model.state_dict().keys()
    assert type(compact(randomise(LeNet()), torch.zeros(1, 1, 28, 28)).model) is LeNet  # the size fits


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


def test_the_memory_format_stays() -> None:
    model = kill(randomise(plain(norm=True)), 0.5).to(memory_format=torch.channels_last)
    smaller = compact(model, torch.zeros(1, 3, 10, 10)).model
    assert all(smaller[index].weight.is_contiguous(memory_format=torch.channels_last) for index in (0, 3, 8))


def test_one_input_channel_keeps_the_memory_format_for_all_that_follows() -> None:
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3))
    for last in (False, True):
        memory = torch.channels_last if last else torch.contiguous_format
        model = kill(randomise(model), 0.5).to(memory_format=memory)
        result = compact(model, torch.zeros(1, 1, 10, 10)).model(torch.randn(3, 1, 10, 10))
        assert result.is_contiguous(memory_format=torch.channels_last) == last


class Branching(nn.Module):
    """Asks for a value: no trace."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x) if x.sum() > 0 else x


def test_what_cannot_be_traced_is_copied_with_a_warning() -> None:
    model = Branching()
    sentence = (
        "Branching cannot be traced by torch.fx: symbolically traced variables cannot be used as inputs to control "
        "flow. It stays as it is."
    )
    with pytest.warns(SpikeSlabWarning) as caught:
        result = compact(model, torch.ones(1, 3))
    assert [str(warning.message) for warning in caught] == [sentence]
    assert result.report.notes == (sentence,)
    assert result.model is not model
    assert torch.equal(result.model.fc.weight, model.fc.weight)
    assert sentence in str(result.report)


class Normalised(nn.Module):
    """A layer that mixes channels in a way that is not known, between two that are."""

    def __init__(self, middle: nn.Module) -> None:
        super().__init__()
        self.conv1, self.middle = nn.Conv2d(1, 4, 3), middle
        self.conv2, self.conv3 = nn.Conv2d(4, 6, 3), nn.Conv2d(6, 2, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv3(self.conv2(self.middle(self.conv1(x))).relu())


@pytest.mark.parametrize(
    ("middle", "what"),
    [
        (nn.GroupNorm(2, 4), "'middle' (GroupNorm)"),
        (nn.Softmax(1), "'middle' (Softmax)"),
        (nn.Conv2d(4, 4, 1, groups=2), "'middle' (Conv2d)"),
        (nn.PReLU(4), "'middle' (PReLU)"),
    ],
)
def test_an_unknown_layer_keeps_its_channels_and_a_note_says_so(middle, what) -> None:
    model = kill(Normalised(middle), 0.5, seed=3).double()
    with torch.no_grad():
        model.conv1.weight[0] = 0.0
        model.conv2.weight[:3] = 0.0
    result = compact(model, torch.zeros(1, 1, 9, 9).double())
    *others, note = result.report.notes
    assert note == f"The outputs of 'conv1' stay: they reach {what}, which compact cannot handle."
    shared = f"{what} stays: it is shared, grouped, parametrized or not batched, or it has hooks."
    assert others == ([shared] if isinstance(middle, nn.Conv2d) else [])
    assert result.report.after["conv1"].outputs == 4
    assert result.report.after["conv2"].outputs < 4
    assert deviation(model, result.model, torch.randn(2, 1, 8, 9).double()) < 1e-13


class Odd(nn.Module):
    """One forward out of several that leave little to do."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.conv1, self.conv2, self.fc = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1), nn.Linear(4, 2)
        self.scale = nn.Parameter(torch.randn(1, 4, 1, 1))
        self.gain = nn.Parameter(torch.randn(1))

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv1(x)
        if self.kind == "used twice":
            x = self.conv2(self.conv2(x))
        elif self.kind == "parameter for each channel":
            x = self.conv2(x * self.scale)
        elif self.kind == "one parameter":
            x = self.conv2(x * self.gain)
        elif self.kind == "number of channels":
            x = self.conv2(x / x.shape[1])
        elif self.kind == "rows and columns":
            x = self.conv2(F.interpolate(x, size=x.shape[-2:])[:, :, : x.size(-1) // 2])
        elif self.kind == "size of the image":
            x = self.conv2(x * x.shape[2])
        elif self.kind == "width of a layer":
            x = self.conv2(x / self.conv1.out_channels)
        elif self.kind == "overwritten":
            y = x.relu_()
            x = self.conv2(x) + y
        elif self.kind == "read before and after":
            y = self.conv2(x)
            x.sigmoid_()
            x = y + x
        elif self.kind == "chunks":
            first, second = self.conv2(x).chunk(2, dim=1)
            x = torch.cat([first, second], 1)
        elif self.kind == "across channels":
            x = self.conv2(x - x.mean(1, keepdim=True))
        elif self.kind == "weight":
            x = F.conv2d(self.conv2(x), self.conv2.weight, padding=1)
        elif self.kind == "random":
            x = self.conv2(F.dropout(x, 0.0))
        elif self.kind == "padded":
            x = self.conv2(F.pad(x, (1, 1, 1, 1)))
        elif self.kind == "permuted":
            x = self.conv2(x.transpose(2, 3).permute(0, 1, 2, 3))
        return self.fc(x.sigmoid().mean((-2, -1)))


ODD = {
    "used twice": False,
    "parameter for each channel": False,
    "one parameter": True,
    "rows and columns": True,
    "number of channels": False,
    "size of the image": False,
    "overwritten": False,
    "read before and after": False,
    "chunks": True,  # conv1 is in front of it
    "across channels": False,
    "weight": False,
    "random": True,  # conv2 does not read its channel 0
    "padded": False,
    "permuted": False,
}


@pytest.mark.parametrize("kind", ODD)
def test_a_forward_that_is_not_understood_stays_right(kind) -> None:
    model = randomise(Odd(kind)).double()
    with torch.no_grad():
        model.conv1.weight[:3] = 0.0
        model.conv2.weight[:, 0] = 0.0
    result = compact(model, torch.zeros(1, 1, 6, 6).double())
    assert deviation(model, result.model, torch.randn(3, 1, 6, 6).double()) < 1e-12
    assert deviation(model, result.model, torch.randn(1, 1, 9, 9).double()) < 1e-12
    assert (result.report.after["conv1"].outputs < 4) == ODD[kind]
    assert bool(result.report.notes) != (kind in ("one parameter", "rows and columns", "random"))


class Overwritten(nn.Module):
    """What the normalisation returns is overwritten, and then read through an earlier view."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm, self.fc = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Linear(16, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv1(x))
        view = x.view(-1, 16)
        F.relu(x, inplace=True)
        return self.fc(view)


def test_a_result_in_place_is_seen_behind_a_folded_normalisation_and_a_view() -> None:
    model = randomise(Overwritten()).double()
    with torch.no_grad():
        model.conv1.weight[:3] = 0.0
        model.norm.bias[:3] = torch.tensor([-4.0, 4.0, -4.0])
    result = compact(model, torch.zeros(1, 1, 4, 4).double())
    assert deviation(model, result.model, torch.randn(3, 1, 4, 4).double()) < 1e-13
    assert widths(result) == {"conv1": (1, 4), "fc": (16, 2)}


@pytest.mark.parametrize(
    "pool", [nn.MaxPool1d(2), nn.AvgPool1d(2), nn.AdaptiveAvgPool1d(8), nn.AdaptiveMaxPool1d(8), nn.MaxPool1d(3, 1, 1)]
)
@pytest.mark.parametrize("functional", [False, True])
def test_a_pooling_over_features_keeps_them(pool, functional) -> None:
    class Pooled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.pool, self.last = nn.Linear(6, 16), pool, nn.Linear(width, 2)

        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x)
            return self.last(call(x) if functional else self.pool(x))

    name = {"MaxPool1d": "max_pool1d", "AvgPool1d": "avg_pool1d"}.get(type(pool).__name__, "adaptive_avg_pool1d")
    sizes = [getattr(pool, key) for key in ("kernel_size", "stride", "padding") if hasattr(pool, key)] or [8]
    call = lambda x: getattr(F, name)(x, *(size[0] if isinstance(size, tuple) else size for size in sizes))  # noqa: E731
    width = pool(torch.zeros(2, 16)).shape[1]
    model = Pooled().double()
    with torch.no_grad():
        model.first.weight[:5] = 0.0
    result = compact(model, torch.zeros(1, 6).double())
    assert result.model.first.out_features == 16
    assert deviation(model, result.model, torch.randn(3, 6).double()) < 1e-10
    assert "which compact cannot handle" in result.report.notes[0]


@pytest.mark.parametrize("keywords", [{"dim": 1}, {"axis": 1}, {"dim": -3}])
def test_concatenated_channels_go_however_the_call_is_written(keywords) -> None:
    class Joined(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Conv2d(1, 4, 1), nn.Conv2d(1, 3, 1), nn.Conv2d(7, 2, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.c(torch.cat(tensors=[self.a(x), self.b(x)], **keywords))

    model = Joined().double()
    with torch.no_grad():
        model.a.weight[:2], model.a.bias[:2] = 0.0, 0.0
    result = compact(model, torch.zeros(1, 1, 4, 4).double())
    assert (result.model.a.out_channels, result.model.c.in_channels) == (2, 5)
    assert deviation(model, result.model, torch.randn(2, 1, 4, 4).double()) < 1e-10


def test_a_dead_channel_goes_through_a_gate() -> None:
    class Gated(nn.Module):
        """Squeeze and excitation: what is zero stays zero, whatever it is multiplied by."""

        def __init__(self) -> None:
            super().__init__()
            self.conv, self.last = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 2, 3, padding=1)
            self.squeeze, self.excite = nn.Conv2d(8, 4, 1), nn.Conv2d(4, 8, 1)

        def forward(self, x: Tensor) -> Tensor:
            x = self.conv(x).relu()
            gate = self.excite(self.squeeze(F.adaptive_avg_pool2d(x, 1)).relu()).sigmoid()
            return self.last(x * gate)

    model = Gated().double()
    with torch.no_grad():
        model.conv.weight[:3], model.conv.bias[:3] = 0.0, 0.0
    small = compact(model, torch.zeros(1, 1, 6, 6).double()).model
    assert (small.conv.out_channels, small.squeeze.in_channels, small.excite.out_channels) == (5, 5, 5)
    assert deviation(model, small, torch.randn(2, 1, 6, 6).double()) < 1e-10


def test_a_forward_that_reads_a_width_is_refused() -> None:
    model = randomise(Odd("width of a layer"))
    with torch.no_grad():
        model.conv1.weight[:3] = 0.0
    with pytest.warns(SpikeSlabWarning, match="^Odd computes something else when its layers are narrower. It stays"):
        result = compact(model, torch.randn(1, 1, 6, 6))
    assert widths(result)["conv1"] == (1, 4)
    assert deviation(model, result.model, torch.randn(3, 1, 6, 6)) == 0.0


def test_hooks_keep_a_layer_as_it_is() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    nn.init.zeros_(model[0].weight)
    model[0].register_forward_hook(lambda module, inputs, output: output + inputs[0].sum())
    result = compact(model, torch.ones(1, 3))
    assert widths(result)["0"] == (3, 4)
    assert result.report.notes == (
        "'0' (Linear) stays: it is shared, grouped, parametrized or not batched, or it has hooks.",
    )
    assert deviation(model, result.model, torch.randn(5, 3)) == 0.0


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
            "example_input must be a batch or a tuple of batches, but got list.",
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
