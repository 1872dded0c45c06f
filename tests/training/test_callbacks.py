"""Callbacks of the training loop."""

import re
from pathlib import Path

import pytest
import torch
from runs import ROWS, data, network, same, training

import spikeslab as ss
from spikeslab.training import (
    Evaluate,
    Every,
    RunFolder,
    ScheduleLR,
    ShowProgress,
    TensorBatches,
    Training,
)


def test_torch_schedulers_are_stepped_and_continued(tmp_path: Path) -> None:
    def make() -> Training:
        torch.manual_seed(0)
        model = network()
        sampler = ss.SGHMC(model.parameters(), lr=0.05, num_data=ROWS, seed=0)
        scheduler = torch.optim.lr_scheduler.StepLR(sampler, 3, gamma=0.5)
        return Training(model, sampler, TensorBatches(*data(), batch_size=8), callbacks=[ScheduleLR(scheduler)])

    whole = make()
    whole.run(steps=12)
    make().run(steps=7, folder=tmp_path)
    second = make()
    second.run(steps=12, folder=RunFolder(tmp_path, resume=True))
    assert second.sampler.param_groups[0]["lr"] == 0.05 * 0.5**4
    assert all(same(second.state_dict()[part], whole.state_dict()[part]) for part in ("model", "sampler", "callbacks"))


def test_a_scheduler_may_step_once_an_epoch_and_needs_no_metric() -> None:
    model = network()
    sampler = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(sampler, 0.5)
    batches = TensorBatches(*data(), batch_size=8)
    Training(model, sampler, batches, callbacks=[ScheduleLR(scheduler, Every(epochs=2))]).run(epochs=5)
    assert sampler.param_groups[0]["lr"] == 0.25
    for call, error, message in (
        (
            lambda: ScheduleLR(scheduler, Every(seconds=3)),
            ValueError,
            r"^every must be in steps or epochs, but got 3 seconds\.$",
        ),
        (
            lambda: ScheduleLR(torch.optim.lr_scheduler.ReduceLROnPlateau(sampler)),
            TypeError,
            r"^scheduler must be an lr scheduler of torch that needs no metric, .* got ReduceLROnPlateau\.$",
        ),
    ):
        with pytest.raises(error, match=message):
            call()


def test_progress_is_plain_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    run = training(None)
    run.callbacks.append(ShowProgress("Digits"))
    run.run(steps=40)
    lines = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"Digits: 1 of 40 steps, loss \d\.\d{4}, sparsity \d+\.\d%, T 0\.1", lines[0])
    assert re.fullmatch(r"Digits: 40 of 40 steps, loss .*", lines[-1])
    assert len(lines) == 2


def test_evaluations_by_the_clock_and_by_other_names() -> None:
    calls = {"often": 0, "never": 0}

    def count(name: str) -> dict[str, int]:
        calls[name] += 1
        return {"calls": calls[name]}

    run = training(None)
    run.callbacks += [
        Evaluate(lambda: count("often"), Every(seconds=0.0), name="often"),
        Evaluate(lambda: count("never"), Every(seconds=1000.0), name="never"),
    ]
    run.run(steps=6)
    assert calls == {"often": 6, "never": 1}
    assert run.callbacks[-2].metrics() == {"often": {"calls": 6}}
