"""``spikeslab sparsity`` as a user sees it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from recipes import NETWORK_RECIPE
from safetensors.torch import load_file

from spikeslab.cli.app import run


def compacted_macs(stored: Path) -> int:
    weight = load_file(stored / "model.safetensors")["0.weight"]
    return 9 * int(weight.any(1).sum())


def test_a_folder_with_a_recipe(stored: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, numbers = tmp_path / "out", tmp_path / "numbers.json"
    assert run(["sparsity", str(stored), "--out", str(out), "--json", str(numbers)]) == 0
    captured = capsys.readouterr()
    assert "Error" not in captured.err
    words = " ".join(captured.out.split())
    assert "Smaller: " in words
    assert "Faster than dense on 1 thread: BN folded " in words
    record = json.loads(numbers.read_text())
    assert record["sparsity of"] == str(stored)
    assert (record["weights"], record["nonzeros"]) == (243, 243 - 90 - 20)  # the bias of batch normalisation is zero
    assert (record["macs"], record["nonzero_macs"]) == (180, 90)
    less = compacted_macs(stored)
    assert less <= 180 - 9 * 4
    variants = ["dense", "BN folded", "finalised", "compacted"]
    assert [item["variant"] for item in record["latencies"]] == 2 * variants
    assert [item["batch"] for item in record["latencies"]] == [1] * 4 + [64] * 4
    assert record["variant_macs"] == {"dense": 180, "BN folded": 180, "finalised": 180, "compacted": less}
    assert json.loads((out / "sparsity.json").read_text()) == record
    assert (out / "sparsity.md").read_text().startswith("## Sparsity\n")
    assert (out / "sparsity.png").read_bytes().startswith(b"\x89PNG")
    assert run(["sparsity", str(stored), "--out", str(out), "--no-latency"]) == 0, "earlier reports are replaced"
    assert "Faster: not measured" in (out / "sparsity.md").read_text()
    assert sorted(path.name for path in stored.iterdir()) == [
        "model.safetensors", "recipe.py", "sizes.py", "sparse.safetensors"
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["model.safetensors", "sparse.safetensors"])
def test_a_file_without_a_module(name: str, stored: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sparsity", str(stored / name)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("No recipe was given, so multiply-adds and times are not known.\n")
    assert "whole network" in out
    assert "Files written" not in out


def test_a_sparse_file_alone_is_enough(stored: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (stored / "model.safetensors").unlink()
    numbers = tmp_path / "n.json"
    assert run(["sparsity", str(stored), "--no-latency", "--json", str(numbers)]) == 0
    assert json.loads(numbers.read_text())["nonzeros"] == 243 - 90 - 20


@pytest.mark.parametrize("recipe", [[], ["--recipe", "recipe.py"]])
def test_the_sparse_layers_are_those_of_the_run_with_and_without_zeros(
    recipe: list[str], stored: Path, tmp_path: Path
) -> None:
    (stored / "report.json").write_text(json.dumps({"weights": ["0.weight", "3.weight"]}))
    (stored / "recipe.py").rename(tmp_path / "recipe.py")
    (stored / "sizes.py").rename(tmp_path / "sizes.py")
    options = [str(tmp_path / word) if word == "recipe.py" else word for word in recipe]
    numbers = tmp_path / "n.json"
    assert run(["sparsity", str(stored), "--no-latency", "--json", str(numbers), *options]) == 0
    assert [layer["sparse"] for layer in json.loads(numbers.read_text())["layers"]] == [True, True]


def test_what_cannot_be_traced_is_said_and_timed(stored: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = "class Own(nn.Sequential):\n    def forward(self, x): return super().forward(x if x.sum() > 0 else -x)\n"
    more += "build = model\ndef model(): return Own(*build())"
    (stored / "recipe.py").write_text(f"{NETWORK_RECIPE}\n{more}")
    assert run(["sparsity", str(stored)]) == 0
    captured = capsys.readouterr()
    assert captured.err.count("Warning: Own cannot be traced by torch.fx") == 1


def test_onnxruntime_has_its_turn(stored: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    numbers = tmp_path / "numbers.json"
    assert run(["sparsity", str(stored), "--onnx", "--json", str(numbers)]) == 0
    macs = json.loads(numbers.read_text())["variant_macs"]
    assert (macs["dense in onnxruntime"], macs["compacted in onnxruntime"]) == (180, compacted_macs(stored))
    assert run(["sparsity", str(stored), "--onnx", "--no-latency"]) == 2
    assert capsys.readouterr().err.endswith(
        "Error: --onnx must not be given with --no-latency, which measures no time.\n"
    )


@pytest.mark.parametrize("name", ["sparsity.json", "sparsity.md", "sparsity.png"])
def test_other_files_are_not_replaced(name: str, stored: Path, tmp_path: Path) -> None:
    (tmp_path / name).write_text("mine")
    assert run(["sparsity", str(stored), "--no-latency", "--out", str(tmp_path)]) == 2
    assert (tmp_path / name).read_text() == "mine"
    assert run(["sparsity", str(stored), "--no-latency", "--json", str(tmp_path / name)]) == 2
    assert (tmp_path / name).read_text() == "mine"
