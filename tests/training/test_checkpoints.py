import hashlib
import json
import random
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from kill_points import run_killed

from spikeslab.training.checkpoints import SUMS, CheckpointError, Checkpoints


@pytest.fixture
def checkpoints(tmp_path: Path) -> Checkpoints:
    sample = tmp_path / "sample.safetensors"
    sample.write_bytes(random.Random(0).randbytes(200))
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    for step in (100, 200):
        checkpoints.save(step, {"w": torch.full((5,), float(step)), "steps": step, "samples": [sample]})
    return checkpoints


def test_the_last_two_are_kept_and_the_newest_is_read(checkpoints: Checkpoints) -> None:
    checkpoints.save(300, {"w": torch.zeros(1)})
    assert checkpoints.steps() == [200, 300]
    assert checkpoints.latest().step == 300
    assert checkpoints.load(200).state["w"].tolist() == [200.0] * 5


def test_a_file_of_the_state_outlives_its_original(checkpoints: Checkpoints, tmp_path: Path) -> None:
    content = (tmp_path / "sample.safetensors").read_bytes()
    (tmp_path / "sample.safetensors").unlink()
    (kept,) = checkpoints.latest().state["samples"]
    assert kept.read_bytes() == content


def test_one_of_the_same_step_is_replaced(checkpoints: Checkpoints) -> None:
    checkpoints.save(200, {"steps": -1})
    assert checkpoints.latest().state == {"steps": -1}
    assert checkpoints.steps() == [100, 200]


def test_what_a_killed_writer_left_is_neither_read_nor_kept(checkpoints: Checkpoints) -> None:
    shutil.copytree(checkpoints.path(200), checkpoints.directory / ".writing-step-000000300")
    assert checkpoints.steps() == [100, 200]
    checkpoints.save(300, {})
    assert sorted(path.name for path in checkpoints.directory.iterdir()) == ["step-000000200", "step-000000300"]


def test_without_any_there_is_none(tmp_path: Path) -> None:
    assert Checkpoints(tmp_path / "nowhere").latest() is None
    with pytest.raises(CheckpointError, match=r"nowhere has no checkpoint of step 7; it has none\.$"):
        Checkpoints(tmp_path / "nowhere").load(7)


def test_sha256sum_agrees(checkpoints: Checkpoints) -> None:
    if shutil.which("sha256sum") is None:
        pytest.skip("needs sha256sum")
    subprocess.run(["sha256sum", "--check", "--strict", SUMS], cwd=checkpoints.path(200), check=True)


def test_a_damaged_one_is_refused_and_the_previous_offered(checkpoints: Checkpoints) -> None:
    path = checkpoints.path(200) / "tensors.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(
        CheckpointError,
        match=r"^\S+step-000000200 has changed since it was written: tensors.safetensors has changed\. The one of step "
        r"100 is good: continue from it with resume=100 in Python\.$",
    ):
        checkpoints.latest()
    shutil.rmtree(checkpoints.path(100) / "files")
    with pytest.raises(CheckpointError, match=r"No other checkpoint is good\.$"):
        checkpoints.latest()


def seal(folder: Path) -> None:
    """Write the checksums that fit the files."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != SUMS)
    sums = {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    (folder / SUMS).write_text("".join(f"{value}  {name}\n" for name, value in sums.items()))


def test_a_foreign_one_is_refused(checkpoints: Checkpoints) -> None:
    folder = checkpoints.path(200)
    record = json.loads((folder / "state.json").read_text())
    (folder / "state.json").write_text(json.dumps({**record, "version": 99}))
    seal(folder)
    with pytest.raises(CheckpointError, match=r"must be a spikeslab-checkpoint of version 1 and step 200, but got a "):
        checkpoints.load(200)
    (folder / "state.json").write_text("[]")
    seal(folder)
    with pytest.raises(CheckpointError, match=r"is not a readable checkpoint: "):
        checkpoints.load(200)
    checkpoints.path(100).rename(checkpoints.path(400))
    with pytest.raises(CheckpointError, match=r"step 400, but got .* step 100\.$"):
        checkpoints.load(400)


def corrupt(folder: Path, rng: random.Random) -> str:
    """Flip a byte of a file, cut it, add to it, or remove it."""
    path = rng.choice([path for path in sorted(folder.rglob("*")) if path.is_file()])
    content = bytearray(path.read_bytes())
    kind = rng.choice(["flip", "flip", "flip", "cut", "add", "remove"])
    if kind == "flip":
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    elif kind == "cut":
        del content[rng.randrange(len(content)) :]
    elif kind == "add":
        content += rng.randbytes(1)
    path.unlink()
    if kind != "remove":
        path.write_bytes(content)
    return f"{kind} {path.name}"


def detected(checkpoints: Checkpoints, count: int, tmp_path: Path) -> None:
    rng = random.Random(1)
    original = checkpoints.path(200)
    whole = tmp_path / "whole"
    shutil.copytree(original, whole)
    missed = []
    for _ in range(count):
        what = corrupt(original, rng)
        try:
            checkpoints.load(200)
            missed.append(what)
        except CheckpointError:
            pass
        shutil.rmtree(original)
        shutil.copytree(whole, original)
    checkpoints.load(200)
    assert not missed


def test_corruptions_are_detected(checkpoints: Checkpoints, tmp_path: Path) -> None:
    detected(checkpoints, 100, tmp_path)


@pytest.mark.slow
def test_a_thousand_corruptions_are_detected(checkpoints: Checkpoints, tmp_path: Path) -> None:
    detected(checkpoints, 1000, tmp_path)


def test_one_that_was_set_aside_and_not_replaced_is_read_and_put_back(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1)
    path = checkpoints.save(100, {"steps": 1})
    path.rename(tmp_path / f".old-{path.name}")
    (tmp_path / f".writing-{path.name}").mkdir()
    assert checkpoints.latest().state == {"steps": 1}
    checkpoints.recover()
    assert [found.name for found in tmp_path.iterdir()] == [path.name]
    assert checkpoints.latest().state == {"steps": 1}


def test_a_kill_while_one_of_the_same_step_is_replaced_loses_neither(tmp_path: Path) -> None:
    found = []
    for at in range(99):
        checkpoints = Checkpoints(tmp_path / f"{at}", keep=1)
        checkpoints.save(100, {"steps": 1})
        code, _ = run_killed(lambda c=checkpoints: c.save(100, {"steps": 2}), checkpoints.directory, at)
        found.append(checkpoints.latest().state["steps"])
        checkpoints.recover()
        assert checkpoints.latest().state["steps"] == found[-1]
        assert [path.name for path in checkpoints.directory.iterdir()] == ["step-000000100"], f"operation {at}"
        if code == 0:
            break
    assert code == 0
    assert found == sorted(found)
    assert set(found) == {1, 2}
