"""The script that chose the image recipes: a trial judges held-out images alone, is done once, and is one row."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest
import torch

from spikeslab.paper.images.data import DIGITS, LOADERS, Images

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "image_search.py"
ROWS, HELD_OUT = 160, 40


def images() -> Images:
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(256, (ROWS, 1, 28, 28), generator=generator, dtype=torch.uint8)
    y = torch.randint(10, (ROWS,), generator=generator)
    return Images(x, y, torch.empty(0), torch.empty(0), DIGITS)  # nothing to test on


@pytest.fixture
def search(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("image_search", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "HELD_OUT", HELD_OUT)
    for name in ("mnist", "fashion"):
        monkeypatch.setitem(LOADERS, name, lambda folder: images())
    return module


def run(search: ModuleType, monkeypatch: pytest.MonkeyPatch, out: Path, *words: str) -> None:
    monkeypatch.setattr("sys.argv", [str(SCRIPT), "mnist", "--epochs", "1", "--out", str(out), *words])
    search.main()


def test_a_trial_is_a_row_and_is_done_once(
    search: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = ("--set", "samples=1", "--set", "chains=1")
    run(search, monkeypatch, tmp_path, *few)
    run(search, monkeypatch, tmp_path, *few, "--augment", "--set", "lr=0.02")
    monkeypatch.setattr(search, "train", lambda *_: pytest.fail("trained again"))
    run(search, monkeypatch, tmp_path, *few)
    capsys.readouterr()
    rows = json.loads((tmp_path / "search.json").read_text())["rows"]
    assert sorted((row["dataset"], row["lr"], row["chains"]) for row in rows) == [
        ("mnist", 0.05, 1),
        ("mnist, augmented", 0.02, 1),
    ]
    assert all(row["accuracy"] * HELD_OUT % 100 == pytest.approx(0) for row in rows)


def test_a_setting_that_no_row_would_show_is_refused(
    search: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(SystemExit, match=r"^--set must name one of batch_size, .*, samples, but got adam_lr\.$"):
        run(search, monkeypatch, tmp_path, "--set", "adam_lr=0.01")
    assert not list(tmp_path.iterdir())
