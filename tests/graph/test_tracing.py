"""A trace computes what the network computes, or the network stays as it is."""

from __future__ import annotations

import re
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from pruned_networks import LeNet, deviation, kill, randomise, widths
from torch import Tensor, fx, nn

from spikeslab.compression import compact
from spikeslab.errors import SpikeSlabWarning
from spikeslab.graph.tracing import check_example_input


def test_a_fixed_size_in_a_view_is_rewritten() -> None:
    model = kill(randomise(LeNet()), 0.5)
    result = compact(model, torch.zeros(1, 1, 28, 28))
    assert isinstance(result.model, fx.GraphModule)
    assert result.model.state_dict().keys() == model.state_dict().keys()
    assert type(compact(randomise(LeNet()), torch.zeros(1, 1, 28, 28)).model) is LeNet  # the size fits


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
    "size of the image": True,  # conv2 does not read its channel 0
    "overwritten": False,
    "read before and after": False,
    "chunks": True,  # conv1 is in front of it
    "across channels": False,
    "weight": False,
    "random": True,  # conv2 does not read its channel 0
    "padded": True,  # conv2 does not read its channel 0
    "permuted": True,
}
CLEAR = ("one parameter", "rows and columns", "random", "chunks", "padded", "permuted", "size of the image")
"""Kinds that keep no channel."""


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
    assert bool(result.report.notes) != (kind in CLEAR)


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


def test_a_forward_that_reads_a_width_is_refused() -> None:
    model = randomise(Odd("width of a layer"))
    with torch.no_grad():
        model.conv1.weight[:3] = 0.0
    with pytest.warns(SpikeSlabWarning, match="^Odd computes something else when its layers are narrower. It stays"):
        result = compact(model, torch.randn(1, 1, 6, 6))
    assert widths(result)["conv1"] == (1, 4)
    assert deviation(model, result.model, torch.randn(3, 1, 6, 6)) == 0.0


def test_an_example_of_zeros_does_not_hide_that_a_trace_is_false() -> None:
    class Alias(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.live = nn.Conv2d(1, 4, 1, bias=False), nn.Conv2d(4, 4, 1, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            a = b = self.stem(x)
            a += self.live(a)
            return a - 2.0 * b

    model = Alias().eval()
    with pytest.warns(SpikeSlabWarning, match="Alias computes something else than its trace"):
        result = compact(model, torch.zeros(1, 1, 6, 6))
    assert deviation(model, result.model, torch.randn(2, 1, 6, 6)) == 0.0


@pytest.mark.parametrize(
    ("example", "error", "message"),
    [
        ([1.0], TypeError, "example_input must be a batch, or a tuple or mapping of batches, but got list."),
        (torch.tensor(1.0), TypeError, "example_input must be a batch, or a tuple or mapping of batches, but got Tensor."),  # noqa: E501
        ({"x": torch.ones(2), "y": torch.ones(3)}, ValueError, "example_input must have rows, as many in each part, but got [2, 3]."),  # noqa: E501
        (torch.empty(0, 3), ValueError, "example_input must have rows, as many in each part, but got [0]."),
        ((torch.ones(2), torch.ones(3)), ValueError, "example_input must have rows, as many in each part, but got [2, 3]."),  # noqa: E501
    ],
)  # fmt: skip
def test_what_is_no_batch_is_refused(example: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        check_example_input(example)


def test_a_mapping_is_put_into_the_order_of_the_arguments() -> None:
    class Difference(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(2, 4), nn.Linear(3, 4)

        def forward(self, left: torch.Tensor, right: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
            return scale * (self.first(left) - self.second(right)).relu()

    model, inputs = Difference().eval(), {"right": torch.randn(5, 3), "left": torch.randn(5, 2)}
    with torch.no_grad():
        model.first.weight[0] = model.first.bias[0] = 0.0
    result = compact(model, inputs)
    torch.testing.assert_close(result.model(**inputs), model(**inputs))
    assert [size.multiply_adds for size in result.report.before.values()] == [8, 12]
    with pytest.raises(ValueError) as caught:
        compact(model, {"left": inputs["left"], "scale": inputs["left"]})
    assert str(caught.value) == (
        "example_input must name the first arguments of the model, but got 'left', 'scale' for a model whose first "
        "arguments are 'left', 'right'."
    )


class Boxed(nn.Module):
    """A network whose result is an object that torch does not know."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 8), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> Box:
        return Box(self.last(self.first(x).relu()))


@dataclass
class Box:
    logits: torch.Tensor


def test_the_outputs_in_an_object_are_compared_too() -> None:
    model = Boxed().eval()
    with torch.no_grad():
        model.first.weight[:3] = 0.0
    x = torch.randn(4, 3)
    result = compact(model, x)
    torch.testing.assert_close(result.model(x).logits, model(x).logits)
    assert result.model.first.out_features == 5
