"""``spikeslab prune`` as a user sees it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from recipes import read_files
from safetensors.torch import load_file, save_file
from torch import nn

from spikeslab.cli import prune as cli_prune
from spikeslab.cli.app import run
from spikeslab.compression import load_sparse

RECIPE = """
import torch
from torch import nn

def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))

def batch(seed):
    x = torch.randn(100, 8, generator=torch.Generator().manual_seed(seed))
    return x, (x[:, 0] > 0).long()

def train_data():
    return [batch(seed) for seed in range(10)]

def val_data():
    return [batch(99)]
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The present folder, with a recipe in it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipe.py").write_text(RECIPE)
    return tmp_path


def test_a_command_that_was_stopped_while_writing_does_not_hinder_the_next(place, monkeypatch):
    def stop(folder, contents):
        folder.mkdir(parents=True)
        (folder / f"recipe.py.{os.getpid() + 10**7}.tmp").write_text("half")
        raise KeyboardInterrupt

    monkeypatch.setattr(cli_prune, "write_together", stop)
    run(["prune", "recipe.py", "--out", "out/half"])
    monkeypatch.undo()
    monkeypatch.chdir(place)
    assert run(["prune", "recipe.py", "--out", "out/half"]) == 0


def test_inclusion_probabilities_are_written(place):
    assert run(["prune", "recipe.py", "--inclusion", "--out", "out/half"]) == 0
    found = load_file(place / "out" / "half" / "inclusion.safetensors")
    weights = load_sparse(place / "out" / "half" / "pruned.safetensors")
    assert {name: tensor.shape for name, tensor in found.items()} == {
        name: weights[name].shape for name in ("2.weight", "4.weight")
    }
    kept = {name: tensor[weights[name] != 0].mean() for name, tensor in found.items()}
    assert all(kept[name] > found[name][weights[name] == 0].max() for name in found)
    assert "spikeslab prune recipe.py --inclusion --seed 0 --out out/half" in (place / "out/half/layers.md").read_text()


def test_a_network_is_pruned_compared_and_written(place, capsys):
    assert run(["prune", "recipe.py", "--sparsity", "0.75"]) == 0
    out = capsys.readouterr().out
    folder = place / "out" / "recipe-pruned"
    names = ["pruned.safetensors", "layers.md", "layers.json", "result.md", "result.json", "recipe.py"]
    listed = "".join(f"  out/recipe-pruned/{name}\n" for name in names)
    command = "spikeslab sparsity out/recipe-pruned/pruned.safetensors --recipe recipe.py"
    assert out.endswith(f"Files written:\n{listed}Next:\n  {command}\n")
    assert sorted(path.name for path in folder.iterdir()) == sorted(names)
    tensors = load_sparse(folder / "pruned.safetensors")
    assert {name: int((t == 0).sum()) for name, t in tensors.items() if name.endswith("weight")} == {
        "0.weight": 0,  # it has eight inputs
        "2.weight": 3072,
        "4.weight": 96,
    }
    layers = json.loads((folder / "layers.json").read_text())
    assert [(row["layer"], row["rows"]) for row in layers["rows"]] == [("2.weight", 600), ("4.weight", 600)]
    result = json.loads((folder / "result.json").read_text())
    assert [row["model"] for row in result["rows"]] == ["dense", "pruned", "pruned, fp16", "pruned, int8"]
    assert [row["layers"] for row in result["rows"][:2]] == [4224, 4224 - 3168]
    assert all(0.0 <= row["val_accuracy"] <= 100.0 for row in result["rows"])
    assert result["run"]["command"] == "spikeslab prune recipe.py --sparsity 0.75 --seed 0"
    before = read_files(folder)
    assert run(["prune", "recipe.py"]) == 2
    assert capsys.readouterr().err == (
        "Error: --out must be a new or an empty folder, but out/recipe-pruned holds something.\n"
    )
    assert read_files(folder) == before


def test_options_reach_the_pruning(place, capsys):
    torch.manual_seed(3)
    dense = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
    save_file(dense.state_dict(), place / "dense.safetensors")
    options = ["--pattern", "2:4", "--weights", "0.*", "--solver", "diagonal", "--batches", "2"]
    assert run(["prune", "recipe.py", *options, "--dense", "dense.safetensors", "--out", "run"]) == 0
    tensors = load_sparse(place / "run" / "pruned.safetensors")
    kept = tensors["0.weight"] != 0
    assert (kept.reshape(-1, 4).sum(1) == 2).all()
    assert torch.equal(tensors["0.weight"][kept], dense[0].weight.detach()[kept])
    assert torch.equal(tensors["2.weight"], dense[2].weight.detach())
    record = json.loads((place / "run" / "layers.json").read_text())
    assert [(row["solver"], row["rows"]) for row in record["rows"]] == [("diagonal", 200)]
    assert record["run"]["command"] == (
        "spikeslab prune recipe.py --pattern 2:4 --weights '0.*' --solver diagonal --batches 2 "
        "--dense dense.safetensors --seed 0 --out run"
    )


def test_inputs_without_labels_and_without_validation_data(place, capsys):
    text = RECIPE.partition("def val_data")[0].replace("return x, (x[:, 0] > 0).long()", "return x")
    (place / "recipe.py").write_text(text)
    assert run(["prune", "recipe.py", "--out", "run"]) == 0
    record = json.loads((place / "run" / "result.json").read_text())
    assert list(record["columns"]) == ["model", "nonzeros", "layers", "kilobytes"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--sparsity", "1"], "--sparsity must be a number in (0, 1), but got 1.0."),
        (["--pattern", "4:2"], "--pattern must be 'N:M' with 0 < N < M, such as '2:4', or None, but got '4:2'."),
        (["--pattern", "2:4", "--sparsity", "0.7"], "--sparsity must be 0.5 with --pattern 2:4, but got 0.7."),
        (["--solver", "best"], "--solver must be one of 'exchange', 'refit', 'fast', 'diagonal', but got 'best'."),
        (["--batches", "0"], "--batches must be an integer >= 1, but got 0."),
        (["--threads", "0"], "--threads must be an integer >= 1, but got 0."),
        (
            ["--dense", "none"],
            "--dense must be a safetensors file, but none cannot be read: [Errno 2] No such file or directory: 'none'.",
        ),
    ],
)
def test_bad_options_are_one_sentence_and_write_nothing(options, message, place, capsys):
    assert run(["prune", "recipe.py", "--out", "run", *options]) == 2
    assert capsys.readouterr().err == f"Error: {message}\n"
    assert not (place / "run").exists()


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("randn(100, 8", "randn(20, 8", "train_data() must give a layer as many rows as it has inputs, but '2.weight' "
         "has 64 inputs, and there are 20 rows of them: take more with --batches, or other layers with --weights."),
        ("range(10)", "range(0)", "train_data() must hold at least one batch of inputs, but got none."),
        ("Linear(64, 64)", "Linear(63, 64)", "train_data() must yield batches that the model and the loss take, but "
         "got a pair of shapes (100, 8) and (100,): RuntimeError: mat1 and mat2 shapes cannot be multiplied (100x64 "
         "and 63x64)."),
        ("return [batch(99)]", "return [batch(99)[0]]", "val_data() must yield pairs (x, y) or mappings with 'labels' "
         "where no loss() is given, but got a single tensor of shape (100, 8)."),
        ("def train_data", "def data", "RECIPE must define model() and train_data(), but recipe.py lacks "
         "train_data()."),
        ("64", "60", "model() must have a layer with at least 64 inputs, but it has none: --weights can name others."),
    ],
)  # fmt: skip
def test_bad_recipes_are_one_sentence_and_write_nothing(before, after, message, place, capsys):
    (place / "recipe.py").write_text(RECIPE.replace(before, after))
    assert run(["prune", "recipe.py", "--batches", "1", "--out", "run"]) == 2
    assert capsys.readouterr().err == f"Error: {message}\n"
    assert not (place / "run").exists()


def test_the_help_has_examples(capsys):
    assert run(["prune", "--help"]) == 0
    assert "spikeslab prune recipe.py --pattern 2:4" in " ".join(capsys.readouterr().out.split())
