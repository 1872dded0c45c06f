"""Tables in Markdown, in JSON with raw numbers and their origin, and for a terminal."""

from __future__ import annotations

import json
import math
import platform
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from spikeslab.errors import quote
from spikeslab.files import write_atomically

if TYPE_CHECKING:
    from rich.table import Table as RichTable

MISSING = "–"
METRICS = {
    "accuracy": ("acc. %", 100.0, ".2f"),
    "nll": ("NLL", 1.0, ".4f"),
    "ece": ("ECE %", 100.0, ".2f"),
    "rmse": ("RMSE", 1.0, ".4g"),
    "mae": ("MAE", 1.0, ".4g"),
    "loss": ("loss", 1.0, ".4g"),
    "metric": ("metric", 1.0, ".4g"),
}
"""Heading, factor and format of the numbers of an evaluation."""
Item = TypeVar("Item")


def scale_metric(name: str, numbers: Mapping[str, Any]) -> float | None:
    """Return a number of an evaluation as a table shows it, or ``None`` if it is not there or not finite.

    >>> scale_metric("accuracy", {"accuracy": 0.5}), scale_metric("nll", {"nll": None})
    (50.0, None)
    """
    # The NLL of a network that gives the right class no chance is infinite, which JSON lacks.
    value = numbers.get(name)
    return METRICS[name][1] * value if isinstance(value, (int, float)) and math.isfinite(value) else None


@dataclass(frozen=True)
class Estimate:
    """Mean over repetitions, shown as "mean ± standard error".

    Attributes:
        mean: The mean.
        error: Its standard error; ``None`` after one repetition.
    """

    mean: float
    error: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> Estimate:
        """Compute mean and standard error of independent repetitions.

        >>> Estimate.of([1.0, 2.0, 3.0])
        Estimate(mean=2.0, error=0.5773502691896258)
        """
        return cls(mean(values), stdev(values) / len(values) ** 0.5 if len(values) > 1 else None)

    def __format__(self, spec: str) -> str:
        return format(self.mean, spec) + ("" if self.error is None else f" ± {format(self.error, spec.lstrip('+'))}")


Cell: TypeAlias = str | int | float | Estimate | None


@dataclass(frozen=True)
class Column:
    """Column of a table.

    Attributes:
        key: Name of the cells in the rows and in the JSON file.
        title: Heading, with the unit where there is one.
        spec: Format specification such as ``".2f"`` or ``","``.
    """

    key: str
    title: str
    spec: str = ""


@dataclass(frozen=True)
class Provenance:
    """Command and seed behind the numbers of a table.

    Attributes:
        command: Command that makes them again, as :func:`command_line` spells it; several commands are lines.
        seed: Seed of the first run.
    """

    command: str
    seed: int

    def record(self) -> dict[str, Cell]:
        """Return the command, the seed, and the versions of spikeslab, torch and Python."""
        versions = {name: version(name) for name in ("spikeslab", "torch")}
        return {"command": self.command, "seed": self.seed, **versions, "python": platform.python_version()}


def command_line(*words: object, **options: object) -> str:
    """Return the ``spikeslab`` command that a user types to repeat a run, quoted for a shell.

    An option that is ``None`` or ``False`` is left out, ``True`` makes a flag, the parts of a tuple have commas between
    them, and a list repeats its option.

    >>> command_line("reproduce", "mnist", methods=("sghmc", "sghmc-sa"), seeds=2, augment=True, data_dir=None)
    'spikeslab reproduce mnist --methods sghmc,sghmc-sa --seeds 2 --augment'
    >>> command_line("compress", "my recipe.py", set=["lr=0.1", "samples=5"])
    "spikeslab compress 'my recipe.py' --set lr=0.1 --set samples=5"
    """
    parts = ["spikeslab", *map(str, words)]
    for name, value in options.items():
        option = f"--{name.replace('_', '-')}"
        for each in value if isinstance(value, list) else [value]:
            if each is True:
                parts.append(option)
            elif each is not None and each is not False:
                parts += [option, ",".join(map(str, each)) if isinstance(each, tuple) else str(each)]
    return shlex.join(parts)


class Table:
    """Rows under columns, with a title and notes.

    >>> table = Table("Errors", [Column("method", "Method"), Column("mse", "MSE", ".2f")], [{"method": "SA", "mse": 3}])
    >>> print(table.markdown())
    ## Errors
    <BLANKLINE>
    | Method |  MSE |
    |:-------|-----:|
    | SA     | 3.00 |
    <BLANKLINE>

    Args:
        title: Heading of the table.
        columns: The columns, in order.
        rows: One mapping for each row, with a cell for every column; ``None`` is a number that does not exist.
        notes: Sentences below the table.
        raw: Numbers behind the cells, for the JSON file alone.

    Raises:
        ValueError: If a row lacks a cell or has one that no column shows.
    """

    def __init__(
        self,
        title: str,
        columns: Sequence[Column],
        rows: Sequence[Mapping[str, Cell]],
        notes: Sequence[str] = (),
        raw: Mapping[str, Any] | None = None,
    ) -> None:
        keys = [column.key for column in columns]
        for row in rows:
            if set(row) != set(keys):
                raise ValueError(f"rows must have the cells {quote(keys)}, but got {quote(row)}.")
        self.title = title
        self.columns = tuple(columns)
        self.rows = [{key: row[key] for key in keys} for row in rows]
        self.notes = tuple(notes)
        self.raw = raw

    @classmethod
    def build(
        cls,
        title: str,
        items: Iterable[Item],
        columns: Mapping[Column, Callable[[Item], Cell]],
        notes: Sequence[str] = (),
        raw: Mapping[str, Any] | None = None,
    ) -> Table:
        """Return a table with one row for each item, whose cells are functions of the item.

        >>> table = Table.build("Squares", [1, 2], {Column("x", "x"): lambda x: x, Column("y", "x²"): lambda x: x**2})
        >>> table.rows
        [{'x': 1, 'y': 1}, {'x': 2, 'y': 4}]
        """
        rows = [{column.key: cell(item) for column, cell in columns.items()} for item in items]
        return cls(title, list(columns), rows, notes, raw)

    def markdown(self) -> str:
        """Return the table in Markdown, with aligned columns."""
        lines = [[column.title for column in self.columns], *self.lines()]
        widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
        sides = [">" if right else "<" for right in self.flush_right()]
        rule = [
            f"{'-' * (w + 1)}:" if side == ">" else f":{'-' * (w + 1)}" for side, w in zip(sides, widths, strict=True)
        ]
        template = "| " + " | ".join(f"{{:{side}{w}}}" for side, w in zip(sides, widths, strict=True)) + " |"
        head, *body = [template.format(*line) for line in lines]
        notes = [line for note in self.notes for line in (note, "")]
        return "\n".join([f"## {self.title}", "", head, f"|{'|'.join(rule)}|", *body, "", *notes])

    def json(self, run: Provenance) -> str:
        """Return the raw numbers by column key, and their origin, as JSON."""
        record = {
            "title": self.title,
            "columns": {column.key: column.title for column in self.columns},
            "rows": self.rows,
            "notes": self.notes,
            **({} if self.raw is None else {"raw": self.raw}),
            "run": run.record(),
        }
        return json.dumps(record, indent=2, ensure_ascii=False, allow_nan=False, default=asdict) + "\n"

    def write(self, stem: Path, run: Provenance) -> list[Path]:
        """Write ``stem.md`` and ``stem.json``, replacing older files, and return both paths."""
        contents = self.encode(stem.name, run)
        for name, content in contents.items():
            write_atomically(stem.with_name(name), content)
        return [stem.with_name(name) for name in contents]

    def encode(self, stem: str, run: Provenance) -> dict[str, bytes]:
        """Return the contents of ``stem.md`` and ``stem.json``, by the names of the files."""
        block = "\n" in run.command
        command = f"\n\n```bash\n{run.command}\n```\n\nThe" if block else f" `{run.command}`; the"
        made = f"Made by{command} raw numbers are in `{stem}.json`.\n"
        texts = {".md": f"{self.markdown()}\n{made}", ".json": self.json(run)}
        return {Path(stem).with_suffix(suffix).name: text.encode() for suffix, text in texts.items()}

    def rich(self) -> RichTable:
        """Return the table for a terminal."""
        from rich import box
        from rich.table import Table as RichTable

        table = RichTable(title=self.title, box=box.SIMPLE_HEAD, title_justify="left", title_style="bold")
        for column, right in zip(self.columns, self.flush_right(), strict=True):
            table.add_column(column.title, justify="right" if right else "left", overflow="fold")
        for line in self.lines():
            table.add_row(*line)
        return table

    def lines(self) -> list[list[str]]:
        """Return the text of each cell, row by row."""
        return [[_format_cell(row[column.key], column.spec) for column in self.columns] for row in self.rows]

    def flush_right(self) -> list[bool]:
        """Return True for each column that holds numbers only."""
        return [not any(isinstance(row[column.key], str) for row in self.rows) for column in self.columns]


def _format_cell(cell: Cell, spec: str) -> str:
    if cell is None:
        return MISSING
    return cell if isinstance(cell, str) else format(cell, spec)
