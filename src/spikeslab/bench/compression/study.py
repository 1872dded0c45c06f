"""Study of sparse networks: run the cells of a grid, continue a stopped run, and build tables and figure.

Files of a study, in its folder: ``cells.jsonl`` with a line for each finished cell, ``rows/`` with the scores of each
cell on every test row, and ``dense/`` with the dense networks. The tables show all finished cells of the folder.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path

from spikeslab.bench.compression.figure import make_figure
from spikeslab.bench.compression.grid import DENSE, CellKey, StudyGrid
from spikeslab.bench.compression.networks import STUDY_NETWORKS, dense_network, find_missing_data, load_problem
from spikeslab.bench.compression.results import REFUSED, StudyResults, rows_file
from spikeslab.bench.compression.rivals import Assignment, count_zeros, run_method
from spikeslab.bench.compression.scores import score_network, score_posterior
from spikeslab.bench.compression.tables import make_tables
from spikeslab.bench.suites import BenchPlan, Findings
from spikeslab.errors import (
    ArgumentError,
    MissingExtraError,
    NonFiniteError,
    SpikeSlabWarning,
    first_line,
    warn,
)
from spikeslab.files import write_atomically
from spikeslab.paper.data_files import DataError
from spikeslab.paper.grid import CELLS, Cell, CellFile, Record, run_parallel
from spikeslab.states import encode_tensors
from spikeslab.training.run_folder import to_json


class Watch:
    """Stopwatch of processor time, which other programs on the machine disturb less, and of the time on the clock."""

    def __init__(self) -> None:
        self._cpu, self._wall = time.process_time(), time.perf_counter()

    def read(self) -> dict[str, float]:
        """Return the seconds since the start."""
        cpu, wall = time.process_time() - self._cpu, time.perf_counter() - self._wall
        return {"seconds": round(cpu, 2), "wall_seconds": round(wall, 2)}


@dataclass(frozen=True)
class CellWork:
    """Work of a cell, with everything that it needs; it can be pickled for a worker process."""

    folder: Path
    data_dir: Path | None
    quick: bool
    command: str

    def __call__(self, cell: Cell) -> Record:
        """Run a cell: write its row scores, and return its numbers, or the reason why it cannot be run."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", SpikeSlabWarning)
                return self._run(cell)
        except (ArgumentError, NonFiniteError, MissingExtraError) as error:
            return {REFUSED: first_line(error), "command": self.command}

    def _run(self, cell: Cell) -> Record:
        key, seed = CellKey.parse(cell.method), cell.seed
        network, data = load_problem(key.network, self.data_dir, seed, self.quick)
        watch = Watch()
        dense = dense_network(key.network, self.data_dir, seed, self.quick, self.folder)
        record: Record = {"parameters": sum(parameter.numel() for parameter in dense.parameters())}
        if key.method == DENSE:
            model, posterior = dense, None
        else:
            watch = Watch()
            assignment = Assignment(network, data, dense, key.sparsity, seed, dict(key.setting))
            model, posterior, settings = run_method(key.method, assignment)
            record |= {"zeros": count_zeros(model), "target": assignment.zeros, "settings": to_json(settings)}
        record |= watch.read()
        single = score_network(network, data, model)
        record["single"], rows = single.numbers, {f"single.{name}": each for name, each in single.rows.items()}
        if posterior is not None:
            average = score_posterior(network, data, posterior)
            record |= {"average": average.numbers, "samples": len(posterior)}
            rows |= {f"average.{name}": each for name, each in average.rows.items()}
        path = rows_file(self.folder, key, seed)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, encode_tensors(rows))
        return {**record, "command": self.command}


def run(plan: BenchPlan) -> Findings:
    """Run the cells that the folder lacks, and return tables and figure of all cells in it."""
    options, grid = plan.study, StudyGrid.of(plan)
    missing = {} if plan.quick else _find_missing(grid, options.data_dir)
    grid = grid.without(missing)
    file = load_cells(options.folder, plan.quick)
    work = CellWork(options.folder, options.data_dir, plan.quick, options.command)
    run_missing = partial(_run_missing, file, work=work, workers=plan.threads, tick=plan.tick)
    run_missing(grid.dense_cells())
    run_missing(grid.first_cells())
    results = StudyResults.of(file, options.folder)
    chosen = [results.tuned(key) for key in grid.tuned_keys()]
    run_missing([key.cell(seed) for key in chosen if key is not None for seed in grid.seeds[1:]])
    results = StudyResults.of(file, options.folder)
    return Findings(
        make_tables(results, list(missing.values())), {"compression": make_figure(results)}, results.commands()
    )


def load_cells(folder: Path, quick: bool) -> CellFile:
    """Load the cells of a folder; those of another version of the library or of torch are refused."""
    settings: dict[str, str | int] = {"spikeslab bench": "compression", "version": version("spikeslab")}
    return CellFile.load(folder / CELLS, settings | {"torch": version("torch"), "quick": int(quick)})


def _find_missing(grid: StudyGrid, data_dir: Path | None) -> dict[str, str]:
    """Return a sentence for each network that has no data; it is left out.

    Raises:
        DataError: If no network has data.
    """
    found = {network: find_missing_data(network, data_dir, grid.seeds[0]) for network in grid.networks}
    sentences = {
        network: f"{STUDY_NETWORKS[network].title} is left out: {sentence}"
        for network, sentence in found.items()
        if sentence is not None
    }
    if len(sentences) == len(grid.networks):
        raise DataError(" ".join(sentence for sentence in found.values() if sentence))
    for sentence in sentences.values():
        warn(sentence)
    return sentences


def _run_missing(
    file: CellFile, cells: Sequence[Cell], *, work: CellWork, workers: int, tick: Callable[[int], None]
) -> None:
    """Run the cells that the file lacks; those that were refused are tried again."""
    with file.lock():
        todo = [cell for cell in cells if cell not in file.records or REFUSED in file.records[cell]]
        tick(len(cells) - len(todo))
        for cell, record in run_parallel(todo, work, workers):
            if file.records.get(cell) != record:
                file.add(cell, record)
            tick(1)
