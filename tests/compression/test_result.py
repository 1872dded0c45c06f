"""Files, counts and checks of a result."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from small import compress_channels, compress_small, data, equal, network, tensors
from torch.nn import functional as F

import spikeslab as ss
from spikeslab.compression import load_sparse
from spikeslab.compression.result import check_finite
from spikeslab.errors import SpikeSlabError
from spikeslab.files import read_record
from spikeslab.training import Callback, Collect, Training


def test_batches_of_any_kind_leave_the_compacted_size_open() -> None:
    x, y = data()
    result = compress_channels(
        train=[{"x": x, "y": y}], loss=lambda m, b: F.cross_entropy(m(b["x"]), b["y"]), num_data=96
    )
    assert "compacted" not in result.report
    assert sum(layer["living"] for layer in result.report["channels"].values()) == 16


def test_a_report_that_fails_does_not_cost_the_network(tmp_path, monkeypatch) -> None:
    def fail(*_: object) -> None:
        raise IndexError("list index out of range")

    monkeypatch.setattr("spikeslab.compression.result.compact", fail)
    with pytest.warns(
        ss.SpikeSlabWarning, match=r"cannot be compacted for the report: IndexError: list index out of range\.$"
    ):
        result = compress_channels(folder=tmp_path / "run")
    assert "compacted" not in result.report
    assert (tmp_path / "run" / "model.safetensors").exists()


def test_save_writes_what_can_be_read_and_refuses_a_folder_with_something(tmp_path: Path) -> None:
    result = compress_small(val_loader=[data(5)])
    result.save(tmp_path / "new" / "folder")
    folder = tmp_path / "new" / "folder"
    names = ["model.safetensors", "posterior", "report.json", "sparse.safetensors"]
    assert sorted(path.name for path in folder.iterdir()) == names
    assert equal(load_file(folder / "model.safetensors"), tensors(result.model))
    assert equal(load_sparse(folder / "sparse.safetensors"), tensors(result.model))
    posterior = ss.Posterior.load(folder / "posterior", network())
    x, _ = data(5)
    assert torch.equal(posterior.predict(x), result.posterior.predict(x))
    report = read_record(folder / "report.json", SpikeSlabError)
    assert report == json.loads(json.dumps(result.report))
    before = {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    with pytest.raises(
        FileExistsError, match=r"^directory must be a new or an empty folder, but .* holds something\.$"
    ):
        result.save(folder)
    assert {path: path.read_bytes() for path in before} == before


def test_a_network_that_is_not_finite_is_not_returned() -> None:
    result = compress_small()
    check_finite(result.model, result.posterior)
    result.model[1].running_var[2] = torch.inf
    with pytest.raises(ss.NonFiniteError, match=r"^1\.running_var must be finite at the end, but got NaN or Inf: try"):
        check_finite(result.model, result.posterior)


def test_a_buffer_may_hold_infinities_as_a_mask_of_attention_does() -> None:
    model = network()
    model.register_buffer("mask", torch.full((3, 3), -torch.inf).triu(1))
    result = compress_small(model)
    assert torch.equal(result.model.mask, model.mask)
    result.model.mask[0, 0] = torch.nan
    with pytest.raises(ss.NonFiniteError, match=r"^mask must be finite at the end, but got NaN or Inf: try"):
        check_finite(result.model, result.posterior, {"mask"})


def test_a_sample_that_is_not_finite_is_not_returned() -> None:
    class Break(Callback):
        """Spoils the second sample once it has been taken."""

        def after_step(self, run: Training) -> None:
            collect = next(callback for callback in run.callbacks if isinstance(callback, Collect))
            if len(collect.posterior) == 2:
                collect.posterior.tensors(1)["0.weight"][0, 0] = torch.nan

    with pytest.raises(ss.NonFiniteError, match=r"^0\.weight must be finite in sample 1, but got NaN or Inf: try"):
        compress_small(callbacks=[Break()])
