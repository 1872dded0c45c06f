r"""The paper's logistic regression with more variables than rows (appendix C).

.. math::
    x \sim N(0, \Sigma), \quad \Sigma_{ij} = 0.3^{|i-j|}, \qquad
    y \sim \mathrm{Bernoulli}(1/(1 + e^{-x^\top\beta - \eta})), \quad \eta \sim N(0, 1/2),

with the coefficients of the linear simulation: three signals around 3, 2 and 1, and all others zero.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from spikeslab.errors import check_count
from spikeslab.paper.linear.data import draw_coefficients

CORRELATION = 0.3
NOISE_VARIANCE = 0.5


@dataclass(frozen=True)
class LogisticData:
    """Simulated inputs (rows, p) and labels, 0 or 1, with the true coefficients.

    There are as few test rows as in the paper; the rows to score are many, to tell methods apart.
    """

    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor
    x_score: Tensor
    y_score: Tensor
    beta: Tensor

    def probabilities(self, x: Tensor) -> Tensor:
        """Return the exact probability of a 1 given ``x``, with the noise integrated out."""
        # With variance 1/2 the nodes of Gauss and Hermite, whose weight is exp(-t^2), are the noise itself.
        nodes, weights = np.polynomial.hermite.hermgauss(64)
        scaled = torch.from_numpy(nodes) * math.sqrt(2.0 * NOISE_VARIANCE)
        logits = (x.double() @ self.beta.double())[:, None] + scaled
        return torch.sigmoid(logits) @ torch.from_numpy(weights) / math.sqrt(math.pi)


def simulate_logistic(
    seed: int, *, rows: int = 500, variables: int = 1000, test_rows: int = 50, score_rows: int = 5000
) -> LogisticData:
    """Draw coefficients, n = ``rows`` training rows of p = ``variables`` >= 3, and two sets of test rows.

    >>> data = simulate_logistic(seed=0, score_rows=100)
    >>> data.x_train.shape, data.x_test.shape, data.x_score.shape
    (torch.Size([500, 1000]), torch.Size([50, 1000]), torch.Size([100, 1000]))
    """
    sizes = [check_count(name, n) for name, n in (("rows", rows), ("test_rows", test_rows), ("score_rows", score_rows))]
    beta, generator = draw_coefficients(variables, seed)
    # Column by column, each from the one before: the same law as with a Cholesky factor, at the cost of the draws.
    columns = torch.randn(variables, sum(sizes), generator=generator, dtype=torch.float64)
    for before, column in pairwise(columns):
        column.mul_(math.sqrt(1.0 - CORRELATION**2)).add_(before, alpha=CORRELATION)
    x = columns.T
    noise = math.sqrt(NOISE_VARIANCE) * torch.randn(sum(sizes), generator=generator, dtype=torch.float64)
    y = torch.bernoulli(torch.sigmoid(x @ beta + noise), generator=generator).long()
    x_train, x_test, x_score = (part.contiguous() for part in x.float().split(sizes))
    y_train, y_test, y_score = y.split(sizes)
    return LogisticData(x_train, y_train, x_test, y_test, x_score, y_score, beta.float())
