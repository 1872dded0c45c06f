"""The search of a sparsity: it finds the knee of a known score, continues exactly, and says what it found."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import signal
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from small import batches, compress_small, data, equal, network, tensors
from torch import nn
from torch.nn import functional as F

import spikeslab as ss
from spikeslab.compression import Compressed, Compression, Settings
from spikeslab.compression.auto import (
    CALIBRATION,
    SearchPlan,
    SparsitySearch,
    WeightAverage,
    choose_move,
    glide,
    level_of,
    sparsity_of,
)
from spikeslab.compression.differences import ACCURACY, Difference
from spikeslab.training import Callback, CheckpointError, Every, Training


def found(value: float, error: float = 0.2) -> Difference:
    return Difference(value, error, ACCURACY, 1000)


def run_search(
    plan: SearchPlan, knee: float, slope: float, offset: float = 0.0, noise: float = 0.0, seed: int = 0
) -> SparsitySearch:
    """Search where the difference is ``slope`` times the level beyond that of ``knee``, and the lr adds ``offset``."""
    search, generator = SparsitySearch(plan), torch.Generator().manual_seed(seed)
    for step in range(1, plan.end):
        if plan.is_due(step):
            heat = 0.5 * (1.0 + math.cos(math.pi * step / plan.end))
            damage = max(0.0, slope * (level_of(search.sparsity(step)) - level_of(knee)))
            value = damage + heat * offset + noise * float(torch.randn((), generator=generator))
            search.update(step, found(value), heat)
    return search


@pytest.mark.parametrize("knee", [0.6, 0.8, 0.9, 0.95, 0.98])
@pytest.mark.parametrize("offset", [0.0, 0.8])
def test_the_search_finds_where_a_known_score_meets_the_tolerance(knee: float, offset: float) -> None:
    plan = SearchPlan(tolerance=0.5, highest=0.999, end=1000)
    answer = sparsity_of(level_of(knee) + 0.5 / 3.0)
    search = run_search(plan, knee, slope=3.0, offset=offset)
    assert search.sparsity(plan.end) == pytest.approx(answer, abs=0.01)
    noisy = [run_search(plan, knee, 3.0, offset, noise=0.2, seed=seed).sparsity(1000) for seed in range(20)]
    assert sum(noisy) / 20 == pytest.approx(answer, abs=0.02)
    assert max(abs(one - answer) for one in noisy) < 0.08 * (1.0 - knee) / 0.4 + 0.02


def test_a_score_that_never_falls_leads_to_the_highest_sparsity() -> None:
    plan = SearchPlan(tolerance=0.0, highest=0.97, end=1000)
    assert run_search(plan, knee=0.999, slope=1.0).sparsity(1000) == pytest.approx(0.97, abs=1e-12)


def test_a_score_that_falls_at_once_leads_back_to_a_dense_network() -> None:
    plan = SearchPlan(tolerance=0.5, highest=0.99, end=1000)
    search = SparsitySearch(plan)
    for step in range(plan.every, plan.end, plan.every):
        search.update(step, found(1.0 if step <= CALIBRATION * plan.every else 50.0), heat=0.0)
    assert search.sparsity(1000) == 0.0


def test_the_moves_halve_when_the_room_changes_its_sign_and_only_then() -> None:
    plan = SearchPlan(tolerance=1.0, highest=0.9999, end=1700)
    search = SparsitySearch(plan)
    levels, step = [level_of(search.sparsity(plan.every))], 0
    for value in (0.0, 0.0, 0.0, 9.0, 9.0, -9.0, -9.0, 9.0):
        step += plan.every
        search.update(step, found(value), heat=0.0)
        levels.append(level_of(search.sparsity(step + plan.every)))
    moves = [(after - before) / plan.length for before, after in pairwise(levels)]
    assert moves == pytest.approx([1.0, 1.0, 1.0, -1.0, -1.0, 0.5, 0.5, -0.25])


def test_a_move_is_proportional_near_the_tolerance_and_of_one_length_far_from_it() -> None:
    assert [choose_move(room, 0.5, 0.4) for room in (0.1, -0.1, 5.0, -5.0)] == pytest.approx([0.08, -0.08, 0.4, -0.4])
    assert [glide(1.0, 3.0, progress) for progress in (0.0, 0.25, 0.5, 0.9)] == [1.0, 2.0, 3.0, 3.0]
    assert sparsity_of(level_of(0.37)) == pytest.approx(0.37, abs=1e-15)


@pytest.mark.parametrize("end", [1, 2, 10, 17, 100, 1000])
def test_probes_are_before_the_end_with_time_for_a_move(end: int) -> None:
    plan = SearchPlan(tolerance=0.5, highest=0.9, end=end)
    due = [step for step in range(1, end + 1) if plan.is_due(step)]
    assert all(step + plan.every <= end for step in due)
    assert len(due) <= max(plan.probes + 16, 1)
    assert (not due) == (end < 2)


def test_a_search_continues_exactly_from_its_state() -> None:
    plan = SearchPlan(tolerance=0.5, highest=0.99, end=170)
    whole, broken = SparsitySearch(plan), SparsitySearch(plan)
    for step, value in enumerate((0.3, 0.4, 0.1, 2.0, 0.7, -0.3, 0.6), start=1):
        for search in (whole, broken):
            search.update(10 * step, found(value), heat=0.5)
        state = json.loads(json.dumps(broken.state_dict()))
        broken = SparsitySearch(plan)
        broken.load_state_dict(state)
        assert [broken.sparsity(k) for k in range(10 * step, 171)] == [whole.sparsity(k) for k in range(10 * step, 171)]
    assert broken.state_dict() == whole.state_dict()


def test_the_average_forgets_at_its_rate_and_has_the_zeros_of_the_network() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    average = WeightAverage(model, horizon=4.0)
    start = model[0].weight.detach().clone()
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[1.0, 2.0], [0.0, 4.0]]))
        model[1].num_batches_tracked.fill_(7)
    before = tensors(model)
    average.update(model)
    mean = average.network(model)
    expected = (start + 0.25 * (model[0].weight - start)) * (model[0].weight != 0)
    assert torch.allclose(mean[0].weight, expected)
    assert mean[0].weight[1, 0] == 0.0
    assert mean[1].num_batches_tracked == 7
    assert equal(tensors(model), before)
    again = WeightAverage(model, horizon=4.0)
    again.load_state_dict(average.state_dict())
    assert equal(tensors(again.network(model)), tensors(mean))


def trained() -> nn.Module:
    """The small network after some epochs of SGD."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for epoch in range(10):
        for x, y in batches().epoch(epoch):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    return model


def compress_auto(**arguments: object) -> Compressed:
    options = {"sparsity": "auto", "tolerance": 2.0, "val_loader": [data(5)], "epochs": 10} | arguments
    return compress_small(trained(), **options)


def test_the_report_states_the_paired_difference_and_the_way_to_it() -> None:
    x, y = data(5)
    model = trained()
    result = compress_auto()
    report = result.report["search"]
    with torch.no_grad():
        dense, sparse = ((each.eval()(x).argmax(1) != y).double() for each in (model, result.model))
    assert report["sparse"]["difference"] == pytest.approx(100.0 * float((sparse - dense).mean()))
    assert report["sparse"]["standard_error"] == pytest.approx(100.0 * float((sparse - dense).std()) / math.sqrt(96))
    assert report["within"] == (report["sparse"]["difference"] <= 2.0)
    assert (report["tolerance"], report["sparse"]["unit"]) == (2.0, "points of accuracy")
    assert (result.report["target"], result.report["tolerance"]) == ("auto", 2.0)
    metrics = result.report["metrics"]
    lost = 100.0 * (metrics["dense"]["accuracy"] - metrics["average"]["accuracy"])
    assert report["average"]["difference"] == pytest.approx(lost)
    steps = [probe["step"] for probe in report["probes"]]
    assert steps == sorted(set(steps))
    assert steps[-1] < 0.75 * 60
    assert json.loads(json.dumps(report)) == report
    samples = [result.posterior.sample(index) for index in range(3)]
    assert all(torch.equal(sample[3].weight == 0, result.model[3].weight == 0) for sample in samples)
    assert result.history[-1]["search"] == report["probes"][-1]


def test_a_larger_tolerance_gives_a_sparser_network() -> None:
    found = [compress_auto(tolerance=value, weights="*.weight", epochs=30).report for value in (0.0, 60.0)]
    sparsities = [report["network"]["sparsity"] for report in found]
    assert sparsities[0] < sparsities[1]
    assert found[1]["network"]["nonzeros"] < 80, "64 biases and scales, and one weight of each layer, are the fewest"


def test_regressions_and_losses_of_ones_own_are_searched_in_per_cent() -> None:
    x, y = data()
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))
    rows = [(x[i::6], x[i::6, 0]) for i in range(6)]
    result = compress_small(model, rows, sparsity="auto", val_loader=rows)
    metrics = result.report["metrics"]
    ratio = metrics["sparse"]["rmse"] / metrics["dense"]["rmse"]
    assert result.report["search"]["sparse"]["unit"] == "per cent of the RMSE"
    assert result.report["search"]["sparse"]["difference"] == pytest.approx(100.0 * (ratio - 1.0), rel=1e-5)
    dictionaries = [{"x": x[i::6], "y": y[i::6]} for i in range(6)]

    def loss(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return F.cross_entropy(model(batch["x"]), batch["y"])

    own = compress_small(train=dictionaries, loss=loss, num_data=96, sparsity="auto", val_loader=dictionaries)
    metrics = own.report["metrics"]
    ratio = metrics["sparse"]["loss"] / metrics["dense"]["loss"]
    assert own.report["search"]["sparse"]["unit"] == "per cent of the loss"
    assert own.report["search"]["sparse"]["difference"] == pytest.approx(100.0 * (ratio - 1.0), rel=1e-5)
    assert own.report["search"]["sparse"]["rows"] == 6


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"val_loader": None},
            r"^val_loader must be given with sparsity='auto', which is found on data that were not trained on, "
            r"but got None\.$",
        ),
        (
            {"method": "magnitude"},
            r"^method must be one that prunes gradually with sparsity='auto', but got 'magnitude'\.$",
        ),
        ({"tolerance": -1.0}, r"^tolerance must be a number >= 0, but got -1\.0\.$"),
        ({"settings": Settings(floor=10**9)}, r"^floor must leave weights that may become zero, but got 1000000000\.$"),
        ({"sparsity": "most"}, r"^sparsity must be a number in \(0, 1\) or 'auto', but got 'most'\.$"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_written(
    changes: dict[str, object], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        compress_auto(folder=tmp_path / "run", **changes)
    assert not (tmp_path / "run").exists()


class Stop(Callback):
    """Ends the process after a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def after_step(self, run: Training) -> None:
        if run.steps == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def in_folder(folder: Path, method: str, *callbacks: Callback, tolerance: float = 2.0) -> Compressed:
    return Compression(
        trained(),
        batches(),
        [data(5)],
        sparsity="auto",
        tolerance=tolerance,
        epochs=24,  # so that the mean of the weights spans some steps
        method=method,
        settings=Settings(samples=3, mask_every=3),
        folder=folder,
        resume=True,
        progress=False,
        report=False,
        callbacks=callbacks,
        checkpoint_every=Every(steps=5),
    ).run()


@pytest.mark.parametrize("method", ["a-sghmc-sa", "dpf"])
def test_a_run_that_was_killed_goes_on_to_the_same_bits(method: str, tmp_path: Path) -> None:
    whole = in_folder(tmp_path / "whole", method)
    for step in (17, 58):
        process = multiprocessing.get_context("fork").Process(
            target=in_folder, args=(tmp_path / "killed", method, Stop(step))
        )
        process.start()
        process.join()
        assert process.exitcode == -signal.SIGKILL
    with pytest.raises(CheckpointError, match=r"other settings: tolerance was 2\.0 and is now 3\.0\.$"):
        in_folder(tmp_path / "killed", method, tolerance=3.0)
    resumed = in_folder(tmp_path / "killed", method)
    assert equal(tensors(resumed.model), tensors(whole.model))
    assert resumed.report == whole.report
    assert resumed.history == whole.history


def test_channels_are_searched_too() -> None:
    result = compress_auto(structure="channels")
    living = sum(layer["living"] for layer in result.report["channels"].values())
    assert living < 32
    assert result.report["search"]["sparse"]["rows"] == 96


def test_the_highest_sparsity_of_a_pruner_leaves_every_layer_its_floor() -> None:
    model = network()
    pruner = ss.Pruner(ss.select_weights(model, "3.weight"), 0.0, floor=6, network=model)
    assert pruner.highest == 250 / 418
    pruner.schedule = lambda step: pruner.highest
    pruner.step()
    assert int(model[3].weight.count_nonzero()) == 6
