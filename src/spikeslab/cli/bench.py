"""``spikeslab bench``: costs and accuracy of the library against those of its peers."""

from __future__ import annotations

import json
from collections.abc import Container, Iterable
from dataclasses import replace
from functools import partial
from inspect import cleandoc
from pathlib import Path
from typing import Annotated

import typer

from spikeslab.bench import SUITES, BenchPlan, Findings
from spikeslab.bench.suites import QUICK_REPEATS, StudyOptions
from spikeslab.cli._errors import CORES, InputError, spells
from spikeslab.cli._options import check_choices, check_counts, check_file, check_new, check_results
from spikeslab.cli._output import plain_console, print_result, write_file
from spikeslab.errors import ArgumentValueError, check_count, pluralize
from spikeslab.report.progress import Progress
from spikeslab.report.tables import Provenance, command_line

MARK, WHAT = '{\n "benchmark": ', "results of a benchmark"
CELLS = "cells.jsonl"
"""File of a study's finished cells; that of ``paper.grid``, which imports torch."""
LARGEST_SEED = 2**32 - 1
STANDARD = ",".join(name for name, suite in SUITES.items() if suite.standard)
STUDY, ONE_SHOT = "compression", "one-shot"
"""Suites that take options of a study."""
OPTIONS = {STUDY: ("networks", "methods", "sparsities", "data_dir", "resume"), ONE_SHOT: ("networks", "data_dir")}
"""Options that only some suites take."""

DataDir = Annotated[
    Path | None,
    typer.Option(
        help="compression, one-shot: folder with FashionMNIST/raw, bikesharing_hour.csv (or in tables/), "
        "tinyshakespeare.txt (or in text/), cifar-10-batches-bin and resnet20_dense.safetensors (or in cifar10/).",
        show_default="SPIKESLAB_DATA, or images are downloaded",
    ),
]
Networks = Annotated[
    str | None,
    typer.Option(
        help="compression: lenet, mlp, transformer, resnet20; one-shot: the last two, encoder, lstm.",
        show_default="all, but for compression not resnet20, which takes days",
    ),
]
Methods = Annotated[
    str | None,
    typer.Option(
        help="compression: spikeslab, gmp, torch-prune, l2, pat (torchao); with -tuned behind all but l2, the settings "
        "are chosen on held-out data.",
        show_default="all but spikeslab-tuned",
    ),
]
Sparsities = Annotated[
    str | None,
    typer.Option(
        help="compression: shares of zeros among all parameters, in (0, 1), with commas.",
        show_default="0.8,0.9,0.95,0.98; transformer 0.5,0.7,0.9",
    ),
]


@spells(seeds="--repeats")
def bench(
    suite: Annotated[str, typer.Option(help="Suites from the lists above, separated by commas.")] = STANDARD,
    threads: Annotated[
        int,
        typer.Option("--threads", "--workers", help="Threads of torch; processes in the suites that fit many models."),
    ] = 1,
    repeats: Annotated[
        int | None,
        typer.Option(
            "--repeats",
            "--seeds",
            help="Number of rounds, data sets, epochs, seeds or steps.",
            show_default="as listed",
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Two rounds and small sizes, to see that it runs.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of data, weights and noise.")] = 0,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the numbers of all tables to this file.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the tables (Markdown and JSON) and figures.")] = None,
    data_dir: DataDir = None,
    networks: Networks = None,
    methods: Methods = None,
    sparsities: Sparsities = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="compression: continue in --out; finished cells are not run again.")
    ] = False,
) -> None:
    """Compare the cost of steps, chains, predictions and fits with that of other libraries.

    Costs are ratios of times. All candidates take turns in one process, so a busy machine slows them alike, and the
    shortest of many times counts. The peers are torch's SGD and Adam, a plain SGLD, posteriors, blackjax, skglm, abess,
    scikit-learn and numpyro: `pip install 'spikeslab[bench]'` installs them, and a table names those that are missing.

    For example:

    - the cost of an update against torch's SGD: `spikeslab bench --suite update`
    - with tables and a figure: `spikeslab bench --suite step,scaling --threads 2 --out results/bench`
    - a quick look at the standard suites: `spikeslab bench --quick --json bench.json`
    - calibration of variable selection: `spikeslab bench --suite selection-sbc --repeats 400 --threads 2`
    - sparse networks against other methods: `spikeslab bench --suite compression --data-dir data --seeds 5 --resume
      --out results/compression`
    - one network of it: `spikeslab bench --suite compression --networks lenet --sparsities 0.9,0.95 --methods
      spikeslab,gmp,gmp-tuned --data-dir data --out out/lenet`
    """
    plans = _make_plans(check_choices("suite", suite, SUITES), threads, repeats, quick, seed)
    chosen = {"networks": networks, "methods": methods, "sparsities": sparsities}
    study = _make_study(plans, out, data_dir, **chosen)
    for option, value in {**chosen, "data_dir": data_dir, "resume": resume or None}.items():
        takers = [name for name, options in OPTIONS.items() if option in options]
        if value and not plans.keys() & takers:
            suites = " or ".join(takers)
            raise InputError(f"--{option.replace('_', '-')} must go with --suite {suites}, but got --suite {suite}.")
    if STUDY in plans:
        check_new(study.folder, resume, [study.folder / CELLS])
    if json_file is not None:
        check_file("--json", json_file, MARK, WHAT)
    if out is not None:
        suffixes = {name: SUITES[name].file_suffix(plan) for name, plan in plans.items()}
        tables = [f"{table}{suffix}" for name, suffix in suffixes.items() for table in SUITES[name].tables]
        figures = [f"{figure}{suffix}" for name, suffix in suffixes.items() for figure in SUITES[name].figures]
        check_results(out, tables, figures)
    from spikeslab.bench.timing import use_threads

    use_threads(threads)
    found: dict[str, Findings] = {}
    commands = {}
    for name in plans:
        own = {key: value for key, value in chosen.items() if key in OPTIONS.get(name, ())}
        common = {"threads": threads, "repeats": repeats, "quick": quick, "seed": seed or None}
        commands[name] = command_line("bench", suite=name, **common, **own)
    plans = {name: replace(plan, study=replace(study, command=commands[name])) for name, plan in plans.items()}
    stages = {name: SUITES[name].count_ticks(plan) for name, plan in plans.items()}
    with Progress(stages, unit="rounds") as progress:
        for name, plan in plans.items():
            found[name] = SUITES[name].run(replace(plan, tick=partial(progress.advance, name)))
    runs = {name: Provenance(found[name].commands or command, seed) for name, command in commands.items()}
    console = plain_console()
    print_result(console, [table for findings in found.values() for table in findings.tables.values()], [])
    files: list[Path] = []
    if out is not None:
        for name, findings in found.items():
            files += _write(out, findings, runs[name], suffixes[name])
    if json_file is not None:
        write_file(json_file, _to_json(found, runs).encode())
        files.append(json_file)
    print_result(console, [], files)


def _make_plans(
    names: Iterable[str], threads: int, repeats: int | None, quick: bool, seed: int
) -> dict[str, BenchPlan]:
    check_counts(threads=threads, repeats=repeats)
    if threads > CORES:
        raise ArgumentValueError("threads", f"must be an integer up to the number of cores, {CORES}", threads)
    check_count("seed", seed, minimum=0)
    if seed > LARGEST_SEED:
        raise ArgumentValueError("seed", f"must be an integer up to {LARGEST_SEED}", seed)
    rounds = {name: repeats or (QUICK_REPEATS if quick else SUITES[name].repeats) for name in names}
    return {name: BenchPlan(count, threads, seed, quick) for name, count in rounds.items()}


def _make_study(
    suites: Container[str],
    out: Path | None,
    data_dir: Path | None,
    networks: str | None,
    methods: str | None,
    sparsities: str | None,
) -> StudyOptions:
    """Return the options of a study, checked."""
    options = StudyOptions(data_dir=data_dir) if out is None else StudyOptions(folder=out, data_dir=data_dir)
    if networks is None and methods is None and sparsities is None:
        return options
    from spikeslab.bench.compression import grid

    known = grid.ONE_SHOT_NETWORKS if ONE_SHOT in suites and STUDY not in suites else grid.NETWORKS
    return replace(
        options,
        networks=() if networks is None else check_choices("networks", networks, known),
        methods=() if methods is None else check_choices("methods", methods, grid.METHODS),
        sparsities=() if sparsities is None else tuple(dict.fromkeys(map(_read_share, sparsities.split(",")))),
    )


def _read_share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = 0.0
    if not 0.0 < share < 1.0:
        raise InputError(f"--sparsities must be numbers in (0, 1), separated by commas, but got {text.strip()!r}.")
    return share


def _list_suites() -> str:
    titles = {True: "Suites that run by default:", False: "Suites that run only if you name them:"}
    lines: list[str] = []
    for standard, title in titles.items():
        suites = {name: suite for name, suite in SUITES.items() if suite.standard is standard}
        listed = (f"- `{name}`: {s.description}; {pluralize(s.repeats, s.unit)}" for name, s in suites.items())
        lines += [title, "", *listed, ""]
    return "\n".join(lines).rstrip()


bench.__doc__ = f"{cleandoc(bench.__doc__ or '')}\n\n{_list_suites()}"  # what --help shows


def _to_json(found: dict[str, Findings], runs: dict[str, Provenance]) -> str:
    """Return all tables as one JSON text, by suite and name."""
    tables = {
        name: {key: json.loads(table.json(runs[name])) for key, table in findings.tables.items()}
        for name, findings in found.items()
    }
    return json.dumps({"benchmark": list(found), "suites": tables}, indent=1, ensure_ascii=False) + "\n"


def _write(out: Path, findings: Findings, run: Provenance, suffix: str) -> list[Path]:
    """Write the tables and figures of a suite and return their paths."""
    files: list[Path] = []
    out.mkdir(parents=True, exist_ok=True)
    for name, table in findings.tables.items():
        files += table.write(out / f"{name}{suffix}", run)
    for name, figure in findings.figures.items():
        from spikeslab.report.figures import save

        files.append(save(figure, out / f"{name}{suffix}.png"))
    return files
