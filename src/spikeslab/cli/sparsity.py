"""``spikeslab sparsity``: weights, bytes and time that the zeros of a model save."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spikeslab.cli._errors import InputError, spells
from spikeslab.cli._options import MaxBytes, ModelArgument, RecipeOption, check_counts, check_file, check_folder
from spikeslab.cli._output import plain_console, print_result, write_file

if TYPE_CHECKING:
    from spikeslab.cli._stored_network import StoredNetwork
    from spikeslab.compression import SparsityReport

MARK, WHAT = '{\n "sparsity of": ', "a report of sparsity"
STEM = "sparsity"


@spells(model="model()", example_input="example_input()")
def sparsity(
    model: ModelArgument,
    recipe: RecipeOption = None,
    latency: Annotated[bool, typer.Option(help="Measure the time of a forward pass at batch 1 and 64.")] = True,
    onnx: Annotated[
        bool, typer.Option("--onnx", help="Time the dense and the compacted network in onnxruntime too.")
    ] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the numbers to this file as well.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the tables, the numbers and a chart.")] = None,
    max_bytes: MaxBytes = None,
) -> None:
    """Measure what the zeros of a model save: weights, multiply-adds, bytes on disk and time.

    A smaller file is not a faster network, so both are measured. Multiply-adds and times need the module that the
    recipe builds. Timed are the dense network, the same with batch normalisation folded, the sparse one with its zeros
    (finalised) and without its dead channels (compacted).

    Example: `spikeslab sparsity out/compressed --out out/sparsity`
    """
    check_counts(max_bytes=max_bytes)
    if json_file is not None:
        check_file("--json", json_file, MARK, WHAT)
    if out is not None:
        _check_out(out)
    if onnx and not latency:
        raise InputError("--onnx must not be given with --no-latency, which measures no time.")
    from spikeslab.cli._stored_network import check_onnx, read_stored

    if onnx:
        check_onnx("--onnx")
    stored = read_stored(model, recipe, max_bytes)
    report = _make_report(stored, latency, onnx)
    text = json.dumps({"sparsity of": str(model), **report.record()}, indent=1, ensure_ascii=False, allow_nan=False)
    files = [] if out is None else _write(out, report, text)
    if json_file is not None:
        write_file(json_file, f"{text}\n".encode())
        files.append(json_file)
    console = plain_console()
    if stored.recipe is None:
        console.print("No recipe was given, so multiply-adds and times are not known.\n")
    print_result(console, report.tables(), files)


def _make_report(stored: StoredNetwork, latency: bool, onnx: bool) -> SparsityReport:
    from spikeslab.compression import SparsityReport
    from spikeslab.compression.latency import network_variants

    if stored.recipe is None:
        return SparsityReport.of_tensors(stored.tensors, stored.weights)
    dense, model, example, *_ = stored.build()
    variants = network_variants(dense, model, example, onnx=onnx) if latency else {}
    return SparsityReport.of(model, example, weights=stored.weights, variants=variants)


def _check_out(out: Path) -> None:
    """Raise if ``out`` cannot be a folder, or has other files with the names of the command's."""
    check_folder(out)
    record = out / f"{STEM}.json"
    check_file("--out", record, MARK, WHAT)
    for suffix in ("md", "png"):  # known by the record beside them
        check_file("--out", out / f"{STEM}.{suffix}", "" if record.exists() else None, WHAT)


def _write(out: Path, report: SparsityReport, text: str) -> list[Path]:
    from spikeslab.report.figures import render_png

    markdown = "\n".join(table.markdown() for table in report.tables())
    contents = {"json": f"{text}\n".encode(), "md": markdown.encode(), "png": render_png(report.figure())}
    files = []
    for suffix, content in contents.items():
        files.append(out / f"{STEM}.{suffix}")
        write_file(files[-1], content)
    return files
