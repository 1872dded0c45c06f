"""``spikeslab reproduce mnist`` and ``spikeslab reproduce fashion``: table 2 of the paper."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from spikeslab.cli.errors import InputError
from spikeslab.cli.options import bad_input, check_choices, check_folder, check_option, check_seed
from spikeslab.cli.output import print_result

Out = Annotated[
    Path | None,
    typer.Option(help="Folder for runs, tables and figures; out/mnist or out/fashion if not given."),
]
Methods = Annotated[str, typer.Option(help="Methods, separated by commas: vanilla, dropout, sghmc, sghmc-sa.")]
Recipes = Annotated[str, typer.Option(help="Settings, separated by commas: paper, tuned.")]
Epochs = Annotated[int, typer.Option(help="Epochs of each run.")]
Seed = Annotated[int, typer.Option(help="Seed of the first run of each method; the others follow it.")]
Seeds = Annotated[int, typer.Option(help="Runs of each method.")]
AugmentOption = Annotated[
    bool, typer.Option("--augment", help="Change the images at random, and use the network with batch normalisation.")
]
HeldOut = Annotated[
    int,
    typer.Option(help="Training images that are held out for all choices; 0 trains on all, once the choices are made."),
]
Precision = Annotated[
    str,
    typer.Option(
        help="Precision of the loss in training: float32, or bfloat16 where the processor multiplies it natively. "
        "Predictions are made in float32."
    ),
]
Resume = Annotated[
    bool,
    typer.Option(
        "--resume",
        help="Go on with runs in --out, read those that are done, and write the tables anew.",
    ),
]
DataDir = Annotated[
    Path | None,
    typer.Option(
        help="Folder with the publishers' files, both of MNIST and of Fashion-MNIST, of which one has the foreign "
        "images for the other; by default SPIKESLAB_DATA, or else they are downloaded."
    ),
]


def mnist(
    out: Out = None,
    methods: Methods = "vanilla,dropout,sghmc,sghmc-sa",
    recipes: Recipes = "paper,tuned",
    epochs: Epochs = 30,
    seed: Seed = 0,
    seeds: Seeds = 1,
    augment: AugmentOption = False,
    held_out: HeldOut = 5000,
    precision: Precision = "float32",
    resume: Resume = False,
    data_dir: DataDir = None,
) -> None:
    """Repeat the paper's MNIST experiment (table 2): Vanilla, Dropout, SGHMC and SGHMC-SA on a small CNN.

    Accuracy, NLL, Brier score and ECE of the last weights and of the posterior average, beside the paper's. 5,000
    training images are held out. An epoch takes about 40 seconds on two cores, all eight runs of 30 epochs about three
    hours; a run that is stopped or killed goes on with --resume and, on as many threads, ends in the same numbers.

    For example:

    - `spikeslab reproduce mnist --data-dir data --out out/mnist`
    - a quick look: `spikeslab reproduce mnist --methods sghmc-sa --recipes tuned --epochs 3 --out out/look`
    """
    _reproduce("mnist", out, methods, recipes, epochs, seed, seeds, augment, held_out, precision, resume, data_dir)


def fashion(
    out: Out = None,
    methods: Methods = "vanilla,dropout,sghmc,sghmc-sa",
    recipes: Recipes = "paper,tuned",
    epochs: Epochs = 30,
    seed: Seed = 0,
    seeds: Seeds = 1,
    augment: AugmentOption = False,
    held_out: HeldOut = 5000,
    precision: Precision = "float32",
    resume: Resume = False,
    data_dir: DataDir = None,
) -> None:
    """Repeat the paper's Fashion-MNIST experiment (table 2); everything else is as in `spikeslab reproduce mnist`.

    Example: `spikeslab reproduce fashion --data-dir data --out out/fashion --resume`
    """
    _reproduce("fashion", out, methods, recipes, epochs, seed, seeds, augment, held_out, precision, resume, data_dir)


def _reproduce(
    dataset: str,
    out: Path | None,
    methods: str,
    recipes: str,
    epochs: int,
    seed: int,
    seeds: int,
    augment: bool,
    held_out: int,
    precision: str,
    resume: bool,
    data_dir: Path | None,
) -> None:
    from spikeslab.errors import NonFiniteError, check_choice
    from spikeslab.paper.images.presets import RECIPES
    from spikeslab.paper.images.runs import METHODS, load_images
    from spikeslab.paper.images.study import ImagePlan, run_plan, write_plan
    from spikeslab.paper.published import DataError
    from spikeslab.training import CheckpointError
    from spikeslab.training.precision import PRECISIONS

    out = out or Path("out") / dataset
    check_folder(out)
    check_option("--epochs", epochs, minimum=1)
    check_seed(seed)
    check_option("--seeds", seeds, minimum=1)
    check_option("--held-out", held_out, minimum=0)
    with bad_input():
        plan = ImagePlan(
            dataset=dataset,
            methods=check_choices("--methods", methods, METHODS),
            recipes=check_choices("--recipes", recipes, RECIPES),
            epochs=epochs,
            seeds=tuple(range(seed, seed + seeds)),
            augment=augment,
            held_out=held_out,
            precision=check_choice("--precision", precision, PRECISIONS),
        )
    if not resume and any((out / run.name).exists() for run in plan.runs()):
        raise InputError(f"--out must not hold these runs yet, but {out} does: go on with --resume, or choose another.")
    if not resume and plan.table(out).exists():
        raise InputError(
            f"--out must not hold the tables of other runs, but {out} does: choose another, or replace them with "
            "--resume."
        )
    console = Console(highlight=False)
    try:
        data, foreign = load_images(dataset, data_dir)
        if held_out >= len(data.y_train):
            raise InputError(
                f"--held-out must leave images to train on: fewer than {len(data.y_train)}, but got {held_out}."
            )
        tables, files = write_plan(plan, run_plan(plan, out, data, foreign), data.y_test, out)
    except DataError as error:
        raise InputError(str(error).replace("data_dir", "--data-dir", 1)) from error
    except (CheckpointError, BlockingIOError) as error:
        raise InputError(str(error)) from error
    except NonFiniteError as error:
        raise InputError(f"{str(error)[:1].upper()}{str(error)[1:]}") from error
    except OSError as error:
        raise InputError(f"--out must be a folder that can be written to, but {out}: {error.strerror}.") from error
    print_result(console, tables, files)
