"""Runs of one method, on small images made here."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from records import load_record
from synthetic_images import bright_bars

from spikeslab.paper.images import runs as image_runs
from spikeslab.paper.images.data import DIGITS, LOADERS, Images
from spikeslab.paper.images.presets import make_preset
from spikeslab.paper.images.runs import (
    ImageRun,
    build,
    load_images,
    read_network,
    read_predictions,
    read_run,
    run_images,
    train,
)
from spikeslab.paper.runs import read_result, run_folder
from spikeslab.priors import SA, Fixed
from spikeslab.training import CheckpointError, Every, MetricsLog

SMALL = replace(make_preset("default", "mnist"), name="small", batch_size=20, samples=3, chains=1)


DATA, FOREIGN = bright_bars(), bright_bars(seed=1).x_test.flip(2, 3)


@pytest.fixture(autouse=True)
def no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports take longer than the runs."""
    monkeypatch.setattr(image_runs, "write_report", None)


def small_run(method: str = "sghmc-sa", **changes: object) -> ImageRun:
    settings = {"dataset": "mnist", "method": method, "preset": SMALL, "epochs": 2, "held_out": 20, **changes}
    return ImageRun(**settings)  # type: ignore[arg-type]


def run_small(run: ImageRun, out: Path, **more: Any) -> dict[str, Any]:
    return run_images(run, out, DATA, FOREIGN, **more)


@pytest.mark.parametrize("method", image_runs.METHODS)
def test_a_run_ends_in_metrics_predictions_and_the_network(tmp_path: Path, method: str) -> None:
    run = small_run(method)
    result = run_small(run, tmp_path)
    folder = tmp_path / run.name
    predictions = read_predictions(folder)
    sampled = method.startswith("sghmc")
    assert result["samples"] == (3 if sampled else 0)
    assert set(result["test"]) == set(result["foreign"]) == ({"point", "average"} if sampled else {"point"})
    assert predictions["test.point"].shape == (60, 10)
    assert result["held_out"]["point"]["rows"] == 20
    right = predictions["test.point"].argmax(1) == DATA.y_test
    assert result["test"]["point"]["accuracy"] == pytest.approx(float(right.double().mean()))
    if sampled:
        # The last sample is taken at the last step, so it is the point estimate.
        assert predictions["test.samples"].shape == (3, 60, 10)
        torch.testing.assert_close(predictions["test.samples"][-1], predictions["test.point"])
        assert set(result["foreign"]["average"]) == {"entropy", "mutual_information"}
    assert load_record(folder / "result.json") == result
    assert (folder / "network.safetensors").exists()


def test_a_run_that_is_done_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = run_small(small_run(), tmp_path)
    monkeypatch.setattr(image_runs, "build", lambda *_: pytest.fail("trained again"))
    assert run_small(small_run(), tmp_path) == json.loads(json.dumps(first))


def test_a_run_that_was_stopped_ends_in_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = small_run(augment=True)
    run_small(run, tmp_path / "whole")

    calls = iter(range(99))

    def stop_at_third(model, batch):
        if next(calls) == 3:
            raise KeyboardInterrupt
        return original(model, batch)

    original = image_runs.cross_entropy
    monkeypatch.setattr(image_runs, "cross_entropy", stop_at_third)
    with pytest.raises(KeyboardInterrupt):
        run_images(run, tmp_path / "halves", DATA, FOREIGN, checkpoint_every=Every(steps=1))
    monkeypatch.setattr(image_runs, "cross_entropy", original)
    run_small(run, tmp_path / "halves")
    whole, halves = (read_predictions(tmp_path / name / run.name) for name in ("whole", "halves"))
    assert whole.keys() == halves.keys()
    for name, tensor in whole.items():
        assert torch.equal(tensor, halves[name]), name


def test_chains_share_the_epochs_start_apart_and_are_averaged_together(tmp_path: Path) -> None:
    run = small_run(preset=replace(SMALL, chains=3), epochs=4, seed=2)
    chains = run.split(tmp_path)
    assert [(chain.epochs, chain.seed, folder.name) for chain, folder in chains] == [
        (1, 6, "chain-0"),
        (1, 7, "chain-1"),
        (2, 8, "chain-2"),
    ]
    result = run_small(run, tmp_path)
    folder = tmp_path / run.name
    predictions = read_predictions(folder)
    assert result["samples"] == sum(min(3, 2 * chain.epochs) for chain, _ in chains)
    model, posterior = read_network(run, folder)
    assert posterior is not None
    images = run.normalize(DATA.x_test)
    torch.testing.assert_close(posterior.predict(images), predictions["test.samples"].mean(0), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(model(images).softmax(1), predictions["test.point"], rtol=1e-4, atol=1e-6)
    # One of the chains is the same alone.
    alone, _ = chains[1]
    network = train(alone, tmp_path / "alone", DATA)
    torch.testing.assert_close(network.model.state_dict(), posterior.posteriors[1].sample(-1).state_dict())


def test_more_chains_than_epochs_are_not_begun_and_adam_has_one(tmp_path: Path) -> None:
    many = replace(SMALL, chains=3)
    assert [chain.epochs for chain, _ in small_run(preset=many, epochs=2).split(tmp_path)] == [1, 1]
    assert [folder for _, folder in small_run("dropout", preset=many).split(tmp_path)] == [tmp_path]


def test_a_finished_run_of_other_settings_is_refused(tmp_path: Path) -> None:
    run_small(small_run(), tmp_path)
    other = small_run(preset=replace(SMALL, v0=0.25))
    with pytest.raises(CheckpointError) as caught:
        run_small(other, tmp_path)
    assert str(caught.value) == (
        f"{tmp_path / other.name} holds a run with other settings: v0 was {SMALL.v0} and is now 0.25."
    )


def test_a_finished_run_under_the_earlier_name_of_its_preset_is_read(tmp_path: Path) -> None:
    preset = replace(SMALL, name="default")
    run = small_run(preset=preset)
    result = run_small(run, tmp_path)
    folder = (tmp_path / run.name).rename(tmp_path / run.name.replace("default", "tuned"))
    record = load_record(folder / "result.json")
    text = json.dumps(record).replace('"preset": {', '"recipe": {').replace('"default"', '"tuned"')
    (folder / "result.json").write_text(text)
    assert run_small(run, tmp_path) == json.loads(json.dumps(result))
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]


def test_a_stopped_run_of_an_earlier_release_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = small_run(preset=replace(SMALL, name="default"))
    whole = run_small(run, tmp_path / "whole")
    calls, original = iter(range(99)), image_runs.cross_entropy

    def stop_at_third(model, batch):
        return pytest.fail("stopped") if next(calls) == 3 else original(model, batch)

    monkeypatch.setattr(image_runs, "cross_entropy", stop_at_third)
    with pytest.raises(pytest.fail.Exception):
        run_small(run, tmp_path, checkpoint_every=Every(steps=1))
    monkeypatch.undo()
    folder = (tmp_path / run.name).rename(tmp_path / run.name.replace("default", "tuned"))
    record = load_record(folder / "run.json") | {"version": 1}
    record["settings"]["recipe"] = record["settings"].pop("preset") | {"name": "tuned"}
    del record["settings"]["precision"]
    (folder / "run.json").write_text(json.dumps(record))
    assert run_small(run, tmp_path)["test"] == whole["test"]
    assert not (tmp_path / run.name).exists()
    assert MetricsLog(folder / "metrics.jsonl").read()[-1]["step"] == 4


def test_committed_results_are_read_with_present_names() -> None:
    root = Path(__file__).parents[3] / "results"
    result = read_result(root / "mnist" / "runs" / "sghmc-sa-tuned-30-seed0")
    assert result is not None
    run = ImageRun("mnist", "sghmc-sa", make_preset("default", "mnist"), 30)
    assert read_run(run, run_folder(root / "mnist" / "runs", run.name)) == result


def test_predictions_that_are_gone_are_named(tmp_path: Path) -> None:
    run_small(small_run(), tmp_path)
    folder = tmp_path / small_run().name
    (folder / "predictions.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"predictions\.safetensors cannot be read: "):
        read_predictions(folder)


def test_training_sees_neither_the_test_nor_the_held_out_images(tmp_path: Path) -> None:
    blind = Images(DATA.x_train, DATA.y_train, torch.empty(0), torch.empty(0), DIGITS)
    network = train(small_run(), tmp_path / "blind", blind)
    _, _, x_held, _ = DATA.hold_out(20)
    swapped = DATA.x_train.clone()
    held = (DATA.x_train.flatten(1)[:, None] == x_held.flatten(1)[None]).all(-1).any(1)
    assert int(held.sum()) == 20
    swapped[held] = 255 - swapped[held]
    changed = Images(swapped, DATA.y_train, DATA.x_test, DATA.y_test, DIGITS)
    again = train(small_run(), tmp_path / "changed", changed)
    torch.testing.assert_close(network.model.state_dict(), again.model.state_dict(), rtol=0, atol=0)


def test_only_the_held_out_images_are_kept_from_training() -> None:
    x, y, x_held, y_held = DATA.hold_out(20)
    assert (len(y), len(y_held)) == (40, 20)
    rows = sorted(map(bytes, torch.cat([x, x_held]).flatten(1).numpy()))
    assert rows == sorted(map(bytes, DATA.x_train.flatten(1).numpy()))


def test_the_two_samplers_differ_in_the_adaptation_only() -> None:
    plain, adaptive = (SMALL.prior(adaptive, 100) for adaptive in (False, True))
    assert isinstance(plain.pop("adapt"), Fixed)
    assert isinstance(adaptive.pop("adapt"), SA)
    assert plain == adaptive


def test_dropout_drops_in_its_baseline_only() -> None:
    rates = {method: build(small_run(method), 40, None).model.dropout.p for method in image_runs.METHODS}
    assert rates == {"vanilla": 0.0, "dropout": 0.5, "sghmc": 0.0, "sghmc-sa": 0.0}
    augmented = [replace(small_run(method), augment=True) for method in image_runs.METHODS]
    assert [build(run, 40, None).model.hidden_dropout.p for run in augmented] == [0.0, 0.5, 0.0, 0.0]


@pytest.mark.parametrize("augment", [False, True])
def test_networks_are_trained_with_channels_last(augment: bool) -> None:
    model = build(replace(small_run("vanilla"), augment=augment), 40, None).model
    assert model.conv2.weight.is_contiguous(memory_format=torch.channels_last)
    assert not model.conv2.weight.is_contiguous()


@pytest.fixture
def loaders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LOADERS, "mnist", lambda _: DATA)
    monkeypatch.setitem(LOADERS, "fashion", lambda _: bright_bars(seed=2))


def test_the_other_set_is_foreign(loaders: None) -> None:
    data, foreign = load_images("mnist", None)
    assert data is DATA
    assert torch.equal(foreign, bright_bars(seed=2).x_test)
