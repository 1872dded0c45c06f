"""Standardisation of X and y, the way back to the user's scale, and moments of rows that can be added up."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse

from spikeslab.sklearn._gibbs_linear import GramData

if TYPE_CHECKING:
    from spikeslab.sklearn._sweep import Floats, Ints

BLOCK = 4_000_000  # entries of X centred at once


def is_sparse(X: Any) -> bool:
    """Return True if X is a sparse array or matrix of scipy."""
    return bool(sparse.issparse(X))


@dataclass(frozen=True)
class Scaling:
    """Centres and scales that standardise the features that vary, and the response.

    Attributes:
        n_features: Number of the user's features.
        kept: Indices of the features that vary; the others get a coefficient of zero.
        x_mean: Means of the kept features.
        x_scale: Standard deviations (with divisor n) of the kept features.
        y_mean: Mean of the response (0 for classes).
        y_scale: Standard deviation of the response (1 for classes).
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


@dataclass(frozen=True)
class Moments:
    """Number and means of the rows seen so far, and their sums X'X, X'y and y'y after centring."""

    n: float
    x_mean: Floats
    y_mean: float
    xx: Floats
    xy: Floats
    yy: float

    @classmethod
    def of(cls, X: Any, y: Floats) -> Moments:
        """Compute the moments of X; a sparse one is not made dense, and a dense one is not copied."""
        n = y.shape[0]
        y_mean = float(y.mean())
        yc = y.astype(np.float64) - y_mean
        if is_sparse(X):
            X = X.astype(np.float64)
            x_mean = np.asarray(X.mean(axis=0), dtype=np.float64).ravel()
            xx = np.asarray((X.T @ X).todense()) - n * np.outer(x_mean, x_mean)
            return cls(n, x_mean, y_mean, xx, np.asarray(X.T @ yc).ravel(), float(yc @ yc))
        x_mean = X.mean(axis=0, dtype=np.float64)
        xx = np.zeros((x_mean.size, x_mean.size))
        xy = np.zeros(x_mean.size)
        step = max(1, BLOCK // max(x_mean.size, 1))
        for start in range(0, n, step):
            xc = X[start : start + step] - x_mean
            xx += xc.T @ xc
            xy += xc.T @ yc[start : start + step]
        return cls(n, x_mean, y_mean, xx, xy, float(yc @ yc))

    def merge(self, other: Moments) -> Moments:
        """Return the moments of both sets of rows together (Chan, Golub and LeVeque, 1983)."""
        n = self.n + other.n
        dx = other.x_mean - self.x_mean
        dy = other.y_mean - self.y_mean
        part = other.n / n
        weight = self.n * part
        return Moments(
            n,
            self.x_mean + part * dx,
            self.y_mean + part * dy,
            self.xx + other.xx + weight * np.outer(dx, dx),
            self.xy + other.xy + weight * dx * dy,
            self.yy + other.yy + weight * dy * dy,
        )

    def rescale(self, n: float) -> Moments:
        """Return the moments of n rows distributed like the rows seen so far."""
        f = n / self.n
        return Moments(n, self.x_mean, self.y_mean, f * self.xx, f * self.xy, f * self.yy)

    def standardise(self) -> tuple[GramData, Scaling]:
        """Return the sums for the standardised kept columns and response, and their scaling."""
        scale = np.sqrt(np.maximum(np.diag(self.xx), 0.0) / self.n)
        scaling = Scaling.of_columns(self.x_mean, scale).with_response(self.y_mean, self.yy / self.n)
        kept, factor, y_scale = scaling.kept, 1.0 / scaling.x_scale, scaling.y_scale
        xx = self.xx if kept.size == scaling.n_features else self.xx[np.ix_(kept, kept)]
        xy = self.xy[kept] * factor / y_scale
        return GramData(xx * np.outer(factor, factor), xy, self.yy / y_scale**2, self.n), scaling
