"""The choice of a grid, and the tables of the study."""

from __future__ import annotations

import pytest

from spikeslab.bench.sparsity import GRID, choose_from_grid, tabulate_curve, tabulate_search


def found(accuracies: list[float]) -> dict[str, object]:
    grid = {f"{level:g}": {"accuracy": a, "nll": 0.3} for level, a in zip(GRID, accuracies, strict=True)}
    curve = {
        level: {**numbers, "accuracy": numbers["accuracy"] + 0.001, "bytes": 500} for level, numbers in grid.items()
    }
    auto = {"sparsity": 0.94, "sparse": {"difference": 0.4, "standard_error": 0.2}}
    return {"seed": 0, "dense": {"accuracy": 0.9, "nll": 0.3}, "grid": grid, "auto": auto, "curve": curve}


def test_the_grid_chooses_its_sparsest_run_within_the_tolerance():
    assert choose_from_grid(0.9, found([0.9, 0.899, 0.895, 0.89, 0.88])["grid"]) == 0.95
    assert choose_from_grid(0.9, found([0.9, 0.89, 0.896, 0.89, 0.88])["grid"]) == 0.95, "noise is not smoothed"
    assert choose_from_grid(0.9, found([0.8, 0.8, 0.8, 0.8, 0.8])["grid"]) == 0.0


def test_the_tables_show_points_lost_and_differences():
    rounds = [found([0.9, 0.899, 0.895, 0.89, 0.88])]
    (row,) = tabulate_search(rounds).rows
    assert [row[f"lost_{level:g}"] for level in GRID] == pytest.approx([0.0, 0.1, 0.5, 1.0, 2.0])
    assert (row["grid"], row["auto"], row["lost"], row["error"]) == (0.95, 0.94, 0.4, 0.2)
    assert [one["difference"] for one in tabulate_curve(rounds).rows] == pytest.approx([0.1] * 5)
