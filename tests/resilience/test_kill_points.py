"""A kill before any operation on a file loses nothing: the resumed run ends as if it had never been killed."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from kill_points import run_killed
from recipes import RECIPE
from runs import BATCH, ROWS, data, same, training
from small import batches, network
from small import data as small_data
from torch.utils.data import DataLoader, TensorDataset

from spikeslab.cli.app import run
from spikeslab.compression import Compression
from spikeslab.files import JOURNAL
from spikeslab.training import Checkpoints, Every, RunFolder, Training

pytestmark = pytest.mark.slow
EPOCHS = 5


def test_a_kill_may_come_inside_the_removal_of_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    for name in ("a", "b", "c"):
        (folder / "inner").mkdir(parents=True, exist_ok=True)
        (folder / "inner" / name).touch()
    code, _ = run_killed(lambda: shutil.rmtree(folder), tmp_path, at=2)
    assert code == -signal.SIGKILL
    assert 0 < len([*(folder / "inner").iterdir()]) < 3


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


PRUNED = {
    "pruned.safetensors",
    "inclusion.safetensors",
    "recipe.py",
    "layers.md",
    "layers.json",
    "result.md",
    "result.json",
}


def _prune(place: Path) -> None:
    """Run the command in a folder, which shows in none of the files that it writes."""
    torch.set_num_threads(1)
    place.mkdir(exist_ok=True)
    os.chdir(place)
    Path("recipe.py").write_text(RECIPE)
    code = run(["prune", "recipe.py", "--weights", "2.weight", "--inclusion", "--out", "out"])
    assert code == 0, code


def test_a_pruning_killed_before_any_operation_leaves_all_of_its_files_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next command finishes what was complete and refuses to replace it, or else begins anew."""
    monkeypatch.chdir(tmp_path)
    _prune(tmp_path / "compile")  # what is imported before the fork is imported once
    whole = tmp_path / "whole"
    code, operations = run_killed(lambda: _prune(whole), whole / "out", None)
    assert code == 0
    assert operations > 4 * len(PRUNED)
    assert _names(whole / "out") == PRUNED
    same = sorted(PRUNED - {"layers.md", "layers.json"})  # these have the times of the layers
    expected = [(whole / "out" / name).read_bytes() for name in same]
    finished = set()
    for at in range(operations):
        place, out = tmp_path / f"{at}", tmp_path / f"{at}" / "out"
        assert run_killed(lambda place=place: _prune(place), out, at)[0] == -9
        left = _names(out) if out.exists() else set()
        complete = left >= PRUNED or any(map(JOURNAL.fullmatch, left))
        assert complete or not PRUNED & left, f"operation {at}"
        code, _ = run_killed(lambda place=place: _prune(place), out, None)
        assert code == (1 if complete else 0), f"operation {at}"  # a folder that holds results is refused
        assert _names(out) == PRUNED, f"operation {at}"
        assert [(out / name).read_bytes() for name in same] == expected, f"operation {at}"
        finished.add(complete)
    assert finished == {False, True}
