"""Standardisation of X and y, and the way back to the user's scale."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]


def is_sparse(X: Any) -> bool:
    """Whether X is a sparse array or matrix of scipy."""
    return bool(sparse.issparse(X))


@dataclass(frozen=True)
class Scaling:
    """Which features are kept, and the centres and scales that standardise them and the response.

    Attributes:
        n_features: number of the user's features.
        kept: indices of the features that vary; the others get a coefficient of zero.
        x_mean: means of the kept features.
        x_scale: standard deviations (with divisor n) of the kept features.
        y_mean: mean of the response (0 for classes).
        y_scale: standard deviation of the response (1 for classes).
    """

    n_features: int
    kept: Ints
    x_mean: Floats
    x_scale: Floats
    y_mean: float = 0.0
    y_scale: float = 1.0

    @classmethod
    def of_columns(cls, mean: Floats, scale: Floats) -> Scaling:
        """Keep the columns whose standard deviation is more than a rounding error."""
        kept = np.flatnonzero(scale > 1e-9 * np.maximum(np.abs(mean), 1e-100))
        return cls(mean.shape[0], kept, mean[kept], scale[kept])

    def with_response(self, mean: float, variance: float) -> Scaling:
        """Add the centre and scale of the response; one that does not vary keeps its scale."""
        scale = float(np.sqrt(variance))
        return replace(self, y_mean=mean, y_scale=scale if scale > 1e-9 * max(abs(mean), 1e-100) else 1.0)


def standardise(X: Any) -> tuple[Floats, Scaling]:
    """Return the standardised kept columns of X, transposed and contiguous, and their scaling.

    A sparse X becomes dense, because centred columns are.
    """
    columns: Floats = np.array(X.T.toarray() if is_sparse(X) else X.T, dtype=np.float64, order="C")
    mean = columns.mean(axis=1)
    columns -= mean[:, None]
    scaling = Scaling.of_columns(mean, np.sqrt(np.einsum("ij,ij->i", columns, columns) / columns.shape[1]))
    if scaling.kept.size < columns.shape[0]:
        columns = columns[scaling.kept]
    columns /= scaling.x_scale[:, None]
    return columns, scaling
