"""``spikeslab export``: the file computes what the network computes, and nothing of somebody else's is lost."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from spikeslab.cli.app import run

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

RECIPE = """
import torch
from torch import nn

def model():
    return nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 3))

def val_data():
    return [(torch.zeros(4, 6), torch.zeros(4))]
"""


@pytest.fixture
def network() -> nn.Module:
    """Five of twenty units are dead."""
    model = nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 3))
    with torch.no_grad():
        model[0].weight[:5], model[0].bias[:5] = 0.0, 0.0
    return model


@pytest.fixture
def folder(tmp_path: Path, network: nn.Module) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    save_file(network.state_dict(), folder / "model.safetensors")
    (folder / "recipe.py").write_text(RECIPE)
    return folder


@pytest.mark.parametrize(("options", "numbers"), [([], 6 * 15 + 15 + 15 * 3 + 3), (["--no-compact"], 203)])
def test_the_file_computes_what_the_network_computes(
    options: list[str], numbers: int, folder: Path, network: nn.Module, capsys: pytest.CaptureFixture[str]
) -> None:
    file = folder / "made here" / "model.onnx"
    assert run(["export", str(folder), "--out", str(file), *options]) == 0
    out = capsys.readouterr().out
    assert out.endswith(f"Files written:\n  {file}\n")
    assert ("20 → 15" in out) == (not options)
    session = onnxruntime.InferenceSession(file.read_bytes(), providers=["CPUExecutionProvider"])
    x = torch.randn(7, 6)
    (found,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), network(x), rtol=1e-4, atol=1e-5)
    import onnx

    stored = onnx.load(file).graph.initializer
    assert sum(torch.Size(entry.dims).numel() for entry in stored if entry.data_type == onnx.TensorProto.FLOAT) == (
        numbers
    )
    assert run(["export", str(folder), "--out", str(file)]) == 0, "its own file is replaced"


def test_other_files_stay(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = folder / "notes.txt"
    file.write_text("mine")
    assert run(["export", str(folder), "--out", str(file)]) == 2
    assert capsys.readouterr().err == (
        f"Error: --out must be a new file or one with an ONNX network of torch, but {file} holds something else.\n"
    )
    assert file.read_text() == "mine"


def test_a_network_needs_its_module(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = folder / "model.safetensors"
    assert run(["export", str(file), "--out", str(tmp_path / "m.onnx")]) == 2
    assert capsys.readouterr().err == (
        f"Error: --recipe must name a Python file with model() and val_data(): {file} has no recipe.py.\n"
    )
    assert run(["export", str(file), "--out", str(tmp_path / "m.onnx"), "--recipe", str(folder / "recipe.py")]) == 0


def test_what_cannot_be_exported_is_one_sentence(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = "class Own(nn.Sequential):\n    def forward(self, x): return {'x': x, 'y': super().forward(x)}\n"
    (folder / "recipe.py").write_text(f"{RECIPE}{more}build = model\ndef model(): return Own(*build())\n")
    assert run(["export", str(folder), "--out", str(folder / "m.onnx"), "--no-compact"]) == 2
    assert capsys.readouterr().err == (
        "Error: output() must be given where a model returns neither a tensor nor logits, but it returned a dict of "
        "'x', 'y'.\n"
    )
    assert not (folder / "m.onnx").exists()


def test_the_recipe_says_which_output_is_exported(folder: Path, network: nn.Module) -> None:
    more = "class Own(nn.Sequential):\n    def forward(self, x): return {'x': x, 'y': super().forward(x)}\n"
    more += "build = model\ndef model(): return Own(*build())\ndef output(result): return result['y']\n"
    (folder / "recipe.py").write_text(f"{RECIPE}{more}")
    assert run(["export", str(folder), "--out", str(folder / "m.onnx")]) == 0
    x = torch.randn(3, 6)
    (found,) = onnxruntime.InferenceSession(folder / "m.onnx").run(None, {"inputs_0": x.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), network(x).detach(), rtol=1e-4, atol=1e-5)


def test_packages_that_are_missing_are_named(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spikeslab.cli._stored_network.missing_packages", lambda: ["onnxscript"])
    assert run(["export", str(folder), "--out", str(folder / "m.onnx")]) == 2
    assert capsys.readouterr().err == (
        "Error: spikeslab export must have its packages, but 'onnxscript' is missing: pip install 'spikeslab[onnx]'.\n"
    )
