import numpy as np
import pytest

from spikeslab.bench import BenchPlan, reassurance
from spikeslab.paper.grid import Cell


def _record(converged, pip, longer):
    return {"converged": converged, "seconds": 1.0, "steps": 10, "rhat": 1.0, "pip": pip, "longer": longer}


def test_probabilities_of_converged_fits_are_counted_apart():
    records = [
        _record(True, [0.5, 0.9], [0.57, 0.9]),
        _record(True, [0.4, 1.0], [0.5, 1.0]),
        _record(False, [0.25], [1.0]),
    ]
    found = reassurance._summarize(records)
    assert (found["fits"], found["converged"], found["probabilities"], found["others"]) == (3, 2, 4, 1)
    assert (found["far"], found["others_far"]) == (25.0, 100.0)
    assert found["largest"] == pytest.approx(0.1)


def test_sums_are_nearly_collinear():
    x, y = reassurance.simulate_sums(np.random.default_rng(0))
    assert np.corrcoef(x[:, 8], x[:, 0] + x[:, 7])[0, 1] > 0.999
    assert (x.shape, y.shape) == ((10_000, 16), (10_000,))


def test_a_fit_is_compared_with_a_longer_one(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(reassurance, "compare_with_longer", lambda cell: _record(True, [0.5], [0.5 + 0.1 * cell.seed]))
    monkeypatch.setattr(reassurance, "run_cells", _run_here)
    (table,) = reassurance.run(BenchPlan(2)).tables.values()
    assert [row["far"] for row in table.rows] == [50.0] * 6
    assert [row["fits"] for row in table.rows] == [2] * 5 + [10]


def _run_here(file, cells, function, workers, on_done):
    file.records = {cell: reassurance.compare_with_longer(cell) for cell in cells}
    assert all(isinstance(cell, Cell) for cell in cells)
