"""A recipe: a Python file of the user's that says what to compress, and with which data."""

from __future__ import annotations

import importlib.util
import sys
import sysconfig
import textwrap
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from spikeslab.errors import ArgumentError, Phrase, quote

if TYPE_CHECKING:
    from torch import Tensor, nn

    from spikeslab.compression import Settings

MODEL, TRAIN, VAL, TEST = "model", "train_data", "val_data", "test_data"
EXAMPLE, LOSS, SETTINGS = "example_input", "loss", "settings"
RUNS = "must be a Python file that runs"
LONGEST = 400
"""Most characters of the message of a quoted error."""


class RecipeError(ArgumentError):
    """A recipe does not run, lacks a function, or a function returns something else."""


@dataclass(frozen=True)
class Recipe:
    """Values that the functions of a recipe returned.

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
        RecipeError: If the file is no recipe, lacks a function, or one returns something else.
    """
    file = RecipeFile(path, (MODEL, TRAIN, VAL))
    model, settings = file.model(), file.settings()
    train, val = file.batches(TRAIN), file.batches(VAL)
    test = file.batches(TEST) if file.has(TEST) else None
    return Recipe(path, model, train, val, test, file.loss, settings)


class RecipeFile:
    """A recipe that has been run; its functions are called when what they return is needed.

    Args:
        path: The file.
        needed: Functions that it must define.

    Raises:
        RecipeError: If it does not run, or lacks a function.
    """

    def __init__(self, path: Path, needed: Sequence[str]) -> None:
        self.path = path
        self._module = _run(path)
        missing = [f"{function}()" for function in needed if not self.has(function)]
        if missing:
            all_needed = _listed([f"{function}()" for function in needed])
            raise RecipeError("recipe", f"must define {all_needed}", Phrase(f"{path} lacks {_listed(missing)}"))
        optional = (MODEL, TRAIN, VAL, TEST, EXAMPLE, LOSS)
        idle = [function for function in optional if not callable(getattr(self._module, function, print))]
        if idle:
            raise RecipeError(f"{quote(idle)} in {path}", "must be a function", Phrase("got something else"))

    def has(self, name: str) -> bool:
        """Whether the recipe defines a name."""
        return hasattr(self._module, name)

    @property
    def loss(self) -> Callable[..., Any] | None:
        """The loss, if the recipe has one."""
        return getattr(self._module, LOSS, None)

    def model(self) -> nn.Module:
        """What ``model()`` returns."""
        from torch import nn

        model = self._call(MODEL)
        if not isinstance(model, nn.Module):
            raise self._error(MODEL, "must return a torch.nn.Module", model)
        return model

    def settings(self) -> Settings | None:
        """The settings, if the recipe has any."""
        from spikeslab.compression import Settings

        settings = getattr(self._module, SETTINGS, None)
        if settings is None or isinstance(settings, Settings):
            return settings
        raise RecipeError(
            f"settings in {self.path}", "must be spikeslab.compression.Settings(...)", Phrase(f"got {_kind(settings)}")
        )

    def batches(self, name: str) -> Any:
        """What a function of data returns, which can be run through again."""
        from torch import Tensor

        data = self._call(name)
        again = hasattr(data, "__iter__") and not isinstance(data, (Tensor, str, dict)) and iter(data) is not data
        if not again:
            raise self._error(name, "must return a loader or a list of batches that can be run through again", data)
        return data

    def example_input(self) -> Tensor | tuple[Tensor, ...]:
        """What ``example_input()`` returns, or without one the x of the first batch of ``val_data()``."""
        from torch import Tensor

        if self.has(EXAMPLE):
            example = self._call(EXAMPLE)
            if _is_batch(example) or (isinstance(example, tuple) and example and all(map(_is_batch, example))):
                return example  # type: ignore[no-any-return]
            raise self._error(EXAMPLE, "must return a batch, or a tuple of batches", example)
        batch = self._first_batch()
        first = batch[0] if isinstance(batch, tuple | list) and batch else batch
        if not isinstance(first, Tensor) or not _is_batch(first):
            expectation = "must yield batches (x, y) with a tensor x, where there is no example_input()"
            raise self._error(VAL, expectation, batch)
        return first

    def _first_batch(self) -> Any:
        data = self.batches(VAL)
        try:
            return next(iter(data), None)
        except (Exception, SystemExit) as error:
            raise RecipeError(
                f"val_data() in {self.path}", "must yield batches", Phrase(failure(self.path, error))
            ) from error

    def _call(self, name: str) -> Any:
        try:
            return getattr(self._module, name)()
        except (Exception, SystemExit) as error:
            raise RecipeError(
                f"{name}() in {self.path}", "must run without an error", Phrase(failure(self.path, error))
            ) from error

    def _error(self, function: str, expectation: str, value: object) -> RecipeError:
        return RecipeError(f"{function}() in {self.path}", expectation, Phrase(f"got {_kind(value)}"))


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
        raise RecipeError("recipe", RUNS, Phrase(failure(path, error))) from error
    return module


def _is_batch(value: object) -> bool:
    from torch import Tensor

    return isinstance(value, Tensor) and value.ndim > 0 and len(value) > 0


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _kind(value: object) -> str:
    return "None" if value is None else f"an object of type {type(value).__name__}"


def place_of(path: Path, error: BaseException) -> str | None:
    """Where in the user's code an error came from, ``line 3 of recipe.py``; ``None`` if it is not theirs.

    Theirs is the recipe and whatever else is neither this package nor installed, such as a module beside the recipe.

    Args:
        path: The recipe, which is called by this path.
        error: The error, as it was caught.
    """
    if isinstance(error, SyntaxError) and error.lineno is not None:
        return f"line {error.lineno} of {_shown(error.filename or str(path), path)}"
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_users(frame.filename)]
    return f"line {own[-1].lineno} of {_shown(own[-1].filename, path)}" if own else None


def is_users(path: Path, error: BaseException) -> bool:
    """Whether an error is of the user's code, or of data that torch was reading for it."""
    import torch

    loaders = Path(torch.__file__).parent / "utils" / "data"
    frames = traceback.extract_tb(error.__traceback__)
    return place_of(path, error) is not None or any(Path(frame.filename).is_relative_to(loaders) for frame in frames)


def _is_users(filename: str) -> bool:
    places = sysconfig.get_paths()
    installed = [Path(places[name]).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    package = Path(__file__).resolve().parents[1]
    file = Path(filename).resolve()
    return not filename.startswith("<") and not any(file.is_relative_to(place) for place in (package, *installed))


def _shown(filename: str, path: Path) -> str:
    return str(path) if Path(filename).resolve() == path.resolve() else filename


def failure(path: Path, error: BaseException) -> str:
    """What went wrong, and in which line of the recipe or of what it imports."""
    message = str(error.msg if isinstance(error, SyntaxError) else error).strip()
    if message.startswith("Caught ") and "DataLoader worker" in message:  # what follows is the worker's traceback
        told = message.splitlines()[-1]
    else:
        told = f"{type(error).__name__}: {message}" if message else type(error).__name__
    told = textwrap.shorten(" ".join(told.split()), LONGEST, placeholder=" ...").rstrip(".:")
    return f"{place_of(path, error) or path} raised {told}"
