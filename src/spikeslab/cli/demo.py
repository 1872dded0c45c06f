"""``spikeslab demo``: the main job on embedded data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from spikeslab.cli._options import check_folder, check_results, check_seed
from spikeslab.cli._output import print_result
from spikeslab.errors import check_count
from spikeslab.report.progress import Progress


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the tables and figures.")] = Path("out/demo"),
    seed: Annotated[int, typer.Option(help="Seed of the data, the mini-batches and the noise.")] = 0,
    steps: Annotated[
        int, typer.Option(help="Steps of each regression chain, and the most that a digits phase takes.")
    ] = 32_000,
) -> None:
    """Show the method at work on data that needs no download, in under two minutes.

    The paper's regression with 100 rows and 1000 variables, by SGLD-SA, SGLD-EM and SGLD; and a CNN on scikit-learn's
    digits, pruned to 90 % while SGHMC-SA samples it. Tables (Markdown and JSON) and figures (PNG) go to --out, where
    those of an earlier demo are replaced and all other files stay.

    For example:

    - all of it: `spikeslab demo`
    - another draw, elsewhere: `spikeslab demo --out /tmp/demo --seed 1`
    - a quick look: `spikeslab demo --steps 500`
    """
    check_folder(out)
    check_seed(seed)
    check_count("steps", steps)
    from rich.console import Console

    from spikeslab.paper.demo.demo import FILES, run_demo, stages

    check_results(out, FILES, FILES)
    console = Console(highlight=False)
    with Progress(stages(steps)) as progress:
        tables, files = run_demo(out, seed=seed, steps=steps, progress=progress.advance)
    print_result(console, tables, files)
