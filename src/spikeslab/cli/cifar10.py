"""``spikeslab reproduce cifar10``: table 3 of the paper."""

from __future__ import annotations

import sys
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spikeslab.cli._errors import InputError, spells
from spikeslab.cli._options import check_counts, check_new, check_results, check_seed, read_settings, use_threads
from spikeslab.cli._output import WIDE, plain_console, print_result
from spikeslab.errors import check_count, quote

if TYPE_CHECKING:
    from spikeslab.paper.cifar10.data import Dense

HIGHEST = 0.98
"""Highest share of zeros of the whole network that the sparse layers can give."""

DenseFile = Annotated[Path | None, typer.Option(help="Safetensors file with the weights of a trained `resnet20()`.")]
PresetOption = Annotated[
    str,
    typer.Option(
        help="distilled (ours, with distillation from the dense network), default (ours, without), paper (1000 "
        "epochs), paper-short (the paper's in few epochs), ablation (the paper's with batches of 2000 and tau = 20 x "
        "1.01^k), grid (paper-short with fixed L1 and L2)."
    ),
]
Methods = Annotated[
    str | None,
    typer.Option(
        help="Methods of `spikeslab compress`, separated by commas; l2:0.6 has a strength.", show_default="the preset's"
    ),
]
Scope = Annotated[
    str | None,
    typer.Option(help="Distribution of zeros: 'layer' (the paper), 'global' or 'erk'.", show_default="the preset's"),
]
Structure = Annotated[
    str, typer.Option(help="Prune single 'weights' (the paper), or whole 'channels': --sparsities are shares of them.")
]
BatchSize = Annotated[
    int | None, typer.Option(help="Images in a mini-batch.", show_default="the preset's, and 1000 for --pretrain")
]
Erasing = Annotated[
    bool | None,
    typer.Option(help="Erase rectangles of training images, as the paper does.", show_default="the preset's"),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="A field of `spikeslab.compression.Settings` in place of the preset's. Values with commas between them "
        "are rows of the table. May be repeated.",
    ),
]
HeldOut = Annotated[
    int,
    typer.Option(
        help="Training images to evaluate in place of the test images, which stay unseen. They rank settings; their "
        "accuracy is too good if the dense network was trained on them."
    ),
]
BestEpoch = Annotated[
    bool, typer.Option("--best-epoch", help="Add the test accuracy of the best epoch, as the paper reports it.")
]
DataDir = Annotated[
    Path | None,
    typer.Option(help="Folder with cifar-10-batches-bin.", show_default="SPIKESLAB_DATA, or it is downloaded"),
]


@spells(sparsity="--sparsities", method="--methods")
def cifar10(
    dense: DenseFile = None,
    pretrain: Annotated[
        bool, typer.Option("--pretrain", help="Train the dense network first, with the paper's SGHMC, in --out.")
    ] = False,
    pretrain_epochs: Annotated[int, typer.Option(help="Epochs of --pretrain.")] = 1000,
    preset: PresetOption = "distilled",
    methods: Methods = None,
    sparsities: Annotated[str, typer.Option(help="Shares of zeros in the network, with commas.")] = "0.3,0.5,0.7,0.9",
    epochs: Annotated[int | None, typer.Option(help="Epochs of each run.", show_default="the preset's")] = None,
    seeds: Annotated[int, typer.Option(help="Runs of each row.")] = 1,
    seed: Annotated[int, typer.Option(help="Seed of the first run of each row; the others follow it.")] = 0,
    scope: Scope = None,
    structure: Structure = "weights",
    batch_size: BatchSize = None,
    erasing: Erasing = None,
    settings: Set = None,
    held_out: HeldOut = 0,
    best_epoch: BestEpoch = False,
    threads: Annotated[int | None, typer.Option(help="Threads.", show_default="torch's choice")] = None,
    out: Annotated[Path, typer.Option(help="Folder for the runs, the tables and the figures.")] = Path("out/cifar10"),
    resume: Annotated[bool, typer.Option("--resume", help="Continue the runs in --out; read finished ones.")] = False,
    report: Annotated[bool, typer.Option(help="Write report.html of each run.")] = True,
    data_dir: DataDir = None,
) -> None:
    """Repeat the paper's compression of ResNet20 on CIFAR-10 (table 3), with baselines that the paper lacks.

    The default preset is ours, with gradual magnitude pruning and a fixed L2 as baselines; `--preset paper-short` is
    table 3. The table has a row for each method and sparsity of all finished runs in --out: accuracy of the last epoch
    and of the posterior average, the paper's accuracy, NLL, ECE, non-zeros and file sizes. The test images are
    evaluated once, after the last step. With distillation an epoch takes more than four minutes on one core, half of
    that with --set precision=bfloat16 where the processor has it. --resume continues a run that was interrupted.

    For example:

    - `spikeslab reproduce cifar10 --dense resnet20.safetensors --sparsities 0.9 --epochs 30 --seeds 2`
    - `spikeslab reproduce cifar10 --dense resnet20.safetensors --preset paper-short --epochs 30 --best-epoch`
    - settings ranked on held-out images: `spikeslab reproduce cifar10 --dense resnet20.safetensors --sparsities 0.9
      --methods gmp,l2:0.002,l2:0.005 --epochs 10 --held-out 5000`
    - the paper's run: `spikeslab reproduce cifar10 --pretrain --preset paper`
    """
    check_seed(seed)
    check_count("held_out", held_out, minimum=0)
    check_counts(pretrain_epochs=pretrain_epochs, seeds=seeds, epochs=epochs, batch_size=batch_size, threads=threads)
    shares = [_read_share(text) for text in sparsities.split(",")]
    from spikeslab.paper.cifar10 import study as experiment
    from spikeslab.paper.cifar10.data import pretrain as pretrain_dense
    from spikeslab.paper.images.data import load_cifar10

    use_threads(threads)
    scopes = [] if scope is None else [[("scope", scope)]]
    varied = [[(name, value) for value in values] for name, values in read_settings(settings or [])]
    study = experiment.make_study(
        preset,
        methods=None if methods is None else methods.split(","),
        sparsities=shares,
        seeds=range(seed, seed + seeds),
        variants=tuple(product(*scopes, *varied)),
        epochs=epochs,
        batch_size=batch_size,
        erasing=erasing,
        held_out=held_out,
        best_epoch=best_epoch,
        structure=structure,
    )
    study.check()
    _check_options(dense, pretrain, best_epoch, held_out)
    check_results(out, experiment.TABLES, experiment.figure_names(out))
    check_new(out, resume, [out / run.name for run in study.runs()])
    start = {"dense": dense.name} if dense else {"pretrain": True, "pretrain_epochs": pretrain_epochs}
    command = study.command(start, threads)
    network = None if dense is None else _read_dense(dense)
    data = load_cifar10(data_dir)
    network = network or pretrain_dense(
        data, out, epochs=pretrain_epochs, batch_size=batch_size, seed=seed, held_out=held_out, command=command
    )
    failed = experiment.run_study(study, out, data, network, command, partial(print, file=sys.stderr), report)
    tables, files = experiment.write_tables(out)
    files += experiment.write_figures(out)
    print_result(plain_console(WIDE), tables, files)
    if failed:
        raise InputError(f"All runs must end in finite numbers, but {quote(failed)} did not: try a lower lr.")


def _check_options(dense: Path | None, pretrain: bool, best_epoch: bool, held_out: int) -> None:
    if (dense is not None) == pretrain:
        raise InputError(
            "--dense must be the file of a trained ResNet20, or --pretrain must be given to train one, but got "
            f"{'both' if pretrain else 'neither'}."
        )
    if best_epoch and held_out:
        raise InputError("--best-epoch must not go with --held-out, which leaves the test images unseen, but got both.")


def _read_share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = 0.0
    if not 0.0 < share <= HIGHEST:
        raise InputError(
            f"--sparsities must be numbers in (0, {HIGHEST}], separated by commas, but got {text.strip()!r}."
        )
    return share


def _read_dense(path: Path) -> Dense:
    from spikeslab.cli._stored_network import read_dense
    from spikeslab.compression.sparse_file import load_tensors_into
    from spikeslab.files import digest
    from spikeslab.paper.cifar10.data import Dense, new_network

    model = new_network().eval()
    load_tensors_into(model, read_dense(path), f"--dense {path}")
    return Dense(model, digest(path)[:16])
