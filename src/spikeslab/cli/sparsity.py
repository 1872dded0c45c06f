"""``spikeslab sparsity``: what the zeros of a model bought, in weights, bytes and measured time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spikeslab.cli.errors import InputError, spells
from spikeslab.cli.options import bad_input, check_file, check_folder
from spikeslab.cli.output import plain_console, print_result, write_file
from spikeslab.cli.stored_network import StoredNetwork, check_onnx, read_stored

if TYPE_CHECKING:
    from spikeslab.compression import SparsityReport

MARK, WHAT = '{\n "sparsity of": ', "a report of sparsity"
STEM = "sparsity"


@spells(model="model()", example_input="example_input()")
def sparsity(
    model: Annotated[
        Path, typer.Argument(metavar="MODEL", help="Folder of a compressed model, or a safetensors file.")
    ],
    recipe: Annotated[
        Path | None, typer.Option(help="Python file with model() and val_data(); recipe.py of the folder if not given.")
    ] = None,
    latency: Annotated[bool, typer.Option(help="Measure the time of a forward pass at batch 1 and 64.")] = True,
    onnx: Annotated[
        bool, typer.Option("--onnx", help="Time the dense and the compacted network in onnxruntime too.")
    ] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the numbers to this file as well.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the tables, the numbers and a chart.")] = None,
) -> None:
    """Say what the zeros of a model bought: weights, multiply-adds, bytes on disk, and measured time.

    A smaller file is not a faster network, so both are said. Multiply-adds and times need the module, which the recipe
    builds; without one the rest is reported. Timed are the dense network, the same with batch normalisation folded,
    the sparse one with its zeros (finalised) and without its dead channels (compacted).

    Example: `spikeslab sparsity out/compressed --out out/sparsity`
    """
    if json_file is not None:
        check_file("--json", json_file, MARK, WHAT)
    if out is not None:
        _check_out(out)
    if onnx and not latency:
        raise InputError("--onnx must not be given with --no-latency, since it is a time that is measured.")
    if onnx:
        check_onnx("--onnx")
    stored = read_stored(model, recipe)
    notes = [] if stored.recipe else ["No recipe was given, so multiply-adds and times are not known."]
    with bad_input():
        report = _report(stored, latency, onnx)
    text = json.dumps({"sparsity of": str(model), **report.record()}, indent=1, ensure_ascii=False, allow_nan=False)
    files = [] if out is None else _write(out, report, text)
    if json_file is not None:
        write_file("--json", json_file, f"{text}\n".encode())
        files.append(json_file)
    console = plain_console()
    for note in notes:
        console.print(f"{note}\n")
    print_result(console, report.tables(), files)


def _report(stored: StoredNetwork, latency: bool, onnx: bool) -> SparsityReport:
    from spikeslab.compression import ExportError, SparsityReport
    from spikeslab.compression.latency import network_variants

    if stored.recipe is None:
        return SparsityReport.of_tensors(stored.tensors, stored.weights)
    dense, model, example = stored.build()
    try:
        variants = network_variants(dense, model, example, onnx=onnx) if latency else {}
    except ExportError as error:
        raise InputError(str(error)) from error
    return SparsityReport.of(model, example, weights=stored.weights, variants=variants)


def _check_out(out: Path) -> None:
    """Raise if ``out`` cannot be a folder, or has files of these names that are not of this command."""
    check_folder(out)
    record = out / f"{STEM}.json"
    check_file("--out", record, MARK, WHAT)
    for other in (out / f"{STEM}.md", out / f"{STEM}.png"):
        if other.exists() and not record.exists():
            raise InputError(f"--out must be a folder without other files of that name, but {other} exists.")


def _write(out: Path, report: SparsityReport, text: str) -> list[Path]:
    from spikeslab.report.figures import render_png

    markdown = "\n".join(table.markdown() for table in report.tables())
    contents = {"json": f"{text}\n".encode(), "md": markdown.encode(), "png": render_png(report.figure())}
    files = []
    for suffix, content in contents.items():
        files.append(out / f"{STEM}.{suffix}")
        write_file("--out", files[-1], content)
    return files
