"""Folders, files and recipes that ``spikeslab sparsity`` cannot use, as a user sees them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from recipes import NETWORK_RECIPE
from safetensors.torch import save_file

from spikeslab.cli.app import run


def test_a_report_that_cannot_be_read_is_refused(stored: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (stored / "report.json").write_text("{")
    assert run(["sparsity", str(stored), "--no-latency"]) == 2
    message = " ".join(capsys.readouterr().err.split())
    assert message.startswith(f"Error: {stored / 'report.json'} is damaged: it is not JSON")


@pytest.mark.skipif(not Path("/dev/null").is_char_device(), reason="needs a device")
def test_a_device_whose_content_may_never_end_is_not_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "recipe.py").write_text(NETWORK_RECIPE)
    for command in ("compress", "curve"):
        assert run([command, str(tmp_path / "recipe.py"), "--dense", "/dev/null", "--out", str(tmp_path / "out")]) == 2
        assert " ".join(capsys.readouterr().err.split()) == (
            "Error: --dense must be a safetensors file, but /dev/null cannot be read: /dev/null is not a regular file."
        )


def recipe_with(source: str) -> str:
    """The recipe with a function defined once more."""
    return f"{NETWORK_RECIPE}\n{source}"


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
            "example_input() in {recipe} must return a batch, or a tuple or mapping of batches, but got an object of "
            "type int.",
        ),
        (
            NETWORK_RECIPE.replace("Linear(HIDDEN, 3)", "Linear(HIDDEN, 4)"),
            "The model does not have the shapes of {dense}: '3.weight' is [4, 20] in the model and [3, 20] in the "
            "file.",
        ),
        (
            NETWORK_RECIPE.replace("nn.BatchNorm1d(HIDDEN)", "nn.BatchNorm1d(HIDDEN, track_running_stats=False)"),
            "The model does not have the tensors of {dense}: they differ in '1.num_batches_tracked', '1.running_mean', "
            "'1.running_var'.",
        ),
    ],
)
def test_bad_input_is_one_sentence(source: str, message: str, stored: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (stored / "recipe.py").write_text(source)
    assert run(["sparsity", str(stored), "--recipe", str(stored / "recipe.py"), "--no-latency"]) == 2
    expected = message.format(recipe=stored / "recipe.py", dense=stored / "model.safetensors")
    assert capsys.readouterr().err == f"Error: {expected}\n"


def test_a_recipe_without_pairs_gives_an_example(stored: Path) -> None:
    more = (
        "def val_data(): return [{}]\ndef train_data(): raise ValueError\ndef example_input(): return torch.ones(2, 6)"
    )
    (stored / "recipe.py").write_text(recipe_with(more))
    assert run(["sparsity", str(stored), "--no-latency"]) == 0


def test_a_damaged_sparse_file_is_refused(stored: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = stored / "sparse.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    assert run(["sparsity", str(file)]) == 2
    assert capsys.readouterr().err == f"Error: {file} is damaged: its content does not match its checksum.\n"


def test_a_damaged_dense_file_is_refused(stored: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = stored / "model.safetensors"
    file.write_bytes(b"noise")
    assert run(["sparsity", str(stored)]) == 2
    assert capsys.readouterr().err.startswith(f"Error: {file} is not a readable safetensors file: ")


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


def test_a_copy_that_lacks_its_neighbours_sends_to_the_original(
    stored: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (stored / "recipe.py").write_text("from gone_with_the_original import HIDDEN\n")
    assert run(["sparsity", str(stored)]) == 2
    message = " ".join(capsys.readouterr().err.split())
    assert message == (
        f"Error: The copy of the recipe in MODEL must be a Python file that runs, but line 1 of {stored / 'recipe.py'} "
        "raised ModuleNotFoundError: No module named 'gone_with_the_original': name the original with --recipe."
    )
    (tmp_path / "sizes.py").write_text("HIDDEN = 20")
    (tmp_path / "original.py").write_text(NETWORK_RECIPE)
    assert run(["sparsity", str(stored), "--recipe", str(tmp_path / "original.py"), "--no-latency"]) == 0
