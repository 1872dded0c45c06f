"""R-hat and effective sample sizes against ArviZ, known laws, and draws that have no number."""

from __future__ import annotations

import math

import numpy as np
import pytest

from spikeslab.functional.convergence import ess_bulk, ess_tail, rhat


def autoregressive(chains: int, draws: int, phi: float, seed: int = 0) -> np.ndarray:
    values = np.random.default_rng(seed).standard_normal((chains, draws))
    for k in range(1, draws):
        values[:, k] = phi * values[:, k - 1] + math.sqrt(1 - phi**2) * values[:, k]
    return values


def test_independent_draws() -> None:
    draws = autoregressive(4, 2000, 0.0)
    assert rhat(draws) == pytest.approx(1.0, abs=0.005)
    assert ess_bulk(draws) == pytest.approx(8000, rel=0.1)
    assert ess_tail(draws) == pytest.approx(8000, rel=0.15)


def test_effective_sample_size_of_an_autoregression() -> None:
    assert ess_bulk(autoregressive(4, 5000, 0.8)) == pytest.approx(20_000 * 0.2 / 1.8, rel=0.15)


def test_disagreement_in_location_and_in_scale_is_seen() -> None:
    draws = autoregressive(4, 500, 0.0)
    assert rhat(draws + np.arange(4)[:, None]) > 1.3
    assert rhat(draws * np.array([1, 1, 1, 5])[:, None]) > 1.1


def test_chains_stuck_at_different_values_have_an_enormous_rhat() -> None:
    assert rhat(np.repeat([[0.0], [1.0]], 10, axis=1)) > 1e6


@pytest.mark.parametrize("draws", [np.ones((2, 10)), np.arange(6.0).reshape(2, 3), np.full((2, 8), np.nan)])
def test_constant_or_too_few_draws_have_no_number(draws: np.ndarray) -> None:
    assert all(math.isnan(measure(draws)) for measure in (rhat, ess_bulk, ess_tail))


@pytest.mark.parametrize("phi", [-0.5, 0.0, 0.9])
@pytest.mark.parametrize("shape", [(1, 9), (2, 4), (3, 5), (4, 200), (3, 401)])
@pytest.mark.parametrize("ties", [False, True])
def test_numbers_are_those_of_arviz(shape: tuple[int, int], phi: float, ties: bool) -> None:
    arviz = pytest.importorskip("arviz")
    draws = autoregressive(*shape, phi)
    draws = np.round(2 * draws) if ties else draws
    assert ess_bulk(draws) == pytest.approx(float(arviz.ess(draws, method="bulk")), rel=1e-10)
    assert ess_tail(draws) == pytest.approx(float(arviz.ess(draws, method="tail")), rel=1e-10)
    if shape[0] > 1:  # of one chain ArviZ gives none
        assert rhat(draws) == pytest.approx(float(arviz.rhat(draws)), rel=1e-10)
