"""``spikeslab export``: a compressed network as a file that runs without Python."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from spikeslab.cli._errors import InputError, spells
from spikeslab.cli._options import COPY, MaxBytes, ModelArgument, RecipeOption, check_counts, check_file
from spikeslab.cli._output import plain_console, print_result

MARK, WHAT = "pytorch", "an ONNX network of torch"


@spells(model="model()", example_input="example_input()", output="output()")
def export(
    model: ModelArgument,
    out: Annotated[Path, typer.Option(help="File to write; an earlier one of this command is replaced.")] = Path(
        "model.onnx"
    ),
    recipe: RecipeOption = None,
    compact: Annotated[
        bool, typer.Option(help="Remove dead channels and fold batch normalisation; otherwise the zeros stay.")
    ] = True,
    max_bytes: MaxBytes = None,
) -> None:
    """Write a compressed network to an ONNX file, without its dead channels.

    The file takes batches of any size, and is kept only if onnxruntime computes what torch computes. Single zeros make
    it neither smaller nor faster; removed channels do both. Needs the extra `onnx`.

    Example: `spikeslab export out/compressed --out model.onnx`
    """
    check_counts(max_bytes=max_bytes)
    check_file("--out", out, MARK, WHAT)
    from spikeslab.cli._stored_network import check_onnx, read_stored
    from spikeslab.compression import compact as compact_network
    from spikeslab.compression import export_onnx

    check_onnx("spikeslab export")
    stored = read_stored(model, recipe, max_bytes)
    if stored.recipe is None:
        raise InputError(f"--recipe must name a Python file with model() and val_data(): {model} has no {COPY}.")
    built = stored.build()
    network, example = built.sparse, built.example
    tables = []
    if compact:
        smaller = compact_network(network, example)
        network, tables = smaller.model, [smaller.report.table()]
    print_result(
        plain_console(), tables, [export_onnx(network, example, out, forward=built.forward, output=built.output)]
    )
