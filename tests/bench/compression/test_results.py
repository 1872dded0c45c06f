"""Paired differences, the choice of settings and the counts, against numbers computed by hand."""

from __future__ import annotations

import math

import pytest
import torch

from spikeslab.bench.compression.grid import CellKey
from spikeslab.bench.compression.results import (
    AVERAGE,
    EVERY_DEFAULT,
    EVERY_TUNED,
    SINGLE,
    Comparison,
    MethodSeries,
    StudyResults,
    count_wins,
    judge,
    paired_difference,
    rows_file,
)
from spikeslab.files import write_atomically
from spikeslab.report.tables import Estimate
from spikeslab.states import encode_tensors

OURS, GMP = CellKey("lenet", 0.9, "spikeslab"), CellKey("lenet", 0.9, "gmp")


def record(**single: float) -> dict:
    return {SINGLE: single, "command": ""}


def write_rows(folder, key, seed, **rows) -> None:
    path = rows_file(folder, key, seed)
    path.parent.mkdir(exist_ok=True)
    write_atomically(path, encode_tensors({f"{SINGLE}.{name}": torch.tensor(each) for name, each in rows.items()}))


def test_the_paired_error_by_hand():
    # Differences 1, 0, 0, -1, 1: mean 0.2, sum of squared deviations 3 - 5 * 0.04 = 2.8.
    ours, other = torch.tensor([1.0, 1.0, 0.0, 0.0, 1.0]), torch.tensor([0.0, 1.0, 0.0, 1.0, 0.0])
    found = paired_difference([ours], [other])
    assert found.mean == pytest.approx(0.2)
    assert found.error == pytest.approx(math.sqrt(2.8 / 4 / 5))
    # Over seeds a row has the mean of its differences: 0.5, 0, 0, -0.5, 0.5.
    both = paired_difference([ours, other], [other, other])
    assert both.mean == pytest.approx(0.1)
    assert both.error == pytest.approx(math.sqrt(0.7 / 4 / 5))


def test_several_seeds_are_paired_by_seed(tmp_path):
    ours = {0: record(accuracy=0.90, nll=0.3), 1: record(accuracy=0.92, nll=0.2), 7: record(accuracy=0.1, nll=9.0)}
    other = {0: record(accuracy=0.89, nll=0.4), 1: record(accuracy=0.88, nll=0.5)}
    results = StudyResults({OURS: ours, GMP: other}, tmp_path)
    found = results.difference(MethodSeries("spikeslab", OURS), MethodSeries("gmp", GMP), "accuracy")
    assert found.mean == pytest.approx(2.5)  # points: 1 and 4, the seed without a partner is left out
    assert found.error == pytest.approx(1.5)
    nll = results.difference(MethodSeries("spikeslab", OURS), MethodSeries("gmp", GMP), "nll")
    assert (nll.mean, nll.error) == (pytest.approx(-0.2), pytest.approx(0.1))


@pytest.mark.parametrize("network", ["lenet", "resnet20"])
def test_one_seed_and_resnet20_are_paired_by_row(tmp_path, network):
    seeds = [0] if network == "lenet" else [0, 1]
    ours, other = OURS._replace(network=network), GMP._replace(network=network)
    for seed in seeds:
        write_rows(tmp_path, ours, seed, correct=[1, 1, 0, 0, 1], log_prob=[0.0, -1.0, -2.0, 0.0, 0.0])
        write_rows(tmp_path, other, seed, correct=[0, 1, 0, 1, 0], log_prob=[0.0, -1.0, -1.0, 0.0, 0.0])
    records = {
        ours: {seed: record(accuracy=0.6, nll=0.6) for seed in seeds},
        other: {seed: record(accuracy=0.4, nll=0.4) for seed in seeds},
    }
    results = StudyResults(records, tmp_path)
    found = results.difference(MethodSeries("spikeslab", ours), MethodSeries("gmp", other), "accuracy")
    assert found.mean == pytest.approx(20.0)
    assert found.error == pytest.approx(100.0 * math.sqrt(2.8 / 4 / 5))
    nll = results.difference(MethodSeries("spikeslab", ours), MethodSeries("gmp", other), "nll")
    assert nll.mean == pytest.approx(0.2)
    assert nll.error == pytest.approx(math.sqrt(0.8 / 4 / 5))


def test_the_rows_of_an_rmse_are_its_squares(tmp_path):
    ours, other = CellKey("mlp", 0.9, "spikeslab"), CellKey("mlp", 0.9, "gmp")
    squares = {ours: [1.0, 4.0, 1.0, 4.0], other: [1.0, 1.0, 1.0, 1.0]}
    for key, each in squares.items():
        write_rows(tmp_path, key, 0, square=each)
    records = {key: {0: record(rmse=math.sqrt(sum(each) / 4), nll=0.0)} for key, each in squares.items()}
    found = StudyResults(records, tmp_path).difference(
        MethodSeries("spikeslab", ours), MethodSeries("gmp", other), "rmse"
    )
    assert found.mean == pytest.approx(math.sqrt(2.5) - 1.0)
    assert found.error == pytest.approx(math.sqrt(9.0 / 3 / 4) / (math.sqrt(2.5) + 1.0))  # 0, 3, 0, 3 about 1.5


def test_tuning_looks_at_held_out_data_of_the_first_seed_alone(tmp_path):
    slow, fast = (GMP._replace(setting=(("lr", lr),)) for lr in (0.02, 0.1))

    def scored(held_out: float, test: float, nll: float = 1.0) -> dict:
        return record(accuracy=test, nll=nll, held_out_accuracy=held_out, held_out_nll=nll)

    records = {
        GMP: {0: scored(0.80, 0.99), 1: scored(0.99, 0.99)},
        slow: {0: scored(0.85, 0.10, nll=0.5)},
        fast: {0: scored(0.85, 0.20, nll=0.7)},
    }
    results = StudyResults(records, tmp_path)
    assert results.tuned(GMP) == slow  # of two with the same accuracy the one with the lower NLL
    names = [series.method for series in results.series("lenet", 0.9)]
    assert names == ["gmp", "gmp-tuned"]
    assert StudyResults({GMP: records[GMP]}, tmp_path).tuned(GMP) is None
    refused = StudyResults({**records, slow: {0: {"refused": "no"}}}, tmp_path)
    assert refused.tuned(GMP) == fast


def test_a_difference_counts_beyond_two_standard_errors():
    assert [judge(Estimate(mean, 0.1), "accuracy") for mean in (0.21, 0.19, -0.19, -0.21)] == [1, 0, 0, -1]
    assert [judge(Estimate(mean, 0.1), "rmse") for mean in (0.21, -0.21)] == [-1, 1]
    assert judge(Estimate(5.0, None), "accuracy") == judge(None, "accuracy") == 0


def test_counts_by_hand():
    def compared(sparsity, alternative, accuracy, nll=0.0, lost=False):
        differences = {(SINGLE, "accuracy"): Estimate(accuracy, 0.1), (SINGLE, "nll"): Estimate(nll, 0.1)}
        differences |= {(AVERAGE, name): None for name in ("accuracy", "nll")}
        return Comparison("lenet", sparsity, alternative, 5, differences, lost)

    comparisons = [
        compared(0.8, "gmp", 1.0),
        compared(0.8, "l2", 1.0),
        compared(0.9, "gmp", 1.0),
        compared(0.9, "l2", 0.1, nll=-1.0),
        compared(0.98, "gmp", 1.0, lost=True),
        compared(0.8, "gmp-tuned", -1.0, nll=-1.0),
    ]
    wins = {(each.kind, each.alternative): each for each in count_wins(comparisons)}
    every = wins["last network", EVERY_DEFAULT]
    assert (every.cells, every.ahead, every.behind) == (3, 1, 1)  # at 0.9 l2 is not beaten, at 0.98 ours was not run
    gmp = wins["last network", "gmp"]
    assert (gmp.cells, gmp.ahead, gmp.behind) == (3, 2, 1)
    l2 = wins["last network", "l2"]
    assert (l2.ahead, l2.nll_ahead, l2.either) == (1, 1, 2)
    tuned = wins["last network", EVERY_TUNED]
    assert (tuned.cells, tuned.behind, tuned.nll_ahead, tuned.either) == (1, 1, 1, 1)
    assert wins["posterior average", "gmp"].ahead == 0
