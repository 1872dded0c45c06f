"""Design matrices of tables, made the same way for fitting and for predicting."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pandas as pd

from spikeslab.errors import ArgumentValueError, mark, quote
from spikeslab.tabular.table import DataTable, TableError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

MAX_LEVELS = 200
"""Largest number of different texts of a column that is encoded by 0/1 columns."""
LARGEST = 1e100  # the squares of larger numbers overflow
SHOWN, LONGEST = 5, 80  # names in a message, and characters of an example


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
            raise TableError(f"{table.name} lacks {_list_columns(missing)}, which the model uses.")
        used = table.frame[[variable.name for variable in self.variables]]
        _refuse_missing(table.name, used)
        numbers = _leave_out(used, self.text)
        texts = _find_texts(numbers)
        if texts:
            raise TableError(f"{table.name} has text in {_list_texts(texts)}, but the model was fitted to numbers.")
        names, slices = self.columns, self.slices()
        out = np.empty((len(used), len(names)))
        out[:, [s.start for v, s in zip(self.variables, slices, strict=True) if not v.levels]] = _to_matrix(numbers)
        for variable, columns in zip(self.variables, slices, strict=True):
            if not variable.levels:
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
        large = [names[j] for j in np.flatnonzero(~(np.abs(out) <= LARGEST).all(axis=0))]
        if large:
            listed = _list_columns(large)
            raise TableError(f"{table.name} has infinite numbers, or numbers beyond {LARGEST:g}, in {listed}.")
        return pd.DataFrame(out, columns=pd.Index(names, dtype=object), copy=False)

    def state(self) -> list[str | dict[str, Any]]:
        """Return the encoding in JSON's types; a column of numbers is its name alone, for there may be a million."""
        return [
            {"name": v.name, "levels": list(v.levels), "baseline": v.baseline} if v.levels else v.name
            for v in self.variables
        ]

    @classmethod
    def from_state(cls, state: Sequence[str | Mapping[str, Any]]) -> Self:
        """Return the encoding that `state` returned; early ones had an object for every column."""
        objects = ({"name": v} if isinstance(v, str) else v for v in state)
        return cls(tuple(Variable(v["name"], tuple(v.get("levels", ())), v.get("baseline")) for v in objects))


@dataclass(frozen=True)
class Design:
    """Design matrix of a table.

    Attributes:
        X: Design matrix.
        encoding: Encoding of the table's columns in it.
        dropped: Reasons why columns were left out, by name.
    """

    X: pd.DataFrame
    encoding: Encoding
    dropped: dict[str, str]


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
    dropped = dict.fromkeys(drop, "on request")
    frame = _leave_out(table.frame, [target, *drop])
    useless = _find_useless(frame)
    dropped |= useless
    frame = _leave_out(frame, useless)
    _refuse_missing(table.name, frame)
    texts = _find_texts(frame)
    if texts and not one_hot:
        raise TableError(
            f"{table.name} has text in {_list_texts(texts)}: "
            f"encode it by 0/1 columns with {mark('one_hot', True)}, or leave it out with {mark('drop')}."
        )
    levels: dict[str, list[str]] = {}
    for name in texts:
        cells = frame[name].astype(str)
        levels[name] = sorted(cells.unique())
        if len(levels[name]) == len(cells):
            dropped[name] = "a different text in every row"
        else:
            _check_levels(table.name, name, cells, levels[name])
    dropped |= _find_copies(_leave_out(frame, texts))
    encoding = Encoding(tuple(_make_variable(name, levels.get(name)) for name in frame.columns if name not in dropped))
    if not encoding.variables:
        left_out = f" (left out: {quote(sorted(dropped), SHOWN)})" if dropped else ""
        raise TableError(f"{table.name} has no usable column besides the target {target!r}{left_out}.")
    twice = sorted(name for name, count in Counter(encoding.columns).items() if count > 1)
    if twice:
        raise TableError(
            f"{table.name} has columns named {quote(twice)}, which {mark('one_hot', True)} needs: rename them."
        )
    return Design(encoding.transform(table), encoding, dropped)


def _make_variable(name: str, levels: Sequence[str] | None) -> Variable:
    if levels is None:
        return Variable(name)
    return Variable(name, tuple(levels)) if len(levels) > 2 else Variable(name, (levels[1],), levels[0])


def _leave_out(frame: pd.DataFrame, names: Collection[str]) -> pd.DataFrame:
    """Return the other columns; ``frame.drop`` takes seconds if there are many."""
    return frame.loc[:, ~frame.columns.isin([*names])] if names else frame


def _find_useless(frame: pd.DataFrame) -> dict[str, str]:
    """Return the names of empty and constant columns, in their order, with the reason to leave them out."""
    reasons = dict.fromkeys(frame.columns[frame.isna().all()], "no values")
    numeric = _is_numeric(frame)
    numbers = _to_matrix(frame.loc[:, numeric])
    reasons |= dict.fromkeys(frame.columns[numeric][(numbers == numbers[:1]).all(axis=0)], "constant")
    for name in frame.columns[~numeric]:
        if not frame[name].isna().any() and frame[name].astype(str).nunique() == 1:
            reasons[name] = "constant"
    return {name: reasons[name] for name in frame.columns if name in reasons}


def _find_copies(frame: pd.DataFrame) -> dict[str, str]:
    """Return the reason to leave out each column of numbers that is equal to an earlier one."""
    first: dict[bytes, str] = {}
    columns = zip(frame.columns, np.ascontiguousarray(_to_matrix(frame).T), strict=True)
    twins = {name: first.setdefault(column.tobytes(), name) for name, column in columns}
    return {name: f"the same as {twin!r}" for name, twin in twins.items() if twin != name}


def _refuse_missing(source: str, frame: pd.DataFrame) -> None:
    counts = frame.isna().sum()
    counts = counts[counts > 0].sort_values(ascending=False, kind="stable")
    if len(counts):
        listed = [f"{name!r} ({count:,})" for name, count in counts.items()]
        raise TableError(
            f"{source} has missing values in {_shorten(listed)} of {len(frame):,} rows: fill them in, or leave out "
            "those rows or columns. Empty cells and words such as NA, NaN, None and null are missing values."
        )


def _find_texts(frame: pd.DataFrame) -> dict[str, str]:
    """Return the names of the columns that are not numbers, with an example of their text."""
    examples = {}
    for name in frame.columns[~_is_numeric(frame)]:
        cells = frame[name].astype(str)
        words = _find_words(cells)
        examples[name] = str((words if len(words) else cells).iloc[0])
    return examples


def _find_words(cells: pd.Series) -> pd.Series:
    return cells[pd.to_numeric(cells, errors="coerce").isna()]


def _check_levels(source: str, name: str, cells: pd.Series, levels: Sequence[str]) -> None:
    words = _find_words(cells)
    if len(words) < len(cells) / 2:
        what = f"but for {len(words):,} of {len(cells):,} rows, such as {words.iloc[0]!r}" if len(words) else "as text"
        raise TableError(
            f"{source} has numbers in column {name!r} {what}: make them all numbers, or leave it out with "
            f"{mark('drop')}."
        )
    if len(levels) > MAX_LEVELS:
        raise TableError(
            f"{source} has {len(levels):,} different texts in column {name!r}, but {mark('one_hot', True)} takes at "
            f"most {MAX_LEVELS}: leave it out with {mark('drop')}."
        )


def _is_numeric(frame: pd.DataFrame) -> NDArray[np.bool_]:
    """Return a mask of the columns of numbers and booleans."""
    kinds = {kind: pd.api.types.is_numeric_dtype(kind) and kind.kind != "c" for kind in set(frame.dtypes)}
    return np.array([kinds[kind] for kind in frame.dtypes], dtype=bool)


def _to_matrix(frame: pd.DataFrame) -> Floats:
    return frame.to_numpy(dtype=np.float64, na_value=np.nan)


def _shorten(listed: Sequence[str]) -> str:
    more = len(listed) - SHOWN
    return ", ".join(listed[:SHOWN]) + (f" and {more:,} more columns" if more > 0 else "")


def _list_columns(names: Sequence[str]) -> str:
    return f"the {'columns' if len(names) > 1 else 'column'} {quote(names, SHOWN)}"


def _list_texts(texts: Mapping[str, str]) -> str:
    listed = [f"{name!r} (such as {example[:LONGEST]!r})" for name, example in texts.items()]
    return f"the {'columns' if len(listed) > 1 else 'column'} {_shorten(listed)}"
