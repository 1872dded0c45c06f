"""``spikeslab sparsity`` as a user sees it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import spikeslab as ss
from spikeslab.cli.app import run
from spikeslab.compression import save_sparse

RECIPE = """
import torch
from torch import nn
from sizes import HIDDEN

def model():
    return nn.Sequential(nn.Linear(6, HIDDEN), nn.BatchNorm1d(HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 3))

def val_data():
    return [(torch.randn(4, 6), torch.zeros(4))]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What ``compress(...).save(dir)`` writes, as far as this command reads it."""
    model = nn.Sequential(nn.Linear(6, 20), nn.BatchNorm1d(20), nn.ReLU(), nn.Linear(20, 3))
    ss.Pruner([model[0].weight], 0.75).step()
    folder = tmp_path / "model"
    folder.mkdir()
    save_file(model.state_dict(), folder / "model.safetensors")
    save_sparse(model, folder / "sparse.safetensors")
    (folder / "recipe.py").write_text(RECIPE)
    (folder / "sizes.py").write_text("HIDDEN = 20")
    return folder


def test_a_folder_with_a_recipe(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, numbers = tmp_path / "out", tmp_path / "numbers.json"
    assert run(["sparsity", str(folder), "--out", str(out), "--json", str(numbers)]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    words = " ".join(captured.out.split())
    assert "Smaller: " in words
    assert "Faster than dense on 1 thread: finalised " in words
    record = json.loads(numbers.read_text())
    assert record["sparsity of"] == str(folder)
    assert (record["weights"], record["nonzeros"]) == (243, 243 - 90 - 20)  # the bias of batch normalisation is zero
    assert (record["macs"], record["nonzero_macs"]) == (180, 90)
    assert [item["batch"] for item in record["latencies"]] == [1, 1, 64, 64]
    assert json.loads((out / "sparsity.json").read_text()) == record
    assert (out / "sparsity.md").read_text().startswith("## Sparsity\n")
    assert (out / "sparsity.png").read_bytes().startswith(b"\x89PNG")
    assert run(["sparsity", str(folder), "--out", str(out), "--no-latency"]) == 0, "earlier reports are replaced"
    assert "Faster: not measured" in (out / "sparsity.md").read_text()
    assert sorted(path.name for path in folder.iterdir()) == [
        "model.safetensors", "recipe.py", "sizes.py", "sparse.safetensors"
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["model.safetensors", "sparse.safetensors"])
def test_a_file_without_a_module(name: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sparsity", str(folder / name)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("No recipe was given, so multiply-adds and times are not known.\n")
    assert "whole network" in out
    assert "Files written" not in out


def test_a_sparse_file_alone_is_enough(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "model.safetensors").unlink()
    numbers = tmp_path / "n.json"
    assert run(["sparsity", str(folder), "--no-latency", "--json", str(numbers)]) == 0
    assert json.loads(numbers.read_text())["nonzeros"] == 243 - 90 - 20


def recipe_with(source: str) -> str:
    """The recipe with a function defined once more."""
    return f"{RECIPE}\n{source}"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def val_data(): ...", "{recipe} must define the function model(), but it does not."),
        ("def model(): return 3", "model() of {recipe} must return a torch.nn.Module, but it returned int."),
        ("import nowhere", "{recipe} must run, but got ModuleNotFoundError: No module named 'nowhere'."),
        (
            recipe_with("def val_data(): return [{}]"),
            "val_data() of {recipe} must yield batches (x, y) with a tensor x, but got dict.",
        ),
        (
            recipe_with("def val_data(): return []"),
            "val_data() of {recipe} must yield batches (x, y) with a tensor x, but got NoneType.",
        ),
        (
            RECIPE.replace("Linear(HIDDEN, 3)", "Linear(HIDDEN, 4)"),
            "model must have the shapes of {dense}, but '3.weight' is [4, 20] in the model and [3, 20] in the file.",
        ),
        (
            RECIPE.replace("nn.BatchNorm1d(HIDDEN)", "nn.BatchNorm1d(HIDDEN, track_running_stats=False)"),
            "model must have the tensors of {dense}, but they differ in '1.num_batches_tracked', '1.running_mean', "
            "'1.running_var'.",
        ),
    ],
)
def test_bad_input_is_one_sentence(source: str, message: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "recipe.py").write_text(source)
    assert run(["sparsity", str(folder), "--no-latency"]) == 2
    expected = message.format(recipe=folder / "recipe.py", dense=folder / "model.safetensors")
    assert capsys.readouterr().err == f"Error: {expected}\n"


def test_a_damaged_sparse_file_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = folder / "sparse.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    assert run(["sparsity", str(file)]) == 2
    assert capsys.readouterr().err == f"Error: {file} is damaged: its content does not match its checksum.\n"


def test_a_damaged_dense_file_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(b"noise")
    assert run(["sparsity", str(folder)]) == 2
    assert capsys.readouterr().err.startswith(f"Error: MODEL must be a readable safetensors file, but {file}: ")


def test_what_is_no_model_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sparsity", str(tmp_path)]) == 2
    message = (
        "MODEL must be a folder with model.safetensors or sparse.safetensors in it, or a safetensors file, but got"
    )
    assert capsys.readouterr().err == f"Error: {message} {tmp_path}.\n"
    file = tmp_path / "model.safetensors"
    save_file({"a": torch.ones(2)}, file)
    assert run(["sparsity", str(file), "--recipe", str(tmp_path / "none.py")]) == 2
    assert capsys.readouterr().err == (
        f"Error: --recipe must be a Python file, but {tmp_path / 'none.py'}: No such file or directory.\n"
    )


@pytest.mark.parametrize("name", ["sparsity.json", "sparsity.md", "sparsity.png"])
def test_other_files_are_not_replaced(name: str, folder: Path, tmp_path: Path) -> None:
    (tmp_path / name).write_text("mine")
    assert run(["sparsity", str(folder), "--no-latency", "--out", str(tmp_path)]) == 2
    assert (tmp_path / name).read_text() == "mine"
    assert run(["sparsity", str(folder), "--no-latency", "--json", str(tmp_path / name)]) == 2
    assert (tmp_path / name).read_text() == "mine"
