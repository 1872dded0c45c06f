"""``spikeslab prune``: make a network of one's own sparse without training."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spikeslab.cli._errors import spells
from spikeslab.cli._options import COPY, check_counts, check_folder, check_seed, use_threads
from spikeslab.cli._output import plain_console, print_result
from spikeslab.cli.compress import RESULT, ROUNDED, RecipeArgument, explain_errors
from spikeslab.errors import ArgumentError, check_choice, check_number, mark, pluralize
from spikeslab.files import check_free, sweep, write_together
from spikeslab.report.tables import METRICS, Cell, Column, Provenance, Table, command_line, scale_metric

if TYPE_CHECKING:
    from torch import nn

    from spikeslab.cli.recipe import Recipe
    from spikeslab.compression import OneShot
    from spikeslab.compression.tasks import Evaluation
    from spikeslab.forward_pass import RunForward

SOLVERS = ("exchange", "refit", "fast", "diagonal")
"""Names of the solvers, which are imported when a command runs."""
ROWS = 512
"""Rows of inputs that are taken by default."""
FILE, LAYERS, INCLUSION = "pruned.safetensors", "layers", "inclusion.safetensors"
"""File of the network, stem of the files with the table of its layers, and file of the inclusion probabilities."""


@spells(
    model="model()",
    batches="train_data()",
    train_loader="train_data()",
    val_loader="val_data()",
    loss="loss()",
    forward="forward()",
    output="output()",
)
def prune(
    recipe: RecipeArgument,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the results; out/NAME-pruned for NAME.py if not given.")
    ] = None,
    sparsity: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE", help="Share of zeros of every pruned layer.", show_default="0.5, or that of --pattern"
        ),
    ] = None,
    pattern: Annotated[
        str | None, typer.Option(metavar="N:M", help="Keep N of every M neighbouring inputs, as 2:4.")
    ] = None,
    weights: Annotated[
        list[str] | None,
        typer.Option(
            metavar="GLOB",
            help="Names of weights to prune, such as 'conv*.weight'. May be repeated.",
            show_default="all layers with at least 64 inputs",
        ),
    ] = None,
    solver: Annotated[
        str | None,
        typer.Option(
            help="exchange, refit, fast or diagonal: from the best to the fastest.",
            show_default="exchange, and refit in layers with more than 1,024 inputs",
        ),
    ] = None,
    number: Annotated[
        int | None,
        typer.Option(
            "--batches",
            metavar="N",
            help="Batches of train_data() whose inputs are used, the first ones.",
            show_default=f"about {ROWS} rows",
        ),
    ] = None,
    inclusion: Annotated[
        bool,
        typer.Option("--inclusion", help="Also write how hard each weight is to replace: inclusion.safetensors."),
    ] = False,
    dense: Annotated[
        Path | None, typer.Option(help="Weights of the dense network, a safetensors file, to load into model().")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the order of the data, if the recipe sets none.")] = 0,
    threads: Annotated[int | None, typer.Option(help="Threads; torch's choice if not given.")] = None,
) -> None:
    """Prune your own network in seconds, from a few hundred inputs, without training.

    Every layer is regressed on itself with the zeros you ask for, so that its outputs change as little as possible.
    Labels are not used. The recipe is that of `spikeslab compress`; val_data() may be missing, and otherwise serves to
    compare the dense and the pruned network. The folder --out gets:

    - the network in few bytes: `pruned.safetensors`, for `spikeslab.load_sparse`
    - the tables: `layers.md` and `result.md`, and their numbers in `layers.json` and `result.json`
    - a copy of the recipe
    - with --inclusion the inclusion probability of each weight: `inclusion.safetensors`

    For example:

    - half of the weights: `spikeslab prune recipe.py --out out/half`
    - two of every four, for sparse tensor cores: `spikeslab prune recipe.py --pattern 2:4 --out out/two-of-four`
    - some layers, with more data: `spikeslab prune recipe.py --sparsity 0.7 --weights 'blocks.*' --batches 20`
    """
    check_seed(seed)
    if sparsity is not None:
        check_number("sparsity", sparsity, "(0, 1)")
    if solver is not None:
        check_choice("solver", solver, SOLVERS)
    check_counts(number=number, threads=threads)
    folder = Path("out") / f"{recipe.stem}-pruned" if out is None else out
    check_folder(folder)
    if folder.is_dir():
        sweep(folder)  # what a command that was stopped has left
    check_free(folder, "out")
    from spikeslab.cli._stored_network import read_dense
    from spikeslab.cli.recipe import FORWARD, MODEL, TRAIN, read_recipe
    from spikeslab.compression import one_shot
    from spikeslab.compression.finalize import finalize
    from spikeslab.compression.sparse_file import load_tensors_into
    from spikeslab.compression.sparse_format import encode
    from spikeslab.forward_pass import run
    from spikeslab.states import encode_tensors
    from spikeslab.training.randomness import seed_everything

    one_shot.read_pattern(pattern, sparsity)  # options are checked before the recipe runs, which may take long
    tensors = None if dense is None else read_dense(dense)
    use_threads(threads)
    seed_everything(seed)
    user = read_recipe(recipe, (MODEL, TRAIN))
    if tensors is not None:
        load_tensors_into(user.model, tensors, f"--dense {dense}")
    with explain_errors(recipe):
        batches = _take(user.train_data, number)
        forward = user.functions[FORWARD] or run
        _try_batches(user.model, batches, forward)
        judge = _make_judge(user)
        before = judge.of_model(user.model)
        try:
            found = one_shot.prune_one_shot(
                user.model,
                batches,
                sparsity,
                pattern,
                weights=weights,
                solver=solver,
                inclusion=inclusion,
                forward=forward,
            )
        except ArgumentError as error:
            if one_shot.TOO_FEW not in error.args:
                raise
            hint = f"take more with {mark('number')}, or other layers with {mark('weights')}"
            raise error.change(hint=hint) from error
        tables = {LAYERS: found.table(), RESULT: _compare(before, found, judge)}
    options: dict[str, Any] = {"sparsity": sparsity, "pattern": pattern, "weights": weights, "solver": solver}
    options |= {"inclusion": inclusion, "batches": number, "dense": dense, "seed": seed, "threads": threads, "out": out}
    made_by = Provenance(command_line("prune", recipe, **options), seed)
    contents = {FILE: encode(finalize(found.model).state_dict(), "fp32")}
    if inclusion:
        contents[INCLUSION] = encode_tensors(found.inclusion)
    for stem, table in tables.items():
        contents |= table.encode(stem, made_by)
    contents[COPY] = recipe.read_bytes()
    write_together(folder, contents)
    console = plain_console()
    print_result(console, list(tables.values()), [folder / name for name in contents])
    file, origin = shlex.quote(str(folder / FILE)), shlex.quote(str(recipe))
    console.print(f"Next:\n  spikeslab sparsity {file} --recipe {origin}", soft_wrap=True)


def _take(data: Iterable[Any], number: int | None) -> list[Any]:
    """Return the first batches: as many as asked for, or as hold about 512 rows."""
    from spikeslab.compression.tasks import batch_rows

    taken: list[Any] = []
    rows = 0
    for batch in data:
        taken.append(batch)
        rows += batch_rows(batch) or 1
        if len(taken) == number or (number is None and rows >= ROWS):
            break
    return taken


def _try_batches(model: nn.Module, batches: list[Any], forward: RunForward) -> None:
    """Raise a :class:`BatchError` if the model does not take the inputs of a batch."""
    import torch

    from spikeslab.compression.tasks import explain_batch_errors
    from spikeslab.forward_pass import split_batch, to_device_of
    from spikeslab.posterior.eval_mode import eval_mode

    with torch.no_grad(), eval_mode(model):
        for batch in batches:
            with explain_batch_errors("train_loader", batch):
                forward(model, to_device_of(model, split_batch(batch)[0]))


def _make_judge(recipe: Recipe) -> Evaluation:
    """Return the evaluation on val_data(), or one that finds nothing if the recipe has none."""
    from spikeslab.cli.recipe import FORWARD, LOSS, METRIC, OUTPUT, VAL
    from spikeslab.compression.tasks import OTHER, Evaluation, Task, classify, find_task, first_batch
    from spikeslab.forward_pass import Forward

    if not hasattr(recipe.module, VAL):
        return Evaluation(Task(OTHER, classify), [])
    try:
        own = recipe.functions
        forward = Forward(own[FORWARD], own[OUTPUT])
        task = find_task(recipe.model, first_batch("val_loader", recipe.val_data), own[LOSS], forward, own[METRIC])
    except ArgumentError as error:
        raise error.change(argument="val_loader") from error
    return Evaluation(task, recipe.val_data, f"{VAL}()")


def _compare(before: dict[str, Any], found: OneShot, judge: Evaluation) -> Table:
    """Return the table of the dense, the pruned and the rounded network."""
    from spikeslab.compression.sparse_file import DENSE, evaluate_stored

    names = {fit.name for fit in found.layers}
    parameters = dict(found.model.named_parameters())
    stored: dict[str, dict[str, Any]] = evaluate_stored(found.model, judge, names)
    stored[DENSE] |= before | {
        "nonzeros": sum(parameter.numel() for parameter in parameters.values()),
        "sparse_nonzeros": sum(parameters[name].numel() for name in names),
    }
    metrics = [name for name in METRICS if name in before]
    rows: list[dict[str, Cell]] = []
    for key, title in ((DENSE, "dense"), ("fp32", "pruned"), *((key, f"pruned, {key}") for key in ROUNDED)):
        row: dict[str, Cell] = {"model": title}
        row |= {f"val_{name}": scale_metric(name, stored[key]) for name in metrics}
        row |= {"nonzeros": stored[key]["nonzeros"], "layers": stored[key]["sparse_nonzeros"]}
        rows.append(row | {"kilobytes": stored[key]["bytes"] / 1000.0})
    columns = [
        Column("model", "Network"),
        *(Column(f"val_{name}", f"val {METRICS[name][0]}", METRICS[name][2]) for name in metrics),
        Column("nonzeros", "non-zeros", ","),
        Column("layers", "in pruned layers", ","),
        Column("kilobytes", "file, kB", ".1f"),
    ]
    note = (
        f"{pluralize(len(names), 'layer')} pruned, {len(found.dense)} left dense. Files are written by `save_sparse`, "
        "lossless or with values rounded to fp16 or int8; that of the dense network is an ordinary safetensors file."
    )
    return Table("Dense and pruned", columns, rows, notes=[note])
