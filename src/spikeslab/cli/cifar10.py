"""``spikeslab reproduce cifar10``: table 3 of the paper."""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from spikeslab.cli.errors import InputError, explain_os_errors
from spikeslab.cli.options import bad_input, check_file, check_folder, check_option, check_seed, use_threads
from spikeslab.cli.output import print_result
from spikeslab.errors import NonFiniteError, check_choice, quote

if TYPE_CHECKING:
    from spikeslab.paper.cifar10.data import Dense
    from spikeslab.paper.cifar10.runs import CifarRun
    from spikeslab.paper.cifar10.study import CifarPlan
    from spikeslab.paper.images.data import Images

MOST = 0.98
"""The share of zeros that the sparse layers can give to the whole network."""
OPTIONS = {"scope": "--scope", "sparsity": "--sparsities", "method": "--methods"}
ADVICE = ": choose more weights, or count='layers'."
"""What the network of this experiment leaves no room for."""
MARKS = {"md": "## CIFAR-10", "json": '"title": "CIFAR-10'}
"""How the files of tables begin."""


def cifar10(
    dense: Annotated[
        Path | None,
        typer.Option(help="Weights of a trained ResNet20, a safetensors file with the names of `spikeslab.models`."),
    ] = None,
    pretrain: Annotated[
        bool, typer.Option("--pretrain", help="Train the dense network first, with the paper's SGHMC, in --out.")
    ] = False,
    pretrain_epochs: Annotated[int, typer.Option(help="Epochs of --pretrain.")] = 1000,
    preset: Annotated[
        str,
        typer.Option(
            help="Recipe: taught (ours, the dense network teaches), sound (ours, without), compressed (the paper's in "
            "few epochs), paper (its 1000 epochs), ablation (batches of 2000, tau = 20 x 1.01^k), grid (compressed, "
            "fixed L1 and L2)."
        ),
    ] = "taught",
    methods: Annotated[
        str | None,
        typer.Option(
            help="Methods, separated by commas: those of `spikeslab compress`, and l1:0.003 or l2:0.6 with a strength; "
            "the recipe's if not given."
        ),
    ] = None,
    sparsities: Annotated[
        str, typer.Option(help="Shares of zeros in the whole network, separated by commas.")
    ] = "0.3,0.5,0.7,0.9",
    epochs: Annotated[int | None, typer.Option(help="Epochs of each run; the recipe's if not given.")] = None,
    seeds: Annotated[int, typer.Option(help="Runs of each row.")] = 1,
    seed: Annotated[int, typer.Option(help="Seed of the first run of each row; the others follow it.")] = 0,
    scope: Annotated[
        str | None,
        typer.Option(
            help="How zeros are shared out: 'layer' (the paper: one rate), 'global' or 'erk'; the recipe's if not "
            "given."
        ),
    ] = None,
    structure: Annotated[
        str,
        typer.Option(
            help="What becomes zero: single 'weights' (the paper), or whole 'channels', of which --sparsities are then "
            "the shares."
        ),
    ] = "weights",
    batch_size: Annotated[
        int | None, typer.Option(help="Images in a mini-batch; the recipe's if not given, 1000 for --pretrain.")
    ] = None,
    erasing: Annotated[
        bool | None,
        typer.Option(
            "--erasing/--no-erasing", help="Erase rectangles of training images, as the paper does; else the recipe's."
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="A setting of `spikeslab.compression.Settings` in place of the recipe's; several values with commas "
            "are several rows. May be given several times.",
        ),
    ] = None,
    held_out: Annotated[
        int,
        typer.Option(
            help="Training images to hold out and judge in place of the test images, which then stay unseen. A dense "
            "network from a file has usually been trained on them: they rank settings, and their accuracy is too good."
        ),
    ] = 0,
    best_epoch: Annotated[
        bool,
        typer.Option(
            "--best-epoch",
            help="Judge the test images after every epoch, for a column with the best, as the paper reports it.",
        ),
    ] = False,
    threads: Annotated[int | None, typer.Option(help="Threads; torch's choice if not given.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for the runs, the tables and the figures.")] = Path("out/cifar10"),
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with runs that are in --out; those that are done are read.")
    ] = False,
    data_dir: Annotated[
        Path | None,
        typer.Option(help="Folder with cifar-10-batches-bin; by default SPIKESLAB_DATA, or else it is downloaded."),
    ] = None,
) -> None:
    """Repeat the paper's compression of ResNet20 on CIFAR-10 (table 3), beside the baselines that it lacks.

    By default our recipe runs, with gradual magnitude pruning and a fixed L2; `--preset compressed` is table 3 itself.
    Accuracy of the last epoch and of the posterior average, drop from dense, NLL, ECE and non-zeros of every method and
    sparsity, beside the paper's. The test images are looked at once, after the last step. With a teacher an
    epoch takes more than four minutes on one core, half of that with --set precision=bfloat16 where the processor
    computes in it; a run that is stopped or killed goes on with --resume and ends in the same numbers. The tables and
    figures are of all runs in --out that are done.

    For example:

    - `spikeslab reproduce cifar10 --dense resnet20.safetensors --sparsities 0.9 --epochs 30 --seeds 2`
    - `spikeslab reproduce cifar10 --dense resnet20.safetensors --preset compressed --epochs 30 --best-epoch`
    - settings ranked on held-out images: `spikeslab reproduce cifar10 --dense resnet20.safetensors --sparsities 0.9
      --methods gmp,l2:0.002,l2:0.005 --epochs 10 --held-out 5000`
    - the paper's run: `spikeslab reproduce cifar10 --pretrain --preset paper`
    """
    from spikeslab.compression.harness import STRUCTURES
    from spikeslab.paper.cifar10.study import run_plan, write_figures, write_tables
    from spikeslab.paper.images.data import load_cifar10
    from spikeslab.paper.published import DataError

    check_folder(out)
    _check_tables(out)
    _check_counts({"--pretrain-epochs": pretrain_epochs, "--seeds": seeds}, {"--held-out": held_out})
    check_seed(seed)
    _check_counts({"--epochs": epochs, "--batch-size": batch_size}, {})
    use_threads(threads)
    if (dense is not None) == pretrain:
        raise InputError(
            "--dense must be the file of a trained ResNet20, or --pretrain must be given to train one, but got "
            f"{'both' if pretrain else 'neither'}."
        )
    if best_epoch and held_out:
        raise InputError("--best-epoch must not go with --held-out, which leaves the test images unseen, but got both.")
    with bad_input():
        plan = _plan(preset, methods, sparsities, epochs, seed, seeds, scope, batch_size, erasing, settings or [])
        plan = replace(plan, held_out=held_out, best_epoch=best_epoch)
        plan = replace(plan, structure=check_choice("--structure", structure, STRUCTURES))
        _check_runs(plan)
    if not resume and any((out / run.name).exists() for run in plan.runs()):
        raise InputError(f"--out must not hold these runs yet, but {out} does: go on with --resume, or choose another.")
    start = {"dense": dense.name} if dense else {"pretrain": True, "pretrain_epochs": pretrain_epochs}
    command = plan.command(start, threads)
    network = None if dense is None else _read_dense(dense)
    failed: list[str] = []

    def note(run: CifarRun, error: NonFiniteError) -> None:
        failed.append(run.name)
        print(f"{run.name} failed, and the others go on: {error}", file=sys.stderr)

    with explain_os_errors(out):
        try:
            data = load_cifar10(data_dir)
        except DataError as error:
            raise InputError(str(error).replace("data_dir", "--data-dir", 1)) from error
        if held_out >= len(data.y_train):
            raise InputError(
                f"--held-out must leave images to train on: fewer than {len(data.y_train)}, but got {held_out}."
            )
        out.mkdir(parents=True, exist_ok=True)
        network = network or _pretrained(data, out, pretrain_epochs, batch_size, seed, held_out, command)
        run_plan(plan, out, data, network, command, note)
        tables, files = write_tables(out)
        files += write_figures(out)
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console = Console(highlight=False, markup=False, width=200)  # a file can be as wide as the tables
    print_result(console, tables, files)
    if failed:
        raise InputError(f"All runs must end in finite numbers, but {quote(failed)} did not: try a lower lr.")


def _check_counts(positive: dict[str, int | None], natural: dict[str, int | None]) -> None:
    for minimum, options in ((1, positive), (0, natural)):
        for option, value in options.items():
            if value is not None:
                check_option(option, value, minimum)


def _plan(
    preset: str,
    methods: str | None,
    sparsities: str,
    epochs: int | None,
    seed: int,
    seeds: int,
    scope: str | None,
    batch_size: int | None,
    erasing: bool | None,
    settings: list[str],
) -> CifarPlan:
    from spikeslab.cli.settings import read_settings
    from spikeslab.paper.cifar10.presets import PRESETS, check_method
    from spikeslab.paper.cifar10.study import CifarPlan

    recipe = PRESETS[check_choice("--preset", preset, PRESETS)]
    names = recipe.methods if methods is None else [part.strip() for part in methods.split(",")]
    varied = read_settings(settings)
    fixed = [] if scope is None else [[("scope", scope)]]
    return CifarPlan(
        preset=preset,
        methods=tuple(dict.fromkeys(check_method("--methods", name) for name in names)),
        sparsities=tuple(dict.fromkeys(_share(text) for text in sparsities.split(","))),
        epochs=epochs or recipe.epochs,
        seeds=tuple(range(seed, seed + seeds)),
        batch_size=batch_size or recipe.batch_size,
        erasing=recipe.erasing if erasing is None else erasing,
        variants=tuple(product(*fixed, *([(name, value) for value in values] for name, values in varied))),
    )


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = 0.0
    if not 0.0 < share <= MOST:
        raise ValueError(f"--sparsities must be numbers in (0, {MOST}], separated by commas, but got {text.strip()!r}.")
    return share


def _check_runs(plan: CifarPlan) -> None:
    """Raise if a run is impossible, before any work is done; seeds do not matter for that."""
    from spikeslab.cli.errors import SET
    from spikeslab.cli.settings import NAMES
    from spikeslab.paper.cifar10.runs import check_run

    for run in replace(plan, seeds=plan.seeds[:1]).runs():
        try:
            check_run(run)
        except (ValueError, TypeError) as error:
            name, _, rest = str(error).removesuffix(ADVICE).partition(" ")
            option = OPTIONS.get(name) or (f"{SET} {name}" if name in NAMES else None)
            if option is None:
                start = f"--methods must be ones for --preset {run.preset}, but got {run.method!r}"
                raise ValueError(f"{start}: {error}") from error
            raise ValueError(f"{option} {rest.removesuffix('.')}.") from error


def _check_tables(out: Path) -> None:
    """Raise if ``out`` has files of the names of tables and figures that are not of this command."""
    from spikeslab.paper.cifar10.study import ACCURACY, COURSE, DETAILS, FILES, PAPER, STEMS, TABLE3

    for stem in STEMS.values():
        for name in (ACCURACY, DETAILS, FILES, PAPER, TABLE3):
            for suffix, mark in MARKS.items():
                check_file("--out", out / f"{stem}{name}.{suffix}", mark, "a table of this command at that place")
        if not (out / f"{stem}{ACCURACY}.json").exists():
            for path in sorted([*out.glob(f"{stem}{ACCURACY}.png"), *out.glob(f"{stem}{COURSE}-*.png")]):
                raise InputError(f"--out must be a folder without other files of that name, but {path} exists.")


def _read_dense(path: Path) -> Dense:
    from spikeslab.cli.dense import load_dense
    from spikeslab.files import digest
    from spikeslab.paper.cifar10.data import Dense, empty_network

    model = empty_network().eval()
    load_dense(model, path, "ResNet20")
    return Dense(model, digest(path)[:16])


def _pretrained(
    data: Images, out: Path, epochs: int, batch_size: int | None, seed: int, held_out: int, command: str
) -> Dense:
    from spikeslab.paper.cifar10.data import PRETRAIN_BATCH, pretrain

    size: Any = batch_size or PRETRAIN_BATCH
    return pretrain(data, out, epochs=epochs, batch_size=size, seed=seed, held_out=held_out, command=command)
