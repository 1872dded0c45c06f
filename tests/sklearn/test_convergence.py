import numpy as np
import pytest
from scipy import sparse

from spikeslab.sklearn._convergence import assess


def _draws(rng, shares, draws=1000, chains=4):
    """Independent draws of coefficients that are in with the given shares."""
    shares = np.asarray(shares)
    coef = rng.standard_normal((chains, draws, shares.shape[-1])) + 3.0
    return coef * (rng.random(coef.shape) < shares.reshape(-1, 1, shares.shape[-1]))


def _assess(coef, classes=1, **kwargs):
    chains, draws, columns = coef.shape
    included = (coef != 0).reshape(chains * draws, classes, columns // classes)
    flat = sparse.csr_array(coef.reshape(-1, columns))
    return assess(flat, chains, {"s": coef[:, :, 0]}, included.any(axis=1).mean(axis=0), **kwargs)


def test_independent_draws_reach_the_targets(rng):
    found = _assess(_draws(rng, [1.0, 0.5, 0.2, 0.01]))
    assert found.reached
    assert found.error[:3] == pytest.approx([0.0, np.sqrt(0.25 / 4000), np.sqrt(0.16 / 4000)], rel=0.1)
    assert np.isnan([found.error[3], found.rhat[3]]).all()
    assert found.missing_factor < 1.0


def test_a_variable_in_one_chain_of_four_is_found(rng):
    found = _assess(_draws(rng, [[1.0, 1.0], [1.0, 0.0], [1.0, 0.0], [1.0, 0.0]]))
    assert found.rhat[1] == np.inf
    assert found.rhat[0] < 1.01
    assert found.error[1] > 0.15
    assert not found.reached


def test_a_precise_average_of_chains_that_disagree_is_no_convergence(rng):
    found = _assess(_draws(rng, [[0.5], [0.5], [0.5], [0.7]]))
    assert 1.01 < found.largest_rhat < 1.2
    assert not found.reached
    assert found.missing_factor > 2.0


def test_few_draws_have_large_errors(rng):
    found = _assess(_draws(rng, [1.0, 0.5], draws=100))
    assert found.largest_error == pytest.approx(0.025, rel=0.2)
    assert not found.reached
    assert found.missing_factor >= (found.largest_error / 0.02) ** 2


def test_classes_are_judged_by_themselves(rng):
    """A feature is in some class in every draw, but the chains disagree in which one."""
    coef = _draws(rng, [[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0]])
    assert _assess(coef, classes=2).rhat[0] == np.inf


def test_draws_without_exact_zeros_have_no_errors(rng):
    found = _assess(_draws(rng, [1.0, 1.0]), exact_zeros=False)
    assert np.isnan(found.error).all()
    assert found.reached
