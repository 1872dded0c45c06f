"""A kill before any operation on a file loses nothing: the resumed run ends as if it had never been killed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from kill_points import run_killed
from runs import BATCH, ROWS, data, same, training
from small import batches, network
from small import data as small_data
from torch.utils.data import DataLoader, TensorDataset

from spikeslab.compression import Compression
from spikeslab.training import Checkpoints, Every, RunFolder, Training

pytestmark = pytest.mark.slow
EPOCHS = 5


def _in_memory(folder: Path) -> Training:
    return training(None)


def _on_disk(folder: Path) -> Training:
    return training(folder)


def _from_loader(folder: Path) -> Training:
    generator = torch.Generator().manual_seed(7)
    loader = DataLoader(TensorDataset(*data()), batch_size=BATCH, shuffle=True, generator=generator)
    return training(folder, batches=loader)


def _run(build: Callable[[Path], Training], folder: Path, keep: int) -> None:
    torch.set_num_threads(1)
    place = RunFolder(folder, resume=True, checkpoint_every=Every(steps=9), keep=keep)
    build(folder).run(epochs=EPOCHS, folder=place)


def _names(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")}


@pytest.mark.parametrize("keep", [1, 2])
@pytest.mark.parametrize("build", [_in_memory, _on_disk, _from_loader])
def test_a_run_killed_before_any_operation_continues_to_the_same_bits(
    build: Callable[[Path], Training], keep: int, tmp_path: Path
) -> None:
    build(tmp_path / "compile").run(steps=1)  # kernels that are loaded before the fork are loaded once
    whole = tmp_path / "whole"
    code, operations = run_killed(lambda: _run(build, whole, keep), whole, None)
    expected = Checkpoints(whole / "checkpoints").latest()
    assert code == 0
    assert operations > 40
    assert expected is not None
    assert expected.step == EPOCHS * ROWS // BATCH
    log = (whole / "metrics.jsonl").read_text().count("\n")
    for at in range(operations):
        folder = tmp_path / f"{at}"
        assert run_killed(lambda folder=folder: _run(build, folder, keep), folder, at)[0] == -9
        assert run_killed(lambda folder=folder: _run(build, folder, keep), folder, None)[0] == 0, f"operation {at}"
        found = Checkpoints(folder / "checkpoints").latest()
        assert found is not None
        assert same(found.state, expected.state), f"operation {at}"
        assert _names(folder) == _names(whole), f"operation {at}"
        assert (folder / "metrics.jsonl").read_text().count("\n") == log, f"operation {at}"


def _compress(folder: Path) -> None:
    torch.set_num_threads(1)
    options = {"sparsity": 0.5, "epochs": 3, "samples": 2, "progress": False, "report": False}
    every = Every(steps=9)
    Compression(
        network(), batches(), [small_data(5)], **options, folder=folder, resume=True, checkpoint_every=every
    ).run()


def test_a_compression_killed_before_any_operation_continues_to_the_same_files(tmp_path: Path) -> None:
    _compress(tmp_path / "compile")
    whole = tmp_path / "whole"
    code, operations = run_killed(lambda: _compress(whole), whole, None)
    assert code == 0
    assert operations > 60
    kept = ["model.safetensors", "sparse.safetensors", "report.json", "evaluation.json"]
    kept += [f"posterior/{path.name}" for path in (whole / "posterior").iterdir()]
    for at in range(operations):
        folder = tmp_path / f"{at}"
        assert run_killed(lambda folder=folder: _compress(folder), folder, at)[0] == -9
        assert run_killed(lambda folder=folder: _compress(folder), folder, None)[0] == 0, f"operation {at}"
        assert _names(folder) == _names(whole), f"operation {at}"
        assert not [name for name in kept if (folder / name).read_bytes() != (whole / name).read_bytes()], f"{at}"
        lines = (folder / "metrics.jsonl").read_text().count("\n")
        assert lines == (whole / "metrics.jsonl").read_text().count("\n"), f"operation {at}"
