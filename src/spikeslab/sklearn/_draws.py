"""Draws of sparse coefficient vectors: what the kernels write and what the estimators read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numba import njit
from scipy import sparse

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]


@njit(cache=True, nogil=True)
def has_room(beta: Floats, indices: Ints, indptr: Ints, row: int) -> bool:
    """Whether row `row` fits whatever it will hold: asked before a sweep, so that no draw is ever dropped."""
    return indptr[row] + beta.size <= indices.shape[0]


@njit(cache=True, nogil=True)
def record(beta: Floats, indices: Ints, values: Floats, indptr: Ints, row: int) -> int:
    """Write the non-zeros of `beta` as row `row` of a compressed sparse matrix and return their number."""
    at = indptr[row]
    flat = beta.ravel()
    for j in range(flat.shape[0]):
        if flat[j] != 0.0:
            indices[at] = j
            values[at] = flat[j]
            at += 1
    indptr[row + 1] = at
    return at - indptr[row]


class Buffer:
    """Room for the draws of one call of a kernel, emptied into a list of matrices after it."""

    def __init__(self, n_columns: int, n_scalars: int, rows: int = 256) -> None:
        self.n_columns = n_columns
        self.indices = np.empty(max(4 * n_columns, 32 * rows), dtype=np.int64)
        self.values = np.empty(self.indices.shape[0])
        self.indptr = np.zeros(rows + 1, dtype=np.int64)
        self.scalars = np.empty((rows, n_scalars))
        self.rows = rows
        self._coefs: list[sparse.csr_array] = []
        self._scalars: list[Floats] = []

    @property
    def arrays(self) -> tuple[Ints, Floats, Ints, Floats]:
        """The arrays that a kernel writes to."""
        return self.indices, self.values, self.indptr, self.scalars

    def flush(self, rows: int) -> None:
        """Take the first `rows` draws out of the buffer."""
        if rows == 0:
            return
        end = self.indptr[rows]
        parts = (self.values[:end].copy(), self.indices[:end].copy(), self.indptr[: rows + 1].copy())
        self._coefs.append(sparse.csr_array(parts, shape=(rows, self.n_columns)))
        self._scalars.append(self.scalars[:rows].copy())

    def collect(self) -> tuple[sparse.csr_array, Floats]:
        """Return all draws taken so far: coefficients (draws, columns) and scalars (draws, n_scalars)."""
        if not self._coefs:
            return sparse.csr_array((0, self.n_columns)), np.empty((0, self.scalars.shape[1]))
        return sparse.csr_array(sparse.vstack(self._coefs, format="csr")), np.concatenate(self._scalars)


@dataclass(frozen=True)
class ChainDraws:
    """What one chain leaves behind.

    Attributes:
        coef: draws of the coefficients, shape (draws, classes * features), class by class.
        intercept: draws of the intercepts, shape (draws, classes), or (draws, 0) where they are integrated out.
        scalars: draws of the monitored scalars by name, each of shape (draws,).
        pip: estimate of P(gamma_j = 1), shape (features,).
        mean: estimate of E[beta], shape (classes, features).
        square: estimate of E[beta^2], shape (classes, features).
    """

    coef: sparse.csr_array
    intercept: Floats
    scalars: dict[str, Floats]
    pip: Floats
    mean: Floats
    square: Floats


def any_class(coef: sparse.csr_array, n_features: int) -> Floats:
    """Share of the draws, shape (draws, classes * n_features), in which some class uses a feature."""
    rows = np.repeat(np.arange(coef.shape[0]), np.diff(coef.indptr))
    pairs = np.unique(rows * n_features + coef.indices % n_features)
    return np.bincount(pairs % n_features, minlength=n_features) / max(coef.shape[0], 1)
