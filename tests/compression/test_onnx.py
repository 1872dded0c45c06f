"""ONNX files compute what torch computes, or are not written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from spikeslab.compression import ExportError, SparsityReport, compact, export_onnx
from spikeslab.compression import onnx as module
from spikeslab.compression.latency import network_variants

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")


class Block(nn.Module):
    """A little of what a ResNet has."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 2, 3, padding=1, bias=False), nn.BatchNorm2d(2)
        self.fc = nn.Linear(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc((x + self.norm(self.conv(x))).relu().mean(dim=(2, 3)))


@pytest.fixture(scope="module")
def network() -> nn.Module:
    torch.manual_seed(0)
    network = Block()
    network(torch.randn(8, 2, 4, 4))
    with torch.no_grad():
        network.conv.weight[0] = 0.0
    return network


@pytest.fixture(scope="module")
def content(network: nn.Module, tmp_path_factory) -> bytes:
    """The file is made once; exporting takes seconds."""
    return export_onnx(
        network, torch.randn(1, 2, 4, 4), tmp_path_factory.mktemp("onnx") / "new" / "a.onnx"
    ).read_bytes()


@pytest.mark.parametrize("batch", [1, 2, 7])
def test_any_batch_gives_the_outputs_of_torch(batch: int, network: nn.Module, content: bytes) -> None:
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    x = torch.randn(batch, 2, 4, 4)
    (found,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    with torch.no_grad():
        torch.testing.assert_close(torch.from_numpy(found), network.eval()(x), rtol=1e-5, atol=1e-6)


def test_a_file_that_computes_something_else_is_not_written(
    network: nn.Module, content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.onnx, "export", lambda model, inputs, made, **_: made.write_bytes(content))
    example = torch.randn(2, 2, 4, 4)
    file = tmp_path / "model.onnx"
    export_onnx(network, example, file)
    before = file.read_bytes()
    other = Block()
    message = (
        r"^The ONNX file does not compute what the model computes: its outputs differ by \S+, and no more than \S+ is"
    )
    with pytest.raises(ExportError, match=message):
        export_onnx(other, example, file)
    assert file.read_bytes() == before


def test_only_onnx_files_are_replaced(network: nn.Module, tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("mine")
    message = f"file must be a new file or an ONNX file of torch, but {file} is something else."
    with pytest.raises(FileExistsError, match=re.escape(message)):
        export_onnx(network, torch.randn(1, 2, 4, 4), file)
    assert file.read_text() == "mine"


def test_what_torch_cannot_export_is_one_sentence(tmp_path: Path) -> None:
    class Branching(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if float(x.sum()) > 0 else -x

    with pytest.raises(ExportError, match=r"^torch cannot export the model: \w+: .*\.$"):
        export_onnx(Branching(), torch.randn(2, 3), tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []


def test_without_the_extra_it_says_how_to_install_it(
    network: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: None if name == "onnxscript" else object())
    with pytest.raises(ImportError, match=r"^export_onnx needs onnxscript: pip install 'spikeslab\[onnx\]'\.$"):
        export_onnx(network, torch.randn(1, 2, 4, 4), tmp_path / "model.onnx")


class Named(nn.Module):
    """A model whose outputs have names."""

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"x": x, "twice": 2 * x}


@pytest.mark.parametrize(
    ("model", "shape", "message"),
    [
        (Named(), (2, 3), r"^output must be given where a model returns neither a tensor nor logits, but it returned a "
         r"dict of 'x', 'twice'\.$"),
        (nn.Linear(4, 2), (2, 3), r"^The model does not take example_input: RuntimeError: .*\.$"),
    ],
)  # fmt: skip
def test_what_cannot_be_run_is_said_in_a_sentence_and_no_more(
    model: nn.Module, shape: tuple[int, ...], message: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ExportError, match=message):
        export_onnx(model, torch.ones(shape), tmp_path / "model.onnx")
    assert capfd.readouterr().err == ""
    assert not list(tmp_path.iterdir())


class Weighted(nn.Module):
    """A network in the manner of transformers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Embedding(9, 4), nn.Linear(4, 2)

    def forward(self, ids: Tensor, mask: Tensor | None = None) -> dict[str, Tensor]:
        hidden = self.first(ids)
        hidden = hidden if mask is None else hidden * mask.unsqueeze(-1)
        return {"logits": self.last(hidden).sum(1), "hidden": hidden}


def test_named_inputs_and_outputs_in_a_mapping_are_exported(tmp_path: Path) -> None:
    model = Weighted().eval()
    ids, mask = torch.arange(9)[torch.randperm(9)].expand(2, 9).clone(), torch.ones(2, 9)
    file = export_onnx(model, {"mask": mask, "ids": ids}, tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(file)
    assert {entry.name for entry in session.get_inputs()} == {"ids", "mask"}
    mask = torch.rand(3, 9)
    ids = ids[[0, 1, 1]]
    (found,) = session.run(None, {"ids": ids.numpy(), "mask": mask.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), model(ids, mask)["logits"].detach(), rtol=1e-4, atol=1e-5)
    hidden = export_onnx(model, ids, tmp_path / "hidden.onnx", output=lambda result: result["hidden"])
    (found,) = onnxruntime.InferenceSession(hidden).run(None, {"inputs_0": ids.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), model(ids)["hidden"].detach())


def test_a_network_with_named_inputs_is_counted_and_timed_in_every_form() -> None:
    model, example = Weighted().eval(), {"mask": torch.ones(2, 9), "ids": torch.ones(2, 9, dtype=torch.long)}
    variants = network_variants(model, model, example, onnx=True)
    report = SparsityReport.of(model, example, variants=variants, batches=(3,), rounds=1)
    assert report.macs == 9 * 4 * 2
    assert [item.variant for item in report.latencies] == list(variants)


def test_a_compacted_network_is_exported_and_computes_the_same(tmp_path: Path) -> None:
    network = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3)).eval()
    with torch.no_grad():
        network[0].weight[:2], network[0].bias[:2] = 0.0, 0.0
    small = compact(network, torch.randn(2, 2, 4, 4)).model
    assert small[0].weight.shape[0] == 2
    file = export_onnx(small, torch.randn(2, 2, 4, 4), tmp_path / "model.onnx")
    x = torch.randn(5, 2, 4, 4)
    (found,) = onnxruntime.InferenceSession(file).run(None, {"input": x.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), network(x).detach(), rtol=1e-4, atol=1e-5)
