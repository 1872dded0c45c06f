"""``spikeslab compress`` and ``spikeslab init``: make a network of one's own sparse."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.resources import files as package_files
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spikeslab.cli._errors import SET, InputError, spells
from spikeslab.cli._options import COPY, check_counts, check_file, check_folder, check_seed, read_settings, use_threads
from spikeslab.cli._output import plain_console, print_result, write_file
from spikeslab.errors import ArgumentError, ArgumentValueError, Phrase, check_choice, check_number, mark, pluralize
from spikeslab.files import check_free, digest
from spikeslab.report.tables import METRICS, Cell, Column, Provenance, Table, command_line, scale_metric

if TYPE_CHECKING:
    from spikeslab.cli.recipe import Recipe
    from spikeslab.compression import Compressed

METHODS = (
    "a-sghmc-sa", "sghmc-sa", "a-sghmc-em", "a-sghmc", "marginal", "prior-annealing", "gmp", "l1", "l2", "dpf",
    "magnitude",
)  # fmt: skip
"""Names of the methods, which are imported when a command runs."""

AUTO = "auto"
"""Word for a sparsity that the run finds, as in `spikeslab.compression.auto`, which is imported when a command runs."""
RESULT = "result"
"""Stem of the files with the table."""
OWN_OPTIONS = ("scope", "floor", "lr", "temperature", "samples")
"""Settings that have an option of their own."""
ROUNDED = ("fp16", "int8")
"""Formats of a file that round values."""


def init(
    recipe: Annotated[Path, typer.Argument(metavar="RECIPE", help="File to write.", show_default=False)] = Path(COPY),
) -> None:
    """Write a recipe for `spikeslab compress`, with comments, that runs as it is.

    It compresses a small network on handwritten digits. Put your own network and data into it.

    Example: `spikeslab init recipe.py`, then `spikeslab compress recipe.py --out out/first`
    """
    if recipe.exists():
        raise InputError(f"RECIPE must be a new file, but {recipe} exists.")
    check_file("RECIPE", recipe, None, "a recipe")
    text = package_files("spikeslab.cli").joinpath("recipe_template.py").read_text(encoding="utf-8")
    write_file(recipe, text.replace(f"compress {COPY}", f"compress {shlex.quote(str(recipe))}").encode())
    console = plain_console()
    print_result(console, [], [recipe])
    command = command_line("compress", recipe, out=f"out/{recipe.stem}")
    console.print(f"Next:\n  {command}", soft_wrap=True)


RecipeArgument = Annotated[
    Path, typer.Argument(metavar="RECIPE", help="Python file, as `spikeslab init` writes it.", show_default=False)
]
Weights = Annotated[
    list[str] | None,
    typer.Option(
        metavar="GLOB",
        help="Names of weights to prune, such as 'conv*.weight'. May be repeated.",
        show_default="the matrices of all layers but embeddings",
    ),
]
Count = Annotated[
    str | None,
    typer.Option(
        help="--sparsity is a share of all parameters of the 'network', or of those in the pruned 'layers'.",
        show_default="network",
    ),
]
Structure = Annotated[
    str,
    typer.Option(help="Prune single 'weights', or whole 'channels', units and heads: --sparsity is then their share."),
]
Scope = Annotated[
    str | None,
    typer.Option(
        help="Rank weights within each 'layer', in one 'global' ranking, or by 'erk', where small layers stay denser.",
        show_default="the recipe's, or layer",
    ),
]
Floor = Annotated[
    float | None,
    typer.Option(help="Fewest weights that a layer keeps: a number, or a share.", show_default="the recipe's, or 1"),
]
Lr = Annotated[
    float | None,
    typer.Option(help="Highest learning rate, in units of SGD.", show_default="the recipe's, or found by short trials"),
]
Temperature = Annotated[
    float | None, typer.Option(help="Temperature; 0 adds no noise.", show_default="the recipe's, or 0.001")
]
Samples = Annotated[int | None, typer.Option(help="Samples of the posterior.", show_default="the recipe's, or 15")]
Set = Annotated[
    list[str] | None,
    typer.Option(
        SET,
        metavar="NAME=VALUE",
        help="Any other field of `spikeslab.compression.Settings`, such as distillation=0.2. May be repeated.",
    ),
]


@spells(
    model="model()", train_loader="train_data()", val_loader="val_data()", loss="loss()", metric="metric()",
    forward="forward()", output="output()", folder="--out",
    target="--sparsity",
)  # fmt: skip
def compress(
    recipe: RecipeArgument,
    out: Annotated[Path | None, typer.Option(help="Folder for the run; out/NAME for NAME.py if not given.")] = None,
    sparsity: Annotated[
        str, typer.Option(metavar="SHARE", help="Share of zeros, or 'auto': as many as --tolerance allows.")
    ] = "0.9",
    tolerance: Annotated[
        float,
        typer.Option(
            help="With --sparsity auto: points of accuracy that the sparse network may lose on val_data(), or per cent "
            "of the RMSE or of a loss or metric of your own."
        ),
    ] = 0.5,
    epochs: Annotated[int, typer.Option(help="Epochs in all.")] = 30,
    method: Annotated[str, typer.Option(help=f"One of {', '.join(METHODS)}.")] = "a-sghmc-sa",
    weights: Weights = None,
    count: Count = None,
    structure: Structure = "weights",
    scope: Scope = None,
    floor: Floor = None,
    lr: Lr = None,
    temperature: Temperature = None,
    samples: Samples = None,
    settings: Set = None,
    num_data: Annotated[
        int | None, typer.Option(help="Training examples, if train_data() has no dataset with a length.")
    ] = None,
    dense: Annotated[
        Path | None, typer.Option(help="Weights of the dense network, a safetensors file, to load into model().")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the noise and of the order of the data.")] = 0,
    threads: Annotated[int | None, typer.Option(help="Threads; torch's choice if not given.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out.")] = False,
    on_change: Annotated[
        str, typer.Option(help="If --resume finds other options, code or data: error, old (of the checkpoint) or new.")
    ] = "error",
    report: Annotated[bool, typer.Option(help="Write report.html at the end, which takes a few seconds.")] = True,
) -> None:
    """Prune your own network while it is sampled, and compare the sparse network with the dense one.

    The recipe is a Python file that defines model(), train_data() and val_data(). It may define loss(model, batch),
    metric(model, batch), test_data() and settings. The folder --out gets:

    - the sparse network: `model.safetensors`, and the same in few bytes: `sparse.safetensors`
    - the samples: `posterior/`
    - the results: `result.md`, `result.json`, `report.json` and `report.html`
    - a copy of the recipe, and checkpoints, from which --resume continues a run that was stopped

    For example:

    - a recipe to begin with: `spikeslab init recipe.py`
    - its run: `spikeslab compress recipe.py --out out/first`
    - as sparse as half a point of accuracy allows: `spikeslab compress recipe.py --sparsity auto --out out/auto`
    - a baseline: `spikeslab compress recipe.py --sparsity 0.95 --method gmp --out out/gmp`
    - the dense network as a teacher: `spikeslab compress recipe.py --set distillation=0.2 --out out/distilled`
    """
    check_seed(seed)
    check_choice("on_change", on_change, ("error", "old", "new"))
    check_choice("method", method, METHODS)
    share = _read_sparsity(sparsity)
    check_number("tolerance", tolerance, ">= 0")
    check_counts(epochs=epochs, samples=samples, num_data=num_data, threads=threads)
    folder = Path("out") / recipe.stem if out is None else out
    check_folder(folder)
    if structure == "channels" and count is not None:
        expectation = f"must not go with {mark('structure', 'channels')}: {mark('sparsity')} is the share of channels"
        raise ArgumentError("count", expectation, count)
    from torch import nn

    from spikeslab.cli._stored_network import read_dense
    from spikeslab.cli.recipe import TEST, KeepRecipe, read_recipe
    from spikeslab.compression import Compression, Settings
    from spikeslab.compression.result import MODEL_FILE, SPARSE_FILE
    from spikeslab.compression.sparse_file import load_tensors_into
    from spikeslab.compression.tasks import Evaluation, first_batch
    from spikeslab.diagnostics import REPORT
    from spikeslab.training.randomness import seed_everything
    from spikeslab.training.run_folder import POSTERIOR, RESULT_FILE

    check_new_run(folder, resume)
    own: dict[str, Any] = {"lr": lr, "temperature": temperature, "samples": samples, "scope": scope}
    own["floor"] = int(floor) if floor is not None and floor.is_integer() else floor  # a count or a share
    changes = own | read_changes(settings or [])
    shared: dict[str, Any] = {"sparsity": share, "epochs": epochs, "method": method, "seed": seed}
    arguments = shared | {"weights": weights, "count": count or "network", "structure": structure, "num_data": num_data}
    arguments["tolerance"] = tolerance
    # Options are checked before the recipe runs, which may take long.
    Compression(nn.Identity(), [], [], **arguments, settings=Settings().change(**changes))
    tensors = None if dense is None else read_dense(dense)
    use_threads(threads)
    seed_everything(seed)  # a model() or a split without a seed of its own is the same when the run is resumed
    user = read_recipe(recipe)
    if tensors is not None:
        load_tensors_into(user.model, tensors, f"--dense {dense}")
    rare: dict[str, Any] = {"count": count, "structure": None if structure == "weights" else structure}
    rare |= {"num_data": num_data, "dense": dense, "threads": threads, "out": out, "weights": weights, "set": settings}
    asked: dict[str, Any] = {"tolerance": tolerance} if share == AUTO else {}
    command = command_line("compress", recipe, **shared, **asked, **own, **rare)
    with explain_errors(recipe):
        run = Compression(
            user.model,
            user.train_data,
            user.val_data,
            **arguments,
            **user.functions,
            settings=user.settings.change(**changes),
            folder=folder,
            resume=resume,
            on_change=on_change,
            report=report,
            callbacks=[KeepRecipe(recipe, folder / COPY)],
            command=command,
            facts={"recipe": digest(recipe)[:16], "dense": None if dense is None else digest(dense)[:16]},
        ).prepare()
        if user.test_data is not None:  # fail before all epochs, not after them
            Evaluation(run.task, [first_batch(f"{TEST}()", user.test_data)], f"{TEST}()").of_model(user.model)
    with explain_errors(recipe):
        table = _compare(user, run.run())
        paths = table.write(folder / RESULT, Provenance(command, seed))
    names = (MODEL_FILE, SPARSE_FILE, RESULT_FILE, POSTERIOR, COPY, REPORT)
    console = plain_console()
    print_result(console, [table], [folder / name for name in names if (folder / name).exists()] + paths)
    place, origin = shlex.quote(str(folder)), shlex.quote(str(recipe))  # the copy may lack what the recipe imports
    console.print(f"Next:\n  spikeslab sparsity {place} --recipe {origin}\n  spikeslab doctor {place}", soft_wrap=True)


def _read_sparsity(text: str) -> float | str:
    """Return the number of ``--sparsity``, or the word that asks for a search."""
    if text == AUTO:
        return AUTO
    try:
        share = float(text)
    except ValueError:
        raise ArgumentValueError("sparsity", f"must be a number in (0, 1) or {AUTO!r}", Phrase(f"got {text}")) from None
    return check_number("sparsity", share, "(0, 1)")


def check_new_run(folder: Path, resume: bool) -> None:
    """Raise if the folder holds something, unless it is a run to resume."""
    from spikeslab.training.run_folder import RECORD_FILE

    if resume:
        if not folder.exists():
            print(f"There is no run in {folder} yet: a new one begins.", file=sys.stderr)
    elif (folder / RECORD_FILE).exists():
        raise InputError(
            f"--out must not hold a run yet, but {folder} does: continue it with --resume, or choose another."
        )
    else:
        check_free(folder, "out")


@contextmanager
def explain_errors(recipe: Path) -> Iterator[None]:
    """Name the line of the user's code in errors that it raised."""
    from spikeslab.cli.recipe import RUNS, RecipeError, describe_failure, find_line, is_from_user
    from spikeslab.compression import BatchError

    try:
        yield
    except BatchError as error:
        cause = error.__cause__ or error
        if find_line(recipe, cause) is None:
            raise
        raise error.change(hint=describe_failure(recipe, cause)) from error
    except (Exception, SystemExit) as error:
        if not is_from_user(recipe, error):
            raise
        raise RecipeError("recipe", RUNS, Phrase(describe_failure(recipe, error))) from error


def read_changes(texts: Sequence[str]) -> dict[str, Any]:
    """Return the values of ``--set``, for settings that have no option of their own."""
    for name in (text.partition("=")[0] for text in texts):
        if name in OWN_OPTIONS:
            raise InputError(f"{SET} must not be used for {name}, which has an option of its own: --{name}.")
    read = read_settings(texts, without=OWN_OPTIONS)
    for name, values in read:
        if len(values) > 1:
            raise InputError(f"{SET} must give {name} one value, but got {len(values)}.")
    return {name: values[0] for name, values in read}


def _compare(recipe: Recipe, result: Compressed) -> Table:
    """Return the table of the dense, sparse, rounded and averaged network on all data of the recipe."""
    from spikeslab.cli.recipe import TEST, VAL
    from spikeslab.compression.sparse_file import DENSE
    from spikeslab.compression.tasks import Evaluation

    found: dict[str, dict[str, Any]] = {"val": result.evaluation}
    stored = {"val": result.evaluate_stored(recipe.val_data, f"{VAL}()")}
    if recipe.test_data is not None:
        name = f"{TEST}()"
        dense = Evaluation(result.task, recipe.test_data, name).of_model(recipe.model)
        found["test"] = {"dense": dense, **result.evaluate(recipe.test_data, name)}
        stored["test"] = result.evaluate_stored(recipe.test_data, name)
    found = {part: numbers | {key: stored[part][key] for key in ROUNDED} for part, numbers in found.items()}
    metrics = [name for name in METRICS if any(name in numbers for part in found.values() for numbers in part.values())]
    columns = [
        Column(f"{part}_{name}", f"{part} {METRICS[name][0]}", METRICS[name][2]) for part in found for name in metrics
    ]
    sizes = [
        Column("nonzeros", "non-zeros", ","),
        Column("layers", "in sparse layers", ","),
        Column("kilobytes", "file, kB", ".1f"),
    ]
    network, layers, samples = result.report["network"], result.report["sparse_layers"], result.report["samples"]
    files = {**stored["val"], "dense": stored["val"][DENSE], "sparse": stored["val"]["fp32"]}
    rows: list[dict[str, Cell]] = []
    for key, copies in (("dense", 0), ("sparse", 1), *((key, 1) for key in ROUNDED), ("average", samples)):
        row: dict[str, Cell] = {"model": f"sparse, {key}" if key in ROUNDED else key}
        for part, name in product(found, metrics):
            row[f"{part}_{name}"] = scale_metric(name, found[part][key])
        row["nonzeros"] = copies * network["nonzeros"] or network["weights"]
        row["layers"] = copies * layers["nonzeros"] or layers["weights"]
        if key in ROUNDED:  # small values may have become zero
            row["nonzeros"], row["layers"] = files[key]["nonzeros"], files[key]["sparse_nonzeros"]
        row["kilobytes"] = files[key]["bytes"] / 1000.0 if key in files else None
        rows.append(row)
    note = (
        f"{network['sparsity']:.2%} of the whole network is zero, and {layers['sparsity']:.2%} of "
        f"{pluralize(len(result.report['layers']), 'sparse layer')}. The average needs all of its "
        f"{pluralize(samples, 'sample')}, which have the same zeros. Files are written by `save_sparse`, lossless or "
        "with values rounded to fp16 or int8; that of the dense network is an ordinary safetensors file."
    )
    notes = [note, *([_describe_search(result.report)] if "search" in result.report else [])]
    notes += [*([_describe_channels(result.report)] if "channels" in result.report else [])]
    return Table("Dense and compressed", [Column("model", "Network"), *columns, *sizes], rows, notes=notes)


def _describe_search(report: dict[str, Any]) -> str:
    search, sparse = report["search"], report["search"]["sparse"]
    low, high = sparse["interval"]
    verdict = "within" if search["within"] else "beyond"
    return (
        f"The run chose the sparsity. The sparse network is worse than the dense one on val_data() by "
        f"{sparse['difference']:.2f} ± {sparse['standard_error']:.2f} {sparse['unit']} (paired over "
        f"{pluralize(sparse['rows'], 'row')}, 95 % interval {low:.2f} to {high:.2f}), {verdict} the tolerance of "
        f"{search['tolerance']:g}. The same rows chose the "
        "sparsity, so test_data() is the fairer judge."
    )


def _describe_channels(report: dict[str, Any]) -> str:
    layers = report["channels"].values()
    living, total = (sum(layer[key] for layer in layers) for key in ("living", "all"))
    gone = f"{total - living} of {total} channels of {pluralize(len(layers), 'layer')} are gone."
    if "compacted" not in report:
        return gone
    weights, macs = report["compacted"]["parameters"], report["compacted"]["multiply_adds"]
    return (
        f"{gone} Without them (spikeslab.compact) the network has {weights['after']:,} parameters instead of "
        f"{weights['before']:,}, and {macs['after']:,} multiply-adds instead of {macs['before']:,}."
    )
