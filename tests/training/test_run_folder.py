"""Runs in a folder: killed, stopped, resumed and refused."""

import functools
import json
import multiprocessing
import os
import time
from pathlib import Path

import pytest
import torch
from runs import EPOCHS, ROWS, STEPS, data, network, run_in, same, training
from torch import nn

import spikeslab as ss
from spikeslab.files import write_atomically
from spikeslab.training import (
    CheckpointError,
    Checkpoints,
    Collect,
    Evaluate,
    Every,
    RunFolder,
    TensorBatches,
    Training,
)
from spikeslab.training.run_folder import lock_folder


def kill_and_resume(folder: Path, finished: dict, moments: list[float]) -> list[int]:
    """Kill a run ``moment`` seconds after its first checkpoint, or before it; let it end; return where that was."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["spikeslab.training", "spikeslab.kernels.philox_numba"])
    steps = []
    for index, moment in enumerate(moments):
        place = folder / str(index)
        process = context.Process(target=run_in, args=(place, True, 0.005))
        process.start()
        sign = "run.json" if moment == 0.0 else "checkpoints/step-*[1-9]*"
        deadline = time.monotonic() + 60
        while not any(place.glob(sign)) and time.monotonic() < deadline:
            time.sleep(0.002)
        time.sleep(moment)
        process.kill()
        process.join()
        there = Checkpoints(place / "checkpoints").steps()
        steps.append(there[-1] if there else 0)
        process = context.Process(target=run_in, args=(place,))
        process.start()
        process.join()
        assert process.exitcode == 0
        end = Checkpoints(place / "checkpoints").latest().state
        assert same(end, finished), f"killed after {moment} s, at a checkpoint of step {steps[-1]}"
        records = [json.loads(line) for line in (place / "metrics.jsonl").read_text().splitlines()]
        assert [record["epoch"] for record in records] == list(range(1, EPOCHS + 1))
        assert json.loads((place / "run.json").read_text())["status"] == "finished"
    return steps


def test_a_killed_run_ends_as_if_nothing_had_happened(tmp_path: Path, finished: dict) -> None:
    steps = kill_and_resume(tmp_path, finished, [0.0, 0.3])
    assert any(0 < step < STEPS for step in steps)


@pytest.mark.slow
def test_fifty_killed_runs_end_as_if_nothing_had_happened(tmp_path: Path, finished: dict) -> None:
    generator = torch.Generator().manual_seed(0)
    moments = [0.0, 0.0, *(1.8 * torch.rand(48, generator=generator)).tolist()]
    steps = kill_and_resume(tmp_path, finished, moments)
    assert sum(0 < step < STEPS for step in steps) > 25


def test_a_folder_with_a_run_is_refused_unless_it_is_continued(tmp_path: Path) -> None:
    training(None).run(steps=2, folder=tmp_path)
    before = (tmp_path / "run.json").read_bytes()
    with pytest.raises(
        FileExistsError, match=r"^folder must not hold a run yet, but .* does: continue it with resume=Tru"
    ):
        training(None).run(steps=2, folder=tmp_path)
    assert (tmp_path / "run.json").read_bytes() == before


def test_checkpoints_without_a_record_are_not_continued_unasked(tmp_path: Path) -> None:
    training(None).run(steps=20, folder=RunFolder(tmp_path))
    (tmp_path / "run.json").unlink()
    with pytest.raises(FileExistsError, match=r"continue it with resume=True"):
        training(None).run(steps=30, folder=RunFolder(tmp_path))
    training(None).run(steps=30, folder=RunFolder(tmp_path, resume=True))


def test_two_runs_in_one_folder_are_refused(tmp_path: Path) -> None:
    with (
        lock_folder(tmp_path),
        pytest.raises(BlockingIOError, match=rf"is in use by another run, process {os.getpid()}: wait"),
    ):
        training(None).run(steps=2, folder=tmp_path)
    training(None).run(steps=2, folder=tmp_path)


def test_other_settings_are_refused(tmp_path: Path) -> None:
    training(None).run(steps=2, folder=RunFolder(tmp_path, settings={"lr": 0.1, "seed": 0}))
    with pytest.raises(CheckpointError, match=r"^Cannot resume: .* other settings: lr was 0\.1 and is now 0\.2\.$"):
        training(None).run(steps=2, folder=RunFolder(tmp_path, resume=True, settings={"lr": 0.2, "seed": 0}))


def test_a_damaged_checkpoint_is_refused_and_the_previous_one_serves(tmp_path: Path, finished: dict) -> None:
    run_in(tmp_path, checkpoint_steps=STEPS // 2)
    path = tmp_path / "checkpoints" / f"step-{STEPS:09d}" / "state.json"
    path.write_text(path.read_text()[:-5])
    with pytest.raises(CheckpointError, match=rf"The one of step {STEPS // 2} is good: continue from it with resume="):
        run_in(tmp_path)
    run_in(tmp_path, resume=STEPS // 2)
    assert same(Checkpoints(tmp_path / "checkpoints").latest().state, finished)


def test_a_checkpoint_of_another_model_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    training(None).run(steps=2, folder=tmp_path)
    model = nn.Linear(6, 3)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    run = Training(model, ss.SGLD(model.parameters(), lr=0.1, num_data=ROWS), TensorBatches(*data(), batch_size=8))
    with pytest.raises(CheckpointError, match=r"step-000000002 does not fit this run: the state is of another model"):
        run.run(steps=4, folder=RunFolder(tmp_path, resume=True))
    assert same(model.state_dict(), before)


def test_a_run_killed_before_its_first_checkpoint_begins_anew(tmp_path: Path) -> None:
    """A posterior on disk that counts its own calls must forget what the killed run had collected."""

    def make() -> Training:
        torch.manual_seed(0)
        model = network()
        sampler = ss.SGLD(model.parameters(), lr=0.01, num_data=ROWS, seed=0)
        posterior = ss.Posterior(model, thin=3, directory=tmp_path / "posterior", exist_ok=True)
        return Training(model, sampler, TensorBatches(*data(), batch_size=8), callbacks=[Collect(posterior)])

    first = make()
    inner = first.loss

    @functools.wraps(inner)
    def loss(model: nn.Module, batch: object) -> torch.Tensor:
        if first.steps == 7:
            raise RuntimeError("killed")
        return inner(model, batch)

    first.loss = loss
    with pytest.raises(RuntimeError, match="killed"):
        first.run(steps=10, folder=tmp_path / "run")
    second = make()
    second.run(steps=10, folder=RunFolder(tmp_path / "run", resume=True))
    assert [record.step for record in second.callbacks[0].posterior.records] == [3, 6, 9]


def test_what_cannot_be_continued_is_refused(tmp_path: Path) -> None:
    training(None).run(steps=5, folder=tmp_path)
    again = RunFolder(tmp_path, resume=True)
    other = training(None, batches=TensorBatches(*data(), batch_size=4, seed=3))
    model = network()
    adam = Training(model, torch.optim.Adam(model.parameters()), TensorBatches(*data(), batch_size=8))
    for call, error, message in (
        (
            lambda: training(None).run(steps=3, folder=again),
            ValueError,
            r"^Cannot resume: the run in .* is at step 5, beyond the 3 steps",
        ),
        (lambda: other.run(steps=9, folder=again), CheckpointError, r"data\.batch_size +\| 8 +\| 4\n"),
        (lambda: adam.run(steps=9, folder=again), CheckpointError, r"the state is of SGHMC, but the run uses Adam\.$"),
    ):
        with pytest.raises(error, match=message):
            call()


def read_files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


class Stubborn:
    """Part that refuses every state."""

    def state_dict(self) -> dict[str, int]:
        return {}

    def load_state_dict(self, state: dict[str, int]) -> None:
        raise ValueError("not mine")


REFUSALS = {
    "other settings": {"settings": {"lr": 0.2}},
    "fewer steps": {"steps": 45},
    "another optimizer": {"sampler_type": ss.SGLD},
    "other batches": {"batches": TensorBatches(*data(), batch_size=4, seed=3)},
    "a part": {"stubborn": True},
    "another callback": {"callback": Evaluate(dict, name="second")},
    "no such checkpoint": {"resume": 7},
    "full disk": {"full": "sample-000000035.safetensors"},
    "full disk for the index": {"full": "posterior.json"},
}


@pytest.mark.parametrize("refusal", REFUSALS)
def test_a_refused_resume_leaves_the_samples_on_disk_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal: str
) -> None:
    what = REFUSALS[refusal]
    samples = tmp_path / "posterior"

    def go(what: dict, steps: int, resume: bool | int) -> None:
        run = training(tmp_path, **{name: what[name] for name in ("sampler_type", "batches") if name in what})
        run.parts |= {"part": Stubborn()} if refusal == "a part" else {}
        run.callbacks += [what["callback"]] if "callback" in what else []
        settings = what.get("settings", {"lr": 0.1})
        place = RunFolder(tmp_path, resume=resume, settings=settings, checkpoint_every=Every(steps=50))
        run.run(steps=what.get("steps", steps), folder=place)

    go({}, 65, resume=False)
    assert len(read_files(samples)) == 4, "three samples and the index; the checkpoint of step 50 has two samples"
    if "full" in what:
        (samples / "sample-000000035.safetensors").unlink()  # must be written again
        whole = write_atomically

        def write(path: Path, content: bytes) -> None:
            if path.name.startswith(what["full"]):
                raise OSError(28, "No space left on device")
            whole(path, content)

        monkeypatch.setattr("spikeslab.posterior.samples.write_atomically", write)
    before = read_files(samples)
    with pytest.raises((ValueError, OSError)):
        go(what, 80, resume=what.get("resume", 50))
    assert read_files(samples) == before
    monkeypatch.undo()
    if refusal != "a part":  # which is in the checkpoint
        go({}, 80, resume=50)
        assert {path.name for path in samples.iterdir()} == {
            "posterior.json",
            *(f"sample-{step:09d}.safetensors" for step in (35, 50, 65, 80)),
        }


def test_a_run_whose_checkpoints_are_gone_is_not_begun_again(tmp_path: Path) -> None:
    training(None).run(steps=16, folder=RunFolder(tmp_path))
    log = (tmp_path / "metrics.jsonl").read_bytes()
    (tmp_path / "checkpoints").rename(tmp_path / "elsewhere")
    with pytest.raises(
        CheckpointError, match=r"^Cannot resume: .* was at step 16, but .*checkpoints holds no checkpoint"
    ):
        training(None).run(steps=24, folder=RunFolder(tmp_path, resume=True))
    assert (tmp_path / "metrics.jsonl").read_bytes() == log


def test_a_run_whose_latest_checkpoint_is_gone_does_not_go_back_unasked(tmp_path: Path) -> None:
    training(None).run(steps=16, folder=RunFolder(tmp_path, checkpoint_every=Every(steps=8)))
    log = (tmp_path / "metrics.jsonl").read_bytes()
    Checkpoints(tmp_path / "checkpoints").path(16).rename(tmp_path / "elsewhere")
    sentence = r"^Cannot resume: .* was at step 16, but its latest checkpoint is of step 8\. Put the later one back"
    with pytest.raises(CheckpointError, match=sentence):
        training(None).run(steps=24, folder=RunFolder(tmp_path, resume=True))
    assert (tmp_path / "metrics.jsonl").read_bytes() == log
    training(None).run(steps=24, folder=RunFolder(tmp_path, resume=8))


def test_a_run_that_failed_goes_on_from_its_latest_checkpoint(tmp_path: Path) -> None:
    run = training(None)
    loss = run.loss

    @functools.wraps(loss)
    def fail(model: nn.Module, batch: object) -> torch.Tensor:
        if run.steps == 13:
            raise RuntimeError("out of memory")
        return loss(model, batch)

    run.loss = fail
    with pytest.raises(RuntimeError, match="out of memory"):
        run.run(steps=16, folder=RunFolder(tmp_path, checkpoint_every=Every(steps=8)))
    assert json.loads((tmp_path / "run.json").read_text())["steps"] == 13
    training(None).run(steps=16, folder=RunFolder(tmp_path, resume=True))


def test_a_log_that_lost_records_is_refused(tmp_path: Path) -> None:
    training(None).run(steps=16, folder=RunFolder(tmp_path, log_every=Every(steps=4)))
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "metrics.jsonl").write_text("".join(lines[:2]))
    with pytest.raises(ValueError, match=r"metrics\.jsonl is damaged: it does not begin with the 4 records"):
        training(None).run(steps=24, folder=RunFolder(tmp_path, resume=True))
    (tmp_path / "metrics.jsonl").unlink()
    training(None).run(steps=24, folder=RunFolder(tmp_path, resume=True))


def test_a_lock_that_is_a_link_or_holds_something_is_left_alone(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    notes.write_text("mine")
    (tmp_path / ".lock").symlink_to(notes)
    with pytest.raises(OSError, match="symbolic link"), lock_folder(tmp_path):
        pass
    (tmp_path / ".lock").unlink()
    (tmp_path / ".lock").hardlink_to(notes)
    with pytest.raises(OSError, match="is not a lock of a run"), lock_folder(tmp_path):
        pass
    assert notes.read_text() == "mine"
