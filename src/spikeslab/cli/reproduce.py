"""``spikeslab reproduce``: the paper's tables and figures."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from spikeslab.cli._errors import CORES, Command, Group
from spikeslab.cli._options import check_choices, check_counts, check_folder, check_results, check_seed
from spikeslab.cli._output import WIDE, plain_console, print_result
from spikeslab.cli.cifar10 import cifar10
from spikeslab.cli.images import adversarial, fashion, image_search, mnist
from spikeslab.errors import check_choice, check_count
from spikeslab.report.progress import Progress

THEORY_FILES = ("theorem1", "corollary1")
UCI_DATASETS = ("boston", "yacht", "energy", "energy-heating", "wine", "concrete")
UCI_METHODS = ("SGHMC", "A-SGHMC", "SGHMC-EM", "A-SGHMC-EM", "SGHMC-SA", "A-SGHMC-SA")
DATA_VARIABLE = "SPIKESLAB_DATA"

Out = Annotated[Path, typer.Option(help="Folder for the tables and figures.")]
Seed = Annotated[int, typer.Option(help="Seed of the first data set; the others follow it.")]
Seeds = Annotated[int, typer.Option(help="Number of data sets.")]
SGLDSeeds = Annotated[
    int, typer.Option(help="Number of data sets on which the paper's methods run, too: twelve rows of the table.")
]
Steps = Annotated[int, typer.Option(help="Steps of each chain of the paper's methods.")]
Workers = Annotated[int, typer.Option(help="Processes, each on one core.")]

app = typer.Typer(cls=Group, no_args_is_help=True)


@app.callback(
    epilog="Examples: `spikeslab reproduce linear --out out/linear`, `spikeslab reproduce uci --datasets yacht`"
)
def _group() -> None:
    """Reproduce the paper's tables and figures, one command for each experiment.

    A study keeps finished work in --out: a run that was interrupted continues where it stopped.
    """


for command in (mnist, fashion, image_search, adversarial, cifar10):
    app.command(cls=Command)(command)


@app.command(cls=Command)
def theory(
    out: Out = Path("out/theory"),
    seed: Annotated[int, typer.Option(help="Seed of the chains.")] = 0,
    chains: Annotated[int, typer.Option(help="Independent chains of each experiment.")] = 40_000,
    steps: Annotated[int, typer.Option(help="Steps of the chains of Theorem 1.")] = 20_000,
) -> None:
    """Check Theorem 1 and Corollary 1 on a weight whose posterior and fixed point are known exactly.

    The latent variables should reach their fixed point at the rate of omega, and the law of the weights should tend to
    its target as the step size shrinks. Takes a few minutes.

    For example:

    - all of it: `spikeslab reproduce theory`
    - a quick look: `spikeslab reproduce theory --chains 4000 --steps 5000`
    """
    check_results(out, THEORY_FILES, THEORY_FILES)
    check_seed(seed)
    check_count("chains", chains, minimum=100)
    check_count("steps", steps, minimum=100)
    from spikeslab.paper.theory import study
    from spikeslab.report.figures import save
    from spikeslab.report.tables import Provenance, command_line

    chains -= chains % 10  # the error of a slope comes from ten batches of chains
    alphas = (0.6, 0.75, 0.9)
    stages = {f"Theorem 1, α = {alpha:g}": steps for alpha in alphas} | {"Corollary 1": study.COROLLARY1_STEPS}
    weight = study.OneWeight()
    with Progress(stages) as progress:
        *theorem_ticks, corollary_tick = (partial(progress.advance, stage) for stage in stages)
        runs = [
            study.theorem1(weight, alpha=alpha, chains=chains, steps=steps, seed=seed, on_step=tick)
            for alpha, tick in zip(alphas, theorem_ticks, strict=True)
        ]
        results = study.corollary1(weight, chains=chains, seed=seed, on_step=corollary_tick)
    tables = study.theory_tables(runs, results)
    figures = study.theorem1_figure(runs), study.corollary1_figure(results)
    run = Provenance(command_line("reproduce", "theory", seed=seed, chains=chains, steps=steps), seed)
    files: list[Path] = []
    out.mkdir(parents=True, exist_ok=True)
    for table, figure, name in zip(tables, figures, THEORY_FILES, strict=True):
        files += [*table.write(out / name, run), save(figure, out / f"{name}.png")]
    print_result(plain_console(), tables, files)


@app.command(cls=Command)
def linear(
    out: Out = Path("out/linear"),
    seed: Seed = 0,
    seeds: Seeds = 50,
    sgld_seeds: SGLDSeeds = 10,
    steps: Steps = 60_000,
    workers: Workers = CORES,
) -> None:
    """Repeat the paper's linear regression (table 1, figure 1) on many data sets, with other methods.

    100 rows, 1000 variables of which three are real. The methods are SGLD-SA, SGLD-EM and SGLD at the paper's four
    settings, the default SpikeSlabRegressor, the lasso, best-subset selection (with `pip install abess`) and an oracle.
    Takes under ten minutes on two cores. A run that is interrupted, or repeated with more data sets, continues.

    For example:

    - the run of the paper: `spikeslab reproduce linear --seeds 1 --steps 500000`
    - a quick look: `spikeslab reproduce linear --seeds 3 --steps 2000`
    """
    _run_study("linear", out, seed, seeds, sgld_seeds, steps, workers)


@app.command(cls=Command)
def logistic(
    out: Out = Path("out/logistic"),
    seed: Seed = 0,
    seeds: Seeds = 20,
    sgld_seeds: SGLDSeeds = 8,
    steps: Steps = 60_000,
    workers: Workers = CORES,
) -> None:
    """Repeat the paper's logistic regression (appendix C) on many data sets, with other methods.

    500 rows, 1000 variables of which three are real. The methods are those of `reproduce linear`, with the default
    SpikeSlabClassifier, L1 logistic regression and the true probabilities. Takes under ten minutes on two cores.

    For example:

    - the run of the paper: `spikeslab reproduce logistic --seeds 1 --steps 500000`
    - a quick look: `spikeslab reproduce logistic --seeds 3 --steps 2000`
    """
    _run_study("logistic", out, seed, seeds, sgld_seeds, steps, workers)


@app.command(cls=Command)
def uci(
    out: Out = Path("out/uci"),
    datasets: Annotated[str, typer.Option(help="Data sets, separated by commas.")] = ",".join(UCI_DATASETS),
    methods: Annotated[str, typer.Option(help="Methods, separated by commas.")] = ",".join(UCI_METHODS),
    preset: Annotated[str, typer.Option(help="'default' (ours), or 'paper' (the authors' code).")] = "default",
    splits: Annotated[str, typer.Option(help="'paper', or 'standard' for the 20 of other papers.")] = "paper",
    epochs: Annotated[int | None, typer.Option(help="Passes through the data; by default those of the preset.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the networks, the mini-batches and the noise.")] = 0,
    data_dir: Annotated[
        Path | None,
        typer.Option(help="Folder with boston.csv and so on, or with uci/boston.csv.", envvar=DATA_VARIABLE),
    ] = None,
    workers: Workers = CORES,
) -> None:
    """Repeat the paper's regressions on UCI data (appendix D): six methods, five data sets, 20 splits.

    A network with one hidden layer of 50 units. The 20 splits of a method and data set run as stacked chains of one
    process, so the whole table takes minutes. `energy` is the cooling load, as in the paper. A run that is interrupted
    continues where it stopped.

    For example:

    - the run of the paper: `spikeslab reproduce uci --preset paper --out out/uci-paper`
    - a quick look: `spikeslab reproduce uci --datasets yacht --methods SGHMC,A-SGHMC-SA --epochs 50`
    """
    check_folder(out)
    check_seed(seed)
    check_count("workers", workers)
    if epochs is not None:
        check_count("epochs", epochs, minimum=2)
    from spikeslab.paper.uci.sampling import METHODS, PRESETS
    from spikeslab.paper.uci.study import FIGURES, TABLES, TITLES, UCIStudy

    check_results(out, TABLES, FIGURES)
    study = UCIStudy(
        datasets=check_choices("datasets", datasets, TITLES),
        methods=check_choices("methods", methods, METHODS),
        preset=check_choice("preset", preset, PRESETS),
        splits=check_choice("splits", splits, ("standard", "paper")),
        epochs=epochs,
        seed=seed,
        data_dir=data_dir,
        workers=workers,
    )
    for dataset in study.datasets:
        study.load(dataset)  # a missing or bad file is an error before any work
    stage = f"{len(study.datasets)} data sets, {len(study.methods)} methods"
    with Progress({stage: len(study.cells)}, unit="cells") as progress:
        tables, files = study.run(out, partial(progress.advance, stage)).write(out)
    print_result(plain_console(WIDE), tables, files)


def _run_study(name: str, out: Path, seed: int, seeds: int, sgld_seeds: int, steps: int, workers: int) -> None:
    check_folder(out)
    check_seed(seed)
    check_counts(seeds=seeds, sgld_seeds=sgld_seeds, workers=workers)
    check_count("steps", steps, minimum=1000)
    from spikeslab.paper.linear.study import LINEAR
    from spikeslab.paper.logistic.study import LOGISTIC
    from spikeslab.paper.selection import SelectionStudy
    from spikeslab.paper.selection_figures import write_study

    problem = {"linear": LINEAR, "logistic": LOGISTIC}[name]
    check_results(out, problem.tables, problem.figures)
    study = SelectionStudy(problem, seed, seeds, min(seeds, sgld_seeds), steps, workers)
    with Progress(study.stages, unit="cells") as progress:
        tables, files = write_study(study.run(out, progress.advance), out)
    print_result(plain_console(WIDE), tables, files)
