"""``spikeslab bench``: what the library costs beside what users would take instead."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spikeslab.cli.errors import InputError
from spikeslab.cli.options import (
    CORES,
    bad_input,
    check_choices,
    check_file,
    check_option,
    check_results,
    check_writable,
)
from spikeslab.cli.output import plain_console, print_result, write_file
from spikeslab.report.progress import Progress

if TYPE_CHECKING:
    from spikeslab.bench import Findings
    from spikeslab.report.tables import Provenance

ALL = "update,step,selection,chains,predict,scaling"
MARK, WHAT = '{\n "benchmark": ', "results of a benchmark"
LARGEST_SEED = 2**32 - 1


def bench(
    suite: Annotated[str, typer.Option(help=f"Suites, separated by commas: {ALL.replace(',', ', ')}.")] = ALL,
    threads: Annotated[int, typer.Option(help="Threads of torch.")] = 1,
    repeats: Annotated[
        int | None, typer.Option(help="Rounds, in each of which every candidate has a turn; by default the suite's.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Two rounds and small sizes: does it run at all?")] = False,
    seed: Annotated[int, typer.Option(help="Seed of data, weights and noise.")] = 0,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the numbers of all tables to this file.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the tables (Markdown and JSON) and figures.")] = None,
) -> None:
    """Measure what a step, a chain, a prediction and a fit cost, as ratios to what users would take instead.

    Everything runs in one process and in turns, so that a busy machine hurts all alike, and the least of many times
    counts. Compared are torch's SGD and Adam, a plain SGLD, and those of posteriors, blackjax, skglm, abess,
    scikit-learn and numpyro that are installed (`pip install 'spikeslab[bench]'`); one that is not is named.
    benchmarks/README.md says how to read the numbers.

    For example:

    - the cost of an update beside torch's SGD: `spikeslab bench --suite update`
    - with tables and a figure: `spikeslab bench --suite step,scaling --threads 2 --out results/bench`
    - a quick look at everything: `spikeslab bench --quick --json bench.json`
    """
    from spikeslab.bench import SUITES, Plan
    from spikeslab.bench.suites import QUICK_REPEATS
    from spikeslab.bench.timing import use_threads
    from spikeslab.report.tables import Provenance, command_line

    with bad_input():
        names = check_choices("--suite", suite, SUITES)
    check_option("--threads", threads, minimum=1)
    if threads > CORES:
        raise InputError(f"--threads must be an integer up to the number of cores, {CORES}, but got {threads}.")
    if repeats is not None:
        check_option("--repeats", repeats, minimum=1)
    check_option("--seed", seed, minimum=0)
    if seed > LARGEST_SEED:
        raise InputError(f"--seed must be an integer up to {LARGEST_SEED}, but got {seed}.")
    suffix = f"{threads}-quick" if quick else f"{threads}"
    if json_file is not None:
        check_file("--json", json_file, MARK, WHAT)
        check_writable("--json", json_file.parent)
    if out is not None:
        tables = [f"{table}-{suffix}" for name in names for table in SUITES[name].tables]
        check_results(out, tables, [f"{name}-{suffix}" for name in names])
        check_writable("--out", out)
    rounds = {name: repeats or (QUICK_REPEATS if quick else SUITES[name].repeats) for name in names}
    plans = {name: Plan(rounds[name], threads, seed, quick) for name in names}
    stages = {name: SUITES[name].blocks(plan) * plan.repeats for name, plan in plans.items()}
    console, found = plain_console(), {}
    use_threads(threads)
    with Progress(stages, unit="rounds") as progress:
        for name in names:
            found[name] = SUITES[name].run(replace(plans[name], tick=partial(progress.advance, name)))
    runs = {}
    for name in names:
        command = command_line("bench", suite=name, threads=threads, repeats=repeats, quick=quick, seed=seed or None)
        runs[name] = Provenance(command, seed)
    print_result(console, [table for findings in found.values() for table in findings.tables.values()], [])
    files = [] if out is None else _write(out, found, runs, suffix)
    if json_file is not None:
        write_file("--json", json_file, _json(found, runs).encode())
        files.append(json_file)
    print_result(console, [], files)


def _json(found: dict[str, Findings], runs: dict[str, Provenance]) -> str:
    """All tables in one file, by suite and by the name of the table."""
    tables = {
        name: {key: json.loads(table.json(runs[name])) for key, table in findings.tables.items()}
        for name, findings in found.items()
    }
    return json.dumps({"benchmark": list(found), "suites": tables}, indent=1, ensure_ascii=False) + "\n"


def _write(out: Path, found: dict[str, Findings], runs: dict[str, Provenance], suffix: str) -> list[Path]:
    """Write each table under its name and how it was measured, and the figures."""
    from spikeslab.report.figures import render_png

    files: list[Path] = []
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, findings in found.items():
            for key, table in findings.tables.items():
                files += table.write(out / f"{key}-{suffix}", runs[name])
    except OSError as error:
        raise InputError(f"--out must be a folder that can be written to, but {out}: {error.strerror}.") from error
    for name, findings in found.items():
        if findings.figure is not None:
            files.append(out / f"{name}-{suffix}.png")
            write_file("--out", files[-1], render_png(findings.figure))
    return files
