"""Batches and outputs of every form reach the network and the task as the same tensors."""

from __future__ import annotations

from collections import UserDict
from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

from spikeslab.forward_pass import (
    FIRST,
    LAST,
    NEXT,
    Forward,
    find_layout,
    map_tensors,
    read_loss,
    read_output,
    run,
    split_batch,
    split_rows,
    to_device_of,
)

X, Y, LOGITS = torch.ones(3, 2), torch.zeros(3), torch.randn(3, 4)
MEAN = torch.tensor(0.5)


@dataclass
class Scores:
    logits: Tensor
    loss: Tensor | None = None
    hidden: Tensor | None = None


class Pair(NamedTuple):
    first: Tensor
    second: Tensor


class Plain:
    logits = LOGITS


@pytest.mark.parametrize(
    ("batch", "inputs", "targets"),
    [
        (X, X, None),
        ((X,), X, None),
        ([X, Y], X, Y),
        ((X, X, Y), (X, X), Y),
        (({"a": X}, Y), {"a": X}, Y),
        ({"a": X, "labels": Y}, {"a": X}, Y),
        (UserDict({"a": X, "label": Y}), {"a": X}, Y),
        ({"a": X}, {"a": X}, None),
        ((), (), None),
    ],
)
def test_the_last_entry_of_a_tuple_and_the_labels_of_a_mapping_are_targets(batch, inputs, targets) -> None:
    found = split_batch(batch)
    assert found[0] is inputs or found[0] == inputs or (isinstance(inputs, dict) and found[0].keys() == inputs.keys())
    assert found[1] is targets


@pytest.mark.parametrize(
    "result",
    [
        LOGITS,
        Scores(LOGITS, MEAN, torch.zeros(1)),
        {"loss": MEAN, "logits": LOGITS, "hidden": X},
        {"loss": MEAN, "scores": LOGITS},
        UserDict({"logits": LOGITS}),
        (LOGITS, X),
        (MEAN, LOGITS, X),
        Pair(LOGITS, X),
        Plain(),
    ],
)
def test_the_output_is_found_in_what_models_return(result) -> None:
    assert read_output(result) is LOGITS


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (None, "it returned a NoneType."),
        ({"a": X, "b": Y}, "it returned a dict of 'a', 'b'."),
        ((MEAN,), "it returned a tuple of '0'."),
    ],
)
def test_an_output_that_is_not_found_must_be_named(result, message: str) -> None:
    with pytest.raises(TypeError) as caught:
        read_output(result)
    expectation = "output must be given where a model returns neither a tensor nor logits, but "
    assert str(caught.value) == expectation + message


def test_the_loss_is_a_number_that_the_model_returns() -> None:
    assert read_loss(Scores(LOGITS, MEAN)) is MEAN
    assert read_loss({"loss": MEAN}) is MEAN
    assert read_loss(Scores(LOGITS)) is None
    assert read_loss({"loss": LOGITS}) is None
    assert read_loss(LOGITS) is None


class Named(nn.Module):
    def forward(self, a: Tensor, b: Tensor | None = None) -> Tensor:
        return a if b is None else a - b


def test_a_mapping_is_named_and_a_tuple_in_order() -> None:
    for inputs in ({"b": X, "a": 3 * X}, (3 * X, X), [3 * X, X], UserDict({"a": 3 * X, "b": X})):
        assert torch.equal(run(Named(), inputs), 2 * X)
    assert torch.equal(run(Named(), X), X)


def test_functions_of_the_user_come_first() -> None:
    forward = Forward(lambda model, x: {"twice": model(2 * x["raw"])}, lambda result: result["twice"])
    assert torch.equal(forward(Named(), {"raw": X}), 2 * X)
    with pytest.raises(TypeError, match=r"^output must return a tensor, but it returned a str\.$"):
        Forward(output=lambda result: "scores")(Named(), X)
    with pytest.raises(TypeError, match=r"^forward must be a function or None, but got 1\.$"):
        Forward(forward=1)


def test_nested_tensors_move_and_split_together() -> None:
    nested = {"a": X, "b": [Y, (X, "name")], "c": None}
    moved = to_device_of(nn.Linear(1, 1, device="meta"), nested)
    assert moved["a"].is_meta
    assert moved["b"][1][0].is_meta
    assert (moved["b"][1][1], moved["c"]) == ("name", None)
    parts = list(split_rows(nested, 2))
    assert [len(part["b"][0]) for part in parts] == [2, 1]
    joined = map_tensors(len, parts[0])
    assert joined == {"a": 2, "b": [2, (2, "name")], "c": None}


def test_the_shape_of_the_labels_tells_where_the_classes_are() -> None:
    assert find_layout(torch.zeros(4, 8, 20), torch.zeros(4, 8)) == LAST
    assert find_layout(torch.zeros(4, 20, 8), torch.zeros(4, 8)) == FIRST
    assert find_layout(torch.zeros(4, 4), torch.zeros(4)) == FIRST
    with pytest.raises(ValueError) as caught:
        find_layout(torch.zeros(4, 8, 8), torch.zeros(4, 8))
    assert str(caught.value) == (
        "loss must be given where classes may be in dimension 1 or in the last, but outputs have the shape (4, 8, 8) "
        "and labels (4, 8)."
    )


def test_a_layout_puts_every_label_beside_its_row() -> None:
    outputs, y = torch.arange(24.0).reshape(2, 3, 4), torch.tensor([[0, 1, 2], [3, -100, 1]])
    rows, labels = LAST.flatten(outputs, y)
    assert torch.equal(rows, outputs.reshape(6, 4)[[0, 1, 2, 3, 5]])
    assert labels.tolist() == [0, 1, 2, 3, 1]
    rows, labels = NEXT.flatten(outputs, y)
    assert torch.equal(rows, outputs.reshape(6, 4)[[0, 1, 4]])
    assert labels.tolist() == [1, 2, 1]
    rows, labels = FIRST.flatten(outputs, torch.zeros(2, 4))
    assert torch.equal(rows[1], outputs[0, :, 1])
