"""Independent pieces of work, done in parallel, kept in a file as they finish, and never done twice."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import torch

from spikeslab.paper.threads import one_thread
from spikeslab.training.run_folder import lock_file

Record: TypeAlias = dict[str, Any]


class Cell(NamedTuple):
    """What one method does with one data set."""

    method: str
    seed: int


class SettingsError(ValueError):
    """A file of cells was made with other settings."""


class CellFile:
    """A JSONL file: the settings in the first line, then a line for each finished cell.

    A line that a killed run left unfinished is dropped.

    Args:
        path: The file; made, with its folder, at the first cell.
        settings: What decides the numbers in the cells, by the name that the user knows it by.

    Raises:
        SettingsError: If the file exists and was made with other settings.
    """

    def __init__(self, path: Path, settings: Mapping[str, str | int]) -> None:
        self.path = path
        self.settings = dict(settings)
        self.records: dict[Cell, Record] = {}
        self._read()

    def _read(self) -> None:
        path = self.path
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        if not text:
            return
        whole, _, torn = text.rpartition("\n")
        try:
            head, *lines = (json.loads(line) for line in whole.splitlines())
            self.records = {Cell(line.pop("method"), line.pop("seed")): line for line in lines}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise SettingsError(f"{path} does not hold the results of an earlier run") from error
        if head != self.settings:
            names = [name for name in {**head, **self.settings} if head.get(name) != self.settings.get(name)]
            was, now = (", ".join(f"{name} {of.get(name)}" for name in names) for of in (head, self.settings))
            raise SettingsError(f"{path} was made with {was} instead of {now}")
        if torn:
            path.write_text(f"{whole}\n", encoding="utf-8")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from adding cells.

        Raises:
            SettingsError: If another process does.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab") as handle:
            try:
                lock_file(handle)
            except OSError as error:
                raise SettingsError(f"{self.path} is in use by another run") from error
            self._read()  # what another run may have added since
            yield

    def __contains__(self, cell: Cell) -> bool:
        return cell in self.records

    def __getitem__(self, cell: Cell) -> Record:
        return self.records[cell]

    def add(self, cell: Cell, record: Record) -> None:
        """Append a finished cell; what it holds survives a crash of this process."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            if not file.tell():
                file.write(json.dumps(self.settings) + "\n")
            file.write(json.dumps({**cell._asdict(), **record}, allow_nan=False) + "\n")
        self.records[cell] = record


def run_cells(
    file: CellFile,
    cells: Sequence[Cell],
    work: Callable[[Cell], Record],
    *,
    workers: int = 1,
    on_done: Callable[[Cell], None] = lambda cell: None,
) -> None:
    """Do the cells that ``file`` does not have, on one core each.

    Args:
        file: Where finished cells are.
        cells: All cells wanted.
        work: Makes a cell; with several workers it must be picklable.
        workers: Processes; 1 works in this one.
        on_done: Called after each new cell.
    """
    with file.locked():
        _run_missing(file, [cell for cell in cells if cell not in file], work, workers, on_done)


def _run_missing(
    file: CellFile,
    todo: Sequence[Cell],
    work: Callable[[Cell], Record],
    workers: int,
    on_done: Callable[[Cell], None],
) -> None:
    if workers == 1 or len(todo) == 1:
        with one_thread():
            for cell in todo:
                file.add(cell, work(cell))
                on_done(cell)
        return
    # Not forked: a fork of a process with threads, as torch and numba have them, may hang.
    context = multiprocessing.get_context("spawn")
    with _thread_variables(), ProcessPoolExecutor(max(1, min(workers, len(todo))), context, _begin_worker) as pool:
        pending = {pool.submit(work, cell): cell for cell in todo}
        try:
            while pending:
                for future in wait(pending, return_when=FIRST_COMPLETED).done:
                    cell = pending.pop(future)
                    file.add(cell, future.result())
                    on_done(cell)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _begin_worker() -> None:
    # Ctrl-C reaches every process of the terminal; the parent says what there is to say.
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    torch.set_num_threads(1)


@contextmanager
def _thread_variables() -> Iterator[None]:
    """Let processes started here begin with one thread per library."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(dict.fromkeys(names, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
