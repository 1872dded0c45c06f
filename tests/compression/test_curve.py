"""The sparsity curve: exact counts at every level, the numbers of its own networks, and an exact resume."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from pathlib import Path

import pytest
import torch
from recipes import read_files
from small import batches, data, equal, network, tensors
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import spikeslab as ss
from spikeslab.compression import Settings, SparsityCurve
from spikeslab.compression.curve import CurveTimeline, check_levels, prepare_curve
from spikeslab.training import Callback, CheckpointError, Every, Training

LEVELS = (0.3, 0.5, 0.6)
RISING = r"^levels must be sparsities in \(0, 1\), each larger than the one before, but got "


def make_curve(model: nn.Module | None = None, train: object = None, **arguments: object) -> SparsityCurve:
    options = {"levels": LEVELS, "epochs": 6, "progress": False, "val_loader": [data(5)]} | arguments
    return ss.sparsity_curve(network() if model is None else model, train or batches(), **options)


def test_every_level_has_exactly_its_zeros_and_the_numbers_of_its_network() -> None:
    model = network()
    before = tensors(model)
    x, y = data(5)
    curve = make_curve(model)
    assert equal(tensors(model), before), "the model that is given stays as it is"
    assert [level.level for level in curve.levels] == list(LEVELS)
    assert [418 - level.nonzeros for level in curve.levels] == [round(level * 418) for level in LEVELS]
    with torch.no_grad():
        dense = (model.eval()(x).argmax(1) != y).double()
        for level in curve.levels:
            own = curve.network(level.level)
            wrong = (own(x).argmax(1) != y).double()
            found = level.differences["accuracy"]
            assert not own.training
            assert sum(int(p.count_nonzero()) for p in own.parameters()) == level.nonzeros
            assert level.metrics["accuracy"] == pytest.approx(1.0 - float(wrong.mean()))
            assert level.metrics["nll"] == pytest.approx(float(F.cross_entropy(own(x), y)), rel=1e-5)
            assert found["difference"] == pytest.approx(100.0 * float((wrong - dense).mean()))
            assert found["standard_error"] == pytest.approx(100.0 * float((wrong - dense).std()) / 96**0.5)
            low, high = level.interval("accuracy")
            assert high - low == pytest.approx(0.01 * (found["interval"][1] - found["interval"][0]))
            assert (low + high) / 2 == pytest.approx(level.metrics["accuracy"])
    with pytest.raises(ValueError, match=r"^level must be one of '0\.3', '0\.5', '0\.6', but got 0\.4\.$"):
        curve.network(0.4)


def test_the_lr_falls_and_the_sparsity_rises_in_each_level() -> None:
    timeline = CurveTimeline(Settings(lr=0.2, final_lr=0.1), total=300, levels=LEVELS)
    lr, sparsity = timeline.lr(), timeline.sparsity(0.5)
    assert timeline.ends == (100, 200, 300)
    for end, level in zip(timeline.ends, LEVELS, strict=True):
        assert sparsity(end) == level
        assert sparsity(end - 50) == level, "the rest of the level is a refit"
        assert lr(end) == pytest.approx(0.02)
        assert lr(end - 90) == pytest.approx(0.2)
        values = [lr(step) for step in range(end - 90, end + 1)]
        assert values == sorted(values, reverse=True)
    rising = [sparsity(step) for step in range(1, 301)]
    assert rising == sorted(rising)
    assert timeline.freeze == 300


def test_the_files_hold_the_curve_and_nothing_is_overwritten(tmp_path: Path) -> None:
    curve = make_curve()
    curve.save(tmp_path / "curve")
    assert sorted(path.name for path in (tmp_path / "curve").iterdir()) == [
        "curve.json",
        "curve.md",
        "curve.png",
        "levels",
    ]
    record = json.loads((tmp_path / "curve" / "curve.json").read_text())
    assert [row["level"] for row in record["rows"]] == [0.0, *LEVELS]
    assert [row["accuracy"] for row in record["rows"][1:]] == [100.0 * l.metrics["accuracy"] for l in curve.levels]  # noqa: E741
    assert record["run"]["seed"] == 0
    for level in curve.levels:
        file = tmp_path / "curve" / "levels" / f"{level.level:g}.safetensors"
        assert file.stat().st_size == level.bytes
        assert equal(ss.load_sparse(file), tensors(curve.network(level.level)))
    before = read_files(tmp_path)
    with pytest.raises(FileExistsError, match=r"^folder must be a new or an empty folder, but .* holds something\.$"):
        curve.save(tmp_path / "curve")
    with pytest.raises(FileExistsError, match=r"^folder must be a new or an empty folder, but .* holds something\.$"):
        make_curve(folder=tmp_path / "curve")
    assert read_files(tmp_path) == before


def test_the_figure_shows_every_level_with_its_interval() -> None:
    curve = make_curve()
    accuracy, nll, size = curve.figure().axes
    assert [axes.get_title(loc="left") for axes in (accuracy, nll, size)] == ["accuracy, %", "NLL", "file, kB"]
    line = accuracy.lines[-1].get_ydata()
    assert list(line) == pytest.approx([100.0 * level.metrics["accuracy"] for level in curve.levels])
    bars = accuracy.collections[0].get_segments()
    expected = [[100.0 * end for end in level.interval("accuracy")] for level in curve.levels]
    assert [list(bar[:, 1]) for bar in bars] == [pytest.approx(pair) for pair in expected]
    assert list(size.lines[0].get_ydata()) == [level.bytes / 1000.0 for level in curve.levels]


def test_regressions_and_losses_of_ones_own_have_curves() -> None:
    x, y = data()
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))
    rows = [(x[i::6], x[i::6, 0]) for i in range(6)]
    curve = make_curve(model, rows, val_loader=rows)
    level = curve.levels[0]
    ratio = level.metrics["rmse"] / curve.dense.metrics["rmse"]
    assert level.differences["rmse"]["difference"] == pytest.approx(100.0 * (ratio - 1.0), rel=1e-4)
    low, high = level.interval("rmse")
    half = level.differences["rmse"]["interval"][1] - level.differences["rmse"]["difference"]
    assert high - low == pytest.approx(2 * half / 100.0 * curve.dense.metrics["rmse"], rel=1e-4)
    dictionaries = [{"x": x[i::6], "y": y[i::6]} for i in range(6)]

    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return F.cross_entropy(model(batch["x"]), batch["y"])

    own = make_curve(train=dictionaries, val_loader=dictionaries, loss=loss, num_data=96)
    assert set(own.levels[0].differences) == {"loss"}
    assert "loss" in own.table.rows[1]


def test_levels_that_the_network_cannot_reach_are_left_out_or_refused() -> None:
    assert [level.level for level in make_curve(levels=None).levels] == [0.5, 0.7, 0.8]
    for levels, message in (
        ((0.5, 0.9), r"^levels must be at most 0\.834928, what the weights to prune allow, but got 0\.9\.$"),
        (
            (0.5, 0.4),
            r"^levels must be sparsities in \(0, 1\), each larger than the one before, but got \(0\.5, 0\.4\)\.$",
        ),
        ((), r"^levels must be sparsities in \(0, 1\), each larger than the one before, but got \(\)\.$"),
        ((0.0, 0.4), r"^levels must be a number in \(0, 1\), but got 0\.0\.$"),
    ):
        with pytest.raises(ValueError, match=message):
            make_curve(levels=levels)
    with pytest.raises(TypeError, match=r"^levels must be sparsities in \(0, 1\), but got 0\.5\.$"):
        check_levels(0.5)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"val_loader": None}, ValueError, r"^val_loader must be given, since every level is evaluated on it, but got"),
        ({"method": "magnitude"}, ValueError, r"^method must be one that prunes gradually, but got 'magnitude'\.$"),
        ({"samples": 3}, TypeError, r"^samples must not be given to sparsity_curve, which takes 'callbacks', "),
        (
            {"train": [data()], "num_data": 96, "epochs": 5},
            ValueError,
            r"^epochs must be so many that each of 3 levels has at least 2 steps, but got 5 steps in all\.$",
        ),
        (
            {"val_loader": DataLoader(TensorDataset(data()[0], torch.arange(96)), batch_size=16, shuffle=True)},
            ValueError,
            r"^val_loader must yield the same rows in the same order whenever it is run through, since ",
        ),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_written(
    changes: dict[str, object], error: type[Exception], message: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message):
        make_curve(folder=tmp_path / "run", **changes)
    assert not (tmp_path / "run").exists()


class Stop(Callback):
    """Ends the process after a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def after_step(self, run: Training) -> None:
        if run.steps == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def in_folder(folder: Path, *callbacks: Callback, levels: tuple[float, ...] = LEVELS) -> SparsityCurve:
    options = {"epochs": 6, "folder": folder, "resume": True, "progress": False, "callbacks": callbacks}
    run = prepare_curve(levels, network(), batches(), [data(5)], checkpoint_every=Every(steps=5), **options)
    return run.run()


def test_a_run_that_was_killed_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    whole = in_folder(tmp_path / "whole")
    for step in (7, 29):  # in the first and in the last level
        process = multiprocessing.get_context("fork").Process(target=in_folder, args=(tmp_path / "killed", Stop(step)))
        process.start()
        process.join()
        assert process.exitcode == -signal.SIGKILL
    with pytest.raises(CheckpointError, match=r"other settings: levels was \[0\.3, 0\.5, 0\.6\] and is now \["):
        in_folder(tmp_path / "killed", levels=(0.3, 0.5, 0.55))
    resumed = in_folder(tmp_path / "killed")
    assert resumed.levels == whole.levels
    assert all(equal(tensors(resumed.network(level)), tensors(whole.network(level))) for level in LEVELS)
    for name in ("curve.json", "curve.png", "levels/0.5.safetensors"):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert in_folder(tmp_path / "killed").levels == whole.levels, "a finished run has nothing left to do"


def test_the_seed_decides_the_curve() -> None:
    first, again, other = (make_curve(seed=seed) for seed in (0, 0, 1))
    assert first.levels == again.levels
    assert first.levels != other.levels
