"""``spikeslab sparsity``: what the zeros of a model bought, in weights, bytes and measured time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spikeslab.cli.errors import InputError
from spikeslab.cli.options import bad_input, check_file, check_folder
from spikeslab.cli.output import plain_console, print_result, write_file

if TYPE_CHECKING:
    from torch import Tensor

    from spikeslab.cli.recipes import Recipe
    from spikeslab.compression import SparsityReport

DENSE, SPARSE, RECIPE = "model.safetensors", "sparse.safetensors", "recipe.py"
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
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the numbers to this file as well.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the tables, the numbers and a chart.")] = None,
) -> None:
    """Say what the zeros of a model bought: weights, multiply-adds, bytes on disk, and measured time.

    A smaller file is not a faster network, so both are said. Multiply-adds and times need the module, which the recipe
    builds; without one the rest is reported.

    Example: `spikeslab sparsity out/compressed --out out/sparsity`
    """
    if json_file is not None:
        check_file("--json", json_file, MARK, WHAT)
    if out is not None:
        _check_out(out)
    tensors, source = _read(model)
    found = _find_recipe(model, recipe)
    with bad_input():
        report = _of_tensors(tensors) if found is None else _of_module(found, tensors, source, latency)
    text = json.dumps({"sparsity of": str(model), **report.record()}, indent=1, ensure_ascii=False, allow_nan=False)
    files = [] if out is None else _write(out, report, text)
    if json_file is not None:
        write_file("--json", json_file, f"{text}\n".encode())
        files.append(json_file)
    console = plain_console()
    if found is None:
        console.print("No recipe was given, so multiply-adds and times are not known.\n")
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


def _find_recipe(model: Path, recipe: Path | None) -> Recipe | None:
    from spikeslab.cli.recipes import Recipe

    beside = model / RECIPE
    path = recipe or (beside if beside.is_file() else None)
    return None if path is None else Recipe(path)


def _of_tensors(tensors: dict[str, Tensor]) -> SparsityReport:
    from spikeslab.compression import SparsityReport

    return SparsityReport.of_tensors(tensors)


def _of_module(recipe: Recipe, tensors: dict[str, Tensor], source: Path, latency: bool) -> SparsityReport:
    from spikeslab.compression import SparsityReport, finalize
    from spikeslab.compression.sparse_file import fill

    dense, sparse = finalize(recipe.model()), recipe.model()
    fill(sparse, tensors, str(source))
    variants = {"dense": dense, "finalised": finalize(sparse)} if latency else {}
    return SparsityReport.of(sparse, recipe.example_input(), variants=variants)


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
