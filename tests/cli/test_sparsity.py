"""``spikeslab sparsity`` as a user sees it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
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
    with torch.no_grad():
        model[0].weight[:4] = 0.0
    ss.Pruner([model[0].weight], 0.75).step()
    folder = tmp_path / "model"
    folder.mkdir()
    save_file(model.state_dict(), folder / "model.safetensors")
    save_sparse(model, folder / "sparse.safetensors")
    (folder / "recipe.py").write_text(RECIPE)
    (folder / "sizes.py").write_text("HIDDEN = 20")
    return folder


def compacted_macs(folder: Path) -> int:
    weight = load_file(folder / "model.safetensors")["0.weight"]
    return 9 * int(weight.any(1).sum())


def test_a_folder_with_a_recipe(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, numbers = tmp_path / "out", tmp_path / "numbers.json"
    assert run(["sparsity", str(folder), "--out", str(out), "--json", str(numbers)]) == 0
    captured = capsys.readouterr()
    assert "Error" not in captured.err
    words = " ".join(captured.out.split())
    assert "Smaller: " in words
    assert "Faster than dense on 1 thread: BN folded " in words
    record = json.loads(numbers.read_text())
    assert record["sparsity of"] == str(folder)
    assert (record["weights"], record["nonzeros"]) == (243, 243 - 90 - 20)  # the bias of batch normalisation is zero
    assert (record["macs"], record["nonzero_macs"]) == (180, 90)
    less = compacted_macs(folder)
    assert less <= 180 - 9 * 4
    variants = ["dense", "BN folded", "finalised", "compacted"]
    assert [item["variant"] for item in record["latencies"]] == 2 * variants
    assert [item["batch"] for item in record["latencies"]] == [1] * 4 + [64] * 4
    assert record["variant_macs"] == {"dense": 180, "BN folded": 180, "finalised": 180, "compacted": less}
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


@pytest.mark.parametrize("recipe", [[], ["--recipe", "recipe.py"]])
def test_the_sparse_layers_are_those_of_the_run_with_and_without_zeros(
    recipe: list[str], folder: Path, tmp_path: Path
) -> None:
    (folder / "report.json").write_text(json.dumps({"weights": ["0.weight", "3.weight"]}))
    (folder / "recipe.py").rename(tmp_path / "recipe.py")
    (folder / "sizes.py").rename(tmp_path / "sizes.py")
    options = [str(tmp_path / word) if word == "recipe.py" else word for word in recipe]
    numbers = tmp_path / "n.json"
    assert run(["sparsity", str(folder), "--no-latency", "--json", str(numbers), *options]) == 0
    assert [layer["sparse"] for layer in json.loads(numbers.read_text())["layers"]] == [True, True]


def test_a_report_that_cannot_be_read_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "report.json").write_text("{")
    assert run(["sparsity", str(folder), "--no-latency"]) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert told.startswith(f"Error: MODEL must have a readable report.json or none, but {folder / 'report.json'}: ")


def recipe_with(source: str) -> str:
    """The recipe with a function defined once more."""
    return f"{RECIPE}\n{source}"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            "def train_data(): ...",
            "--recipe must define model() and val_data(), but {recipe} lacks model() and val_data().",
        ),
        ("def val_data(): ...", "--recipe must define model() and val_data(), but {recipe} lacks model()."),
        (
            recipe_with("def model(): return 3"),
            "model() in {recipe} must return a torch.nn.Module, but got an object of type int.",
        ),
        (
            "import nowhere",
            "--recipe must be a Python file that runs, but line 1 of {recipe} raised ModuleNotFoundError: No module "
            "named 'nowhere'.",
        ),
        (
            recipe_with("def val_data(): return [{}]"),
            "val_data() in {recipe} must yield batches (x, y) with a tensor x, where there is no example_input(), but "
            "got an object of type dict.",
        ),
        (
            recipe_with("def val_data(): return []"),
            "val_data() in {recipe} must yield batches (x, y) with a tensor x, where there is no example_input(), but "
            "got None.",
        ),
        (
            recipe_with("def example_input(): return 3"),
            "example_input() in {recipe} must return a batch, or a tuple of batches, but got an object of type int.",
        ),
        (
            RECIPE.replace("Linear(HIDDEN, 3)", "Linear(HIDDEN, 4)"),
            "The model does not have the shapes of {dense}: '3.weight' is [4, 20] in the model and [3, 20] in the "
            "file.",
        ),
        (
            RECIPE.replace("nn.BatchNorm1d(HIDDEN)", "nn.BatchNorm1d(HIDDEN, track_running_stats=False)"),
            "The model does not have the tensors of {dense}: they differ in '1.num_batches_tracked', '1.running_mean', "
            "'1.running_var'.",
        ),
    ],
)
def test_bad_input_is_one_sentence(source: str, message: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "recipe.py").write_text(source)
    assert run(["sparsity", str(folder), "--recipe", str(folder / "recipe.py"), "--no-latency"]) == 2
    expected = message.format(recipe=folder / "recipe.py", dense=folder / "model.safetensors")
    assert capsys.readouterr().err == f"Error: {expected}\n"


def test_a_recipe_without_pairs_gives_an_example(folder: Path) -> None:
    more = (
        "def val_data(): return [{}]\ndef train_data(): raise ValueError\ndef example_input(): return torch.ones(2, 6)"
    )
    (folder / "recipe.py").write_text(recipe_with(more))
    assert run(["sparsity", str(folder), "--no-latency"]) == 0


def test_what_cannot_be_traced_is_said_and_timed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = "class Own(nn.Sequential):\n    def forward(self, x): return super().forward(x if x.sum() > 0 else -x)\n"
    more += "build = model\ndef model(): return Own(*build())"
    (folder / "recipe.py").write_text(recipe_with(more))
    assert run(["sparsity", str(folder)]) == 0
    captured = capsys.readouterr()
    assert captured.err.count("Warning: Own cannot be traced by torch.fx") == 1


def test_onnxruntime_has_its_turn(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    numbers = tmp_path / "numbers.json"
    assert run(["sparsity", str(folder), "--onnx", "--json", str(numbers)]) == 0
    macs = json.loads(numbers.read_text())["variant_macs"]
    assert (macs["dense in onnxruntime"], macs["compacted in onnxruntime"]) == (180, compacted_macs(folder))
    assert run(["sparsity", str(folder), "--onnx", "--no-latency"]) == 2
    assert capsys.readouterr().err.endswith(
        "Error: --onnx must not be given with --no-latency, which measures no time.\n"
    )


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
        f"Error: --recipe must be a Python file, but {tmp_path / 'none.py'} is not there.\n"
    )


@pytest.mark.parametrize("name", ["sparsity.json", "sparsity.md", "sparsity.png"])
def test_other_files_are_not_replaced(name: str, folder: Path, tmp_path: Path) -> None:
    (tmp_path / name).write_text("mine")
    assert run(["sparsity", str(folder), "--no-latency", "--out", str(tmp_path)]) == 2
    assert (tmp_path / name).read_text() == "mine"
    assert run(["sparsity", str(folder), "--no-latency", "--json", str(tmp_path / name)]) == 2
    assert (tmp_path / name).read_text() == "mine"


def test_a_copy_that_lacks_its_neighbours_sends_to_the_original(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "recipe.py").write_text("from gone_with_the_original import HIDDEN\n")
    assert run(["sparsity", str(folder)]) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert told == (
        f"Error: The copy of the recipe in MODEL must be a Python file that runs, but line 1 of {folder / 'recipe.py'} "
        "raised ModuleNotFoundError: No module named 'gone_with_the_original': name the original with --recipe."
    )
    (tmp_path / "sizes.py").write_text("HIDDEN = 20")
    (tmp_path / "original.py").write_text(RECIPE)
    assert run(["sparsity", str(folder), "--recipe", str(tmp_path / "original.py"), "--no-latency"]) == 0
