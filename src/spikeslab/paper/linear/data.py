r"""The paper's linear regression with more variables than rows (section 5.1).

.. math::
    x \sim N(0, \Sigma), \quad \Sigma_{ij} = 0.6^{|i-j|}, \qquad y = x^\top\beta + \eta, \quad \eta \sim N(0, 3),

with :math:`\beta_1, \beta_2, \beta_3 \sim N(3, 0.2^2), N(2, 0.2^2), N(1, 0.2^2)`, drawn once, and all others zero.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from spikeslab.errors import check_count

SIGNAL_MEANS = (3.0, 2.0, 1.0)
SIGNAL_SD = 0.2
CORRELATION = 0.6
NOISE_VARIANCE = 3.0


@dataclass(frozen=True)
class LinearData:
    """Simulated inputs (rows, p) and targets, with the true coefficients and the covariance of the inputs (p, p)."""

    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor
    beta: Tensor
    covariance: Tensor
    noise_variance: float

    def population_mse(self, beta: Tensor, intercept: float = 0.0) -> float:
        r"""Return the exact expected squared error on new rows, :math:`3 + (b-\beta)^\top\Sigma(b-\beta) + b_0^2`.

        Fifty test rows leave the error of a method uncertain by about 0.7; this number has no such noise.
        """
        error = beta.double() - self.beta.double()
        return self.noise_variance + float(error @ self.covariance.double() @ error) + intercept**2


def draw_coefficients(variables: int, seed: int) -> tuple[Tensor, torch.Generator]:
    """Draw the coefficients of p = ``variables`` >= 3, and return them with the generator of what follows."""
    variables = check_count("variables", variables, minimum=len(SIGNAL_MEANS))
    generator = torch.Generator().manual_seed(check_count("seed", seed, minimum=0))
    beta = torch.zeros(variables, dtype=torch.float64)
    signals = torch.randn(len(SIGNAL_MEANS), generator=generator, dtype=torch.float64)
    beta[: len(SIGNAL_MEANS)] = torch.tensor(SIGNAL_MEANS, dtype=torch.float64) + SIGNAL_SD * signals
    return beta, generator


def simulate_linear(seed: int, *, rows: int = 100, variables: int = 1000, test_rows: int = 50) -> LinearData:
    """Draw coefficients, n = ``rows`` training rows of p = ``variables`` >= 3, and test rows, all from ``seed``.

    >>> data = simulate_linear(seed=0)
    >>> data.x_train.shape, data.population_mse(data.beta)
    (torch.Size([100, 1000]), 3.0)
    """
    sizes = [check_count("rows", rows), check_count("test_rows", test_rows)]
    beta, generator = draw_coefficients(variables, seed)
    position = torch.arange(variables, dtype=torch.float64)
    covariance = CORRELATION ** (position[:, None] - position[None, :]).abs()
    x = torch.randn(sum(sizes), variables, generator=generator, dtype=torch.float64)
    x = x @ torch.linalg.cholesky(covariance).T
    y = x @ beta + math.sqrt(NOISE_VARIANCE) * torch.randn(sum(sizes), generator=generator, dtype=torch.float64)
    (x_train, x_test), (y_train, y_test) = x.float().split(sizes), y.float().split(sizes)
    return LinearData(x_train, y_train, x_test, y_test, beta.float(), covariance.float(), NOISE_VARIANCE)
