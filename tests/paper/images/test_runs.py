"""Runs of one method, on small images made here."""

from __future__ import annotations

from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
import torch
from records import load_record
from safetensors.torch import load_file
from synthetic_images import bright_bars

from spikeslab.paper.images import runs as image_runs
from spikeslab.paper.images.data import DIGITS, LOADERS, Images
from spikeslab.paper.images.presets import make_preset
from spikeslab.paper.images.runs import (
    METHODS,
    OPTIMIZERS,
    SAMPLERS,
    ImageRun,
    build,
    load_foreign,
    load_images,
    predict,
    read_chain,
    read_network,
    read_predictions,
    run_images,
    stack_kinds,
    train,
)
from spikeslab.priors import SA, Fixed, SpikeSlab
from spikeslab.samplers import PSGLD, SGHMC
from spikeslab.training import CheckpointError, Every, MetricsLog

SMALL = replace(make_preset("default", "mnist"), name="small", epochs=2, chains=2, batch_size=20, samples=2)


DATA, FOREIGN = bright_bars(), {"fashion": bright_bars(seed=1).x_test.flip(2, 3)}


@pytest.fixture(autouse=True)
def no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports take longer than the runs."""
    monkeypatch.setattr(image_runs, "write_report", None)


def small_run(method: str = "sghmc-sa", **changes: object) -> ImageRun:
    settings = {"dataset": "mnist", "method": method, "preset": SMALL, "held_out": 20, **changes}
    return ImageRun(**settings)  # type: ignore[arg-type]


def run_small(run: ImageRun, out: Path, **more: Any) -> dict[str, Any]:
    return run_images(run, out, DATA, FOREIGN, **more)


KINDS = {
    "vanilla": {"point": 2, "ensemble": 1, "laplace": 2},
    "dropout": {"point": 2, "ensemble": 1, "mc": 2},
    "swa": {"point": 2, "ensemble": 1},
    "psgld": {"point": 2, "average": 1},
    "sghmc": {"point": 2, "average": 1},
    "sghmc-sa": {"point": 2, "average": 1, "sparse": 1},
}


@pytest.mark.parametrize("method", METHODS)
def test_a_run_ends_in_metrics_predictions_and_a_network_of_each_chain(tmp_path: Path, method: str) -> None:
    run = small_run(method)
    result = run_small(run, tmp_path)
    folder = tmp_path / f"{method}-small-2x2-seed0"
    predictions = read_predictions(folder)
    assert result["samples"] == (4 if method in SAMPLERS else 0)
    assert result["threads"] == [torch.get_num_threads()] * 2
    assert all(seconds > 0.0 for seconds in result["seconds"])
    assert {kind: len(each) for kind, each in result["test"].items()} == KINDS[method]
    assert set(result["foreign"]["fashion"]) == KINDS[method].keys() - {"sparse"}
    assert result["held_out"]["point"][0]["rows"] == 20
    assert len(result["laplace_precision"]) == (2 if method == "vanilla" else 0)
    right = predictions["test.point"].argmax(2) == DATA.y_test
    accuracies = [each["accuracy"] for each in result["test"]["point"]]
    assert accuracies == pytest.approx(right.double().mean(1).tolist())
    average = stack_kinds(predictions, "test")["average" if method in SAMPLERS else "ensemble"]
    members = predictions["test.samples" if method in SAMPLERS else "test.point"]
    torch.testing.assert_close(average[0], members.mean(0))
    assert len(members) == (4 if method in SAMPLERS else 2)
    if method in SAMPLERS:
        # The last sample of a chain is taken at the last step, so it is the point estimate.
        torch.testing.assert_close(members[[1, 3]], predictions["test.point"])
    assert load_record(folder / "result.json") == result


def test_chains_start_apart_have_all_epochs_and_are_the_same_alone(tmp_path: Path) -> None:
    run = small_run(preset=replace(SMALL, chains=3), seed=2)
    chains = run.split(tmp_path)
    assert [(chain.preset.epochs, chain.seed, folder.name) for chain, folder in chains] == [
        (2, 6, "chain-0"),
        (2, 7, "chain-1"),
        (2, 8, "chain-2"),
    ]
    run_small(run, tmp_path)
    folder = tmp_path / run.name
    predictions = read_predictions(folder)
    model, posterior = read_network(run, folder)
    assert posterior is not None
    images = run.normalize(DATA.x_test)
    torch.testing.assert_close(posterior.predict(images), predictions["test.samples"].mean(0), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(model(images).softmax(1), predictions["test.point"][0], rtol=1e-4, atol=1e-6)
    alone, _ = chains[1]
    train(alone, tmp_path / "alone", DATA)
    one, other = (load_file(place / "network.safetensors") for place in (tmp_path / "alone", folder / "chain-1"))
    torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_what_is_done_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = run_small(small_run(), tmp_path)
    monkeypatch.setattr(image_runs, "build", lambda *_: pytest.fail("trained again"))
    assert run_small(small_run(), tmp_path) == first
    (tmp_path / small_run().name / "result.json").unlink()
    assert run_small(small_run(), tmp_path)["test"] == first["test"]


@pytest.mark.parametrize("method", ["sghmc-sa", "swa"])
def test_a_run_that_was_stopped_ends_in_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    run = small_run(method, augment=True)
    run_small(run, tmp_path / "whole")

    calls, original = iter(range(99)), image_runs.cross_entropy

    @wraps(original)  # a loss of another name would not be resumed
    def stop_at_seventh(model, batch):
        if next(calls) == 6:  # in the second chain
            raise KeyboardInterrupt
        return original(model, batch)

    monkeypatch.setattr(image_runs, "cross_entropy", stop_at_seventh)
    with pytest.raises(KeyboardInterrupt):
        run_images(run, tmp_path / "halves", DATA, FOREIGN, checkpoint_every=Every(steps=1))
    monkeypatch.setattr(image_runs, "cross_entropy", original)
    run_small(run, tmp_path / "halves")
    whole, halves = (read_predictions(tmp_path / name / run.name) for name in ("whole", "halves"))
    assert whole.keys() == halves.keys()
    for name, tensor in whole.items():
        assert torch.equal(tensor, halves[name]), name


def test_a_finished_run_of_other_settings_is_refused(tmp_path: Path) -> None:
    run_small(small_run(), tmp_path)
    other = small_run(preset=replace(SMALL, v0=0.25))
    with pytest.raises(
        CheckpointError, match=rf"chain-0 holds a run with other settings: v0 was {SMALL.v0} and is now"
    ):
        run_small(other, tmp_path)
    # What a method does not use may change.
    run_small(small_run(preset=replace(SMALL, plain_temperature=0.5, psgld_lr=0.1)), tmp_path)


def test_predictions_that_are_gone_are_named(tmp_path: Path) -> None:
    run_small(small_run("dropout"), tmp_path)
    folder = tmp_path / small_run("dropout").name
    (folder / "predictions.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"predictions\.safetensors cannot be read: "):
        read_predictions(folder)


def test_training_sees_neither_the_test_nor_the_held_out_images(tmp_path: Path) -> None:
    blind = Images(DATA.x_train, DATA.y_train, torch.empty(0), torch.empty(0), DIGITS)
    train(small_run(), tmp_path / "blind", blind)
    _, _, x_held, _ = DATA.hold_out(20)
    swapped = DATA.x_train.clone()
    held = (DATA.x_train.flatten(1)[:, None] == x_held.flatten(1)[None]).all(-1).any(1)
    assert int(held.sum()) == 20
    swapped[held] = 255 - swapped[held]
    train(small_run(), tmp_path / "changed", Images(swapped, DATA.y_train, DATA.x_test, DATA.y_test, DIGITS))
    one, other = (load_file(tmp_path / name / "network.safetensors") for name in ("blind", "changed"))
    torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_only_the_held_out_images_are_kept_from_training() -> None:
    x, y, x_held, y_held = DATA.hold_out(20)
    assert (len(y), len(y_held)) == (40, 20)
    rows = sorted(map(bytes, torch.cat([x, x_held]).flatten(1).numpy()))
    assert rows == sorted(map(bytes, DATA.x_train.flatten(1).numpy()))


def test_each_method_has_its_sampler_temperature_and_prior() -> None:
    optimizers = {method: build(small_run(method), 40, None).optimizer for method in METHODS}
    assert isinstance(optimizers["psgld"], PSGLD)
    assert all(isinstance(optimizers[method], SGHMC) for method in METHODS if method != "psgld")
    temperatures = {method: each.param_groups[0]["temperature"] for method, each in optimizers.items()}
    plain, own = SMALL.plain_temperature, SMALL.temperature
    assert temperatures == {
        "vanilla": 0.0, "dropout": 0.0, "swa": 0.0, "psgld": SMALL.psgld_temperature, "sghmc": plain, "sghmc-sa": own,
    }  # fmt: skip
    assert all(each.param_groups[0]["weight_decay"] == SMALL.weight_decay for each in optimizers.values())
    priors = {method: getattr(each, "prior", None) for method, each in optimizers.items()}
    assert {method for method, prior in priors.items() if prior is not None} == {"sghmc-sa"}
    # The prior begins as the weight decay: all weights are in the slab, whose precision is N times it.
    prior = priors["sghmc-sa"]
    assert isinstance(prior, SpikeSlab)
    assert prior.v1 == pytest.approx(1 / (40 * SMALL.weight_decay))
    l1, l2 = prior.effective_penalty(40)
    assert (l1, l2) == (0.0, pytest.approx(SMALL.weight_decay))


def test_the_papers_samplers_differ_in_the_adaptation_only_and_adam_trains_the_rest() -> None:
    paper = replace(make_preset("paper", "fashion"), batch_size=20)
    plain, adaptive = (
        build(small_run(method, preset=paper), 40, None).optimizer.prior for method in ("sghmc", "sghmc-sa")
    )
    assert isinstance(plain.adapt, Fixed)
    assert isinstance(adaptive.adapt, SA)
    assert (plain.v0, plain.v1, plain.sigma, plain.delta) == (adaptive.v0, adaptive.v1, adaptive.sigma, adaptive.delta)
    assert isinstance(build(small_run("vanilla", preset=paper), 40, None).optimizer, torch.optim.Adam)
    larger = replace(make_preset("paper-600k", "fashion"), batch_size=20)
    assert build(small_run("sghmc", preset=larger), 40, None).optimizer.param_groups[0]["num_data"] == 600_000


def test_dropout_drops_in_its_baseline_only() -> None:
    rates = {method: build(small_run(method), 40, None).model.dropout.p for method in METHODS}
    assert rates == {method: 0.5 if method == "dropout" else 0.0 for method in METHODS}
    augmented = {method: build(small_run(method, augment=True), 40, None).model for method in METHODS}
    assert {method: model.hidden_dropout.p for method, model in augmented.items()} == rates
    assert {model.dropout2.p for model in augmented.values()} == {0.0}
    paper = make_preset("paper", "mnist", augment=True)
    assert build(small_run(preset=paper, augment=True), 40, None).model.dropout2.p == 0.3


@pytest.mark.parametrize("augment", [False, True])
def test_networks_are_trained_with_channels_last(augment: bool) -> None:
    model = build(small_run("vanilla", augment=augment), 40, None).model
    assert model.conv2.weight.is_contiguous(memory_format=torch.channels_last)
    assert not model.conv2.weight.is_contiguous()


def test_swa_averages_the_weights_at_the_ends_of_the_last_epochs(tmp_path: Path) -> None:
    run = small_run("swa", preset=replace(SMALL, epochs=4, chains=1, swa_start=0.5), augment=True)
    train(run, tmp_path, DATA)
    network = build(run, 40, tmp_path)
    assert network.posterior is not None
    assert [record.step for record in network.posterior.records] == [6, 8]
    found = load_file(tmp_path / "network.safetensors")
    samples = [network.posterior.tensors(index)["fc1.weight"] for index in range(2)]
    torch.testing.assert_close(found["fc1.weight"], (samples[0] + samples[1]) / 2)
    # The statistics are those of the average, not averages of statistics.
    statistics = [network.posterior.tensors(index)["bn2.running_mean"] for index in range(2)]
    assert not torch.allclose(found["bn2.running_mean"], (statistics[0] + statistics[1]) / 2)
    lr = network.optimizer.param_groups[0]
    schedule = run.preset.learning_rate("swa", 8, 2)
    assert [schedule(step) for step in (4, 6, 8)] == [run.preset.swa_lr] * 3  # type: ignore[operator]
    assert lr["temperature"] == 0.0


def test_the_prior_is_traced_and_the_weights_of_the_spike_are_removed(tmp_path: Path) -> None:
    preset = replace(SMALL, v0=0.003, v1=5e-4, rho=0.5, num_data=60_000, chains=1)
    run = small_run(preset=preset)
    result = run_small(run, tmp_path)
    folder = tmp_path / run.name / "chain-0"
    (end,) = result["prior"]
    log = MetricsLog(folder / "metrics.jsonl").read()
    assert [each["epoch"] for each in log] == [1, 2]
    assert log[-1]["prior"] == pytest.approx(end)
    chain = read_chain(*run.split(tmp_path / run.name)[0])
    assert chain.rho is not None
    assert chain.posterior is not None
    assert 0.0 < end["slab"] == float((chain.rho > 0.5).double().mean()) < 1.0
    expected = []
    for index in range(2):
        model = chain.posterior.sample(index)
        with torch.no_grad():
            model.get_parameter("fc1.weight")[chain.rho <= 0.5] = 0.0
        expected.append(predict(model, run.normalize, DATA.x_test))
    sparse = read_predictions(tmp_path / run.name)["test.sparse"]
    torch.testing.assert_close(sparse[0], torch.stack(expected).mean(0))


@pytest.fixture
def loaders(monkeypatch: pytest.MonkeyPatch) -> None:
    colours = torch.randint(256, (5, 3, 32, 32), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    cifar10 = Images(colours, torch.zeros(5), colours, torch.zeros(5), DIGITS)
    monkeypatch.setitem(LOADERS, "mnist", lambda _: DATA)
    monkeypatch.setitem(LOADERS, "fashion", lambda _: bright_bars(seed=2))
    monkeypatch.setitem(LOADERS, "cifar10", lambda _: cifar10)


def test_foreign_images_are_grey_and_of_the_size_of_the_others(loaders: None) -> None:
    assert load_images("mnist", None) is DATA
    foreign = load_foreign(("fashion", "cifar10"), None)
    assert torch.equal(foreign["fashion"], bright_bars(seed=2).x_test)
    assert foreign["cifar10"].shape == (5, 1, 28, 28)
    assert foreign["cifar10"].dtype == torch.uint8
    white = torch.full((1, 3, 32, 32), 255, dtype=torch.uint8)
    assert image_runs.to_grey(white).unique().tolist() == [255]
    red = white * torch.tensor([1, 0, 0], dtype=torch.uint8).view(1, 3, 1, 1)
    assert image_runs.to_grey(red).unique().tolist() == [76]


def test_all_methods_are_optimizers_or_samplers() -> None:
    assert OPTIMIZERS + SAMPLERS == METHODS
