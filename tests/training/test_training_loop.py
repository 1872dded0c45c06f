import copy
import json
import multiprocessing
import os
import re
import signal
import time
from pathlib import Path

import pytest
import torch
from runs import BATCH, EPOCHS, ROWS, STEPS, data, network, run_in, same, training
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import spikeslab as ss
from spikeslab.diagnostics import write_report
from spikeslab.parallel import StackedModel
from spikeslab.training import (
    CheckpointError,
    Checkpoints,
    ClassifierEvaluation,
    Collect,
    Evaluate,
    Every,
    Interrupted,
    RunFolder,
    ScheduleLR,
    ShowProgress,
    TensorBatches,
    Training,
    cross_entropy,
)
from spikeslab.training.run_folder import lock_folder


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> dict:
    """The state at the end of a run that nothing disturbed."""
    folder = tmp_path_factory.mktemp("undisturbed")
    run_in(folder)
    return Checkpoints(folder / "checkpoints").latest().state


def test_the_loop_is_what_one_would_write_by_hand() -> None:
    run = training(None)
    run.run(epochs=3)
    torch.manual_seed(0)
    by_hand = training(None)
    pruner, posterior = by_hand.callbacks[0].pruner, by_hand.callbacks[1].posterior
    for epoch in range(3):
        for x, y in by_hand.order.data.epoch(epoch):
            by_hand.sampler.zero_grad()
            nn.functional.cross_entropy(by_hand.model(x), y).backward()
            by_hand.sampler.step()
            pruner.step()
            posterior.collect()
    assert same(run.model.state_dict(), by_hand.model.state_dict())
    assert same(run.sampler.state_dict(), by_hand.sampler.state_dict())


@pytest.mark.parametrize("stop", [1, 20, 35, STEPS // 2, STEPS - 1])
@pytest.mark.parametrize("fused", [None, False])
def test_a_state_continues_bit_for_bit(stop: int, fused: bool | None, tmp_path: Path) -> None:
    whole = training(None, fused=fused)
    whole.run(epochs=EPOCHS)
    first = training(None, fused=fused)
    first.run(steps=stop)
    Checkpoints(tmp_path).save(stop, first.state_dict())
    second = training(None, fused=fused)
    torch.randn(10)
    second.load_state_dict(Checkpoints(tmp_path).latest().state)
    second.run(epochs=EPOCHS)
    assert same(second.state_dict(), whole.state_dict())


@pytest.mark.parametrize("sampler_type", [ss.SGLD, ss.PSGLD])
def test_with_every_sampler_and_a_loader(sampler_type: type, tmp_path: Path) -> None:
    def make() -> Training:
        loader = DataLoader(TensorDataset(*data()), batch_size=BATCH, shuffle=True)
        return training(None, batches=loader, sampler_type=sampler_type)

    whole = make()
    whole.run(steps=30)
    first = make()
    first.run(steps=13)
    Checkpoints(tmp_path).save(13, first.state_dict())
    second = make()
    second.load_state_dict(Checkpoints(tmp_path).latest().state)
    second.run(steps=30)
    assert same(second.state_dict(), whole.state_dict())


def test_channels_last_weights_continue_bit_for_bit(tmp_path: Path) -> None:
    x, y = torch.randn(16, 3, 8, 8).to(memory_format=torch.channels_last), torch.randint(3, (16,))

    def make() -> Training:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))
        model = model.to(memory_format=torch.channels_last)
        prior = ss.SpikeSlab(ss.select_weights(model, "0.weight"), v0=0.01, v1=1.0)
        sampler = ss.SGHMC(model.parameters(), lr=0.01, num_data=16, prior=prior, seed=0)
        return Training(model, sampler, TensorBatches(x, y, batch_size=4))

    whole = make()
    whole.run(steps=20)
    first = make()
    first.run(steps=9)
    Checkpoints(tmp_path).save(9, first.state_dict())
    second = make()
    second.load_state_dict(Checkpoints(tmp_path).latest().state)
    second.run(steps=20)
    assert same(second.state_dict(), whole.state_dict())


def kill_and_resume(folder: Path, finished: dict, moments: list[float]) -> list[int]:
    """Kill a run ``moment`` seconds after its first checkpoint, or before it; let it end; return where that was."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["spikeslab.training", "spikeslab.kernels.philox"])
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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_step_saves_and_says_so(number: int, tmp_path: Path, finished: dict) -> None:
    run, before = training(tmp_path), signal.getsignal(number)
    inner = run.loss

    def loss(model: nn.Module, batch: object) -> torch.Tensor:
        if run.steps == 41:
            os.kill(os.getpid(), number)
        return inner(model, batch)

    run.loss = loss
    message = f"Stopped after step 42 of {STEPS}. The state is saved in {tmp_path}: continue with resume=True."
    with pytest.raises(Interrupted) as caught:
        run.run(epochs=EPOCHS, folder=tmp_path)
    assert str(caught.value) == message
    assert caught.value.exit_code == 128 + number
    record = json.loads((tmp_path / "run.json").read_text())
    assert (record["status"], record["steps"], record["message"]) == ("interrupted", 42, message)
    assert signal.getsignal(number) is before
    run_in(tmp_path)
    assert same(Checkpoints(tmp_path / "checkpoints").latest().state, finished)


def test_a_folder_with_a_run_is_refused_unless_it_is_continued(tmp_path: Path) -> None:
    training(None).run(steps=2, folder=tmp_path)
    before = (tmp_path / "run.json").read_bytes()
    with pytest.raises(
        FileExistsError, match=r"^folder must not hold a run yet, but .* does: continue it with resume=Tru"
    ):
        training(None).run(steps=2, folder=tmp_path)
    assert (tmp_path / "run.json").read_bytes() == before


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


def test_a_loss_that_is_not_finite_stops_at_once_and_keeps_the_checkpoint(tmp_path: Path) -> None:
    run = training(None)
    inner = run.loss
    run.loss = lambda model, batch: inner(model, batch) * (float("nan") if run.steps == 9 else 1.0)
    with pytest.raises(
        ss.NonFiniteError,
        match=r"^The loss must be finite, but got nan at step 10: all weights and all outputs are finite, so check "
        r"the loss and the targets\.$",
    ):
        run.run(steps=20, folder=RunFolder(tmp_path, checkpoint_every=Every(steps=4)))
    assert Checkpoints(tmp_path / "checkpoints").steps() == [4, 8]
    record = json.loads((tmp_path / "run.json").read_text())
    assert (record["status"], record["steps"]) == ("failed", 9)


def test_the_first_tensor_that_is_not_finite_is_named() -> None:
    run = training(None)
    with torch.no_grad():
        run.model[4].weight[0, 0] = float("inf")
    with pytest.raises(ss.NonFiniteError, match=r"at step 1: the weight 4\.weight is not finite; try a lower lr\.$"):
        run.run(steps=1)
    run = training(None)
    run.model[2].register_forward_hook(lambda module, inputs, output: output / 0.0)
    with pytest.raises(ss.NonFiniteError, match=r"but the output of ReLU 2 is not; try a lower lr\.$"):
        run.run(steps=1)


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


def test_a_classifier_is_evaluated_in_evaluation_mode(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = network()
    x, y = data()
    evaluation = ClassifierEvaluation(model, x, y, batch_size=10)
    sampler = ss.SGHMC(model.parameters(), lr=0.05, num_data=ROWS, temperature=0.0)
    run = Training(model, sampler, TensorBatches(x, y, batch_size=8), callbacks=[Evaluate(evaluation)])
    run.run(epochs=30, folder=tmp_path)
    assert model.training
    found = json.loads((tmp_path / "evaluation.json").read_text())
    model.eval()
    assert found["accuracy"] == float((model(x).argmax(1) == y).double().mean()) > 0.8
    assert sum(found["reliability"]["count"]) == found["rows"] == ROWS


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
    with pytest.raises(ValueError, match=r"^every must be in steps or epochs, but got 3 seconds\.$"):
        ScheduleLR(scheduler, Every(seconds=3))
    message = (
        "scheduler must be an lr scheduler of torch that needs no metric, such as CosineAnnealingLR, but got "
        "ReduceLROnPlateau."
    )
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        ScheduleLR(torch.optim.lr_scheduler.ReduceLROnPlateau(sampler))


def test_batches_and_inputs_go_to_where_the_model_is() -> None:
    """The meta device stands for a GPU: torch refuses to mix it with the CPU just so."""
    model, (x, y) = nn.Linear(4, 3, device="meta"), (torch.randn(5, 4), torch.zeros(5, dtype=torch.long))
    assert cross_entropy(model, (x, y)).is_meta
    ss.posterior.recalibrate(model, [x, (x, y)])
    with pytest.raises(NotImplementedError, match="copy out of meta"):  # the way back, to the labels, is tried as well
        ClassifierEvaluation(model, x, y)()


class Particular:
    """Takes no state but its own."""

    def __init__(self, key: int) -> None:
        self.key = key

    def state_dict(self) -> dict[str, int]:
        return {"key": self.key}

    def load_state_dict(self, state: dict[str, int]) -> None:
        if state["key"] != self.key:
            raise ValueError("not mine")


def test_a_state_that_is_refused_late_changes_nothing() -> None:
    def make(key: int) -> Training:
        model = network()
        sampler = ss.SGHMC(model.parameters(), lr=0.05, num_data=ROWS, seed=0)
        return Training(model, sampler, TensorBatches(*data(), batch_size=8), parts={"part": Particular(key)})

    other, run = make(1), make(2)
    other.run(steps=3)
    run.run(steps=1)
    before = copy.deepcopy(run.state_dict())
    with pytest.raises(ValueError, match=r"^not mine$"):
        run.load_state_dict(other.state_dict())
    after = run.state_dict()
    assert all(same(after[part], before[part]) for part in before if part != "seconds")


class Stream(IterableDataset):
    def __iter__(self):
        return iter(())


def test_any_torch_optimizer_serves(tmp_path: Path) -> None:
    def make() -> Training:
        torch.manual_seed(0)
        model = network()
        return Training(model, torch.optim.Adam(model.parameters()), TensorBatches(*data(), batch_size=8))

    whole = make()
    whole.run(steps=12)
    make().run(steps=7, folder=tmp_path)
    second = make()
    second.run(steps=12, folder=RunFolder(tmp_path, resume=True))
    assert same(second.state_dict()["model"], whole.state_dict()["model"])


def test_bad_arguments_are_refused() -> None:
    run = training(None)
    with pytest.raises(ValueError, match=r"^give either epochs or steps, but got epochs=None and steps=None\.$"):
        run.run()
    with pytest.raises(ValueError, match=r"^Every must have one of steps, epochs and seconds, but got none\.$"):
        Every()
    with pytest.raises(
        ValueError, match=r"^callbacks must have different names, but got 'evaluation', 'evaluation'\.$"
    ):
        Training(run.model, run.sampler, [1], callbacks=[Evaluate(dict), Evaluate(dict)])
    stream = Training(run.model, run.sampler, DataLoader(Stream()))
    with pytest.raises(TypeError, match=r"^data must have a length, but it has none: give steps"):
        stream.run(epochs=1)


def test_tensorboard_has_the_numbers_of_the_log(tmp_path: Path) -> None:
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    folder = RunFolder(tmp_path, tensorboard=True, log_every=Every(steps=5))
    training(None).run(steps=10, folder=folder)
    events = reader.EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    logged = [record["loss"] for record in folder.log.read()]
    assert [event.step for event in events.Scalars("loss")] == [5, 10]
    assert [event.value for event in events.Scalars("loss")] == pytest.approx(logged)
    assert "delta/4.weight" in events.Tags()["scalars"]


def test_progress_is_plain_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    run = training(None)
    run.callbacks.append(ShowProgress("Digits"))
    run.run(steps=40)
    lines = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"Digits: 1 of 40 steps, loss \d\.\d{4}, sparsity \d+\.\d%, T 0\.1", lines[0])
    assert re.fullmatch(r"Digits: 40 of 40 steps, loss .*", lines[-1])
    assert len(lines) == 2


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


def test_what_cannot_be_continued_is_refused(tmp_path: Path) -> None:
    training(None).run(steps=5, folder=tmp_path)
    again = RunFolder(tmp_path, resume=True)
    with pytest.raises(ValueError, match=r"^Cannot resume: the run in .* is at step 5, beyond the 3 steps"):
        training(None).run(steps=3, folder=again)
    other = training(None, batches=TensorBatches(*data(), batch_size=4, seed=3))
    with pytest.raises(CheckpointError, match=r"made with other data .*'batch_size': 8.*'batch_size': 4"):
        other.run(steps=9, folder=again)
    model = network()
    adam = Training(model, torch.optim.Adam(model.parameters()), TensorBatches(*data(), batch_size=8))
    with pytest.raises(CheckpointError, match=r"the state is of SGHMC, but the run uses Adam\.$"):
        adam.run(steps=9, folder=again)


def test_data_and_gradients_that_are_not_finite_are_named() -> None:
    x, y = data()
    x[3, 2] = float("inf")
    run = training(None, batches=[(x, y)])
    with pytest.raises(ss.NonFiniteError, match=r"the input of the model is not finite, so check the data\.$"):
        run.run(steps=1)
    model = nn.Linear(1, 1)
    plain = Training(
        model, torch.optim.SGD(model.parameters(), lr=0.1), [torch.ones(1)], lambda m, x: (m(x) * 0.0).sum().sqrt()
    )
    before = model.weight.detach().clone()
    with pytest.raises(
        ss.NonFiniteError, match=r"^The gradient of weight must be finite, but got NaN or Inf at step 1: "
    ):
        plain.run(steps=1)
    assert torch.equal(model.weight, before)


def test_more_bad_arguments_are_refused(tmp_path: Path) -> None:
    for resume in ("yes", -1):
        with pytest.raises(ValueError, match=r"^resume must be True, False or the step of a checkpoint, but got "):
            RunFolder(tmp_path, resume=resume)
    with pytest.raises(TypeError, match=r"^checkpoint_every must be an Every, .*, but got 5\.$"):
        RunFolder(tmp_path, checkpoint_every=5)
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"^folder must be a folder, but .*file is a file\.$"):
        RunFolder(tmp_path / "file")
    run = training(None)
    with pytest.raises(TypeError, match=r"^callbacks must be callbacks such as Collect\(posterior\), but got <"):
        Training(run.model, run.sampler, [1], callbacks=[run.callbacks[1].posterior])
    with pytest.raises(ValueError, match=r"^data must hold at least one batch, but got none\.$"):
        Training(run.model, run.sampler, []).run(epochs=2)
    vector = Training(run.model, run.sampler, [data()], lambda model, batch: model(batch[0]).mean(1))
    with pytest.raises(
        ValueError, match=r"^loss must return one number, the mean of the batch, but got the shape \(64,\)"
    ):
        vector.run(steps=1)


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
    run.run(epochs=3, folder=RunFolder(tmp_path, report=write_report))
    assert (tmp_path / "report.html").exists()
    record = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[-1])
    assert record["sigma"] > 0
