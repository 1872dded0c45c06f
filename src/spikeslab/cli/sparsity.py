"""``spikeslab sparsity``: what the zeros of a model bought, in weights, bytes and measured time."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spikeslab.cli.errors import InputError
from spikeslab.cli.options import bad_input, check_file, check_folder
from spikeslab.cli.output import plain_console, print_result, write_file

if TYPE_CHECKING:
    from torch import Tensor

    from spikeslab.compression import SparsityReport

DENSE, SPARSE, RECIPE, REPORT = "model.safetensors", "sparse.safetensors", "recipe.py", "report.json"
"""What a folder of ``spikeslab compress`` holds."""
MARK, WHAT = '{\n "sparsity of": ', "a report of sparsity"
STEM = "sparsity"


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
    if onnx:
        _check_onnx(latency)
    tensors, source = _read(model)
    beside = model / RECIPE
    file = recipe or (beside if beside.is_file() else None)
    notes: list[str] = [] if file else ["No recipe was given, so multiply-adds and times are not known."]
    with bad_input(), _told(notes), nullcontext() if recipe else _of_a_copy():
        names = _sparse_layers(model)
        report = (
            _of_tensors(tensors, names) if file is None else _of_module(file, tensors, source, names, latency, onnx)
        )
    text = json.dumps({"sparsity of": str(model), **report.record()}, indent=1, ensure_ascii=False, allow_nan=False)
    files = [] if out is None else _write(out, report, text)
    if json_file is not None:
        write_file("--json", json_file, f"{text}\n".encode())
        files.append(json_file)
    console = plain_console()
    for note in notes:
        console.print(f"{note}\n")
    print_result(console, report.tables(), files)


def _read(model: Path) -> tuple[dict[str, Tensor], Path]:
    """The tensors of a model, and the file they are from."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    from spikeslab.compression import load_sparse
    from spikeslab.compression.sparse_format import header

    file = model
    if model.is_dir():
        file = model / (DENSE if (model / DENSE).exists() else SPARSE)
    if not file.is_file():
        raise InputError(
            f"MODEL must be a folder with {DENSE} or {SPARSE} in it, or a safetensors file, but got {model}."
        )
    content = file.read_bytes()
    if header(content) is not None:
        with bad_input():
            return load_sparse(file), file
    try:
        return load(content), file
    except SafetensorError as error:
        raise InputError(f"MODEL must be a readable safetensors file, but {file}: {error}.") from error


@contextmanager
def _of_a_copy() -> Iterator[None]:
    """Errors of the copy of a recipe, which may lack the files beside the original, with advice."""
    try:
        yield
    except InputError as error:
        sentence = str(error).replace("--recipe", "the copy of the recipe in MODEL").removesuffix(".")
        if sentence.startswith("the copy"):
            sentence = sentence.replace("the copy", "The copy", 1)
        raise InputError(f"{sentence}: name the original with --recipe.") from error


def _sparse_layers(model: Path) -> list[str] | None:
    """What the folder of a run says was to be sparse; without it, every layer with a zero is."""
    record = model / REPORT
    if not record.is_file():
        return None
    try:
        found = json.loads(record.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"MODEL must have a readable {REPORT} or none, but {record}: {error}.") from error
    return found.get("weights") if isinstance(found, dict) else None


def _of_tensors(tensors: dict[str, Tensor], names: list[str] | None) -> SparsityReport:
    from spikeslab.compression import SparsityReport

    return SparsityReport.of_tensors(tensors, names)


def _of_module(
    file: Path, tensors: dict[str, Tensor], source: Path, names: list[str] | None, latency: bool, onnx: bool
) -> SparsityReport:
    from spikeslab.cli.recipe import RecipeFile
    from spikeslab.compression import ExportError, SparsityReport, finalize
    from spikeslab.compression.sparse_file import fill
    from spikeslab.compression.variants import network_variants

    recipe = RecipeFile(file, "--recipe", ("model", "val_data"))
    model, example = recipe.model(), recipe.example_input()
    dense = finalize(model)
    fill(model, tensors, str(source))
    try:
        variants = network_variants(dense, model, example, onnx=onnx) if latency else {}
    except ExportError as error:
        raise InputError(str(error)) from error
    return SparsityReport.of(model, example, weights=names, variants=variants)


@contextmanager
def _told(notes: list[str]) -> Iterator[None]:
    """Collect the library's warnings, to be said in the command's own way."""
    from spikeslab.errors import SpikeSlabWarning

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", SpikeSlabWarning)
        yield
    own = [warning for warning in caught if issubclass(warning.category, SpikeSlabWarning)]
    notes += dict.fromkeys(str(warning.message) for warning in own)
    for other in caught:
        if other not in own:
            warnings.warn_explicit(other.message, other.category, other.filename, other.lineno)


def _check_onnx(latency: bool) -> None:
    from spikeslab.compression.onnx import INSTALL, missing_packages
    from spikeslab.errors import quoted

    if not latency:
        raise InputError("--onnx must not be given with --no-latency, since it is a time that is measured.")
    if missing_packages():
        raise InputError(f"--onnx must have its packages, but {quoted(missing_packages())} is missing: {INSTALL}.")


def _check_out(out: Path) -> None:
    """Raise if ``out`` cannot be a folder, or has files of these names that are not of this command."""
    check_folder(out)
    record = out / f"{STEM}.json"
    check_file("--out", record, MARK, WHAT)
    for other in (out / f"{STEM}.md", out / f"{STEM}.png"):
        if other.exists() and not record.exists():
            raise InputError(f"--out must be a folder without other files of that name, but {other} exists.")


def _write(out: Path, report: SparsityReport, text: str) -> list[Path]:
    from spikeslab.report.figures import png

    markdown = "\n".join(table.markdown() for table in report.tables())
    contents = {"json": f"{text}\n".encode(), "md": markdown.encode(), "png": png(report.figure())}
    files = []
    for suffix, content in contents.items():
        files.append(out / f"{STEM}.{suffix}")
        write_file("--out", files[-1], content)
    return files
