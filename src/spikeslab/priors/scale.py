r"""The scale sigma that a spike-and-slab prior shares with the noise of a regression (eq. 14)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from spikeslab.errors import check_choice, check_number
from spikeslab.functional import mixture

if TYPE_CHECKING:  # torch may be built without it
    from torch.distributed import ProcessGroup

COUPLINGS = ("conjugate", "independent", "fixed")
SMALLEST = 1e-12


class Scale:
    """Sigma, how it is learnt, and the residuals it is learnt from.

    Args:
        sigma: Initial value.
        nu: Degrees of freedom of the inverse-gamma prior of sigma squared.
        lam: Its scale (lambda).
        coupling: ``"conjugate"``, ``"independent"``, ``"fixed"`` or ``None``; see :class:`~spikeslab.SpikeSlab`.
        average: Whether SA averages ``"sigma"`` or its ``"variance"``.

    Attributes:
        regression: Whether a ``GaussianLikelihood`` reports residuals.
        group: The processes whose residuals belong together, or ``None`` for this one alone.
    """

    def __init__(self, sigma: float, nu: float, lam: float, coupling: str | None, average: str) -> None:
        self.sigma = check_number("sigma", sigma, "> 0")
        self.nu = check_number("nu", nu, ">= 0")
        self.lam = check_number("lam", lam, ">= 0")
        self._coupling = None if coupling is None else check_choice("sigma_coupling", coupling, COUPLINGS)
        self.average = check_choice("sigma_average", average, ("sigma", "variance"))
        self.regression = False
        self.group: ProcessGroup | None = None
        self._squares: Tensor | None = None
        self._targets = 0
        self._rows = 0

    @property
    def coupling(self) -> str:
        """How sigma is learnt; by default from the residuals of a regression, and not at all without any."""
        return self._coupling or ("independent" if self.regression else "fixed")

    @property
    def of_prior(self) -> float:
        """The sigma in the density of the weights: 1 where it is independent of the noise."""
        return 1.0 if self.coupling == "independent" else self.sigma

    def observe(self, squares: Tensor, targets: int, rows: int) -> None:
        """Add residuals of the coming step: their sum of squares, how many numbers and how many examples."""
        self._squares = squares if self._squares is None else self._squares + squares
        self._targets += targets
        self._rows += rows

    def discard(self) -> None:
        """Forget the residuals."""
        self._squares = None
        self._targets = self._rows = 0

    def check_ready(self) -> None:
        """Raise if :meth:`update` needs residuals and there are none."""
        if self.coupling == "fixed":
            return
        if self.regression and self._squares is None:
            raise RuntimeError(
                "sampler.step() must follow a call of the GaussianLikelihood, which gathers the residuals for sigma, "
                "but there was none since the last step."
            )
        if self.coupling == "independent" and not self.regression:
            raise ValueError(
                "sigma_coupling must be 'conjugate' or 'fixed' for classification, but got 'independent', which "
                "learns the noise of a regression through GaussianLikelihood(prior)."
            )

    def update(self, omega: float, b: float, j: float, num_weights: int, num_data: int) -> None:
        """Move sigma towards the maximum of Q1 by ``omega``, given B and J of the penalty."""
        # Without an inverse-gamma prior, weights that are all zero have their maximum at 0, where no density is left.
        new = max(self._maximum(b, j, num_weights, num_data), SMALLEST)
        if self.average == "sigma":
            self.sigma += omega * (new - self.sigma)
        else:
            self.sigma = math.sqrt((1.0 - omega) * self.sigma**2 + omega * new**2)

    def _maximum(self, b: float, j: float, num_weights: int, num_data: int) -> float:
        if self._squares is None:
            return mixture.sigma_classification(b=b, j=j, num_weights=num_weights, nu=self.nu, lam=self.lam)
        total_squares, targets, rows = self._totals(self._squares)
        squares = total_squares * num_data / rows
        num_targets = targets * num_data / rows
        if self.coupling == "independent":
            return mixture.sigma_independent(squares=squares, num_targets=num_targets, nu=self.nu, lam=self.lam)
        return mixture.sigma_regression(
            b=b, j=j, squares=squares, num_targets=num_targets, num_weights=num_weights, nu=self.nu, lam=self.lam
        )

    def _totals(self, squares: Tensor) -> list[float]:
        """Sum of squares, numbers and examples, over all processes of the group: one reduction a step."""
        totals = [float(squares), float(self._targets), float(self._rows)]
        if self.group is None:
            return totals
        shared = torch.tensor(totals, dtype=torch.float64, device=squares.device)
        torch.distributed.all_reduce(shared, group=self.group)
        return [float(total) for total in shared]
