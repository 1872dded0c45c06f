"""``spikeslab export``: the network of a compression as a file that runs without Python."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from spikeslab.cli.errors import InputError, spells
from spikeslab.cli.options import bad_input, check_file
from spikeslab.cli.output import plain_console, print_result
from spikeslab.cli.stored_network import check_onnx, read_stored

MARK, WHAT = "pytorch", "an ONNX network of torch"


@spells(model="model()", example_input="example_input()")
def export(
    model: Annotated[
        Path, typer.Argument(metavar="MODEL", help="Folder of a compressed model, or a safetensors file.")
    ],
    out: Annotated[Path, typer.Option(help="File to write; an earlier one of this command is replaced.")] = Path(
        "model.onnx"
    ),
    recipe: Annotated[
        Path | None, typer.Option(help="Python file with model() and val_data(); recipe.py of the folder if not given.")
    ] = None,
    compact: Annotated[
        bool, typer.Option(help="Remove dead channels and fold batch normalisation; otherwise the zeros stay.")
    ] = True,
) -> None:
    """Write a compressed network to an ONNX file, without its dead channels, for onnxruntime and much else.

    The file takes batches of any size, and is kept only if onnxruntime computes what torch computes. Single zeros make
    it neither smaller nor faster; channels that are gone make it both. Needs the extra `onnx`.

    Example: `spikeslab export out/compressed --out model.onnx`
    """
    check_onnx("spikeslab export")
    check_file("--out", out, MARK, WHAT)
    stored = read_stored(model, recipe)
    if stored.recipe is None:
        raise InputError(f"--recipe must name a Python file with model() and val_data(), but {model} has no recipe.py.")
    from spikeslab.compression import ExportError, export_onnx
    from spikeslab.compression.compact import compact as compacted

    _, network, example = stored.build()
    tables = []
    with bad_input():
        if compact:
            smaller = compacted(network, example)
            network, tables = smaller.model, [smaller.report.table()]
        try:
            file = export_onnx(network, example, out)
        except ExportError as error:
            raise InputError(str(error)) from error
    print_result(plain_console(), tables, [file])
