"""``spikeslab reproduce mnist``, ``image-search`` and ``adversarial`` as a user sees them, on images made here."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from synthetic_images import bright_bars

from spikeslab.cli.app import run as run_cli
from spikeslab.paper.images import runs as image_runs
from spikeslab.paper.images import study as image_study
from spikeslab.paper.images.data import LOADERS

DATA = bright_bars()


@pytest.fixture(autouse=True)
def no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports take longer than the runs."""
    monkeypatch.setattr(image_runs, "write_report", None)


@pytest.fixture
def loaders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LOADERS, "mnist", lambda _: DATA)
    monkeypatch.setitem(LOADERS, "fashion", lambda _: bright_bars(seed=2))


def command(out: Path, *more: str, held_out: int = 40) -> list[str]:
    words = ["reproduce", "mnist", "--out", str(out), "--epochs", "1", "--chains", "2", "--foreign", "fashion"]
    return [*words, "--held-out", str(held_out), "--workers", "1", *more]


def test_the_command_writes_its_tables_and_goes_on(
    tmp_path: Path, loaders: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_cli(command(tmp_path, "--methods", "vanilla,sghmc-sa")) == 0
    written = {path.name for path in tmp_path.iterdir()}
    assert {"accuracy.md", "differences.md", "uncertainty.md", "prior.md"} <= written
    figures = ("scores", "reliability", "selective", "detection", "uncertainty", "prior")
    assert {f"default-{name}.png" for name in figures} <= written
    first = (tmp_path / "accuracy.json").read_text()
    assert json.loads(first)["run"]["command"] == (
        "spikeslab reproduce mnist --methods vanilla,sghmc-sa --presets default --epochs 1 --chains 2 --seed 0 "
        "--held-out 40 --foreign fashion"
    )
    assert run_cli(command(tmp_path, "--methods", "vanilla,sghmc-sa")) == 2
    assert "continue with --resume, or choose another" in capsys.readouterr().err
    assert run_cli(command(tmp_path, "--methods", "vanilla,sghmc-sa", "--resume")) == 0
    assert (tmp_path / "accuracy.json").read_text() == first


def test_a_run_in_bfloat16_is_another_run(tmp_path: Path, loaders: None, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--methods", "vanilla")
    assert run_cli(command(tmp_path, *options, "--precision", "bfloat16")) == 0
    table = json.loads((tmp_path / "accuracy.json").read_text())
    assert table["run"]["command"].endswith("--held-out 40 --precision bfloat16 --foreign fashion")
    assert run_cli(command(tmp_path, *options, "--resume")) == 2
    assert "precision was 'bfloat16' and is now 'float32'" in " ".join(capsys.readouterr().err.split())


def test_without_held_out_images_all_are_trained_on(tmp_path: Path, loaders: None) -> None:
    assert run_cli(command(tmp_path, "--methods", "vanilla,sghmc-sa", held_out=0)) == 0
    result = json.loads((tmp_path / "sghmc-sa-default-2x1-seed0" / "result.json").read_text())
    assert "held_out" not in result
    assert result["test"].keys() == {"point", "average", "sparse"}
    table = json.loads((tmp_path / "accuracy.json").read_text())
    assert {row["held_out"] for row in table["rows"]} == {None}
    assert "all training images were trained on" in (tmp_path / "accuracy.md").read_text()
    log = (tmp_path / "vanilla-default-2x1-seed0" / "chain-1" / "metrics.jsonl").read_text()
    assert "evaluation" not in json.loads(log.splitlines()[-1])


def test_augmented_runs_and_several_seeds_have_files_of_their_own(tmp_path: Path, loaders: None) -> None:
    options = ("--methods", "sghmc-sa")
    assert run_cli(command(tmp_path, *options)) == 0
    plain = (tmp_path / "accuracy.json").read_text()
    assert run_cli(command(tmp_path, *options, "--augment", "--seeds", "2", "--resume")) == 0
    assert (tmp_path / "accuracy.json").read_text() == plain
    table = json.loads((tmp_path / "augmented-accuracy.json").read_text())
    assert table["run"]["command"].endswith("--seed 0 --seeds sghmc-sa=2 --augment --held-out 40 --foreign fashion")
    assert {path.name for path in tmp_path.glob("sghmc-sa-*")} == {
        "sghmc-sa-default-2x1-seed0",
        "sghmc-sa-default-augmented-2x1-seed0",
        "sghmc-sa-default-augmented-2x1-seed1",
    }


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (["--methods", "adam"], "--methods must be one of 'vanilla', 'dropout', 'swa', 'psgld', 'sghmc', 'sghmc-sa', "),
        (["--epochs", "0"], "--epochs must be an integer >= 1, but got 0."),
        (["--presets", "best"], "--presets must be one of 'default', 'paper', 'paper-600k', but got 'best'."),
        (["--precision", "half"], "--precision must be one of 'float32', 'bfloat16', but got 'half'."),
        (
            ["--seeds", "two"],
            "--seeds must be an integer from 1 to 9,999, or METHOD=NUMBER with commas, but got 'two'.",
        ),
        (["--foreign", "mnist"], "--foreign must be one of 'fashion', 'cifar10', but got 'mnist'."),
        (["--chains", "0"], "--chains must be an integer >= 1, but got 0."),
        (["--held-out", "60"], "--held-out must be fewer than the 60 training images, but got 60."),
    ],
)
def test_bad_options_are_named(
    tmp_path: Path, loaders: None, capsys: pytest.CaptureFixture[str], more: list[str], sentence: str
) -> None:
    assert run_cli(command(tmp_path, *more)) == 2
    assert sentence in " ".join(capsys.readouterr().err.split())
    assert not list(tmp_path.iterdir())


def test_files_that_are_missing_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    assert run_cli(command(tmp_path / "out", "--data-dir", str(tmp_path / "empty"))) == 2
    assert "MNIST" in capsys.readouterr().err


def search(out: Path, *more: str) -> int:
    words = ["reproduce", "image-search", "mnist", "--epochs", "1", "--held-out", "20", "--out", str(out)]
    return run_cli([*words, "--workers", "1", "--set", "samples=1", "--set", "batch_size=20", *more])


def test_a_trial_evaluates_held_out_images_alone_and_is_done_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blind = replace(DATA, x_test=torch.empty(0), y_test=torch.empty(0))
    monkeypatch.setitem(LOADERS, "mnist", lambda _: blind)
    assert search(tmp_path) == 0
    assert search(tmp_path, "--augment", "--set", "lr=0.02") == 0
    assert search(tmp_path, "--method", "dropout", "--chains", "2", "--set", "erasing=1") == 0
    monkeypatch.setattr(image_study, "train", lambda *_: pytest.fail("trained again"))
    assert search(tmp_path) == 0
    table = json.loads((tmp_path / "search.json").read_text())
    assert sorted((row["dataset"], row["method"], row["lr"], row["chains"]) for row in table["rows"]) == [
        ("mnist", "dropout", 0.1, 2),
        ("mnist", "sghmc-sa", 0.1, 1),
        ("mnist, augmented", "sghmc-sa", 0.02, 1),
    ]
    assert {(row["method"], row["erasing"]) for row in table["rows"]} == {("dropout", True), ("sghmc-sa", False)}
    assert all(row["accuracy"] * 20 % 100 == pytest.approx(0) for row in table["rows"])
    assert table["run"]["command"].startswith(
        "spikeslab reproduce image-search mnist --method sghmc-sa --preset default --epochs 1 --chains 1 --set samples="
    )


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("name=mine", r"--set must name one of epochs, .*, laplace_precision, but got 'name'\."),
        ("lr=high", r"--set must be NAME=VALUE with a number, but got 'lr=high'\."),
    ],
)
def test_a_trial_changes_values_that_its_row_shows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: str, sentence: str
) -> None:
    assert search(tmp_path, "--set", change) == 2
    assert re.fullmatch(f"Error: {sentence}\n", capsys.readouterr().err)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--images", "0", "--images must be an integer >= 1, but got 0."),
        ("--samples", "0", "--samples must be an integer >= 1, but got 0."),
        ("--workers", "0", "--workers must be an integer >= 1, but got 0."),
        ("--epochs", "0", "--epochs must be an integer >= 1, but got 0."),
        ("--seed", "-1", "--seed must be an integer >= 0, but got -1."),
        ("--attack", "cw", "--attack must be one of 'fgsm', 'pgd', but got 'cw'."),
        ("--preset", "best", "--preset must be one of 'default', 'paper', 'paper-600k', but got 'best'."),
        ("--datasets", "cifar10", "--datasets must be one of 'mnist', 'fashion', but got 'cifar10'."),
        ("--methods", "em", "--methods must be one of 'vanilla', 'dropout', 'sghmc', 'sghmc-sa', but got 'em'."),
    ],
)
def test_bad_options_of_adversarial_are_refused_before_any_work(tmp_path, capsys, option, value, message):
    out = tmp_path / "new"
    assert run_cli(["reproduce", "adversarial", "--out", str(out), option, value]) == 2
    assert capsys.readouterr().err == f"Error: {message}\n"
    assert not out.exists()


def test_the_help_of_adversarial_has_examples(capsys):
    assert run_cli(["reproduce", "adversarial", "--help"]) == 0
    assert "spikeslab reproduce adversarial --datasets mnist --images 200" in " ".join(capsys.readouterr().out.split())


def test_the_help_of_mnist_says_what_a_chain_is(capsys):
    assert run_cli(["reproduce", "mnist", "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "Epochs of each chain or network" in text
    assert "--workers" in text
