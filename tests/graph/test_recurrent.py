"""Units of recurrent layers go in all layers and directions alike, and the network computes the same."""

from __future__ import annotations

import pytest
import torch
from pruned_networks import deviation
from torch import Tensor, nn

from spikeslab.compression import compact
from spikeslab.graph.recurrent import zero_units
from spikeslab.graph.units import find_removable

EXAMPLE = torch.zeros(2, 6, 5).double()


class Recurrent(nn.Module):
    """Features, a recurrent layer, and a head for its last output or its last state."""

    def __init__(self, kind: str, end: str, **options: object) -> None:
        super().__init__()
        self.embed = nn.Linear(5, 7)
        self.cell = getattr(nn, kind)(7, 8, batch_first=True, **options)
        directions = 2 if options.get("bidirectional") else 1
        self.head = nn.Linear(8 * (directions if end == "output" else 1), 3)
        self.end = end

    def forward(self, x: Tensor) -> Tensor:
        output, state = self.cell(self.embed(x).relu())
        if self.end == "output":
            return self.head(output[:, -1])
        return self.head((state[0] if isinstance(self.cell, nn.LSTM) else state)[-1])


def build(kind: str, end: str, **options: object) -> Recurrent:
    torch.manual_seed(0)
    model = Recurrent(kind, end, **options).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.5)
    return model


KINDS = ["LSTM", "GRU", "RNN"]
OPTIONS = [{}, {"num_layers": 2}, {"bidirectional": True}, {"num_layers": 2, "bidirectional": True}, {"bias": False}]


@pytest.mark.parametrize("end", ["output", "state"])
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_units_of_a_recurrent_layer_and_of_its_inputs_go(kind, options, end) -> None:
    model = build(kind, end, **options)
    units, fixed = find_removable(model, EXAMPLE)
    assert (list(units), fixed) == (["embed.weight", "cell.weight_ih_l0"], [])
    parameters = dict(model.named_parameters())
    dead = torch.tensor([True, False, True, False, False, False, True, False])
    with torch.no_grad():
        for part in units["cell.weight_ih_l0"].members:
            part.zero_(parameters[part.name], dead)
        model.embed.weight[2:4], model.embed.bias[2], model.embed.bias[3] = 0.0, 0.7, -0.7  # constants: 0.7 and zero
    assert zero_units(model.cell).tolist() == dead.tolist()
    smaller = compact(model, EXAMPLE).model
    assert type(smaller.cell) is type(model.cell)
    assert smaller.cell.hidden_size == 5
    assert smaller.cell.input_size == (5 if model.cell.bias else 6)  # a constant moves into the bias, if there is one
    for shape in ((2, 6, 5), (3, 1, 5)):
        assert deviation(model, smaller, torch.randn(shape).double()) < 1e-12
    again = compact(smaller, EXAMPLE)
    assert again.report.parameters[0] == again.report.parameters[1]


@pytest.mark.parametrize("kind", KINDS)
def test_units_that_nothing_reads_go_and_one_that_only_another_reads_stays(kind) -> None:
    model = build(kind, "output")
    with torch.no_grad():
        model.head.weight[:, 4:] = 0.0
        model.cell.weight_hh_l0[:, 4:] = 0.0
        rows = torch.arange(8).repeat(len(model.cell.weight_hh_l0) // 8)
        model.cell.weight_hh_l0[rows == 1, 5] = 1.0  # unit 1, which is read, reads unit 5
    smaller = compact(model, EXAMPLE).model
    assert smaller.cell.hidden_size == 5
    assert deviation(model, smaller, torch.randn(3, 4, 5).double()) < 1e-12


def test_a_state_that_is_given_keeps_the_units() -> None:
    class Given(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.head = nn.GRU(5, 8, batch_first=True), nn.Linear(8, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.cell(x, x.new_ones(1, x.shape[0], 8))[0])

    model = Given().double().eval()
    nn.init.zeros_(model.head.weight)
    result = compact(model, EXAMPLE)
    assert result.model.cell.hidden_size == 8
    assert deviation(model, result.model, torch.randn(3, 4, 5).double()) < 1e-12


@torch.no_grad()
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_unit_is_zero_if_all_weights_of_its_candidate_are(kind, options) -> None:
    model = build(kind, "output", **options)
    cell, found = model.cell, set()
    for gate in range(len(cell.weight_ih_l0) // 8):
        twin = build(kind, "output", **options).cell
        for name, parameter in twin.named_parameters():
            parameter[8 * gate + 3] = 0.0
            if "ih" in name:
                parameter[8 * gate + 5] = 0.0  # not the recurrent weights
        states = twin(torch.randn(4, 6, 7).double())[0].unflatten(-1, (-1, 8))
        expected = (states == 0).all((0, 1)).all(0)
        assert torch.equal(zero_units(twin), expected)
        found.add(bool(expected[3]))
    assert True in found
