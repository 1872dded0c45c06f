"""Networks in files: weights of a dense network, and the folder of ``spikeslab compress`` with its recipe."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from torch import Tensor, nn

from spikeslab.cli._errors import InputError
from spikeslab.cli._options import COPY
from spikeslab.cli.recipe import FORWARD, MODEL, OUTPUT, VAL, RecipeError, read_recipe
from spikeslab.compression import finalize
from spikeslab.compression.onnx import INSTALL, missing_packages
from spikeslab.compression.result import MODEL_FILE, SPARSE_FILE
from spikeslab.compression.sparse_file import load_tensors_into
from spikeslab.compression.sparse_format import TensorFileError, decode, read_header
from spikeslab.errors import first_line, mark, quote
from spikeslab.files import check_links, read_record, read_regular
from spikeslab.forward_pass import ReadOutput, RunForward
from spikeslab.graph.tracing import ExampleInput
from spikeslab.states import decode_tensors
from spikeslab.training.run_folder import RESULT_FILE


class BuiltNetwork(NamedTuple):
    """Modules that a recipe builds.

    Attributes:
        dense: The module as the recipe makes it.
        sparse: The same with the tensors of the file.
        example: A batch for both.
        forward: The recipe's forward pass, or ``None``.
        output: The recipe's reading of what the module returns, or ``None``.
    """

    dense: nn.Module
    sparse: nn.Module
    example: ExampleInput
    forward: RunForward | None
    output: ReadOutput | None


@dataclass(frozen=True)
class StoredNetwork:
    """Tensors from a file, and the recipe that builds the module for them.

    Attributes:
        tensors: The state_dict.
        file: File of the tensors.
        weights: Names of the sparse weights, if the run recorded them.
        recipe: Python file that builds the module, if there is one.
        is_copy: True if the recipe is the copy in the folder, which may lack the files beside the original.
    """

    tensors: dict[str, Tensor]
    file: Path
    weights: list[str] | None
    recipe: Path | None
    is_copy: bool

    def build(self) -> BuiltNetwork:
        """Build the module by the recipe, and once more with the tensors in it."""
        assert self.recipe is not None
        try:
            recipe = read_recipe(self.recipe, (MODEL, VAL))
            model, example = recipe.model, recipe.example_input
        except RecipeError as error:
            if not self.is_copy:
                raise
            argument = "The copy of the recipe in MODEL" if error.argument == "recipe" else None
            raise error.change(argument=argument, hint=f"name the original with {mark('recipe')}") from error
        dense = finalize(model)
        load_tensors_into(model, self.tensors, str(self.file))
        return BuiltNetwork(dense, model, example, recipe.functions[FORWARD], recipe.functions[OUTPUT])


def read_stored(model: Path, recipe: Path | None, max_bytes: int | None = None) -> StoredNetwork:
    """Read the network in a folder or a file; ``recipe`` replaces the copy in the folder.

    ``max_bytes`` is that of :func:`~spikeslab.compression.load_sparse`.
    """
    tensors, file = _read_tensors(model, max_bytes)
    copy = model / COPY
    found = recipe or (copy if copy.is_file() else None)
    return StoredNetwork(tensors, file, _read_sparse_weights(model), found, recipe is None)


def read_dense(path: Path) -> dict[str, Tensor]:
    """Read the weights of ``--dense``."""
    try:
        return decode_tensors(read_regular(path, follow=True), f"--dense {path}", TensorFileError)
    except OSError as error:
        reason = first_line(error)
        raise InputError(f"--dense must be a safetensors file, but {path} cannot be read: {reason}.") from error


def check_onnx(option: str) -> None:
    """Raise if a package that ``option`` needs is not installed."""
    if missing_packages():
        raise InputError(f"{option} must have its packages, but {quote(missing_packages())} is missing: {INSTALL}.")


def _read_tensors(model: Path, max_bytes: int | None) -> tuple[dict[str, Tensor], Path]:
    file = model
    if model.is_dir():
        file = model / (MODEL_FILE if (model / MODEL_FILE).exists() else SPARSE_FILE)
    if not file.is_file():
        raise InputError(
            f"MODEL must be a folder with {MODEL_FILE} or {SPARSE_FILE} in it, or a safetensors file, but got {model}."
        )
    if model.is_dir():
        check_links(*(model / name for name in (MODEL_FILE, SPARSE_FILE, RESULT_FILE, COPY)))
    content = file.read_bytes()
    if read_header(content) is not None:
        return decode(content, str(file), max_bytes), file
    return decode_tensors(content, str(file), TensorFileError), file


def _read_sparse_weights(model: Path) -> list[str] | None:
    record = model / RESULT_FILE
    if not record.is_file():
        return None
    weights = read_record(record, TensorFileError).get("weights")
    return weights if isinstance(weights, list) and all(isinstance(name, str) for name in weights) else None
