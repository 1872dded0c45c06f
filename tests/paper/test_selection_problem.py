"""Scores of a selection, and the latent variables along a chain."""

from __future__ import annotations

import numpy as np
import pytest

from spikeslab.paper.linear import simulate_linear
from spikeslab.paper.linear.study import LINEAR
from spikeslab.paper.selection_problem import record_latents, score_selection


def test_precision_and_recall() -> None:
    truth = np.array([True, True, False, False])
    assert score_selection(np.array([True, False, True, False]), truth) == {
        "precision": 0.5,
        "recall": 0.5,
        "exact": 0,
        "selected": 2,
    }
    assert score_selection(truth, truth)["exact"] == 1
    assert score_selection(np.zeros(4, dtype=bool), truth)["precision"] == 1.0


def test_latents_start_near_the_start_and_find_the_signals() -> None:
    data = simulate_linear(0, rows=100, variables=20)
    preset = LINEAR.pictured
    x, y = data.x_train.numpy(), data.y_train.numpy()
    record = record_latents(x, y, 0, preset, 3000, 0)
    assert (record["step"][0], record["step"][-1]) == (1, 3000)
    assert record["sigma"][0] == pytest.approx(preset.sigma, abs=0.5)
    assert record["delta"][0] == pytest.approx(0.5, abs=0.1)
    assert min(record["rho"][-1][:2]) > 0.9
    assert all(len(curve) == len(record["step"]) for curve in record.values())
