"""A recipe: a Python file of the user's that says what to compress, and with which data."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from spikeslab.cli.errors import InputError
from spikeslab.errors import quoted

if TYPE_CHECKING:
    from torch import nn

    from spikeslab.compression import Settings

NEEDED = ("model", "train_data", "val_data")


@dataclass(frozen=True)
class Recipe:
    """What a recipe's functions returned.

    Attributes:
        path: The file.
        model: The trained network.
        train_data: Batches to train on.
        val_data: Batches to evaluate on.
        test_data: Batches to evaluate on once, or ``None``.
        loss: The loss, or ``None``.
        settings: Settings of the compression, or ``None``.
    """

    path: Path
    model: nn.Module
    train_data: Any
    val_data: Any
    test_data: Any
    loss: Callable[..., Any] | None
    settings: Settings | None


def read_recipe(path: Path) -> Recipe:
    """Run a recipe and its functions.

    Raises:
        InputError: If the file is no recipe, lacks a function, or one returns something else.
    """
    from torch import nn

    from spikeslab.compression import Settings

    module = _run(path)
    missing = [f"{name}()" for name in NEEDED if not hasattr(module, name)]
    if missing:
        raise InputError(
            f"RECIPE must define model(), train_data() and val_data(), but {path} lacks {' and '.join(missing)}."
        )
    idle = [name for name in (*NEEDED, "test_data", "loss") if not callable(getattr(module, name, print))]
    if idle:
        raise InputError(f"{quoted(idle)} in {path} must be a function, but got something else.")
    model = _call(path, module, "model")
    if not isinstance(model, nn.Module):
        raise InputError(f"model() in {path} must return a torch.nn.Module, but got {_kind(model)}.")
    settings = getattr(module, "settings", None)
    if settings is not None and not isinstance(settings, Settings):
        raise InputError(f"settings in {path} must be spikeslab.compression.Settings(...), but got {_kind(settings)}.")
    train, val = (_batches(path, module, name) for name in ("train_data", "val_data"))
    test = _batches(path, module, "test_data") if hasattr(module, "test_data") else None
    return Recipe(path, model, train, val, test, getattr(module, "loss", None), settings)


def _run(path: Path) -> ModuleType:
    if not path.is_file():
        raise InputError(f"RECIPE must be a Python file, but {path} is {'a folder' if path.is_dir() else 'not there'}.")
    # Its own name and folder, where they are free: workers of a DataLoader import it, and it may import its neighbours.
    name = path.stem if path.stem.isidentifier() and path.stem not in sys.modules else f"_recipe_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InputError(f"RECIPE must be a Python file, name.py, but got {path}.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise InputError(f"RECIPE must be a Python file that runs, but {_failure(path, error)}.") from error
    return module


def _call(path: Path, module: ModuleType, name: str) -> Any:
    try:
        return getattr(module, name)()
    except Exception as error:
        raise InputError(f"{name}() in {path} must run without arguments, but {_failure(path, error)}.") from error


def _batches(path: Path, module: ModuleType, name: str) -> Any:
    from torch import Tensor

    data = _call(path, module, name)
    again = hasattr(data, "__iter__") and not isinstance(data, (Tensor, str, dict)) and iter(data) is not data
    if not again:
        raise InputError(
            f"{name}() in {path} must return a loader or a list of batches that can be run through again, but got "
            f"{_kind(data)}."
        )
    return data


def _kind(value: object) -> str:
    return "None" if value is None else f"an object of type {type(value).__name__}"


def _failure(path: Path, error: Exception) -> str:
    """What went wrong, and in which line of the recipe."""
    if isinstance(error, SyntaxError):
        line = error.lineno
    else:
        here, frames = path.resolve(), traceback.extract_tb(error.__traceback__)
        line = next((frame.lineno for frame in reversed(frames) if Path(frame.filename).resolve() == here), None)
    where = "" if line is None else f"line {line} of "
    message = str(error.msg if isinstance(error, SyntaxError) else error).strip().rstrip(".").splitlines()
    return f"{where}{path} raised {type(error).__name__}{f': {message[0]}' if message else ''}"
