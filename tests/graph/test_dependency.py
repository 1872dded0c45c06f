"""Channels that belong together go together, and what is not understood keeps them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from pruned_networks import deviation, kill, randomise, widths
from torch import Tensor, nn

from spikeslab.compression import compact


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
        (nn.utils.parametrizations.weight_norm(nn.Conv2d(4, 4, 1)), "'middle' (ParametrizedConv2d)"),
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
