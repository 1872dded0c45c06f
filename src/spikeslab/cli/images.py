"""``spikeslab reproduce mnist``, ``fashion``, ``image-search`` and ``adversarial``: table 2 and figure 2."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from spikeslab.cli._errors import CORES, spells
from spikeslab.cli._options import (
    check_choices,
    check_counts,
    check_folder,
    check_new,
    check_results,
    check_seed,
)
from spikeslab.cli._output import WIDE, plain_console, print_result
from spikeslab.errors import check_count
from spikeslab.report.progress import Progress

ALL_METHODS = "vanilla,dropout,sghmc,sghmc-sa"

Methods = Annotated[str, typer.Option(help="Methods, separated by commas: vanilla, dropout, sghmc, sghmc-sa.")]
Seed = Annotated[int, typer.Option(help="Seed of the first run of each method; the others follow it.")]
AugmentOption = Annotated[
    bool, typer.Option("--augment", help="Augment the images, and use the network with batch normalisation.")
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
DataDir = Annotated[
    Path | None,
    typer.Option(help="Folder with the publishers' files.", show_default="SPIKESLAB_DATA, or they are downloaded"),
]

MNIST_HELP = """Repeat the paper's MNIST experiment (table 2): Vanilla, Dropout, SGHMC and SGHMC-SA on a small CNN.

    Writes accuracy, NLL, Brier score and ECE of the last weights and of the posterior average, beside the paper's
    accuracy, and how well the uncertainty tells Fashion-MNIST from MNIST. 5,000 training images are held out. An epoch
    takes 40 to 110 seconds on two cores, all eight runs of 30 epochs about five hours. --resume continues a run that
    was interrupted, with the same numbers if the number of threads is the same.

    For example:

    - `spikeslab reproduce mnist --data-dir data --out out/mnist`
    - a quick look: `spikeslab reproduce mnist --methods sghmc-sa --presets default --epochs 3 --out out/look`
    """
FASHION_HELP = """Repeat the paper's Fashion-MNIST experiment (table 2); the options are those of `reproduce mnist`.

    Example: `spikeslab reproduce fashion --data-dir data --out out/fashion --resume`
    """


def _make_command(dataset: str, text: str) -> Callable[..., None]:
    def reproduce(
        out: Annotated[Path, typer.Option(help="Folder for runs, tables and figures.")] = Path("out") / dataset,
        methods: Methods = ALL_METHODS,
        presets: Annotated[str, typer.Option(help="Presets, separated by commas: paper, default.")] = "paper,default",
        epochs: Annotated[int, typer.Option(help="Epochs of each run.")] = 30,
        seed: Seed = 0,
        seeds: Annotated[int, typer.Option(help="Runs of each method.")] = 1,
        augment: AugmentOption = False,
        held_out: HeldOut = 5000,
        precision: Precision = "float32",
        resume: Annotated[
            bool,
            typer.Option("--resume", help="Continue the runs in --out, read finished ones, and rewrite the tables."),
        ] = False,
        data_dir: DataDir = None,
    ) -> None:
        check_folder(out)
        check_seed(seed)
        check_counts(epochs=epochs, seeds=seeds)
        check_count("held_out", held_out, minimum=0)
        from spikeslab.paper.images.presets import PRESETS, make_preset
        from spikeslab.paper.images.runs import METHODS, ImageRun, load_images
        from spikeslab.paper.images.study import ImageStudy

        names = check_choices("methods", methods, METHODS), check_choices("presets", presets, PRESETS)
        preset = make_preset(names[1][0], dataset, augment=augment)
        run = ImageRun(dataset, names[0][0], preset, epochs, augment, seed, held_out, precision)
        study = ImageStudy(run, *names, tuple(range(seed, seed + seeds)))
        taken = [run.folder(out) for runs in study.rows() for run in runs] + [out / f"{study.stem}accuracy.json"]
        check_new(out, resume, taken)
        data, foreign = load_images(dataset, data_dir)
        tables, files = study.write(study.run_all(out, data, foreign), data.y_test, out)
        print_result(plain_console(WIDE), tables, files)

    reproduce.__name__, reproduce.__doc__ = dataset, text
    return reproduce


mnist, fashion = _make_command("mnist", MNIST_HELP), _make_command("fashion", FASHION_HELP)


@spells(set="--set")
def image_search(
    dataset: Annotated[str, typer.Argument(metavar="DATASET", help="'mnist' or 'fashion'.")],
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A value of the preset to change. May be repeated."),
    ] = None,
    epochs: Annotated[int, typer.Option(help="Epochs of the trial.")] = 30,
    seed: Annotated[int, typer.Option(help="Seed of the trial.")] = 0,
    augment: AugmentOption = False,
    held_out: Annotated[int, typer.Option(help="Training images that are held out and evaluated.")] = 5000,
    precision: Precision = "float32",
    out: Annotated[Path, typer.Option(help="Folder of all trials.")] = Path("out/search"),
    data_dir: DataDir = None,
) -> None:
    """Try SGHMC-SA with other values of the preset `default`, evaluated on held-out training images.

    The presets of `spikeslab reproduce mnist` and `fashion` were chosen with it. A trial never sees the test images and
    continues where it was stopped; `search.md` in --out has a row for each trial.

    Example: `spikeslab reproduce image-search fashion --epochs 10 --set lr=0.1 --set v1=0.04`
    """
    check_folder(out)
    check_seed(seed)
    check_counts(epochs=epochs, held_out=held_out)
    from spikeslab.paper.images.data import LOADERS
    from spikeslab.paper.images.presets import make_preset
    from spikeslab.paper.images.runs import ImageRun
    from spikeslab.paper.images.study import change_preset, run_trial, search_table
    from spikeslab.report.tables import Provenance, command_line

    preset = change_preset(make_preset("default", dataset, augment=augment), settings or ())
    run = ImageRun(dataset, "sghmc-sa", preset, epochs, augment, seed, held_out, precision)
    run_trial(run, out, LOADERS[dataset](data_dir))
    table = search_table(out)
    command = command_line("reproduce", "image-search", dataset, augment=augment, epochs=epochs, set=settings)
    files = table.write(out / "search", Provenance(command, seed))
    print_result(plain_console(WIDE), [table], files)


def adversarial(
    out: Annotated[Path, typer.Option(help="Folder for the tables and figures.")] = Path("out/adversarial"),
    runs: Annotated[
        Path, typer.Option(help="Folder with mnist and fashion, as the commands of these names wrote them.")
    ] = Path("out"),
    datasets: Annotated[str, typer.Option(help="Data sets, separated by commas.")] = "mnist,fashion",
    methods: Methods = ALL_METHODS,
    preset: Annotated[str, typer.Option(help="Preset of the runs: 'paper' or 'default'.")] = "default",
    epochs: Annotated[int, typer.Option(help="Epochs of the runs.")] = 30,
    seed: Annotated[int, typer.Option(help="Seed of the runs.")] = 0,
    attack: Annotated[str, typer.Option(help="'fgsm', the paper's, or 'pgd' with ten steps.")] = "fgsm",
    images: Annotated[int, typer.Option(help="Number of test images, from the first.")] = 10_000,
    samples: Annotated[int | None, typer.Option(help="Samples of each posterior.", show_default="all")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue with the results in --out.")] = False,
    data_dir: DataDir = None,
    workers: Annotated[int, typer.Option(help="Processes, each on one core.")] = CORES,
) -> None:
    """Repeat the paper's adversarial attacks (figure 2) on finished runs of `spikeslab reproduce mnist` and `fashion`.

    Writes accuracy and confidence while every pixel may move by up to ζ = 0 to 0.5. Posterior averages are attacked
    twice: along the gradient of one sample, as in the paper, and along that of the average, which is the honest attack.

    For example:

    - `spikeslab reproduce adversarial --data-dir data --out out/adversarial`
    - a quick look: `spikeslab reproduce adversarial --datasets mnist --images 200 --samples 5`
    """
    check_folder(out)
    check_seed(seed)
    check_counts(epochs=epochs, images=images, samples=samples, workers=workers)
    from spikeslab.paper.adversarial import study as experiment
    from spikeslab.paper.grid import CELLS
    from spikeslab.paper.images.runs import METHODS

    check_results(out, experiment.TABLES, experiment.FIGURES)
    study = experiment.AdversarialStudy(
        datasets=check_choices("datasets", datasets, experiment.DATASETS),
        methods=check_choices("methods", methods, METHODS),
        preset=preset,
        epochs=epochs,
        seed=seed,
        attack=attack,
        images=images,
        samples=samples,
        runs=runs,
        data_dir=data_dir,
        workers=workers,
    )
    experiment.check_runs(study)
    check_new(out, resume, [out / CELLS])
    stage = f"{len(study.attacks)} curves"
    with Progress({stage: len(study.cells)}, unit="pieces") as progress:
        curves = experiment.run_adversarial(study, out, partial(progress.advance, stage))
        tables, files = experiment.write_adversarial(study, curves, out)
    print_result(plain_console(WIDE), tables, files)
