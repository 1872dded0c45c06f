"""Grid of a study: independent cells, run in parallel, kept in a file as they finish, and never run twice."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
import torch

from spikeslab.errors import SpikeSlabError, mark
from spikeslab.files import encode_line, open_regular, read_lines
from spikeslab.report.tables import Estimate
from spikeslab.training.run_folder import lock_file

CELLS = "cells.jsonl"
Record: TypeAlias = dict[str, Any]
Item = TypeVar("Item")
Result = TypeVar("Result")


class Cell(NamedTuple):
    """One cell of the grid: a method and the seed of a data set."""

    method: str
    seed: int


class CellFileError(SpikeSlabError):
    """Raised when a file of cells belongs to another run."""


class CellFile:
    """JSONL file of cells: the settings that decide the numbers in the first line, then a line for each finished cell.

    It is created at the first cell, and a line that a killed run left unfinished is dropped. ``renamed`` has the
    present names of settings and values that older files spell differently.
    """

    def __init__(self, path: Path, settings: Mapping[str, str | int], renamed: Mapping[str, str] | None = None) -> None:
        self.path = path
        self.settings = dict(settings)
        self.renamed = dict(renamed or {})
        self.records: dict[Cell, Record] = {}
        self._last = b""

    @classmethod
    def load(cls, path: Path, settings: Mapping[str, str | int], renamed: Mapping[str, str] | None = None) -> CellFile:
        """Return the file with the cells that an earlier run left in it, if there was one.

        Raises:
            CellFileError: If the file exists and was made with other settings.
        """
        file = cls(path, settings, renamed)
        file._read()
        return file

    @classmethod
    def load_command(
        cls, path: Path, command: str, renamed: Mapping[str, str] | None = None, **options: str | int
    ) -> CellFile:
        """Load the file of ``spikeslab reproduce COMMAND`` with the options that decide the numbers."""
        given = {f"--{name}": value for name, value in options.items()}
        return cls.load(path, {"spikeslab reproduce": command, **given, "version": version("spikeslab")}, renamed)

    def _read(self) -> int:
        """Read the file, and return the number of bytes in whole lines."""
        path = self.path
        try:
            found = read_lines(path, CellFileError)
        except CellFileError as error:
            raise CellFileError(*error.args, f"Choose another {mark('out')}.") from error
        self._last = found.last
        if not found.records:
            return 0
        try:
            head, *lines = found.records
            head = {self.renamed.get(name, name): self.renamed.get(value, value) for name, value in head.items()}
            self.records = {Cell(line.pop("method"), line.pop("seed")): line for line in lines}
        except (KeyError, TypeError, AttributeError) as error:
            message = f"{path} does not hold the results of an earlier run: choose another {mark('out')}."
            raise CellFileError(message) from error
        if head != self.settings:
            names = [name for name in {**head, **self.settings} if head.get(name) != self.settings.get(name)]
            was, now = (", ".join(f"{name} {of.get(name)}" for name in names) for of in (head, self.settings))
            raise CellFileError(
                f"Cannot continue: {path} was made with {was} instead of {now}. Use those settings or another "
                f"{mark('out')}."
            )
        return found.size

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keep other processes from adding cells.

        Raises:
            CellFileError: If another process adds cells at the moment.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(open_regular(self.path, os.O_RDWR | os.O_CREAT), "r+b") as handle:
            try:
                lock_file(handle)
            except OSError as error:
                message = f"Another run is using {self.path}: wait for it or choose another {mark('out')}."
                raise CellFileError(message) from error
            handle.truncate(self._read())  # another run may have added cells since, or was killed in a line
            yield

    def add(self, cell: Cell, record: Record) -> None:
        """Append a finished cell; its record survives a crash of this process."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(open_regular(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "ab") as file:
            for line in [*([] if self._last else [self.settings]), {**cell._asdict(), **record}]:
                self._last = encode_line(line, self._last)
                file.write(self._last + b"\n")
        self.records[cell] = record


def run_cells(
    file: CellFile,
    cells: Sequence[Cell],
    work: Callable[[Cell], Record],
    *,
    workers: int = 1,
    on_done: Callable[[int], None] = lambda count: None,
) -> None:
    """Run the cells that ``file`` does not have, on one core each; with several workers ``work`` must be picklable.

    ``on_done`` is called with a number of finished cells: at first those of ``file``, then 1 after each new cell.
    """
    with file.lock():
        todo = [cell for cell in cells if cell not in file.records]
        on_done(len(cells) - len(todo))
        for cell, record in run_parallel(todo, work, workers):
            file.add(cell, record)
            on_done(1)


def run_parallel(items: Sequence[Item], work: Callable[[Item], Result], workers: int) -> Iterator[tuple[Item, Result]]:
    """Yield each item with the result of ``work``, as they finish; each runs on one thread.

    With several workers ``work`` and the items must be picklable. Workers end with the process that started them.
    """
    if workers == 1 or len(items) <= 1:
        with one_thread():
            yield from ((item, work(item)) for item in items)
        return
    # Not forked: a fork of a process with threads, as torch and numba have them, may hang.
    context = multiprocessing.get_context("spawn")
    with _thread_variables(), ProcessPoolExecutor(min(workers, len(items)), context, _start_worker) as pool:
        pending = {pool.submit(work, item): item for item in items}
        try:
            while pending:
                for future in wait(pending, return_when=FIRST_COMPLETED).done:
                    yield pending.pop(future), future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _start_worker() -> None:
    # Ctrl-C reaches every process of the terminal; only the parent prints a message.
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    torch.set_num_threads(1)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


@contextmanager
def one_thread() -> Iterator[None]:
    """Keep torch to one thread: models this small gain nothing from more, and lose a lot on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _thread_variables() -> Iterator[None]:
    """Let processes started here begin with one thread per library."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    before = {name: os.environ.pop(name) for name in names if name in os.environ}
    os.environ.update(dict.fromkeys(names, "1"))
    try:
        yield
    finally:
        for name in names:
            del os.environ[name]
        os.environ.update(before)


def estimate(values: Iterable[float | None]) -> Estimate | None:
    """Return the mean and standard error of the values that are not None; None without any."""
    found = [value for value in values if value is not None]
    return Estimate.of(found) if found else None


def round_digits(numbers: Any) -> Any:
    """Return numbers with five significant digits, as nested lists, for a file that people may read; None stays."""
    if np.ndim(numbers):
        return [round_digits(number) for number in numbers]
    return None if numbers is None else float(f"{float(numbers):.5g}")
