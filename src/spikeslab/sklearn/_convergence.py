"""Convergence of the chains of a fit, judged over every variable whose inclusion probability is not small."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from spikeslab.functional.convergence import ess_bulk, rhat

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray
    from scipy import sparse

    Floats = NDArray[np.float64]

JUDGED = 0.05
"""Inclusion probability from which a variable is judged."""
RHAT_TARGET = 1.01
ERROR_TARGET = 0.02
"""Monte Carlo standard error of an inclusion probability."""


@dataclass(frozen=True)
class FitConvergence:
    """R-hat of the monitored scalars and variables, and the Monte Carlo errors of the inclusion probabilities.

    Attributes:
        scalars: R-hat of the monitored scalars by name.
        rhat: Largest R-hat of each feature's indicators and coefficients, shape (features,); NaN for those that are
            not judged.
        error: Monte Carlo standard error of each inclusion probability, likewise.
    """

    scalars: dict[str, float]
    rhat: Floats
    error: Floats
    largest_rhat: float = field(init=False)
    largest_error: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "largest_rhat", _largest([*self.scalars.values(), *self.rhat]))
        object.__setattr__(self, "largest_error", _largest(self.error))

    @property
    def reached(self) -> bool:
        """True if every R-hat and every error is at most its target."""
        return bool(self.largest_rhat <= RHAT_TARGET and not self.largest_error > ERROR_TARGET)

    @property
    def missing_factor(self) -> float:
        """Factor by which more draws would reach the targets, if the excess of R-hat² falls like their number."""
        excess = (self.largest_rhat**2 - 1.0) / (RHAT_TARGET**2 - 1.0)
        error = 0.0 if math.isnan(self.largest_error) else (self.largest_error / ERROR_TARGET) ** 2
        return math.inf if math.isnan(excess) else max(excess, error)

    def describe(self, names: Sequence[object] | NDArray[np.object_]) -> str:
        """Return the largest R-hat and the largest error, and of what they are, given the names of the features."""
        scalar = next((name for name, value in self.scalars.items() if value == self.largest_rhat), None)
        text = f"largest R-hat {self.largest_rhat:.3f}, of {scalar or names[int(np.nanargmax(self.rhat))]}"
        if self.largest_error > 0.0:
            name = names[int(np.nanargmax(self.error))]
            text += f"; largest Monte Carlo error of a PIP {self.largest_error:.3f}, of {name}"
        return text


def assess(
    coef: sparse.csr_array, n_chains: int, scalars: Mapping[str, Floats], pip: Floats, *, exact_zeros: bool = True
) -> FitConvergence:
    """Judge the chains by the scalars and by the features whose inclusion probability is at least `JUDGED`.

    Args:
        coef: Draws of the coefficients, shape (chains * draws, classes * features), class by class.
        n_chains: Number of chains.
        scalars: Draws of the monitored scalars, each of shape (chains, draws).
        pip: Inclusion probabilities, shape (features,).
        exact_zeros: If True, a coefficient is zero where its indicator is; otherwise there are no errors.
    """
    p = pip.shape[0]
    draws = coef.shape[0] // n_chains
    rhats, errors = np.full(p, np.nan), np.full(p, np.nan)
    judged = np.flatnonzero(pip >= JUDGED)
    vectors = coef.shape[1] // max(p, 1)
    columns = coef[:, (np.arange(vectors)[:, None] * p + judged).ravel()].toarray()
    columns = columns.reshape(n_chains, draws, vectors, judged.size)
    for i, j in enumerate(judged):
        values = columns[:, :, :, i]
        included = values != 0.0
        used = [c for c in range(vectors) if vectors == 1 or included[:, :, c].mean() >= JUDGED]
        parts = [values[:, :, c] for c in used]
        if exact_zeros:
            indicator = included.any(axis=2).astype(np.float64)
            parts += [indicator]
            parts += [included[:, :, c].astype(np.float64) for c in used if vectors > 1]
            share = float(indicator.mean())
            size = ess_bulk(indicator)
            errors[j] = math.sqrt(share * (1.0 - share) / size) if share < 1.0 and not math.isnan(size) else 0.0
        rhats[j] = _largest(rhat(part) for part in parts)
    return FitConvergence({name: rhat(values) for name, values in scalars.items()}, rhats, errors)


def _largest(values: Iterable[float]) -> float:
    """Return the largest number that is not NaN; NaN if there is none."""
    return max((value for value in values if not math.isnan(value)), default=math.nan)
