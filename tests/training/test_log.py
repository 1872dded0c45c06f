"""Log of a run, and TensorBoard."""

import json
from pathlib import Path

import pytest
import torch
from runs import ROWS, data, training
from torch import nn

import spikeslab as ss
from spikeslab.diagnostics import write_report
from spikeslab.parallel import StackedModel
from spikeslab.training import (
    Every,
    RunFolder,
    TensorBatches,
    Training,
)


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
