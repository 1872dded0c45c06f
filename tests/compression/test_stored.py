"""What a network takes on disk, and what is left of it: the numbers are those of the files that are written."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from small import batches, network
from torch import nn

from spikeslab.compression import SparsityReport, compress, load_sparse_into, save_sparse
from spikeslab.compression.stored import evaluate_stored, state_tensors
from spikeslab.compression.tasks import CLASSIFICATION, Evaluation, Task, classify


@pytest.mark.parametrize("values", ["fp32", "fp16", "int8"])
def test_bytes_and_numbers_are_those_of_the_file(values: str, tmp_path: Path) -> None:
    result = compress(network(), batches(), sparsity=0.5, epochs=2, progress=False)
    before = state_tensors(result.model)
    found = result.evaluate_stored(batches())
    file = save_sparse(result.model, tmp_path / "sparse", values)
    read = copy.deepcopy(result.model)
    load_sparse_into(read, file)
    expected = Evaluation(result.task, batches()).of_model(read)
    assert found[values]["bytes"] == file.stat().st_size
    assert {name: found[values][name] for name in ("accuracy", "nll", "ece")} == {
        name: expected[name] for name in ("accuracy", "nll", "ece")
    }
    save_file(before, tmp_path / "dense")
    assert found["dense"] == {"bytes": (tmp_path / "dense").stat().st_size}
    assert all(torch.equal(tensor, before[name]) for name, tensor in result.model.state_dict().items())


def test_a_tied_weight_counts_once_in_the_dense_file() -> None:
    model = nn.Sequential(nn.Linear(8, 64), nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 2))
    model[2].weight = model[1].weight
    task = Task(CLASSIFICATION, classify)
    stored = evaluate_stored(model, Evaluation(task, [(torch.zeros(4, 8), torch.zeros(4).long())]))
    assert stored["dense"]["bytes"] == SparsityReport.of(model, torch.zeros(1, 8)).files["dense"]


def test_only_rounding_costs() -> None:
    result = compress(network(), batches(), sparsity=0.5, epochs=2, progress=False)
    found, exact = result.evaluate_stored(batches()), result.evaluate(batches())["sparse"]
    assert found["fp32"]["nll"] == exact["nll"]
    assert found["int8"]["nll"] not in (found["fp32"]["nll"], found["fp16"]["nll"])
    assert found["int8"]["nll"] == pytest.approx(exact["nll"], rel=0.02)


class Tied(nn.Module):
    """Two names for one weight, and a state that is no tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
        self.second.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).relu())

    def get_extra_state(self) -> dict[str, Any]:
        return {"made": "here"}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        assert state == {"made": "here"}


def test_shared_weights_and_other_states_are_kept() -> None:
    evaluation = Evaluation(Task(CLASSIFICATION, classify), batches())
    model = Tied()
    assert evaluate_stored(model, evaluation)["fp32"]["nll"] == evaluation.of_model(model)["nll"]


def test_values_that_are_rounded_to_zero_are_no_longer_counted() -> None:
    result = compress(network(), batches(), sparsity=0.5, epochs=2, progress=False)
    with torch.no_grad():
        weight = dict(result.model.named_parameters())["3.weight"]
        weight[0] = torch.where(weight[0] == 0, 0.0, 1e-6)
        weight[0, 0] = 1.0  # beside which the others of its channel are less than half a step of int8
    found = result.evaluate_stored(batches())
    kept = int(weight.count_nonzero())
    assert found["fp32"]["sparse_nonzeros"] == kept
    assert found["int8"]["sparse_nonzeros"] == kept - int(weight[0].count_nonzero()) + 1
    gone = found["fp32"]["sparse_nonzeros"] - found["int8"]["sparse_nonzeros"]
    assert found["fp32"]["nonzeros"] - found["int8"]["nonzeros"] >= gone
