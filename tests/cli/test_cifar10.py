"""``spikeslab reproduce cifar10`` as a user sees it, on a few images made here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from synthetic_images import bright_pixels

from spikeslab.cli.app import run as run_cli
from spikeslab.compression.sparse_file import state_tensors
from spikeslab.errors import mark
from spikeslab.paper.cifar10 import study as cifar10_study
from spikeslab.paper.cifar10.data import new_network
from spikeslab.paper.images import data as images
from spikeslab.training import Interrupted


def test_a_command_goes_on_after_a_run_that_fails_and_says_so_at_the_end(
    command: list[str], tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cifar10_study, "save", lambda _, path: path)
    small = ["--sparsities", "0.9", "--epochs", "1", "--batch-size", "8", "--methods", "gmp"]
    assert run_cli([*command, *small, "--set", "lr=1e30,0.01"]) == 2
    captured = capsys.readouterr()
    name = "gmp-0.9-distilled-batch=8-lr=1e+30-1epochs-seed0"
    assert f"{name} failed, and the others go on: " in captured.err
    assert captured.err.endswith(f"Error: All runs must end in finite numbers, but {name!r} did not: try a lower lr.\n")
    rows = json.loads((tmp_path / "out" / "accuracy.json").read_text())["rows"]
    assert [row["label"] for row in rows] == ["distilled, batch=8, lr=0.01"]
    assert str(tmp_path / "out" / "accuracy.md") in captured.out


def test_a_stopped_command_says_how_to_go_on(command: list[str], capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: Any, **__: Any) -> None:
        raise Interrupted(f"Stopped. The state is saved in out: continue with {mark('resume', True)}.", 15)

    monkeypatch.setattr(cifar10_study, "run_cifar10", stop)
    assert run_cli([*command, "--methods", "gmp", "--sparsities", "0.9"]) == 143
    assert capsys.readouterr().err == "Stopped. The state is saved in out: continue with --resume.\n"


@pytest.mark.parametrize("name", ["accuracy.md", "paper.json", "held-out-details.json", "accuracy.png"])
def test_files_of_others_are_not_overwritten(command: list[str], tmp_path: Path, capsys: Any, name: str) -> None:
    path = tmp_path / "out" / name
    path.parent.mkdir()
    path.write_text("mine")
    assert run_cli([*command, "--methods", "gmp"]) == 2
    assert capsys.readouterr().err.startswith("Error: --out must be a ")
    assert [(each.name, each.read_text()) for each in path.parent.iterdir()] == [(name, "mine")]


def test_a_scope_that_does_not_exist_is_one_sentence(command: list[str], capsys: Any) -> None:
    assert run_cli([*command, "--scope", "row"]) == 2
    assert capsys.readouterr().err.startswith("Error: --scope must be one of 'layer', 'global'")


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The command on the small images, from a file."""
    monkeypatch.setattr(images, "load_cifar10", lambda _: bright_pixels())
    torch.manual_seed(0)
    save_file(state_tensors(new_network()), tmp_path / "dense.safetensors")
    paths = ["--dense", str(tmp_path / "dense.safetensors"), "--out", str(tmp_path / "out")]
    return ["reproduce", "cifar10", "--no-report", *paths]


def test_the_command_writes_tables_and_figures_of_all_runs(
    command: list[str], tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = ["--preset", "default", "--sparsities", "0.9", "--epochs", "1", "--batch-size", "8", "--threads", "1"]
    assert run_cli([*command, *small, "--methods", "gmp", "--set", "lr=0.01,0.02"]) == 0
    assert "Files written:" in capsys.readouterr().out
    monkeypatch.setattr(cifar10_study, "save", lambda _, path: path)  # a figure takes longer than a run
    assert run_cli([*command, *small, "--methods", "l2:0.6"]) == 0
    out = tmp_path / "out"
    table = json.loads((out / "accuracy.json").read_text())
    assert sorted((row["method"], row["label"]) for row in table["rows"]) == [
        ("GMP", "default, batch=8, lr=0.01"),
        ("GMP", "default, batch=8, lr=0.02"),
        ("L2 = 0.6", "default, batch=8"),
    ]
    typed = [
        f"spikeslab reproduce cifar10 --dense dense.safetensors --preset default --methods {methods} --sparsities 0.9 "
        f"--epochs 1 --seed 0 --seeds 1 --batch-size 8{varied} --threads 1"
        for methods, varied in (("gmp", " --set lr=0.01,0.02"), ("l2:0.6", ""))
    ]
    assert sorted(table["run"]["command"].splitlines()) == typed
    record = json.loads((out / "gmp-0.9-default-batch=8-lr=0.01-1epochs-seed0" / "run.json").read_text())
    assert record["command"] == typed[0]
    names = ("accuracy.md", "details.md", "files.md", "paper.md", "accuracy.png", "course-0.9.png")
    assert all((out / name).exists() for name in names)
    capsys.readouterr()
    assert run_cli([*command, *small, "--methods", "l2:0.6"]) == 2
    assert f"--out must not hold these results yet, but {out} does: continue with --resume" in capsys.readouterr().err
    assert run_cli([*command, *small, "--methods", "l2:0.6", "--resume"]) == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--preset", "best"],
            "--preset must be one of 'distilled', 'default', 'paper-short', 'paper', 'ablation', 'grid', but got "
            "'best'.",
        ),
        (["--sparsities", "0.5,1"], "--sparsities must be numbers in (0, 0.98], separated by commas, but got '1'."),
        (["--methods", "gmp:2"], "--methods must have a strength with 'l1', 'l2' only, but got 'gmp:2'."),
        (["--epochs", "0"], "--epochs must be an integer >= 1, but got 0."),
        (["--held-out", "-1"], "--held-out must be an integer >= 0, but got -1."),
        (["--held-out", "16"], "--held-out must be fewer than the 16 training images, but got 16."),
        (
            ["--held-out", "5", "--best-epoch"],
            "--best-epoch must not go with --held-out, which leaves the test images unseen, but got both.",
        ),
        (["--set", "lr=0"], "--set lr must be a number > 0, but got 0."),
        (
            ["--set", "lr=1", "--set", "lr=2"],
            "--set must name a setting once, with commas between its values, but got lr twice.",
        ),
        (
            ["--set", "floor=0.5", "--sparsities", "0.9"],
            "--sparsities must be at most 0.490439, since 18 layers must keep 133,632 weights in all, but got 0.9, "
            "which is 245227 zeros of 272474.",
        ),
        (
            ["--structure", "channels", "--sparsities", "0.98"],
            "--sparsities must be at most 0.973214, since 9 layers must keep 9 channels in all, but got 0.98, which is "
            "329 zeros of 336.",
        ),
        (
            ["--structure", "channels", "--methods", "dpf"],
            "--methods must be one that prunes channels with --structure channels, but got 'dpf'.",
        ),
        (
            ["--preset", "paper-short", "--methods", "marginal"],
            "--methods must be ones for --preset paper-short, but got 'marginal': sigma_in_rho must be True with "
            "adapt=Marginal(), but got False.",
        ),
        (
            ["--set", "kappa=5e-4"],
            "--set kappa must be a pair (kappa0, kappa1) of numbers >= 0 or None, but got (0.0005,).",
        ),
        (
            ["--set", "strength=0.1", "--methods", "gmp"],
            "--set strength must go with 'l1', 'l2' alone, without a colon, but got 'gmp'.",
        ),
        (["--structure", "rows"], "--structure must be one of 'weights', 'channels', but got 'rows'."),
        (
            ["--pretrain"],
            "--dense must be the file of a trained ResNet20, or --pretrain must be given to train one, but got both.",
        ),
    ],
)
def test_bad_options_are_one_sentence(
    command: list[str], tmp_path: Path, capsys: Any, options: list[str], message: str
) -> None:
    assert run_cli([*command, *options]) == 2
    assert capsys.readouterr().err == f"Error: {message}\n"
    assert not (tmp_path / "out").exists()


def test_bad_values_are_named_before_options_that_are_missing(tmp_path: Path, capsys: Any) -> None:
    start = ["reproduce", "cifar10", "--out", str(tmp_path / "out")]
    for options in (["--preset", "best"], ["--methods", "best"], ["--set", "lr=0"], ["--sparsities", "1"], []):
        assert run_cli([*start, *options]) == 2
        assert capsys.readouterr().err.startswith(f"Error: {options[0] if options else '--dense'} ")


def test_a_dense_file_with_other_keys_is_one_sentence(command: list[str], tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "dense.safetensors"
    state = load_file(path)
    state["head.weight"] = state.pop("fc.weight")
    state["fc.bias"] = torch.zeros(3)
    save_file(state, path)
    assert run_cli(command) == 2
    assert capsys.readouterr().err == (
        f"Error: The model does not have the tensors of --dense {path}: they differ in 'fc.weight', 'head.weight'.\n"
    )
    path.write_bytes(b"no")
    assert run_cli(command) == 2
    assert capsys.readouterr().err.startswith(f"Error: --dense {path} is not a readable safetensors file: ")


def test_the_help_has_examples_and_says_what_held_out_images_are_for(capsys: Any) -> None:
    assert run_cli(["reproduce", "cifar10", "--help"]) == 0
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "spikeslab reproduce cifar10 --dense resnet20.safetensors" in text
    assert "They rank settings" in text
