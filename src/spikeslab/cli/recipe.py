"""Recipe of a compression: a Python file of the user's with the network and the data."""

from __future__ import annotations

import importlib.util
import sys
import sysconfig
import textwrap
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from spikeslab.compression import Settings
from spikeslab.errors import ArgumentError, Phrase, quote
from spikeslab.files import write_atomically
from spikeslab.forward_pass import split_batch
from spikeslab.graph.tracing import ExampleInput
from spikeslab.training import Callback, Training

MODEL, TRAIN, VAL, TEST = "model", "train_data", "val_data", "test_data"
EXAMPLE, SETTINGS = "example_input", "settings"
FUNCTIONS = LOSS, METRIC, FORWARD, OUTPUT = "loss", "metric", "forward", "output"
"""Optional functions that `compress` takes as they are."""
RUNS = "must be a Python file that runs"
LONGEST = 400
"""Most characters of the message of a quoted error."""


class RecipeError(ArgumentError):
    """A recipe does not run, lacks a function, or a function returns something else."""


@dataclass(frozen=True)
class Recipe:
    """Recipe that has been run; each of its functions is called once, when its value is needed.

    Attributes:
        path: The file.
        module: The file as a module.
    """

    path: Path
    module: ModuleType

    @cached_property
    def model(self) -> nn.Module:
        """The trained network."""
        model = self._call(MODEL)
        if not isinstance(model, nn.Module):
            raise self._refuse(MODEL, "must return a torch.nn.Module", model)
        return model

    @cached_property
    def train_data(self) -> Any:
        """Batches to train on."""
        return self._call_batches(TRAIN)

    @cached_property
    def val_data(self) -> Any:
        """Batches to evaluate on after every epoch."""
        return self._call_batches(VAL)

    @cached_property
    def test_data(self) -> Any:
        """Batches to evaluate on once, or ``None``."""
        return self._call_batches(TEST) if hasattr(self.module, TEST) else None

    @property
    def functions(self) -> dict[str, Any]:
        """Loss, metric, forward pass and reading of the output, each ``None`` if the recipe has none."""
        return {name: getattr(self.module, name, None) for name in FUNCTIONS}

    @property
    def settings(self) -> Settings:
        """The settings, or the defaults."""
        settings = getattr(self.module, SETTINGS, None)
        if settings is not None and not isinstance(settings, Settings):
            expectation = "must be spikeslab.compression.Settings(...)"
            raise RecipeError(f"settings in {self.path}", expectation, Phrase(f"got {_describe_type(settings)}"))
        return settings or Settings()

    @cached_property
    def example_input(self) -> ExampleInput:
        """Input of the network: what ``example_input()`` returns, or that of the first batch of ``val_data()``."""
        if hasattr(self.module, EXAMPLE):
            example = self._call(EXAMPLE)
            if _is_batch(example):
                return example  # type: ignore[no-any-return]
            raise self._refuse(EXAMPLE, "must return a batch, or a tuple or mapping of batches", example)
        data = self.val_data
        try:
            batch = next(iter(data), None)
        except (Exception, SystemExit) as error:
            raise self._blame(VAL, "must yield batches", error) from error
        first = split_batch(batch)[0]
        if not _is_batch(first):
            raise self._refuse(
                VAL, "must yield batches (x, y) with a tensor x, where there is no example_input()", batch
            )
        return first  # type: ignore[no-any-return]

    def _call_batches(self, name: str) -> Any:
        data = self._call(name)
        if not hasattr(data, "__iter__") or isinstance(data, (Tensor, str, dict)) or iter(data) is data:
            raise self._refuse(name, "must return a loader or a list of batches that can be run through again", data)
        return data

    def _call(self, name: str) -> Any:
        try:
            return getattr(self.module, name)()
        except (Exception, SystemExit) as error:
            raise self._blame(name, "must run without an error", error) from error

    def _refuse(self, function: str, expectation: str, value: object) -> RecipeError:
        return RecipeError(f"{function}() in {self.path}", expectation, Phrase(f"got {_describe_type(value)}"))

    def _blame(self, function: str, expectation: str, error: BaseException) -> RecipeError:
        return RecipeError(f"{function}() in {self.path}", expectation, Phrase(describe_failure(self.path, error)))


class KeepRecipe(Callback):
    """Callback that copies the recipe to a file in the folder of the run, unless it exists."""

    def __init__(self, recipe: Path, copy: Path) -> None:
        self.recipe, self.copy = recipe, copy

    def begin(self, run: Training) -> None:
        """Copy the recipe."""
        if not self.copy.exists():
            write_atomically(self.copy, self.recipe.read_bytes())


def read_recipe(path: Path, needed: Sequence[str] = (MODEL, TRAIN, VAL)) -> Recipe:
    """Run a recipe that defines the functions ``needed``.

    Raises:
        RecipeError: If it does not run, or lacks a function.
    """
    module = _run(path)
    missing = [f"{function}()" for function in needed if not hasattr(module, function)]
    if missing:
        all_needed = _join([f"{function}()" for function in needed])
        raise RecipeError("recipe", f"must define {all_needed}", Phrase(f"{path} lacks {_join(missing)}"))
    functions = (MODEL, TRAIN, VAL, TEST, EXAMPLE, *FUNCTIONS)
    odd = [function for function in functions if not callable(getattr(module, function, print))]
    if odd:
        raise RecipeError(f"{quote(odd)} in {path}", "must be a function", Phrase("got something else"))
    return Recipe(path, module)


def _run(path: Path) -> ModuleType:
    if not path.is_file():
        what = "a folder" if path.is_dir() else "not there"
        raise RecipeError("recipe", "must be a Python file", Phrase(f"{path} is {what}"))
    # Its own name and folder, where they are free: workers of a DataLoader import it, and it may import its neighbours.
    name = path.stem if path.stem.isidentifier() and path.stem not in sys.modules else f"_recipe_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise RecipeError("recipe", "must be a Python file, name.py", Phrase(f"got {path}"))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise RecipeError("recipe", RUNS, Phrase(describe_failure(path, error))) from error
    return module


def _is_batch(value: object) -> bool:
    """Return True for a batch, or a tuple or mapping of batches."""
    if isinstance(value, (tuple, Mapping)):
        parts = list(value.values() if isinstance(value, Mapping) else value)
        return bool(parts) and all(isinstance(part, Tensor) and _is_batch(part) for part in parts)
    return isinstance(value, Tensor) and value.ndim > 0 and len(value) > 0


def _join(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _describe_type(value: object) -> str:
    return "None" if value is None else f"an object of type {type(value).__name__}"


def find_line(path: Path, error: BaseException) -> str | None:
    """Return the line of the user's code that raised an error, ``line 3 of recipe.py``, or ``None``.

    The user's code is the recipe at ``path`` and all that is neither this package nor installed.
    """
    if isinstance(error, SyntaxError) and error.lineno is not None:
        return f"line {error.lineno} of {_shorten_path(error.filename or str(path), path)}"
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_user_file(frame.filename)]
    return f"line {own[-1].lineno} of {_shorten_path(own[-1].filename, path)}" if own else None


def is_from_user(path: Path, error: BaseException) -> bool:
    """Return True if an error comes from the user's code, or from data that torch was reading for it."""
    loaders = Path(torch.__file__).parent / "utils" / "data"
    frames = traceback.extract_tb(error.__traceback__)
    return find_line(path, error) is not None or any(Path(frame.filename).is_relative_to(loaders) for frame in frames)


def _is_user_file(filename: str) -> bool:
    places = sysconfig.get_paths()
    installed = [Path(places[name]).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    package = Path(__file__).resolve().parents[1]
    file = Path(filename).resolve()
    return not filename.startswith("<") and not any(file.is_relative_to(place) for place in (package, *installed))


def _shorten_path(filename: str, path: Path) -> str:
    return str(path) if Path(filename).resolve() == path.resolve() else filename


def describe_failure(path: Path, error: BaseException) -> str:
    """Return the error and the line of the user's code that raised it, in words."""
    message = str(error.msg if isinstance(error, SyntaxError) else error).strip()
    if message.startswith("Caught ") and "DataLoader worker" in message:  # what follows is the worker's traceback
        text = message.splitlines()[-1]
    else:
        text = f"{type(error).__name__}: {message}" if message else type(error).__name__
    text = textwrap.shorten(" ".join(text.split()), LONGEST, placeholder=" ...").rstrip(".:")
    return f"{find_line(path, error) or path} raised {text}"
