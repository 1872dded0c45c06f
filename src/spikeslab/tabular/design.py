"""Design matrices of tables, made the same way for fitting and for predicting."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pandas as pd

from spikeslab.errors import ArgumentValueError, quote
from spikeslab.tabular.table import DataTable, TableError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

MAX_LEVELS = 200
"""Largest number of different texts of a column that is encoded by 0/1 columns."""
LARGEST = 1e100  # the squares of larger numbers overflow
SHOWN = 5


@dataclass(frozen=True)
class Variable:
    """Column of the file, and the columns that encode it in the design matrix.

    Attributes:
        name: Name of the column in the file.
        levels: Texts with a 0/1 column each; empty for a column of numbers.
        baseline: Text without a 0/1 column, if the column has two texts only.
    """

    name: str
    levels: tuple[str, ...] = ()
    baseline: str | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the variable's columns in the design matrix."""
        return tuple(f"{self.name}={level}" for level in self.levels) or (self.name,)


@dataclass(frozen=True)
class Dropped:
    """Column that was left out, and the reason."""

    name: str
    reason: str


@dataclass(frozen=True)
class Encoding:
    """Encoding of the columns of a table in a design matrix.

    Attributes:
        variables: Columns that are used, in the order of the design matrix.
    """

    variables: tuple[Variable, ...]

    @property
    def columns(self) -> list[str]:
        """Names of the columns of the design matrix."""
        return [column for variable in self.variables for column in variable.columns]

    @property
    def text(self) -> list[str]:
        """Names of the columns of text."""
        return [variable.name for variable in self.variables if variable.levels]

    def slices(self) -> list[slice]:
        """Return the place of each variable's columns in the design matrix."""
        ends = np.cumsum([len(variable.columns) for variable in self.variables])
        return [slice(int(end) - len(v.columns), int(end)) for v, end in zip(self.variables, ends, strict=True)]

    def transform(self, table: DataTable) -> pd.DataFrame:
        """Return the design matrix of a table, whose columns may be in any order and among others.

        Raises:
            TableError: If a column is missing, or holds what the encoding does not know.
        """
        missing = [variable.name for variable in self.variables if variable.name not in table.frame]
        if missing:
            raise TableError(f"{table.name} lacks {_columns(missing)}, which the model uses.")
        used = table.frame[[variable.name for variable in self.variables]]
        _refuse_missing(table.name, used)
        texts = _texts(used.drop(columns=self.text))
        if texts:
            raise TableError(f"{table.name} has text in {_examples(texts)}, but the model was fitted to numbers.")
        out = np.empty((len(used), len(self.columns)))
        for variable, columns in zip(self.variables, self.slices(), strict=True):
            if not variable.levels:
                out[:, columns.start] = _numbers(used[variable.name])
                continue
            cells = used[variable.name].astype(str).to_numpy()
            known = [*variable.levels] if variable.baseline is None else [variable.baseline, *variable.levels]
            unseen = sorted(set(cells) - set(known))
            if unseen:
                raise TableError(
                    f"{table.name} has {quote(unseen, SHOWN)} in column {variable.name!r}, "
                    f"but the model knows only {quote(known, SHOWN)}."
                )
            for i, level in enumerate(variable.levels, start=columns.start):
                out[:, i] = cells == level
        large = [self.columns[j] for j in np.flatnonzero(~(np.abs(out) <= LARGEST).all(axis=0))]
        if large:
            raise TableError(f"{table.name} has infinite numbers, or numbers beyond {LARGEST:g}, in {_columns(large)}.")
        return pd.DataFrame(out, columns=pd.Index(self.columns, dtype=object), copy=False)

    def state(self) -> list[dict[str, Any]]:
        """Return the encoding in JSON's types."""
        return [
            {"name": v.name, **({"levels": list(v.levels), "baseline": v.baseline} if v.levels else {})}
            for v in self.variables
        ]

    @classmethod
    def from_state(cls, state: Sequence[Mapping[str, Any]]) -> Self:
        """Return the encoding that `state` returned."""
        return cls(tuple(Variable(v["name"], tuple(v.get("levels", ())), v.get("baseline")) for v in state))


@dataclass(frozen=True)
class Design:
    """Design matrix of a table.

    Attributes:
        X: Design matrix.
        encoding: Encoding of the table's columns in it.
        dropped: Columns that were left out.
    """

    X: pd.DataFrame
    encoding: Encoding
    dropped: tuple[Dropped, ...]


def make_design(table: DataTable, target: str, *, one_hot: bool = False, drop: Collection[str] = ()) -> Design:
    """Make the design matrix of all columns but the target.

    Columns without information are left out: empty columns, constant columns, copies of another column and, with
    ``one_hot``, texts that differ in every row.

    Args:
        table: Table with the target.
        target: Column that is not part of the design.
        one_hot: If True, encode a column of text by a group of 0/1 columns.
        drop: Further columns to leave out.

    Raises:
        ValueError: If values are missing, if there is text without ``one_hot``, or if nothing is left.
    """
    for name in drop:
        table.column(name, "drop")
        if name == target:
            raise ArgumentValueError("drop", "must not be the target", name)
    dropped = [Dropped(name, "on request") for name in drop]
    frame = table.frame.drop(columns=[target, *drop])
    for name, reason in _useless(frame).items():
        dropped.append(Dropped(name, reason))
    frame = frame.drop(columns=[column.name for column in dropped if column.name in frame])
    _refuse_missing(table.name, frame)
    texts = _texts(frame)
    if texts and not one_hot:
        raise TableError(
            f"{table.name} has text in {_examples(texts)}: "
            "encode it by 0/1 columns with {one_hot=True}, or leave it out with {drop}."
        )
    variables = []
    for name in frame.columns:
        if name not in texts:
            variables.append(Variable(name))
            continue
        cells = frame[name].astype(str)
        levels = sorted(cells.unique())
        if len(levels) == len(cells):
            dropped.append(Dropped(name, "a different text in every row"))
            continue
        _refuse_levels(table.name, name, cells, levels)
        variables.append(Variable(name, tuple(levels)) if len(levels) > 2 else Variable(name, (levels[1],), levels[0]))
    for name, twin in _copies(frame, [v.name for v in variables if not v.levels]).items():
        dropped.append(Dropped(name, f"the same as {twin!r}"))
    gone = {column.name for column in dropped}
    encoding = Encoding(tuple(variable for variable in variables if variable.name not in gone))
    if not encoding.variables:
        left_out = f" (left out: {quote(sorted(gone), SHOWN)})" if gone else ""
        raise TableError(f"{table.name} has no usable column besides the target {target!r}{left_out}.")
    names = encoding.columns
    if len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise TableError(f"{table.name} has columns named {quote(twice)}, which {{one_hot=True}} needs: rename them.")
    return Design(encoding.transform(table), encoding, tuple(dropped))


def _useless(frame: pd.DataFrame) -> dict[str, str]:
    """Return the names of empty and constant columns, with the reason to leave them out."""
    reasons = {}
    for name in frame.columns:
        cells = frame[name]
        if cells.isna().all():
            reasons[name] = "no values"
        elif _is_numeric(cells):
            numbers = cells.to_numpy()
            if (numbers == numbers[0]).all():
                reasons[name] = "constant"
        elif not cells.isna().any() and (cells.astype(str) == str(cells.iloc[0])).all():
            reasons[name] = "constant"
    return reasons


def _copies(frame: pd.DataFrame, names: Sequence[str]) -> dict[str, str]:
    """Return the names of columns that are equal to an earlier one, with its name."""
    first: dict[bytes, str] = {}
    copies = {}
    for name in names:
        twin = first.setdefault(_numbers(frame[name]).tobytes(), name)
        if twin != name:
            copies[name] = twin
    return copies


def _refuse_missing(source: str, frame: pd.DataFrame) -> None:
    counts = frame.isna().sum()
    counts = counts[counts > 0].sort_values(ascending=False, kind="stable")
    if len(counts):
        listed = [f"{name!r} ({count:,})" for name, count in counts.items()]
        raise TableError(
            f"{source} has missing values in {_shortened(listed)} of {len(frame):,} rows: fill them in, or leave out "
            "those rows or columns. Empty cells and words such as NA, NaN, None and null are missing values."
        )


def _texts(frame: pd.DataFrame) -> dict[str, str]:
    """Return the names of the columns that are not numbers, with an example of their text."""
    examples = {}
    for name in frame.columns:
        if not _is_numeric(frame[name]):
            cells = frame[name].astype(str)
            words = cells[pd.to_numeric(cells, errors="coerce").isna()]
            examples[name] = str((words if len(words) else cells).iloc[0])
    return examples


def _refuse_levels(source: str, name: str, cells: pd.Series, levels: Sequence[str]) -> None:
    words = cells[pd.to_numeric(cells, errors="coerce").isna()]
    if len(words) < len(cells) / 2:
        what = f"but for {len(words):,} of {len(cells):,} rows, such as {words.iloc[0]!r}" if len(words) else "as text"
        raise TableError(
            f"{source} has numbers in column {name!r} {what}: make them all numbers, or leave it out with {{drop}}."
        )
    if len(levels) > MAX_LEVELS:
        raise TableError(
            f"{source} has {len(levels):,} different texts in column {name!r}, but {{one_hot=True}} takes at most "
            f"{MAX_LEVELS}: leave it out with {{drop}}."
        )


def _is_numeric(cells: pd.Series) -> bool:
    kind = cells.dtype
    return pd.api.types.is_bool_dtype(kind) or (
        pd.api.types.is_numeric_dtype(kind) and not pd.api.types.is_complex_dtype(kind)
    )


def _numbers(cells: pd.Series) -> Floats:
    return cells.to_numpy(dtype=np.float64, na_value=np.nan)


def _shortened(listed: Sequence[str]) -> str:
    more = len(listed) - SHOWN
    return ", ".join(listed[:SHOWN]) + (f" and {more:,} more columns" if more > 0 else "")


def _columns(names: Sequence[str]) -> str:
    return f"the {'columns' if len(names) > 1 else 'column'} {quote(names, SHOWN)}"


def _examples(texts: Mapping[str, str]) -> str:
    listed = [f"{name!r} (such as {example!r})" for name, example in texts.items()]
    return f"the {'columns' if len(listed) > 1 else 'column'} {_shortened(listed)}"
