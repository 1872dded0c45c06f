"""``spikeslab reproduce``: the paper's tables and figures."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from spikeslab.cli.options import check_folder, check_option
from spikeslab.cli.output import print_result, progress_bars

NAMES = ("theorem1", "corollary1")

app = typer.Typer(help="Reproduce the paper's tables and figures.", no_args_is_help=True)


@app.callback(epilog="Example: `spikeslab reproduce theory --out out/theory`")
def _group() -> None:
    """Reproduce the paper's tables and figures."""


@app.command()
def theory(
    out: Annotated[Path, typer.Option(help="Folder for the tables and figures.")] = Path("out/theory"),
    seed: Annotated[int, typer.Option(help="Seed of the chains.")] = 0,
    chains: Annotated[int, typer.Option(help="Independent chains of each experiment.")] = 40_000,
    steps: Annotated[int, typer.Option(help="Steps of the chains of Theorem 1.")] = 20_000,
) -> None:
    """Check Theorem 1 and Corollary 1 on a weight whose posterior and fixed point are known exactly.

    The latent variables must reach their fixed point at the rate of omega, and the law of the weights must tend to its
    target as the step size shrinks. Takes a few minutes.

    Example: `spikeslab reproduce theory --chains 4000 --steps 5000` takes a quick look.
    """
    from spikeslab.experiments.theory import OneWeight, corollary1, corollary1_steps, theorem1
    from spikeslab.experiments.theory_figure import corollary1_figure, theorem1_figure, theory_tables
    from spikeslab.report.figures import save
    from spikeslab.report.tables import Run

    check_folder(out)
    check_option("--seed", seed, minimum=0)
    check_option("--chains", chains, minimum=100)
    check_option("--steps", steps, minimum=100)
    chains -= chains % 10  # the error of a slope comes from ten batches of chains
    alphas = (0.6, 0.75, 0.9)
    stages = {f"Theorem 1, α = {alpha:g}": steps for alpha in alphas} | {"Corollary 1": corollary1_steps()}
    console = Console(highlight=False)
    with progress_bars(console, stages) as progress:
        *theorem_stages, corollary_stage = stages
        runs = [
            theorem1(OneWeight(), alpha=alpha, chains=chains, steps=steps, seed=seed, on_step=partial(progress, stage))
            for alpha, stage in zip(alphas, theorem_stages, strict=True)
        ]
        results = corollary1(OneWeight(), chains=chains, seed=seed, on_step=partial(progress, corollary_stage))
    out.mkdir(parents=True, exist_ok=True)
    tables = theory_tables(runs, results)
    run = Run(f"spikeslab reproduce theory --seed {seed} --chains {chains} --steps {steps}", seed)
    files = [file for table, name in zip(tables, NAMES, strict=True) for file in table.write(out / name, run)]
    figures = theorem1_figure(runs), corollary1_figure(results)
    files += [save(figure, out / f"{name}.png") for figure, name in zip(figures, NAMES, strict=True)]
    print_result(console, tables, files)
