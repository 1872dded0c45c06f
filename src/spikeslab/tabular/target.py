"""The column to be explained: which family it belongs to, and its values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from spikeslab.errors import quote
from spikeslab.tabular.design import LARGEST
from spikeslab.tabular.table import Table, TableError

if TYPE_CHECKING:
    from numpy.typing import NDArray

FAMILIES = ("gaussian", "binomial", "multinomial")
MAX_CLASSES = 100
MAX_CODES = 10
"""Integers 0, 1, ... or 1, 2, ... up to this many are taken for codes of classes when the family is not given."""


@dataclass(frozen=True)
class Target:
    """The response.

    Attributes:
        name: Name of its column.
        family: One of ``FAMILIES``.
        y: Numbers, or classes as integers, numbers, booleans or texts.
        guess: Why the family was chosen, or nothing if it was given.
    """

    name: str
    family: str
    y: NDArray[Any]
    guess: str = ""


def read_target(table: Table, name: str, family: str | None = None) -> Target:
    """Take the target from a table.

    Args:
        table: The table.
        name: Name of the column.
        family: One of ``FAMILIES``; ``None`` guesses it.

    Raises:
        TableError: If there is no such column, or it does not fit the family.
    """
    cells = table.column(name, "--target")
    if len(cells) < 2:
        raise TableError(f"{table.name} must have at least 2 rows, but has 1.")
    missing = int(cells.isna().sum())
    if missing:
        raise TableError(
            f"{table.name} must have no missing values in the target {name!r}, but has {missing:,} "
            f"in {len(cells):,} rows."
        )
    y = values(cells)
    different = np.unique(y)
    if different.size == 1:
        raise TableError(
            f"The target {name!r} must vary, but is {different.tolist()[0]!r} in every row of {table.name}."
        )
    guess = ""
    if family is None:
        family, guess = guess_family(y)
    if family == "gaussian":
        if y.dtype.kind not in "iufb":
            raise TableError(
                f"--family gaussian needs numbers in the target {name!r}, but got text "
                f"such as {different.tolist()[0]!r}."
            )
        y = y.astype(np.float64)
        if not (np.abs(y) <= LARGEST).all():
            raise TableError(f"The target {name!r} of {table.name} must be finite and below {LARGEST:g} in size.")
        return Target(name, family, y, guess)
    most = 2 if family == "binomial" else MAX_CLASSES
    if different.size > most:
        allowed = "2 classes" if most == 2 else f"at most {most} classes"
        raise TableError(
            f"--family {family} needs {allowed} in the target {name!r}, but got {different.size:,}: "
            f"{quote(map(str, different.tolist()), 5)}."
        )
    if family == "multinomial" and different.size > len(y) / 2:
        raise TableError(
            f"--family {family} needs classes of about 2 rows or more, but the target {name!r} has {different.size:,} "
            f"different values in {len(y):,} rows."
        )
    return Target(name, family, y, guess)


def values(cells: pd.Series) -> NDArray[Any]:
    """The cells as integers, numbers or booleans where all of them are, and otherwise as text."""
    if pd.api.types.is_bool_dtype(cells.dtype):
        return cells.to_numpy(dtype=bool)
    if pd.api.types.is_numeric_dtype(cells.dtype):
        numbers = cells.to_numpy(dtype=np.float64)
        whole = np.isfinite(numbers).all() and (numbers == np.round(numbers)).all() and np.abs(numbers).max() < 2**53
        return numbers.astype(np.int64) if whole else numbers
    return cells.astype(str).to_numpy(dtype=object)


def guess_family(y: NDArray[Any]) -> tuple[str, str]:
    """Return a family and the reason for it.

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
