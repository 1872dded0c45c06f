"""The network in a folder of ``spikeslab compress``: its tensors, and the module that its recipe builds for them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from spikeslab.cli.errors import InputError
from spikeslab.cli.options import bad_input

if TYPE_CHECKING:
    from torch import Tensor, nn

DENSE, SPARSE, RECIPE, REPORT = "model.safetensors", "sparse.safetensors", "recipe.py", "report.json"
"""Files in a folder of ``spikeslab compress``."""
COPY = "The copy of the recipe in MODEL"


@dataclass(frozen=True)
class StoredNetwork:
    """Tensors from a file, and where the module for them comes from.

    Attributes:
        tensors: The state_dict.
        file: The file that it is from.
        weights: Names of the sparse layers, where the run says so.
        recipe: The Python file that builds the module, if there is one.
        is_copy: Whether that is the copy in the folder, which may lack the files beside the original.
    """

    tensors: dict[str, Tensor]
    file: Path
    weights: list[str] | None
    recipe: Path | None
    is_copy: bool

    def build(self) -> tuple[nn.Module, nn.Module, Tensor | tuple[Tensor, ...]]:
        """The module as the recipe makes it, the same with the tensors in it, and a batch for both."""
        from spikeslab.cli.recipe import RecipeError, RecipeFile
        from spikeslab.compression import finalize
        from spikeslab.compression.sparse_file import load_tensors_into

        assert self.recipe is not None
        try:
            recipe = RecipeFile(self.recipe, ("model", "val_data"))
            model, example = recipe.model(), recipe.example_input()
        except RecipeError as error:
            if not self.is_copy:
                raise
            argument = COPY if error.argument == "recipe" else None
            raise error.changed(argument=argument, hint="name the original with {recipe}") from error
        with bad_input():
            dense = finalize(model)
            load_tensors_into(model, self.tensors, str(self.file))
        return dense, model, example


def read_stored(model: Path, recipe: Path | None) -> StoredNetwork:
    """The network in a folder or a file; ``recipe`` comes before the copy in the folder."""
    tensors, file = _read(model)
    beside = model / RECIPE
    found = recipe or (beside if beside.is_file() else None)
    return StoredNetwork(tensors, file, _sparse_layers(model), found, recipe is None)


def check_onnx(option: str) -> None:
    """Raise if a package that ``option`` needs is not installed."""
    from spikeslab.compression.onnx import INSTALL, missing_packages
    from spikeslab.errors import quote

    if missing_packages():
        raise InputError(f"{option} must have its packages, but {quote(missing_packages())} is missing: {INSTALL}.")


def _read(model: Path) -> tuple[dict[str, Tensor], Path]:
    from safetensors import SafetensorError
    from safetensors.torch import load

    from spikeslab.compression import load_sparse
    from spikeslab.compression.sparse_format import read_header

    file = model
    if model.is_dir():
        file = model / (DENSE if (model / DENSE).exists() else SPARSE)
    if not file.is_file():
        raise InputError(
            f"MODEL must be a folder with {DENSE} or {SPARSE} in it, or a safetensors file, but got {model}."
        )
    content = file.read_bytes()
    if read_header(content) is not None:
        with bad_input():
            return load_sparse(file), file
    try:
        return load(content), file
    except SafetensorError as error:
        raise InputError(f"MODEL must be a readable safetensors file, but {file}: {error}.") from error


def _sparse_layers(model: Path) -> list[str] | None:
    record = model / REPORT
    if not record.is_file():
        return None
    try:
        found = json.loads(record.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"MODEL must have a readable {REPORT} or none, but {record}: {error}.") from error
    return found.get("weights") if isinstance(found, dict) else None
