"""``spikeslab compress`` and ``spikeslab init``: make a network of one's own sparse."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spikeslab.cli.dense import load_dense
from spikeslab.cli.errors import SET, InputError, explain_os_errors, spells
from spikeslab.cli.options import check_folder, use_threads
from spikeslab.cli.output import plain_console, print_result
from spikeslab.errors import Phrase, SpikeSlabError
from spikeslab.files import check_free
from spikeslab.report.tables import Provenance, command_line

if TYPE_CHECKING:
    from spikeslab.cli.recipe import Recipe
    from spikeslab.compression import Compressed

RECIPE, RESULT, VAL, TEST = "recipe.py", "result", "val_data()", "test_data()"
OWN = ("scope", "floor", "lr", "temperature", "samples")
"""Settings that have an option of their own."""
OTHERWISE = "if not given, that of the recipe's settings, or else"


def init(
    recipe: Annotated[Path, typer.Argument(help="File to write.", show_default=False)] = Path(RECIPE),
) -> None:
    """Write a recipe for `spikeslab compress`, with comments, that runs as it is.

    It compresses a small network on handwritten digits. Put your own network and data into it.

    Example: `spikeslab init recipe.py`, then `spikeslab compress recipe.py --out out/first`
    """
    if recipe.exists():
        raise InputError(f"RECIPE must be a new file, but {recipe} exists.")
    text = files("spikeslab.cli").joinpath("recipe_template.py").read_text(encoding="utf-8")
    try:
        recipe.parent.mkdir(parents=True, exist_ok=True)
        with recipe.open("x", encoding="utf-8") as file:
            file.write(text.replace(f"compress {RECIPE}", f"compress {shlex.quote(str(recipe))}"))
    except OSError as error:
        raise InputError(f"RECIPE must be a file that can be written, but {recipe}: {error.strerror}.") from error
    console = plain_console()
    console.print(f"Files written:\n  {recipe}", soft_wrap=True)
    command = command_line("compress", recipe, out=f"out/{recipe.stem}")
    console.print(f"Next:\n  {command}", soft_wrap=True)


@spells(
    model="model()", train_loader="train_data()", val_loader="val_data()", loss="loss()", folder="--out",
    target="--sparsity",
)  # fmt: skip
def compress(
    recipe: Annotated[
        Path, typer.Argument(metavar="RECIPE", help="Python file from `spikeslab init`.", show_default=False)
    ],
    out: Annotated[Path | None, typer.Option(help="Folder for the run; out/NAME for NAME.py if not given.")] = None,
    sparsity: Annotated[float, typer.Option(help="Share of zeros.")] = 0.9,
    epochs: Annotated[int, typer.Option(help="Epochs in all.")] = 30,
    method: Annotated[
        str,
        typer.Option(
            help="a-sghmc-sa, sghmc-sa, a-sghmc-em, a-sghmc, marginal, prior-annealing, gmp, l1, l2, dpf or one-shot."
        ),
    ] = "a-sghmc-sa",
    weights: Annotated[
        list[str] | None,
        typer.Option(
            help="Glob over the names of sparse weights, which leaves out biases and normalisations; may be given "
            "several times. By default all but the first and the last layer's."
        ),
    ] = None,
    count: Annotated[
        str | None,
        typer.Option(
            help="Whether --sparsity is a share of the 'network' or of the sparse 'layers'; network if not given."
        ),
    ] = None,
    structure: Annotated[
        str,
        typer.Option(
            help="What becomes zero: single 'weights', or whole 'channels', of which --sparsity is then the share."
        ),
    ] = "weights",
    scope: Annotated[
        str | None,
        typer.Option(
            help="How zeros are shared out: at one rate in each 'layer', by one 'global' ranking, or by 'erk', which "
            f"leaves small layers denser; {OTHERWISE} layer."
        ),
    ] = None,
    floor: Annotated[
        float | None,
        typer.Option(help=f"What each sparse layer keeps at least: a number, or a share below 1; {OTHERWISE} 1."),
    ] = None,
    lr: Annotated[float | None, typer.Option(help=f"Highest learning rate, that of SGD; {OTHERWISE} 0.05.")] = None,
    temperature: Annotated[float | None, typer.Option(help=f"Temperature; {OTHERWISE} 0.001.")] = None,
    samples: Annotated[int | None, typer.Option(help=f"Samples of the posterior; {OTHERWISE} 15.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Another setting of `spikeslab.compression.Settings` in place of the recipe's, such as "
            "distillation=0.2; may be given several times.",
        ),
    ] = None,
    num_data: Annotated[
        int | None, typer.Option(help="Training examples, where train_data() has no dataset with a length.")
    ] = None,
    dense: Annotated[
        Path | None, typer.Option(help="Weights of the dense network, a safetensors file, to load into model().")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the noise and of the order of the data.")] = 0,
    threads: Annotated[int | None, typer.Option(help="Threads; torch's choice if not given.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out.")] = False,
    report: Annotated[bool, typer.Option(help="Write report.html at the end, which takes a few seconds.")] = True,
) -> None:
    """Compress a network of your own: prune it while it is sampled, and compare it with the dense one.

    The recipe is a Python file with model(), train_data(), val_data() and optionally loss(model, batch), test_data()
    and settings. --out gets the sparse network (model.safetensors, and smaller in sparse.safetensors), the samples
    (posterior/), report.json, the table (result.md and result.json), report.html, a copy of the recipe, and
    checkpoints: a run that was stopped, however it was, goes on with --resume.

    For example:

    - a recipe to begin with: `spikeslab init recipe.py`
    - its run: `spikeslab compress recipe.py --out out/first`
    - a baseline: `spikeslab compress recipe.py --sparsity 0.95 --method gmp --out out/gmp`
    - the dense network as a teacher: `spikeslab compress recipe.py --set distillation=0.2 --out out/taught`
    """
    folder = Path("out") / recipe.stem if out is None else out
    check_folder(folder)
    _check_new(folder, resume)
    from spikeslab.cli.recipe import read_recipe
    from spikeslab.compression import METHODS, Compression, Settings
    from spikeslab.compression.harness import CHANNELS
    from spikeslab.compression.tasks import Evaluation, first_batch
    from spikeslab.errors import check_choice
    from spikeslab.files import digest

    if structure == CHANNELS and count is not None:
        raise InputError(
            "--count must not go with --structure channels, where --sparsity is the share of the channels, but got "
            f"{count}."
        )
    with _bad_input(recipe):
        check_choice("method", method, METHODS)  # before the recipe, which may take long
        given = {"lr": lr, "temperature": temperature, "samples": samples, "scope": scope, "floor": _number(floor)}
        changes = given | _changes(settings or [])
        Settings().changed(**changes)
    use_threads(threads)
    read = read_recipe(recipe)
    if dense is not None:
        load_dense(read.model, dense, "model()")
    command = command_line(
        "compress",
        recipe,
        sparsity=sparsity,
        epochs=epochs,
        method=method,
        seed=seed,
        **given,
        count=count,
        structure=None if structure == "weights" else structure,
        num_data=num_data,
        dense=dense,
        threads=threads,
        out=out,
        weights=weights,
        set=settings,
    )
    with _bad_input(recipe):
        prepared = Compression(
            read.model,
            read.train_data,
            read.val_data,
            sparsity=sparsity,
            epochs=epochs,
            loss=read.loss,
            method=method,
            weights=weights,
            count=count or "network",
            structure=structure,
            settings=(read.settings or Settings()).changed(**changes),
            num_data=num_data,
            seed=seed,
            folder=folder,
            resume=resume,
            report=report,
            callbacks=[_keep_recipe(recipe, folder / RECIPE)],
            command=command,
            facts={"recipe": digest(recipe)[:16], "dense": None if dense is None else digest(dense)[:16]},
        ).prepare()
        if read.test_data is not None:  # nobody shall learn after all epochs that it cannot be judged
            Evaluation(prepared.task, [first_batch(TEST, read.test_data)], TEST).of_model(read.model)
    with explain_os_errors(folder), _bad_data(recipe):
        result = prepared.run()
        _finish(read, result, folder, command, seed)


def _check_new(folder: Path, resume: bool) -> None:
    if resume:
        if not folder.exists():
            print(f"There is no run in {folder} yet: a new one begins.", file=sys.stderr)
        return
    if (folder / "run.json").exists():
        raise InputError(
            f"--out must not hold a run yet, but {folder} does: continue it with --resume, or choose another."
        )
    check_free(folder, "out")


@contextmanager
def _bad_input(recipe: Path) -> Iterator[None]:
    """Turn errors of checks into bad input."""
    try:
        with _bad_data(recipe):
            yield
    except SpikeSlabError:
        raise
    except (ValueError, TypeError) as error:
        raise InputError(str(error)) from error


@contextmanager
def _bad_data(recipe: Path) -> Iterator[None]:
    """Errors of the user's code and batches as bad input, with the line where they were raised."""
    from spikeslab.cli.recipe import RUNS, RecipeError, failure, is_users, place_of
    from spikeslab.compression import BatchError

    try:
        yield
    except BatchError as error:
        place = place_of(recipe, error.__cause__ or error)
        if place is None:
            raise
        raise error.changed(hint=f"{error.args[-1]} ({place})") from error
    except (Exception, SystemExit) as error:
        if not is_users(recipe, error):
            raise
        raise RecipeError("recipe", RUNS, Phrase(failure(recipe, error))) from error


def _keep_recipe(recipe: Path, copy: Path) -> Any:
    """A callback that puts a copy of the recipe into the folder of the run."""
    from spikeslab.training import Callback, Training

    class KeepRecipe(Callback):
        def begin(self, run: Training) -> None:
            if not copy.exists():
                copy.write_bytes(recipe.read_bytes())

    return KeepRecipe()


def _changes(texts: list[str]) -> dict[str, Any]:
    """What ``--set`` says, of the settings that have no option of their own."""
    from spikeslab.cli.settings import NAMES, read_settings

    own = [name for text in texts if (name := text.partition("=")[0]) in NAMES and name in OWN]
    if own:
        raise ValueError(f"{SET} must not be used for {own[0]}, which has an option of its own: --{own[0]}.")
    read = read_settings(texts, [name for name in NAMES if name not in OWN])
    for name, values in read:
        if len(values) > 1:
            raise ValueError(f"{SET} must give {name} one value, but got {len(values)}.")
    return {name: values[0] for name, values in read}


def _number(floor: float | None) -> float | None:
    """A number of weights as an integer, a share as it is."""
    return int(floor) if floor is not None and floor.is_integer() else floor


def _finish(recipe: Recipe, result: Compressed, folder: Path, command: str, seed: int) -> None:
    from spikeslab.cli.compress_table import comparison
    from spikeslab.compression.tasks import Evaluation
    from spikeslab.diagnostics import REPORT

    parts, stored = {"val": result.evaluation}, {"val": result.evaluate_stored(recipe.val_data, VAL)}
    if recipe.test_data is not None:
        dense = Evaluation(result.task, recipe.test_data, TEST).of_model(recipe.model)
        parts["test"] = {"dense": dense, **result.evaluate(recipe.test_data, TEST)}
        stored["test"] = result.evaluate_stored(recipe.test_data, TEST)
    table = comparison(result, parts, stored)
    paths = table.write(folder / RESULT, Provenance(command, seed))
    names = ("model.safetensors", "sparse.safetensors", "report.json", "posterior", RECIPE, REPORT)
    paths = [folder / name for name in names if (folder / name).exists()] + paths
    console = plain_console()
    print_result(console, [table], paths)
    # The copy of the recipe in the folder may lack what it imports.
    following = command_line("sparsity", folder, recipe=recipe.path), command_line("doctor", folder)
    console.print("\n  ".join(("Next:", *following)), soft_wrap=True)
