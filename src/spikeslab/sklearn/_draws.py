"""Draws of sparse coefficient vectors: what the kernels write and what the estimators read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numba import njit
from scipy import sparse

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]


class Room(NamedTuple):
    """Arrays that a kernel writes draws to: a compressed sparse matrix and the scalars of each draw."""

    indices: Ints
    values: Floats
    indptr: Ints
    scalars: Floats


@njit(cache=True, nogil=True)
def has_room(beta: Floats, room: Room, row: int) -> bool:
    """Whether row `row` fits whatever it will hold: asked before a sweep, so that no draw is ever dropped."""
    return bool(room.indptr[row] + beta.size <= room.indices.shape[0])


@njit(cache=True, nogil=True)
def record(beta: Floats, room: Room, row: int) -> int:
    """Write the non-zeros of `beta` as row `row` of a compressed sparse matrix and return their number."""
    start = room.indptr[row]
    at = start
    flat = beta.ravel()
    for j in range(flat.shape[0]):
        if flat[j] != 0.0:
            room.indices[at] = j
            room.values[at] = flat[j]
            at += 1
    room.indptr[row + 1] = at
    return int(at - start)


class Buffer:
    """Room for the draws of one call of a kernel, emptied into a list of matrices after it."""

    def __init__(self, n_columns: int, n_scalars: int, rows: int = 256) -> None:
        self.n_columns = n_columns
        self.rows = rows
        size = max(4 * n_columns, 32 * rows)
        pointers = np.zeros(rows + 1, dtype=np.int64)
        self.room = Room(np.empty(size, np.int64), np.empty(size), pointers, np.empty((rows, n_scalars)))
        self._coefs: list[sparse.csr_array] = []
        self._scalars: list[Floats] = []

    def flush(self, rows: int) -> None:
        """Take the first `rows` draws out of the buffer."""
        if rows == 0:
            return
        room = self.room
        end = room.indptr[rows]
        parts = (room.values[:end].copy(), room.indices[:end].copy(), room.indptr[: rows + 1].copy())
        self._coefs.append(sparse.csr_array(parts, shape=(rows, self.n_columns)))
        self._scalars.append(room.scalars[:rows].copy())

    def collect(self) -> tuple[sparse.csr_array, Floats]:
        """Return all draws taken so far: coefficients (draws, columns) and scalars (draws, n_scalars)."""
        if not self._coefs:
            return sparse.csr_array((0, self.n_columns)), np.empty((0, self.room.scalars.shape[1]))
        return sparse.csr_array(sparse.vstack(self._coefs, format="csr")), np.concatenate(self._scalars)


@dataclass(frozen=True)
class ChainDraws:
    """What one chain leaves behind.

    Attributes:
        coef: draws of the coefficients, shape (draws, classes * features), class by class.
        intercept: draws of the intercepts, shape (draws, classes), or (draws, 0) if integrated out.
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
