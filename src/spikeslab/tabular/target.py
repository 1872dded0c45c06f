"""Response of a model: the values of a column and the family of their distribution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from spikeslab.errors import mark, quote
from spikeslab.tabular.design import LARGEST
from spikeslab.tabular.table import DataTable, TableError

if TYPE_CHECKING:
    from numpy.typing import NDArray

FAMILIES = ("gaussian", "binomial", "multinomial")
MAX_CLASSES = 100
MAX_CODES = 10
"""Largest number of integers 0, 1, ... or 1, 2, ... that are taken for classes when the family is not given."""


@dataclass(frozen=True)
class Target:
    """Response of a model.

    Attributes:
        name: Name of its column.
        family: One of ``FAMILIES``.
        y: Numbers, or classes as integers, numbers, booleans or texts.
        guess: Reason for the family; empty if it was given.
    """

    name: str
    family: str
    y: NDArray[Any]
    guess: str = ""


def read_target(table: DataTable, name: str, family: str | None = None) -> Target:
    """Take the target from a table.

    Args:
        table: Table with the target.
        name: Name of the column.
        family: One of ``FAMILIES``; ``None`` guesses it.

    Raises:
        ValueError: If there is no such column, or it does not fit the family.
    """
    cells = table.column(name, "target")
    if len(cells) < 2:
        raise TableError(f"{table.name} has only 1 row: at least 2 are needed.")
    missing = int(cells.isna().sum())
    if missing:
        raise TableError(
            f"{table.name} has missing values in the target {name!r} ({missing:,} of {len(cells):,} rows): "
            "fill them in or leave out those rows."
        )
    y = to_values(cells)
    different = np.unique(y)
    if different.size == 1:
        raise TableError(f"The target {name!r} is {different.tolist()[0]!r} in every row of {table.name}.")
    guess = ""
    if family is None:
        family, guess = guess_family(y)
    if family == "gaussian":
        if y.dtype.kind not in "iufb":
            text = different.tolist()[0]
            raise TableError(
                f"{mark('family', 'gaussian')} needs numbers, but the target {name!r} holds text: {text!r}."
            )
        y = y.astype(np.float64)
        if not (np.abs(y) <= LARGEST).all():
            raise TableError(f"The target {name!r} of {table.name} has infinite numbers or some beyond {LARGEST:g}.")
        return Target(name, family, y, guess)
    most = 2 if family == "binomial" else MAX_CLASSES
    if different.size > most:
        allowed = "2 classes" if most == 2 else f"at most {most} classes"
        raise TableError(
            f"{mark('family', family)} needs {allowed}, but the target {name!r} has {different.size:,}: "
            f"{quote(map(str, different.tolist()), 5)}."
        )
    if family == "multinomial" and different.size > len(y) / 2:
        raise TableError(
            f"{mark('family', 'multinomial')} needs at least 2 rows per class on average, but the target {name!r} has "
            f"{different.size:,} different values in {len(y):,} rows."
        )
    return Target(name, family, y, guess)


def to_values(cells: pd.Series) -> NDArray[Any]:
    """Return the cells as integers, numbers or booleans if all of them are, and otherwise as text."""
    if pd.api.types.is_bool_dtype(cells.dtype):
        return cells.to_numpy(dtype=bool)
    if pd.api.types.is_numeric_dtype(cells.dtype):
        numbers = cells.to_numpy(dtype=np.float64)
        whole = np.isfinite(numbers).all() and (numbers == np.round(numbers)).all() and np.abs(numbers).max() < 2**53
        return numbers.astype(np.int64) if whole else numbers
    return cells.astype(str).to_numpy(dtype=object)


def guess_family(y: NDArray[Any]) -> tuple[str, str]:
    """Guess the family from the values; return it and the reason.

    >>> guess_family(np.array([0, 1, 1]))
    ('binomial', 'it has two different values')
    >>> guess_family(np.array([0.5, 1.2, 3.4]))
    ('gaussian', 'it holds numbers')
    """
    different = np.unique(y)
    if different.size == 2:
        return "binomial", "it has two different values"
    if y.dtype.kind == "O":
        return "multinomial", f"it holds {different.size:,} different texts"
    if y.dtype.kind == "i" and different.size <= min(MAX_CODES, y.size / 2) and different[0] in (0, 1):
        first, last = int(different[0]), int(different[-1])
        if last - first + 1 == different.size:
            return "multinomial", f"it holds only the integers from {first} to {last}"
    return "gaussian", "it holds numbers"
