"""Sigma and the residuals behind it."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from spikeslab.functional import mixture
from spikeslab.priors._scale import Residuals, Scale


def make(coupling: str = "conjugate", average: str = "sigma", maximum: str = "joint") -> Scale[float]:
    return Scale(2.0, nu=1.0, lam=3.0, coupling=coupling, average=average, maximum=maximum)


def watched(scale: Scale[float]) -> Residuals:
    return scale.learn_from_residuals([nn.Parameter(torch.ones(3))])


def test_averaging_sigma_and_its_square_differ() -> None:
    target = mixture.sigma_classification(b=4.0, j=5.0, num_weights=10, nu=1.0, lam=3.0)
    plain, squared = make(average="sigma"), make(average="variance")
    for scale in (plain, squared):
        scale.update(0.25, 4.0, 5.0, 10, 100)
    assert plain.sigma == pytest.approx(0.75 * 2.0 + 0.25 * target)
    assert squared.sigma == pytest.approx(math.sqrt(0.75 * 4.0 + 0.25 * target**2))


def test_residuals_of_a_batch_stand_for_all_data() -> None:
    for maximum in ("joint", "printed"):
        scale = make(maximum=maximum)
        residuals = watched(scale)
        residuals.add(torch.tensor(6.0), targets=8, rows=4)
        residuals.add(torch.tensor(3.0), targets=4, rows=2)
        scale.update(1.0, 4.0, 5.0, 10, num_data=60)
        sums = {"b": 4.0, "j": 5.0, "squares": 90.0, "num_targets": 120.0, "num_weights": 10, "nu": 1.0, "lam": 3.0}
        assert scale.sigma == pytest.approx(mixture.sigma_regression(**sums, printed=maximum == "printed"), rel=1e-12)


def test_stacked_chains_have_the_sigma_that_each_would_have_alone() -> None:
    squares = torch.tensor([6.0, 2.0], dtype=torch.float64)
    for coupling, average in (("conjugate", "variance"), ("independent", "sigma")):
        stacked = make(coupling, average).stack(2, torch.device("cpu"))
        stacked.learn_from_residuals([]).add(squares, targets=8, rows=4)
        b, j = torch.tensor([[4.0, 1.0], [5.0, 2.0]], dtype=torch.float64)
        stacked.update(0.3, b, j, 10, num_data=60)
        for chain in range(2):
            alone = make(coupling, average)
            watched(alone).add(squares[chain], targets=8, rows=4)
            alone.update(0.3, float(b[chain]), float(j[chain]), 10, num_data=60)
            assert float(stacked.sigma[chain]) == pytest.approx(alone.sigma, rel=1e-14)


def test_independent_uses_the_residuals_alone_and_leaves_the_prior_at_scale_one() -> None:
    scale = make("independent")
    watched(scale).add(torch.tensor(6.0), targets=8, rows=4)
    scale.update(1.0, 0.0, 0.0, 10, num_data=40)
    assert scale.sigma == pytest.approx(math.sqrt((60.0 + 3.0) / (80 + 1 + 2)))
    assert scale.of_prior == 1.0
    assert make("conjugate").of_prior == 2.0
    assert make("fixed").of_prior == 2.0


def test_a_regression_without_residuals_is_not_ready() -> None:
    scale = make()
    scale.check_ready()
    residuals = watched(scale)
    with pytest.raises(RuntimeError, match="call the likelihood and backward"):
        scale.check_ready()
    residuals.add(torch.tensor(6.0), targets=8, rows=4)
    scale.check_ready()
    scale.clear_residuals()
    with pytest.raises(RuntimeError):
        scale.check_ready()


def test_a_fixed_sigma_needs_no_residuals() -> None:
    scale = make("fixed")
    watched(scale)
    scale.check_ready()


def test_independent_is_refused_for_classification() -> None:
    with pytest.raises(ValueError, match=r"^sigma_coupling must be 'conjugate' or 'fixed' for classification"):
        make("independent").check_ready()
