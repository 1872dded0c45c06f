import numpy as np
import pytest

from spikeslab.bench import BenchPlan, selection_ess


@pytest.mark.parametrize(("simulate", "near", "across"), [("simulate_chain", 0.6, 0.6), ("simulate_blocks", 0.9, 0.0)])
def test_neighbours_are_correlated_as_the_designs_say(simulate, near, across):
    rng = np.random.default_rng(0)
    x, y = getattr(selection_ess, simulate)(1000, rng)
    links = np.array([np.corrcoef(x[:, j], x[:, j + 1])[0, 1] for j in range(999)])
    ends = np.arange(999) % 10 == 9
    assert links[~ends].mean() == pytest.approx(near, abs=0.02)
    assert links[ends].mean() == pytest.approx(across, abs=0.04)
    assert y.shape == x.shape[:1]


def test_a_shorter_fit_is_timed_in_units_of_the_lasso(monkeypatch):
    clock = iter(np.cumsum([0.0, 4.0, 0.0, 2.0, 0.0, 1.0] * 2))
    kept = []

    class Model(selection_ess.SpikeSlabRegressor):
        def fit(self, x, y):
            kept.append(self.n_iter)
            return self

    monkeypatch.setattr(selection_ess, "SpikeSlabRegressor", Model)
    monkeypatch.setattr(selection_ess, "smallest_ess", lambda model: 2.0 * model.n_iter)
    monkeypatch.setattr(selection_ess, "LassoCV", Model)
    monkeypatch.setattr(selection_ess.time, "process_time", lambda: next(clock))
    row = selection_ess._compare("blocks, n = 300", 1000, BenchPlan(2))
    assert (row["lasso"], row["default"], row["ratio"]) == (4.0, 0.5, 0.25)
    assert (row["target"], row["ess"], row["draws"], row["reached"]) == (657.0, 2000.0, 329, 658.0)
    assert kept[-1] == 329
