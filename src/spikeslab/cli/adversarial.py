"""``spikeslab reproduce adversarial``: figure 2 of the paper."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from spikeslab.cli.errors import InputError
from spikeslab.cli.options import CORES, bad_input, check_choices, check_option, check_results, check_seed
from spikeslab.cli.output import print_result
from spikeslab.errors import check_choice
from spikeslab.report.progress import Progress


def adversarial(
    out: Annotated[Path, typer.Option(help="Folder for the tables and figures.")] = Path("out/adversarial"),
    runs: Annotated[
        Path, typer.Option(help="Folder that holds mnist and fashion, as the commands of these names wrote them.")
    ] = Path("out"),
    datasets: Annotated[str, typer.Option(help="Data sets, separated by commas.")] = "mnist,fashion",
    methods: Annotated[
        str, typer.Option(help="Methods, separated by commas: vanilla, dropout, sghmc, sghmc-sa.")
    ] = "vanilla,dropout,sghmc,sghmc-sa",
    recipe: Annotated[str, typer.Option(help="Settings of the runs: 'paper' or 'tuned'.")] = "tuned",
    epochs: Annotated[int, typer.Option(help="Epochs of the runs.")] = 30,
    seed: Annotated[int, typer.Option(help="Seed of the runs.")] = 0,
    attack: Annotated[str, typer.Option(help="'fgsm', the paper's, or 'pgd' with ten steps.")] = "fgsm",
    images: Annotated[int, typer.Option(help="The first so many test images.")] = 10_000,
    samples: Annotated[
        int | None, typer.Option(help="Samples of each posterior, evenly spaced; by default all.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the results in --out; what is done is read.")
    ] = False,
    data_dir: Annotated[
        Path | None,
        typer.Option(help="Folder with the publisher's files; by default SPIKESLAB_DATA, or else they are downloaded."),
    ] = None,
    workers: Annotated[int, typer.Option(help="Processes, each on one core.")] = CORES,
) -> None:
    """Repeat the paper's adversarial attacks (figure 2) on finished runs of `spikeslab reproduce mnist` and `fashion`.

    Accuracy and confidence while every pixel may move by up to ζ = 0 to 0.5. Posterior averages are attacked twice:
    along the gradient of one sample, as in the paper, and along that of the average, which is the honest attack.

    For example:

    - `spikeslab reproduce adversarial --data-dir data --out out/adversarial`
    - a quick look: `spikeslab reproduce adversarial --datasets mnist --images 200 --samples 5`
    """
    from spikeslab.paper.adversarial.figures import FIGURES, TABLES, write_adversarial
    from spikeslab.paper.adversarial.runs import (
        ATTACKS,
        CELLS,
        DATASETS,
        AdversarialPlan,
        check_runs,
        run_adversarial,
    )
    from spikeslab.paper.cells import SettingsError
    from spikeslab.paper.images.presets import RECIPES
    from spikeslab.paper.images.runs import METHODS
    from spikeslab.training import CheckpointError

    check_results(out, TABLES, FIGURES)
    check_option("--epochs", epochs, minimum=1)
    check_seed(seed)
    check_option("--images", images, minimum=1)
    check_option("--workers", workers, minimum=1)
    if samples is not None:
        check_option("--samples", samples, minimum=1)
    with bad_input():
        plan = AdversarialPlan(
            datasets=check_choices("--datasets", datasets, DATASETS),
            methods=check_choices("--methods", methods, METHODS),
            recipe=check_choice("--recipe", recipe, RECIPES),
            epochs=epochs,
            seed=seed,
            attack=check_choice("--attack", attack, ATTACKS),
            images=images,
            samples=samples,
            runs=runs,
            data_dir=data_dir,
            workers=workers,
        )
        try:
            check_runs(plan)
        except (FileNotFoundError, CheckpointError) as error:
            raise InputError(str(error)) from error
    if not resume and (out / CELLS).exists():
        raise InputError(
            f"--out must not hold these results yet, but {out} does: go on with --resume, or choose another."
        )
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=200)
    stage = f"{len(plan.contests)} curves"
    try:
        with Progress({stage: len(plan.cells)}, unit="pieces") as progress:
            curves = run_adversarial(plan, out, partial(progress.advance, stage))
        tables, files = write_adversarial(plan, curves, out)
    except SettingsError as error:
        raise InputError(f"--out must be a new folder or that of a run to go on with, but {error}.") from error
    except CheckpointError as error:
        raise InputError(str(error)) from error
    except OSError as error:
        raise InputError(f"--out must be a folder that can be written to, but {out}: {error.strerror}.") from error
    print_result(console, tables, files)
