"""Cells of a command."""

from __future__ import annotations

import pytest

from spikeslab.bench import BenchPlan
from spikeslab.bench.compression.grid import (
    METHODS,
    NETWORKS,
    SPARSITIES,
    TRIALS,
    TUNABLE,
    CellKey,
    StudyGrid,
    count_cells,
)
from spikeslab.bench.suites import StudyOptions


def grid_of(**options) -> StudyGrid:
    return StudyGrid.of(BenchPlan(2, seed=3, study=StudyOptions(**options)))


def test_a_key_is_read_back_from_its_text():
    for network in NETWORKS:
        for method in TUNABLE:
            for setting in ({}, *TRIALS[network][method]):
                key = CellKey(network, 0.95, method, tuple(setting.items()))
                assert CellKey.parse(key.text) == key


def test_defaults_run_with_all_seeds_and_trials_with_the_first():
    grid = grid_of(networks=("lenet",), methods=("l2", "gmp", "gmp-tuned"), sparsities=(0.9,))
    cells = grid.first_cells()
    assert len(cells) == len(set(cells))
    assert [cell.seed for cell in cells if cell.method == "lenet 0.9 l2"] == [3, 4]
    assert [cell.seed for cell in cells if cell.method == "lenet 0.9 gmp"] == [3, 4]
    trials = [cell for cell in cells if "lr=" in cell.method]
    assert {cell.seed for cell in trials} == {3}
    assert len(trials) == len(TRIALS["lenet"]["gmp"]) == 6
    assert [cell.method for cell in grid.dense_cells()] == ["lenet 0 dense"] * 2


def test_the_standard_grid_has_the_eleven_cells_of_the_small_networks():
    places = list(grid_of().places())
    assert len(places) == 11
    assert ("transformer", 0.5) in places
    assert "resnet20" not in dict(places)
    assert len(list(grid_of(networks=("resnet20",)).places())) == len(SPARSITIES["resnet20"]) == 4


def test_every_tuned_method_has_settings_to_try():
    assert {method for method in METHODS if method.endswith("-tuned")} == {f"{method}-tuned" for method in TUNABLE}
    assert all(TRIALS[network][method] for network in NETWORKS for method in TUNABLE)


@pytest.mark.parametrize("quick", [True, False])
def test_the_number_of_cells(quick):
    options = StudyOptions(networks=("mlp",), methods=("l2", "gmp-tuned"), sparsities=(0.5, 0.9))
    trials = 2 if quick else 7
    # Two seeds: dense networks; l2 twice and the trials at each sparsity; the chosen setting with the second seed.
    assert count_cells(BenchPlan(2, quick=quick, study=options)) == 2 + 2 * (2 + trials) + 2
