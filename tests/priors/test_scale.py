"""Sigma and the residuals behind it."""

from __future__ import annotations

import math

import pytest
import torch

from spikeslab.functional import mixture
from spikeslab.priors.scale import Scale


def make(coupling: str = "conjugate", average: str = "sigma") -> Scale:
    return Scale(sigma=2.0, nu=1.0, lam=3.0, coupling=coupling, average=average)


def test_averaging_sigma_and_its_square_differ() -> None:
    target = mixture.sigma_classification(b=4.0, j=5.0, num_weights=10, nu=1.0, lam=3.0)
    plain, squared = make(average="sigma"), make(average="variance")
    for scale in (plain, squared):
        scale.update(0.25, 4.0, 5.0, 10, 100)
    assert plain.sigma == pytest.approx(0.75 * 2.0 + 0.25 * target)
    assert squared.sigma == pytest.approx(math.sqrt(0.75 * 4.0 + 0.25 * target**2))


def test_residuals_of_a_batch_stand_for_all_data() -> None:
    scale = make()
    scale.observe(torch.tensor(6.0), targets=8, rows=4)
    scale.observe(torch.tensor(3.0), targets=4, rows=2)
    scale.update(1.0, 4.0, 5.0, 10, num_data=60)
    expected = mixture.sigma_regression(b=4.0, j=5.0, squares=90.0, num_targets=120.0, num_weights=10, nu=1.0, lam=3.0)
    assert scale.sigma == pytest.approx(expected, rel=1e-12)


def test_independent_uses_the_residuals_alone_and_leaves_the_prior_at_scale_one() -> None:
    scale = make("independent")
    scale.regression = True
    scale.observe(torch.tensor(6.0), targets=8, rows=4)
    scale.update(1.0, 0.0, 0.0, 10, num_data=40)
    assert scale.sigma == pytest.approx(math.sqrt((60.0 + 3.0) / (80 + 1 + 2)))
    assert scale.of_prior == 1.0
    assert make("conjugate").of_prior == 2.0
    assert make("fixed").of_prior == 2.0


def test_a_regression_without_residuals_is_not_ready() -> None:
    scale = make()
    scale.check_ready()
    scale.regression = True
    with pytest.raises(RuntimeError) as error:
        scale.check_ready()
    assert str(error.value) == (
        "sampler.step() must follow a call of the GaussianLikelihood, which gathers the residuals for sigma, but there "
        "was none since the last step."
    )
    scale.observe(torch.tensor(6.0), targets=8, rows=4)
    scale.check_ready()
    scale.discard()
    with pytest.raises(RuntimeError):
        scale.check_ready()


def test_a_fixed_sigma_needs_no_residuals() -> None:
    scale = make("fixed")
    scale.regression = True
    scale.check_ready()


def test_independent_is_refused_for_classification() -> None:
    with pytest.raises(ValueError, match="sigma_coupling") as error:
        make("independent").check_ready()
    assert str(error.value) == (
        "sigma_coupling must be 'conjugate' or 'fixed' for classification, but got 'independent', which learns the "
        "noise of a regression through GaussianLikelihood(prior)."
    )
