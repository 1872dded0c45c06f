"""Tables from files: comma-, semicolon- or tab-separated text, also gzipped, and parquet.

The notes of a table say what the reader decided for itself: another separator, a decimal comma, a column of row names.
A file that it cannot read raises a `TableError` of one sentence.
"""

from __future__ import annotations

import csv
import gzip
import re
import zlib
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from io import StringIO
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from spikeslab.errors import ArgumentValueError, SpikeSlabError, first_line, mark, pluralize, quote

if TYPE_CHECKING:
    from _csv import Reader
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from typing import IO

    from numpy.typing import NDArray

KINDS = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".parquet")
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars"}
DECIMAL_COMMA = re.compile(r"\s*[+-]?\d*,\d+([eE][+-]?\d+)?\s*|\s*[+-]?\d+\s*")
LONG_INTEGER = re.compile(r"\s*[+-]?\d{400,}\s*")  # beyond the largest float
QUOTED = re.compile(r'(?:^|(?<=[,;|\t\r\n])) *"(?:[^"]|"")*"')
HEAD = 10  # lines that decide about the separator
WIDE = 20_000  # columns from which a table is read row by row
MAX_WORDS, PASSES = 1000, 20  # columns of such a table that are not numbers, and passes over the file to find them
LONGEST = 2**31 - 1  # characters of a field
MARKS = {b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}  # byte order marks, as spreadsheets write them


class TableError(SpikeSlabError, ValueError):
    """A table cannot be read, or does not fit its use."""


@dataclass(frozen=True)
class DataTable:
    """Content of a file.

    Attributes:
        name: File name, for messages.
        frame: Columns, as numbers where all cells are numbers and otherwise as text.
        notes: Sentences about what the reader decided.
    """

    name: str
    frame: pd.DataFrame
    notes: tuple[str, ...] = ()

    def column(self, name: str, argument: str) -> pd.Series:
        """Return a column by name; an error about `argument` names the closest columns."""
        if name not in self.frame:
            raise ArgumentValueError(argument, f"must be a column of {self.name}", name, self._hint(name))
        return self.frame[name]

    def _hint(self, name: str) -> str:
        names = list(self.frame.columns)
        if all(_is_number(other) for other in names):
            return f"the first line of {self.name} must hold the names of the columns, and holds only numbers"
        folded = {other.casefold(): other for other in reversed(names)}
        close = [folded[match] for match in get_close_matches(name.casefold(), folded, n=3)]
        return f"its columns include {quote(close)}" if close else f"its columns are {quote(names)}"


def read_table(path: Path, text: Collection[str] = ()) -> DataTable:
    """Read a table from a file.

    Args:
        path: File whose name ends in .csv, .tsv, .csv.gz, .tsv.gz or .parquet.
        text: Names of columns whose cells are text even if they look like numbers.

    Returns:
        The table, with at least one row.

    Raises:
        TableError: If there is no such file or it is not a table.
    """
    kind = next((kind for kind in KINDS if path.name.lower().endswith(kind)), None)
    if not path.exists():
        raise TableError(f"{mark('path')} must be a table, but there is no file {path}.")
    if path.is_dir():
        raise TableError(f"{mark('path')} must be a table, but {path} is a folder.")
    if kind is None:
        raise TableError(f"{path} is of an unknown kind: its name must end in {', '.join(KINDS[:-1])} or {KINDS[-1]}.")
    try:
        if path.stat().st_size == 0:
            raise TableError(f"{path.name} is empty.")
        table = _read_parquet(path) if kind == ".parquet" else _read_text(path, kind, {*text})
    except OSError as error:
        raise TableError(f"{path} cannot be read: {error.strerror or error}.") from error
    repeated = [name for name, count in Counter(table.frame.columns).items() if count > 1]
    if repeated:
        raise TableError(f"{path.name} has several columns of the same name: {quote(repeated)}.")
    if table.frame.empty:
        raise TableError(f"{path.name} has a header but no rows.")
    return table


def _read_parquet(path: Path) -> DataTable:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise TableError("Parquet files need the package pyarrow: pip install 'spikeslab[parquet]'.") from error
    try:
        columns = parquet.read_table(path)
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise TableError(f"{path.name} is not a parquet file that can be read.") from error
    frame = pd.concat([columns.column(i).to_pandas() for i in range(columns.num_columns)], axis=1, ignore_index=True)
    for i in frame:
        # Decimals, and whatever else is no text, may be numbers.
        if pd.api.types.is_object_dtype(frame[i]) and not any(isinstance(cell, str) for cell in frame[i]):
            frame[i] = _as_numbers(frame[i])
    frame.columns = pd.Index([str(name) for name in columns.column_names])
    # pandas writes the labels of rows as columns with such names.
    rows = [name for name in frame.columns if name.startswith("__index_level_")]
    notes = (f"Left out the row labels {quote(rows)}.",) if rows else ()
    return DataTable(path.name, frame.drop(columns=rows), notes)


def _read_text(path: Path, kind: str, text: Collection[str]) -> DataTable:
    zipped, usual = kind.endswith(".gz"), "\t" if ".tsv" in kind else ","
    try:
        with gzip.open(path) if zipped else path.open("rb") as file:
            head = file.read(1 << 16)
        encoding = MARKS.get(head[:2], "utf-8-sig")
        if b"\0" in head and encoding != "utf-16":
            raise TableError(f"{path.name} is not a text file.")
        separator, header = _read_layout(path, zipped, encoding, usual)
        options: dict[str, Any] = {
            "skipinitialspace": True,
            "index_col": False,
            "header": 0,
            "names": range(len(header)),
            "low_memory": False,
            "dtype": {i: str for i, name in enumerate(header) if name in text},
        }
        frame, decimal_comma = None, False
        if len(header) >= WIDE:
            frame = _read_wide(path.name, lambda: _open_rows(path, zipped, encoding, separator), options)
        if frame is None:
            options |= {"sep": separator, "encoding": encoding, "compression": "gzip" if zipped else None}
            frame = pd.read_csv(path, **options)
            decimal_comma = separator == ";" and _has_decimal_commas(frame)
            if decimal_comma:
                frame = pd.read_csv(path, **options, decimal=",")
    except UnicodeError as error:
        raise TableError(f"{path.name} is not UTF-8 text: save it with this encoding.") from error
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise TableError(f"{path.name} is not a gzip file, or is cut off.") from error
    except pd.errors.EmptyDataError:
        frame, decimal_comma = pd.DataFrame(columns=range(len(header))), False
    except (pd.errors.ParserError, csv.Error) as error:
        raise TableError(f"{path.name} is not a table: {_reason(error)}.") from error
    notes = []
    if separator != usual:
        decimals = ", with decimal commas" if decimal_comma else ""
        notes.append(f"The fields are separated by {SEPARATORS[separator]}{decimals}.")
    for i in frame.select_dtypes(exclude=["number", "bool"]).columns.difference(options["dtype"]):
        cells = frame[i]
        numbers = _as_numbers(cells)  # integers of more than 64 bits
        if numbers is not cells:
            frame[i] = numbers
    frame.columns = pd.Index([name or f"column {i + 1}" for i, name in enumerate(header)])
    if not header[0] and len(header) > 1 and frame.iloc[:, 0].is_unique:
        frame = frame.iloc[:, 1:]
        notes.append("Left out the first column, which has no name and a different value in every row.")
    return DataTable(path.name, frame, tuple(notes))


@contextmanager
def _open_rows(path: Path, zipped: bool, encoding: str, separator: str) -> Iterator[Reader]:
    limit = csv.field_size_limit(LONGEST)
    try:
        with _open_text(path, zipped, encoding) as file:
            yield csv.reader(file, delimiter=separator, skipinitialspace=True)
    finally:
        csv.field_size_limit(limit)


def _open_text(path: Path, zipped: bool, encoding: str) -> IO[str]:
    return gzip.open(path, "rt", encoding=encoding, newline="") if zipped else path.open(encoding=encoding, newline="")


def _read_layout(path: Path, zipped: bool, encoding: str, usual: str) -> tuple[str, list[str]]:
    """Return the separator and the names in the header: the separator that makes most columns of the first lines."""
    with _open_text(path, zipped, encoding) as file:
        text = "".join(islice(file, HEAD))
    lines = [line for line in re.split(r"[\r\n]+", QUOTED.sub("", text)) if line]

    def fitness(separator: str) -> tuple[bool, int]:
        widths = [line.count(separator) + 1 for line in lines]
        return max(widths) == min(widths) > 1, widths[0]

    separators = sorted(SEPARATORS, key=lambda separator: separator != usual)
    separator = max(separators, key=fitness) if lines else usual  # the usual one where several are as good
    with _open_rows(path, zipped, encoding, separator) as rows:
        header, *others = [row for row in islice(rows, HEAD) if row] or [[]]
    if not header:
        raise TableError(f"{path.name} is empty.")
    for line, row in enumerate(others, start=2):
        _check_width(path.name, len(header), row, line)
    return separator, [name.strip() for name in header]


def _check_width(name: str, width: int, row: Sequence[str], line: int) -> None:
    if len(row) != width:
        raise TableError(
            f"{name} is not a table: its header has {pluralize(width, 'field')}, but its line {line} has {len(row)}."
        )


def _read_wide(
    name: str, open_rows: Callable[[], AbstractContextManager[Reader]], options: dict[str, Any]
) -> pd.DataFrame | None:
    """Read a table of many columns row by row; pandas does it column by column, at a cost for each.

    Args:
        name: File name, for messages.
        open_rows: Function that opens the rows of the file, the header first.
        options: Options of ``pandas.read_csv`` for the columns that are not all numbers.

    Returns:
        The table, or ``None`` if pandas should read it, because many columns are not all numbers.
    """
    words = set(options["dtype"])
    for _ in range(PASSES):
        order, texts = sorted(words), []
        numbers: list[NDArray[np.float64]] = []
        with open_rows() as rows:
            width = len(next(row for row in rows if row))
            for row in rows:
                if not row:
                    continue
                _check_width(name, width, row, rows.line_num)
                texts.append([row[i] for i in order])
                for i in order:
                    row[i] = "0"
                try:
                    numbers.append(np.fromiter(map(float, row), np.float64, width))
                except ValueError:
                    numbers = []
                if not numbers or "_" in "".join(row):  # Python's float takes 1_000, which is text
                    words |= {i for i, cell in enumerate(row) if not _is_number(cell)}
                    break
        if len(words) == len(order):
            others = [i for i in range(width) if i not in words]
            frame = pd.DataFrame(np.array(numbers).reshape(-1, width)[:, others], columns=others)
            if not words:
                return frame
            buffer = StringIO()
            csv.writer(buffer).writerows([order, *texts])
            buffer.seek(0)
            rest: Any = pd.read_csv(buffer, **options | {"names": order})
            return frame.join(rest)[[*range(width)]]
        if len(words) > MAX_WORDS:
            break
    return None


def _has_decimal_commas(frame: pd.DataFrame) -> bool:
    texts = (frame[name].dropna() for name in frame if not pd.api.types.is_numeric_dtype(frame[name]))
    return any(
        len(cells)
        and cells.astype(str).str.contains(",").any()
        and cells.astype(str).str.fullmatch(DECIMAL_COMMA).all()
        for cells in texts
    )


def _as_numbers(cells: pd.Series) -> pd.Series:
    """Return the cells as numbers if all of them are."""
    try:
        numbers = pd.to_numeric(cells, errors="coerce")
    except OverflowError:  # integers beyond the largest float: as text they are infinite
        numbers = pd.to_numeric(cells.astype(str).where(cells.notna()), errors="coerce")
    except (TypeError, ValueError):  # lists and the like
        return cells
    texts = cells[numbers.isna() & cells.notna()]
    # Of more than 4,300 digits Python makes no integer.
    if not all(isinstance(text, str) and LONG_INTEGER.fullmatch(text) for text in texts):
        return cells
    numbers = numbers.astype(float)
    numbers.loc[texts.index] = texts.map(float).astype(float)
    return numbers


def _reason(error: Exception) -> str:
    """Return the reason of a parser's error without its jargon."""
    fields = re.search(r"Expected (\d+) fields in line (\d+), saw (\d+)", str(error))
    if fields:
        return f"its header has {fields[1]} fields, but its line {fields[2]} has {fields[3]}"
    if "EOF inside string" in str(error):
        return "a quotation mark is never closed"
    return first_line(error)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text
