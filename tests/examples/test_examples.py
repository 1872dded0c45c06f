"""The scripts that users copy, on scikit-learn's digits with a tiny budget."""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import spikeslab
from spikeslab.paper import images
from spikeslab.paper.demo.data import load_upscaled_digits
from spikeslab.paper.images.data import DIGITS, Images

EXAMPLES = Path(__file__).parents[2] / "examples"
SOURCE = Path(spikeslab.__file__).parents[1]


def example(name: str, *arguments: str) -> list[str]:
    """Run a script; the lines that it prints."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), "--data", "digits", *arguments],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.splitlines()


def compress(recipe: str, out: Path, *options: str) -> dict[str, dict[str, float]]:
    """Run a recipe as a user does; its table by the name of the row."""
    from spikeslab.cli.app import run

    path = str(EXAMPLES / "recipes" / recipe)
    assert run(["compress", path, "--epochs", "1", "--no-report", "--out", str(out), *options]) == 0
    return {row["model"]: row for row in json.loads((out / "result.json").read_text())["rows"]}


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def rows(lines: list[str]) -> list[list[str]]:
    """The cells of a Markdown table, its heading first."""
    heading, _, *body = [cells(line) for line in lines if line.startswith("|")]
    return [heading, *body]


def test_own_loop() -> None:
    *losses, last, average = example("own_loop_mnist.py", "--epochs", "7")
    assert len(losses) == 7
    assert all(re.fullmatch(r"epoch \d: loss of the last batch \d\.\d{3}", line) for line in losses)
    for name, line in (("last weights", last), ("average of 10 samples", average)):
        numbers = re.fullmatch(name + r": accuracy (0\.\d{4}), NLL (\d\.\d{4}), ECE 0\.\d{4}", line)
        assert numbers is not None
        assert float(numbers[1]) > 0.5, "it learns"


def test_own_loop_predicts_as_one_should(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[bool, bool]] = []

    class Watched(images.CNN):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            calls.append((self.training, torch.is_grad_enabled()))
            return super().forward(x)

    monkeypatch.setattr(images, "CNN", Watched)
    monkeypatch.setattr(sys, "argv", ["own_loop_mnist.py", "--data", "digits", "--limit", "30", "--epochs", "1"])
    runpy.run_path(str(EXAMPLES / "own_loop_mnist.py"), run_name="__main__")
    training, *predicting = calls
    assert training == (True, True)
    assert set(predicting) == {(False, False)}


@pytest.mark.parametrize("name", ["own_loop_mnist", "uncertainty_ood", "adversarial_test", "torchrun_digits"])
def test_bad_options_are_one_line(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = tmp_path / "gone"
    bad = {
        ("--epochs", "0"): "--epochs must be an integer >= 1, but got 0.",
        ("--limit", "0"): "--limit must be an integer >= 1, but got 0.",
        ("--data-dir", str(gone)): f"data_dir must be a folder with data sets, but {gone} is not a folder.",
    }
    if name == "torchrun_digits":
        bad = {("--steps", "1"): "--steps must be an integer >= 2, but got 1."}
    for arguments, message in bad.items():
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *arguments])
        with pytest.raises(SystemExit) as stopped:
            runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
        assert stopped.value.code == 2
        assert capsys.readouterr().err.splitlines()[-1] == f"{name}.py: error: {message}"


def test_out_of_distribution(tmp_path: Path) -> None:
    lines = example("uncertainty_ood.py", "--limit", "200", "--epochs", "5", "--out", str(tmp_path / "out"))
    assert re.fullmatch(r"Accuracy on digits 0 to 4: [01]\.\d{4}", lines[0])
    heading, *body = rows(lines)
    assert heading == ["Score", "AUROC", "AUPR", "FPR95"]
    assert [row[0] for row in body] == ["entropy of one sample", "entropy of the average", "mutual information"]
    assert all(0.0 <= float(cell) <= 1.0 for row in body for cell in row[1:])
    written = [tmp_path / "out" / name for name in ("uncertainty.png", "detection.png")]
    assert lines[-2:] == [str(path) for path in written]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in written)


def test_adversarial(tmp_path: Path) -> None:
    arguments = ("--limit", "300", "--epochs", "3", "--attacked", "5", "--out", str(tmp_path / "out"))
    lines = example("adversarial_test.py", *arguments)
    heading, *body = rows(lines)
    assert heading == ["Attack", "Model", "0", "0.05", "0.1", "0.2", "0.3"]
    models = ["point estimate", "one sample", "average of 9", "average of 9, attacked through one"]
    assert [row[:2] for row in body] == [[attack, name] for attack in ("FGSM", "PGD, 10 steps") for name in models]
    for row in body:
        assert all(float(cell) in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0) for cell in row[2:])
    for average, through_one in (body[2:4], body[6:8]):
        assert average[2] == through_one[2], "nothing is changed at zero"
    assert lines[-1] == str(tmp_path / "out" / "adversarial.png")
    assert (tmp_path / "out" / "adversarial.png").read_bytes().startswith(b"\x89PNG")


def test_a_perceptron_on_a_table_is_compressed(tmp_path: Path) -> None:
    found = compress("tabular_mlp.py", tmp_path / "out")
    assert found["dense"]["test_accuracy"] > 90.0
    assert found["sparse"]["nonzeros"] == found["dense"]["nonzeros"] - round(0.9 * found["dense"]["nonzeros"])


def test_lenet_is_compressed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "load_fashion", load_upscaled_digits)
    found = compress("fashion_lenet.py", tmp_path / "out")
    assert found["dense"]["nonzeros"] == 61_706
    assert found["sparse"]["nonzeros"] == 61_706 - round(0.9 * 61_706)


def test_channels_of_the_cnn_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "load_mnist", load_upscaled_digits)
    layers = ("--weights", "conv*.weight", "--weights", "fc1.weight")
    found = compress("mnist_cnn.py", tmp_path / "out", "--structure", "channels", "--sparsity", "0.5", *layers)
    assert found["dense"]["nonzeros"] == 681_506
    assert 0.49 * 681_506 < found["sparse"]["nonzeros"] < 0.51 * 681_506, "half of the filters and units"


def test_channels_of_resnet20_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def few_images() -> Images:
        source = torch.Generator().manual_seed(0)
        x = torch.randint(256, (280, 3, 32, 32), generator=source, dtype=torch.uint8)
        y = torch.randint(10, (280,), generator=source)
        return Images(x[:260], y[:260], x[260:], y[260:], DIGITS)

    monkeypatch.setattr(images, "load_cifar10", few_images)
    found = compress("cifar10_resnet20.py", tmp_path / "out", "--structure", "channels", "--sparsity", "0.5")
    assert found["dense"]["nonzeros"] == 272_474
    assert 0.3 * 272_474 < found["sparse"]["nonzeros"] < 0.9 * 272_474
