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
from spikeslab.cli.errors import InputError
from spikeslab.cli.options import check_folder
from spikeslab.cli.output import plain_console, print_result

if TYPE_CHECKING:
    from spikeslab.cli.recipe import Recipe
    from spikeslab.compression import Compressed, Compression

RECIPE, RESULT = "recipe.py", "result"
OPTIONS = (
    "sparsity", "epochs", "method", "weights", "count", "structure", "scope", "floor", "lr", "temperature", "samples",
    "num_data", "seed",
)  # fmt: skip
NAMES = {"train_loader": "train_data()", "val_loader": "val_data()", "model": "model()", "folder": "--out"}


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
            file.write(text.replace(f"compress {RECIPE}", f"compress {recipe}"))
    except OSError as error:
        raise InputError(f"RECIPE must be a file that can be written, but {recipe}: {error.strerror}.") from error
    console = plain_console()
    console.print(f"Files written:\n  {recipe}", soft_wrap=True)
    console.print(f"Next:\n  spikeslab compress {recipe} --out out/{recipe.stem}", soft_wrap=True)


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
            help="Glob over the names of sparse weights; may be given several times. By default all but the "
            "first and the last layer's."
        ),
    ] = None,
    count: Annotated[
        str, typer.Option(help="Whether --sparsity is a share of the 'network' or of the sparse 'layers'.")
    ] = "network",
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
            "leaves small layers denser; layer if not given."
        ),
    ] = None,
    floor: Annotated[
        float | None,
        typer.Option(help="What each sparse layer keeps at least: a number, or a share below 1; 1 if not given."),
    ] = None,
    lr: Annotated[float | None, typer.Option(help="Highest learning rate, that of SGD; 0.05 if not given.")] = None,
    temperature: Annotated[float | None, typer.Option(help="Temperature; 0.001 if not given.")] = None,
    samples: Annotated[int | None, typer.Option(help="Samples of the posterior; 15 if not given.")] = None,
    num_data: Annotated[
        int | None, typer.Option(help="Training examples, where train_data() has no dataset with a length.")
    ] = None,
    dense: Annotated[
        Path | None, typer.Option(help="Weights of the dense network, a safetensors file, to load into model().")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the noise and of the order of the data.")] = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out.")] = False,
) -> None:
    """Compress a network of your own: prune it while it is sampled, and compare it with the dense one.

    The recipe is a Python file with model(), train_data(), val_data() and optionally loss(model, batch), test_data()
    and settings. --out gets the sparse network (model.safetensors, and smaller in sparse.safetensors), the samples
    (posterior/), report.json, the table (result.md and result.json), report.html, a copy of the recipe, and
    checkpoints: a run that was stopped, however it was, goes on with --resume.

    Examples: `spikeslab init recipe.py` writes a recipe, `spikeslab compress recipe.py --out out/first` runs it,
    `spikeslab compress recipe.py --sparsity 0.95 --method gmp --out out/gmp` is a baseline.
    """
    folder = Path("out") / recipe.stem if out is None else out
    check_folder(folder)
    _check_new(folder, resume)
    from spikeslab.cli.recipe import read_recipe
    from spikeslab.compression import METHODS, Compression, Settings
    from spikeslab.errors import check_choice
    from spikeslab.files import digest

    with _bad_input():
        check_choice("method", method, METHODS)  # before the recipe, which may take long
        given = {"lr": lr, "temperature": temperature, "samples": samples, "scope": scope, "floor": _number(floor)}
        Settings().changed(**given)
    read = read_recipe(recipe)
    if dense is not None:
        load_dense(read.model, dense, "model()")
    own = {"structure": None if structure == "weights" else structure, "num-data": num_data, "dense": dense, "out": out}
    command = _command(recipe, sparsity, epochs, method, weights, count, seed, given | own)
    with _bad_input():
        compression = Compression(
            read.model,
            read.train_data,
            read.val_data,
            sparsity=sparsity,
            epochs=epochs,
            loss=read.loss,
            method=method,
            weights=weights,
            count=count,
            structure=structure,
            settings=(read.settings or Settings()).changed(**given),
            num_data=num_data,
            seed=seed,
            folder=folder,
            resume=resume,
            callbacks=[_keep_recipe(recipe, folder / RECIPE)],
            command=command,
            facts={"recipe": digest(recipe)[:16], "dense": None if dense is None else digest(dense)[:16]},
        )
    result = _run(compression)
    _finish(read, result, folder, command, seed)


def _check_new(folder: Path, resume: bool) -> None:
    if folder.is_dir() and any(folder.iterdir()) and not resume:
        if (folder / "run.json").exists():
            raise InputError(
                f"--out must not hold a run yet, but {folder} does: continue it with --resume, or choose another."
            )
        raise InputError(f"--out must be a new or an empty folder, but {folder} holds something.")


@contextmanager
def _bad_input() -> Iterator[None]:
    """Errors of checks as bad input, with the names of options in place of those of arguments."""
    from spikeslab.training import CheckpointError

    try:
        yield
    except (ValueError, TypeError, FileExistsError, NotADirectoryError, CheckpointError) as error:
        name, space, rest = str(error).partition(" ")
        option = f"--{name.replace('_', '-')}" if name in OPTIONS else NAMES.get(name, name)
        rest = rest.replace("count='layers'", "--count layers")
        raise InputError(f"{option}{space}{rest}") from error


def _keep_recipe(recipe: Path, copy: Path) -> Any:
    """A callback that puts a copy of the recipe into the folder of the run."""
    from spikeslab.training import Callback, Training

    class KeepRecipe(Callback):
        def begin(self, run: Training) -> None:
            if not copy.exists():
                copy.write_bytes(recipe.read_bytes())

    return KeepRecipe()


def _run(compression: Compression) -> Compressed:
    from spikeslab.errors import NonFiniteError
    from spikeslab.training import CheckpointError, Interrupted

    try:
        return compression.run()
    except Interrupted as error:  # typer would make 130 of every KeyboardInterrupt
        print(str(error).replace("resume=True", "--resume"), file=sys.stderr)
        raise typer.Exit(error.exit_code) from error
    except NonFiniteError as error:
        raise InputError(f"{str(error)[:1].upper()}{str(error)[1:]}") from error
    except (CheckpointError, BlockingIOError) as error:
        raise InputError(f"--out must be the folder of this run, but {error}") from error
    except OSError as error:
        raise InputError(
            f"--out must be a folder that can be written to, but {compression.folder}: {error.strerror or error}."
        ) from error


def _number(floor: float | None) -> float | None:
    """A number of weights as an integer, a share as it is."""
    return int(floor) if floor is not None and floor.is_integer() else floor


def _command(
    recipe: Path,
    sparsity: float,
    epochs: int,
    method: str,
    weights: list[str] | None,
    count: str,
    seed: int,
    others: dict[str, Any],
) -> str:
    options: dict[str, Any] = {"sparsity": sparsity, "epochs": epochs, "method": method, "seed": seed}
    options |= {} if count == "network" else {"count": count}
    options |= others
    words = ["spikeslab", "compress", str(recipe)]
    words += [word for name, value in options.items() if value is not None for word in (f"--{name}", f"{value}")]
    words += [word for glob in weights or () for word in ("--weights", glob)]
    return shlex.join(words)


def _finish(recipe: Recipe, result: Compressed, folder: Path, command: str, seed: int) -> None:
    from spikeslab.cli.compress_table import comparison
    from spikeslab.compression.evaluation import Evaluation
    from spikeslab.report.tables import Run
    from spikeslab.training.report import REPORT

    parts = {"val": result.evaluation}
    if recipe.test_data is not None:
        dense = Evaluation(result.task, recipe.test_data).of_model(recipe.model)
        parts["test"] = {"dense": dense, **result.evaluate(recipe.test_data)}
    table = comparison(result, parts)
    paths = table.write(folder / RESULT, Run(command, seed))
    names = ("model.safetensors", "sparse.safetensors", "report.json", "posterior", RECIPE, REPORT)
    paths = [folder / name for name in names if (folder / name).exists()] + paths
    console = plain_console()
    print_result(console, [table], paths)
    console.print(f"Next:\n  spikeslab sparsity {folder}\n  spikeslab doctor {folder}", soft_wrap=True)
