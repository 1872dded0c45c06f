"""Numbers of a run's log: a column for each name, in a tenth of the memory of the records."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

COLUMN_COST, VALUE_COST = 600, 16
"""Bytes that an empty column and a number in it take at most."""


@dataclass(frozen=True)
class Series:
    """Numbers recorded at steps of a run."""

    steps: Floats
    values: Floats

    def __len__(self) -> int:
        return len(self.values)

    def last_third(self) -> Series:
        """Return the last third of the steps, in which a chain should be stationary."""
        if not len(self):
            return self
        return self.since(self.steps[0] + 2.0 * (self.steps[-1] - self.steps[0]) / 3.0)

    def since(self, step: float) -> Series:
        """Return the numbers from a step on."""
        end = self.steps >= step
        return Series(self.steps[end], self.values[end])


class _Column:
    """Numbers under one name, and the places of their records in the log, of which most follow each other.

    Attributes:
        add: Function that adds a number, of the record at ``due``.
        due: Place after that of the last number.
    """

    __slots__ = ("_firsts", "_starts", "_values", "add", "due")

    def __init__(self) -> None:
        self._firsts, self._starts, self._values = array("I"), array("I"), array("d")
        self.add = self._values.append
        self.due = -1

    def jump(self, place: int) -> None:
        """Go on at another place than that after the last number."""
        self._firsts.append(place)
        self._starts.append(len(self._values))
        self.due = place

    def read(self, kept: NDArray[np.bool_]) -> tuple[NDArray[np.int64], Floats]:
        """Return the places and numbers of the records that are kept."""
        values = np.frombuffer(self._values)
        firsts, starts = (np.array(each, dtype=np.int64) for each in (self._firsts, self._starts))
        places = np.arange(len(values)) + np.repeat(firsts - starts, np.diff(starts, append=len(values)))
        mask = kept[places]
        return places[mask], values[mask]


@dataclass
class _Node:
    """Columns of the numbers of a record, or of a mapping or list in it, and nodes of those that it holds."""

    columns: dict[str, _Column] = field(default_factory=dict)
    children: dict[str, _Node] = field(default_factory=dict)

    def add(self, record: Mapping[str, Any], place: int) -> int:
        """Add the numbers of a record; return the bytes that they take at most."""
        taken, columns = VALUE_COST * len(record), self.columns
        for name, value in record.items():
            kind = type(value)
            if kind is float or kind is int:
                column = columns.get(name)
                if column is None:
                    column = columns[name] = _Column()
                    taken += COLUMN_COST
                if column.due != place:
                    column.jump(place)
                column.due = place + 1
                try:
                    column.add(value)
                except OverflowError:  # an integer that no float holds
                    column.add(math.inf if value > 0 else -math.inf)
            elif kind is dict or kind is list:
                if name not in self.children:
                    self.children[name] = _Node()
                    taken += COLUMN_COST
                parts = value if kind is dict else {str(index): part for index, part in enumerate(value)}
                taken += self.children[name].add(parts, place)
        return taken


@dataclass(frozen=True)
class Traces:
    """Numbers of the records of a log.

    >>> traces = Traces.of([{"step": 1, "delta": {"fc1": 0.5}}, {"step": 2, "loss": 0.25, "delta": {"fc1": 0.75}}])
    >>> traces.series("loss").values.tolist(), traces.layers("delta")["fc1"].values.tolist()
    ([0.25], [0.5, 0.75])

    Attributes:
        all_steps: Steps of the records in the order of the log.
        kept: Mask of the records that count.
    """

    all_steps: Floats
    kept: NDArray[np.bool_]
    _root: _Node

    @classmethod
    def of(cls, records: Iterable[Mapping[str, Any]], most_bytes: float = math.inf) -> Traces:
        """Return the numbers of records; a record counts if no later one has its step or a lower one.

        Raises:
            MemoryError: If the numbers might take more bytes than allowed.
        """
        root, steps, taken = _Node(), array("d"), 0
        for place, record in enumerate(records):
            steps.append(record["step"])
            taken += root.add(record, place)
            if taken > most_bytes:
                raise MemoryError
        found = np.array(steps)
        later = np.minimum.accumulate(found[::-1])[::-1]
        kept = np.ones(len(found), dtype=bool)
        kept[:-1] = found[:-1] < later[1:]
        return cls(found, kept, root)

    def __len__(self) -> int:
        return int(self.kept.sum())

    @property
    def steps(self) -> Floats:
        """Steps of the records that count."""
        return self.all_steps[self.kept]

    def series(self, *keys: str) -> Series:
        """Return the numbers under ``keys``, such as ``"evaluation", "accuracy"``, including NaN.

        Those of a list are under ``"0"``, ``"1"``, ...
        """
        *path, name = keys
        node = self._node(path)
        return self._series(node.columns[name]) if name in node.columns else Series(np.empty(0), np.empty(0))

    def layers(self, key: str) -> dict[str, Series]:
        """Return the numbers of each layer under ``key``, such as ``"delta"``."""
        return {name: self._series(column) for name, column in self._node([key]).columns.items()}

    def changes(self, key: str) -> Traces:
        """Return the records in which a number under ``key`` is not that of the record before, or has none there."""
        order = np.cumsum(self.kept)
        new = np.zeros_like(self.kept)
        for column in self._node([key]).columns.values():
            places, values = column.read(self.kept)
            repeated = (np.diff(order[places]) == 1) & (values[1:] == values[:-1])
            new[places[:1]] = True
            new[places[1:][~repeated]] = True
        return replace(self, kept=new)

    def _node(self, path: Iterable[str]) -> _Node:
        node = self._root
        for name in path:
            node = node.children.get(name, _Node())
        return node

    def _series(self, column: _Column) -> Series:
        places, values = column.read(self.kept)
        return Series(self.all_steps[places], values)
