"""``spikeslab reproduce mnist``, ``fashion``, ``image-search`` and ``adversarial``: table 2 and figure 2."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

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

PAPER_METHODS = "vanilla,dropout,sghmc,sghmc-sa"

Methods = Annotated[
    str, typer.Option(help="Methods, separated by commas: vanilla, dropout, swa, psgld, sghmc, sghmc-sa.")
]
Workers = Annotated[int, typer.Option(help="Processes, each on one core.")]
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

    Every method has the same number of chains or networks, each trained for the same number of epochs. Beside the
    paper's methods stand SWA and, from the trained networks, their ensemble, MC dropout and a last-layer Laplace
    approximation. Writes accuracy, NLL, Brier score and ECE beside the paper's accuracy, how well the uncertainty tells
    other images apart, paired differences, and what the prior did. 5,000 training images are held out.

    Chains run in parallel processes, each on one thread. --resume continues what was interrupted, with the same
    numbers. An epoch takes about 24 seconds on one core in bfloat16, so 4 chains of 40 epochs take half an hour on two.

    For example:

    - `spikeslab reproduce mnist --data-dir data --precision bfloat16 --out out/mnist`
    - three seeds of the samplers: `spikeslab reproduce mnist --methods sghmc,sghmc-sa --seeds 3 --out out/mnist`
    - a quick look: `spikeslab reproduce mnist --methods sghmc-sa --epochs 3 --chains 1 --out out/look`
    """
FASHION_HELP = """Repeat the paper's Fashion-MNIST experiment (table 2); the options are those of `reproduce mnist`.

    Example: `spikeslab reproduce fashion --data-dir data --precision bfloat16 --out out/fashion --resume`
    """


def _make_command(dataset: str, text: str) -> Callable[..., None]:
    other = "fashion" if dataset == "mnist" else "mnist"

    def reproduce(
        out: Annotated[Path, typer.Option(help="Folder for runs, tables and figures.")] = Path("out") / dataset,
        methods: Methods = "vanilla,dropout,swa,sghmc,sghmc-sa",
        presets: Annotated[
            str, typer.Option(help="Presets, separated by commas: default, paper, and paper-600k with N = 600,000.")
        ] = "default",
        epochs: Annotated[
            int | None, typer.Option(help="Epochs of each chain or network.", show_default="those of the preset")
        ] = None,
        chains: Annotated[
            int | None,
            typer.Option(help="Chains or networks of each run.", show_default="those of the preset, 4 or 1"),
        ] = None,
        seed: Seed = 0,
        seeds: Annotated[
            str, typer.Option(help="Runs of each method, or METHOD=NUMBER with commas between and 1 for the others.")
        ] = "1",
        augment: AugmentOption = False,
        held_out: HeldOut = 5000,
        precision: Precision = "float32",
        foreign: Annotated[
            str, typer.Option(help="Data sets, separated by commas, whose test images should be told apart.")
        ] = f"{other},cifar10",
        resume: Annotated[
            bool,
            typer.Option("--resume", help="Continue the runs in --out, read finished ones, and rewrite the tables."),
        ] = False,
        data_dir: DataDir = None,
        workers: Workers = CORES,
    ) -> None:
        check_folder(out)
        check_seed(seed)
        check_counts(epochs=epochs, chains=chains, workers=workers)
        check_count("held_out", held_out, minimum=0)
        from spikeslab.paper.images.presets import PRESETS, make_preset
        from spikeslab.paper.images.runs import METHODS, ImageRun, load_foreign, load_images
        from spikeslab.paper.images.study import ImageStudy, parse_seeds

        names = check_choices("methods", methods, METHODS), check_choices("presets", presets, PRESETS)
        others = check_choices("foreign", foreign, (other, "cifar10"))
        preset = make_preset(names[1][0], dataset, augment=augment)
        run = ImageRun(dataset, names[0][0], preset, augment, seed, held_out, precision)
        changes = {name: value for name, value in (("epochs", epochs), ("chains", chains)) if value is not None}
        study = ImageStudy(run, *names, parse_seeds(seeds, names[0]), changes, others)
        taken = [run.folder(out) for runs in study.rows() for run in runs] + [out / f"{study.stem}accuracy.json"]
        check_new(out, resume, taken)
        data = load_images(dataset, data_dir)
        data.hold_out(held_out)  # raises if there are too few images
        load_foreign(others, data_dir)  # raises before any work if a file is missing
        tables, files = study.write(study.run_all(out, data_dir, workers), data.y_test, out)
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
    method: Annotated[
        str, typer.Option(help="'vanilla', 'dropout', 'swa', 'psgld', 'sghmc' or 'sghmc-sa'.")
    ] = "sghmc-sa",
    preset: Annotated[str, typer.Option(help="Preset whose values are changed.")] = "default",
    epochs: Annotated[int, typer.Option(help="Epochs of each chain or network.")] = 20,
    chains: Annotated[int, typer.Option(help="Chains or networks of the trial.")] = 1,
    seed: Annotated[int, typer.Option(help="Seed of the trial.")] = 0,
    augment: AugmentOption = False,
    held_out: Annotated[int, typer.Option(help="Training images that are held out and evaluated.")] = 5000,
    precision: Precision = "float32",
    out: Annotated[Path, typer.Option(help="Folder of all trials.")] = Path("out/search"),
    data_dir: DataDir = None,
    workers: Workers = CORES,
) -> None:
    """Try a method with other values of a preset, evaluated on held-out training images.

    The preset `default` of `spikeslab reproduce mnist` and `fashion` was chosen with it. A trial never sees the test
    images and continues where it was stopped; `search.md` in --out has a row for each trial. Any value of the preset
    may be set: numbers, 0 or 1 for a switch, and none for a value that may be left open.

    Example: `spikeslab reproduce image-search fashion --epochs 10 --set lr=0.2 --set temperature=0.1`
    """
    check_folder(out)
    check_seed(seed)
    check_counts(epochs=epochs, chains=chains, held_out=held_out, workers=workers)
    from spikeslab.paper.images.presets import make_preset
    from spikeslab.paper.images.runs import ImageRun
    from spikeslab.paper.images.study import change_preset, run_trial, search_table
    from spikeslab.report.tables import Provenance, command_line

    length: dict[str, Any] = {"epochs": epochs, "chains": chains}
    made = replace(make_preset(preset, dataset, augment=augment), **length)
    run = ImageRun(dataset, method, change_preset(made, settings or ()), augment, seed, held_out, precision)
    run_trial(run, out, data_dir=data_dir, workers=workers)
    table = search_table(out)
    options = {"method": method, "preset": preset, "augment": augment, **length, "set": settings}
    command = command_line("reproduce", "image-search", dataset, **options)
    files = table.write(out / "search", Provenance(command, seed))
    print_result(plain_console(WIDE), [table], files)


def adversarial(
    out: Annotated[Path, typer.Option(help="Folder for the tables and figures.")] = Path("out/adversarial"),
    runs: Annotated[
        Path, typer.Option(help="Folder with mnist and fashion, as the commands of these names wrote them.")
    ] = Path("out"),
    datasets: Annotated[str, typer.Option(help="Data sets, separated by commas.")] = "mnist,fashion",
    methods: Annotated[str, typer.Option(help="Methods of the paper, separated by commas.")] = PAPER_METHODS,
    preset: Annotated[str, typer.Option(help="Preset of the runs: default, paper or paper-600k.")] = "default",
    epochs: Annotated[int | None, typer.Option(help="Epochs of the runs.", show_default="those of the preset")] = None,
    chains: Annotated[int | None, typer.Option(help="Chains of the runs.", show_default="those of the preset")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the runs.")] = 0,
    attack: Annotated[str, typer.Option(help="'fgsm', the paper's, or 'pgd' with ten steps.")] = "fgsm",
    images: Annotated[int, typer.Option(help="Number of test images, from the first.")] = 10_000,
    samples: Annotated[int | None, typer.Option(help="Samples of each posterior.", show_default="all")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue with the results in --out.")] = False,
    data_dir: DataDir = None,
    workers: Workers = CORES,
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
    check_counts(epochs=epochs, chains=chains, images=images, samples=samples, workers=workers)
    from spikeslab.paper.adversarial import study as experiment
    from spikeslab.paper.grid import CELLS

    check_results(out, experiment.TABLES, experiment.FIGURES)
    study = experiment.AdversarialStudy(
        datasets=check_choices("datasets", datasets, experiment.DATASETS),
        methods=check_choices("methods", methods, tuple(experiment.KINDS)),
        preset=preset,
        epochs=epochs,
        chains=chains,
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
