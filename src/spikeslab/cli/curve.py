"""``spikeslab curve``: accuracy, NLL and bytes of a network against its sparsity, from one run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from spikeslab.cli._errors import spells
from spikeslab.cli._options import COPY, check_counts, check_folder, check_seed, use_threads
from spikeslab.cli._output import plain_console, print_result
from spikeslab.cli.compress import (
    METHODS,
    Count,
    Floor,
    Lr,
    RecipeArgument,
    Scope,
    Set,
    Structure,
    Temperature,
    Weights,
    check_new_run,
    explain_errors,
    read_changes,
)
from spikeslab.errors import ArgumentError, ArgumentValueError, Phrase, check_choice, mark
from spikeslab.files import digest
from spikeslab.report.tables import command_line


@spells(model="model()", train_loader="train_data()", val_loader="val_data()", loss="loss()", folder="--out")
def curve(
    recipe: RecipeArgument,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the run; out/NAME-curve for NAME.py if not given.")
    ] = None,
    levels: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            help="Rising shares of zeros with commas between.",
            show_default="0.5,0.7,0.8,0.9,0.93,0.95,0.97,0.98, as far as the network allows",
        ),
    ] = None,
    epochs: Annotated[int, typer.Option(help="Epochs in all, shared out equally among the levels.")] = 30,
    method: Annotated[str, typer.Option(help="One of the methods of `spikeslab compress`.")] = "a-sghmc-sa",
    weights: Weights = None,
    count: Count = None,
    structure: Structure = "weights",
    scope: Scope = None,
    floor: Floor = None,
    lr: Lr = None,
    temperature: Temperature = None,
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
) -> None:
    """Draw accuracy, NLL and size of your own network against its sparsity, from one run.

    The network goes from level to level, with a short refit at each, so that you see where the knee is before you
    choose a sparsity. The recipe is that of `spikeslab compress`. The folder --out gets:

    - the curve: `curve.png`, `curve.md` and `curve.json`, with paired differences from the dense network
    - the network of each level in few bytes: `levels/0.9.safetensors` and so on
    - a copy of the recipe, and checkpoints, from which --resume continues a run that was stopped

    For example:

    - the default levels: `spikeslab curve recipe.py --out out/curve`
    - your own: `spikeslab curve recipe.py --levels 0.8,0.9,0.95 --epochs 12 --out out/knee`
    - a network of a level: `spikeslab sparsity out/curve/levels/0.9.safetensors --recipe recipe.py`
    """
    check_seed(seed)
    check_choice("on_change", on_change, ("error", "old", "new"))
    check_choice("method", method, METHODS)
    check_counts(epochs=epochs, num_data=num_data, threads=threads)
    chosen = None if levels is None else _read_levels(levels)
    folder = Path("out") / f"{recipe.stem}-curve" if out is None else out
    check_folder(folder)
    if structure == "channels" and count is not None:
        expectation = f"must not go with {mark('structure', 'channels')}: {mark('levels')} are shares of channels"
        raise ArgumentError("count", expectation, count)
    from torch import nn

    from spikeslab.cli._stored_network import read_dense
    from spikeslab.cli.recipe import KeepRecipe, read_recipe
    from spikeslab.compression import Compression, Settings
    from spikeslab.compression.curve import STEM, check_levels, prepare_curve
    from spikeslab.compression.sparse_file import load_tensors_into

    check_new_run(folder, resume)
    own: dict[str, Any] = {"lr": lr, "temperature": temperature, "scope": scope}
    own["floor"] = int(floor) if floor is not None and floor.is_integer() else floor  # a count or a share
    changes = own | read_changes(settings or [])
    shared: dict[str, Any] = {"epochs": epochs, "method": method, "seed": seed}
    arguments = shared | {"weights": weights, "count": count or "network", "structure": structure, "num_data": num_data}
    # Options are checked before the recipe runs, which may take long.
    chosen = None if chosen is None else check_levels(chosen)
    Compression(nn.Identity(), [], [], **arguments, settings=Settings().change(**changes))
    tensors = None if dense is None else read_dense(dense)
    use_threads(threads)
    user = read_recipe(recipe)
    if tensors is not None:
        load_tensors_into(user.model, tensors, f"--dense {dense}")
    rare: dict[str, Any] = {
        "levels": chosen,
        "count": count,
        "structure": None if structure == "weights" else structure,
    }
    rare |= {"num_data": num_data, "dense": dense, "threads": threads, "out": out, "weights": weights, "set": settings}
    with explain_errors(recipe):
        run = prepare_curve(
            chosen,
            user.model,
            user.train_data,
            user.val_data,
            **arguments,
            **user.functions,
            settings=user.settings.change(**changes),
            folder=folder,
            resume=resume,
            on_change=on_change,
            callbacks=[KeepRecipe(recipe, folder / COPY)],
            command=command_line("curve", recipe, **shared, **own, **rare),
            facts={"recipe": digest(recipe)[:16], "dense": None if dense is None else digest(dense)[:16]},
        )
    with explain_errors(recipe):
        found = run.run()
    names = [f"{STEM}.png", f"{STEM}.md", f"{STEM}.json", "levels", COPY]
    paths = [folder / name for name in names if (folder / name).exists()]
    print_result(plain_console(), [found.table], paths)


def _read_levels(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        expectation = "must be shares of zeros with commas between, such as 0.8,0.9"
        raise ArgumentValueError("levels", expectation, Phrase(f"got {text}")) from None
