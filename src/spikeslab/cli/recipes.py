"""Recipes: Python files of the user with functions that give a model and its data."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from spikeslab.cli.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor, nn


class Recipe:
    """A recipe that has been run.

    Args:
        path: The file.

    Raises:
        InputError: If it cannot be read, or does not run.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._module = ModuleType("recipe")
        self._module.__file__ = str(path)
        try:
            source = path.read_bytes()
        except OSError as error:
            raise InputError(f"--recipe must be a Python file, but {path}: {error.strerror}.") from error
        with self._running():
            exec(compile(source, str(path), "exec"), self._module.__dict__)

    def model(self) -> nn.Module:
        """What ``model()`` returns."""
        from torch import nn

        model = self._call("model")
        if not isinstance(model, nn.Module):
            raise InputError(
                f"model() of {self.path} must return a torch.nn.Module, but it returned {type(model).__name__}."
            )
        return model

    def example_input(self) -> Tensor:
        """The inputs of the first batch that ``val_data()`` yields, which is x or (x, y)."""
        from torch import Tensor

        data = self._call("val_data")
        with self._running():
            batch = next(iter(data), None)
        first = batch[0] if isinstance(batch, tuple | list) and batch else batch
        if not isinstance(first, Tensor) or first.ndim == 0 or len(first) == 0:
            raise InputError(
                f"val_data() of {self.path} must yield batches (x, y) with a tensor x, but got {type(batch).__name__}."
            )
        return first

    def _call(self, name: str) -> Any:
        function = getattr(self._module, name, None)
        if not callable(function):
            raise InputError(f"{self.path} must define the function {name}(), but it does not.")
        with self._running():
            return function()

    @contextmanager
    def _running(self) -> Iterator[None]:
        """Where the recipe's own code runs: modules beside it can be imported, and what it raises is bad input."""
        before = list(sys.path)
        sys.path.insert(0, str(self.path.absolute().parent))
        try:
            yield
        except Exception as error:
            raise InputError(f"{self.path} must run, but got {type(error).__name__}: {error}.") from error
        finally:
            sys.path[:] = before
