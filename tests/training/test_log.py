"""Log of a run, and TensorBoard."""

import json
import tracemalloc
from pathlib import Path

import pytest
import torch
from runs import ROWS, data, training
from torch import nn

import spikeslab as ss
from spikeslab import files
from spikeslab.diagnostics import write_report
from spikeslab.parallel import StackedModel
from spikeslab.training import Every, RunFolder, TensorBatches, Training
from spikeslab.training.log import MetricsLog, RunError


def test_the_log_holds_what_the_run_did(tmp_path: Path) -> None:
    training(None).run(epochs=4, folder=RunFolder(tmp_path, log_every=Every(steps=5), seed=3, command="make it"))
    records = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records] == [5, 10, 15, 20, 25, 30, 32]
    last = records[-1]
    assert last["epoch"] == 4
    assert last["samples"] == 0
    assert 0 < last["sparsity_sparse"] < 0.8
    assert set(last) >= {"loss", "lr", "temperature", "sigma", "delta", "omega_sum", "seconds", "evaluation"}
    record = json.loads((tmp_path / "run.json").read_text())
    assert (record["status"], record["seed"], record["command"]) == ("finished", 3, "make it")
    assert (record["steps"], record["total_steps"], record["epochs"]) == (32, 32, 4)


@pytest.mark.parametrize("step", ["", '"step": "x", ', '"step": null, ', f'"step": {10**400}, '])
def test_a_log_without_steps_is_refused(tmp_path: Path, step: str) -> None:
    (tmp_path / "metrics.jsonl").write_text(f'{{{step}"loss": 1}}\n')
    with pytest.raises(RunError, match=r"metrics\.jsonl must have an integer step in line 1, but got"):
        training(None).run(epochs=1, folder=RunFolder(tmp_path))


def test_a_log_that_is_too_long_for_memory_is_thinned(tmp_path: Path, monkeypatch) -> None:
    log = MetricsLog(tmp_path / "metrics.jsonl")
    for step in range(101):
        log.write({"step": step, "loss": 0.5})
    assert [record["step"] for record in log.read()] == list(range(101))
    monkeypatch.setattr(files, "LINES_FLOOR", 2000)
    steps = [record["step"] for record in log.read()]
    stride = steps[1] - steps[0]
    assert stride in (2, 4, 8)
    assert steps == sorted({*range(0, 101, stride), 100})


def test_names_of_records_that_are_left_out_take_no_memory(tmp_path: Path, monkeypatch) -> None:
    allowed = 1 << 18
    monkeypatch.setattr(files, "LINES_FLOOR", allowed)
    records = ({"step": step} | {f"{step}/{k}": 0 for k in range(30)} for step in range(3000))
    tracemalloc.start()
    try:
        kept = files.thin_records(records, tmp_path / "metrics.jsonl")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert [len(kept[0]), kept[-1]["step"]] == [31, 2999]
    assert peak < 1.5 * allowed


def test_a_log_whose_records_could_not_be_removed_goes_on(tmp_path: Path, monkeypatch) -> None:
    log = MetricsLog(tmp_path / "metrics.jsonl")
    for step in range(4):
        log.write({"step": step})
    with monkeypatch.context() as patch:
        patch.setattr(files.os, "replace", lambda *names: 1 / 0)
        patch.setattr(Path, "replace", lambda *names: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            log.keep_until(1)
    log.write({"step": 4})
    assert [record["step"] for record in log.read()] == list(range(5))


def test_tensorboard_has_the_numbers_of_the_log(tmp_path: Path) -> None:
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    folder = RunFolder(tmp_path, tensorboard=True, log_every=Every(steps=5))
    training(None).run(steps=10, folder=folder)
    events = reader.EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    logged = [record["loss"] for record in folder.log.read()]
    assert [event.step for event in events.Scalars("loss")] == [5, 10]
    assert [event.value for event in events.Scalars("loss")] == pytest.approx(logged)
    assert "delta/4.weight" in events.Tags()["scalars"]


def test_stacked_chains_are_logged_and_reported(tmp_path: Path) -> None:
    models = [nn.Linear(6, 1) for _ in range(3)]
    stacked = StackedModel(models)
    prior = ss.priors.StackedSpikeSlab(ss.select_weights(stacked, "*weight"), v0=0.01, v1=1.0)
    likelihood = ss.likelihoods.StackedGaussianLikelihood(prior)
    sampler = ss.SGHMC(stacked.parameters(), lr=0.01, num_data=ROWS, prior=prior, seed=0)
    x, _ = data()

    def loss(model: nn.Module, batch: tuple[torch.Tensor]) -> torch.Tensor:
        prediction = model(stacked.spread(batch[0]))
        return likelihood(prediction, torch.zeros_like(prediction))

    run = Training(stacked, sampler, TensorBatches(x, batch_size=8), loss)
    run.run(epochs=3, folder=RunFolder(tmp_path, write_report=write_report))
    assert (tmp_path / "report.html").exists()
    record = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[-1])
    assert record["sigma"] > 0
