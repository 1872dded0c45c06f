"""The examples in the docstrings of every module run and print what they say."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import spikeslab
from spikeslab.errors import MissingExtraError

# A module whose optional dependency is not installed has nothing to show; all others must import.
EXTRAS = {
    "sklearn", "numba", "pandas", "typer", "rich", "pooch", "matplotlib", "jinja2", "torchmetrics", "arviz", "onnx",
    "onnxscript", "onnxruntime", "tensorboard", "scipy",
}  # fmt: skip
MODULES = [
    "spikeslab",
    *(
        module.name
        for module in pkgutil.walk_packages(spikeslab.__path__, "spikeslab.", onerror=lambda name: None)
        if not module.name.endswith("__main__")
    ),
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_of(name: str) -> None:
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in EXTRAS:
            pytest.skip(f"{name} needs {error.name}, which is not installed")
        raise
    except MissingExtraError as error:
        pytest.skip(str(error))
    results = doctest.testmod(module, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert results.failed == 0


def test_the_core_has_examples() -> None:
    """So that the test above does not pass because there is nothing to run."""
    finder = doctest.DocTestFinder(exclude_empty=True)
    for name in (
        "schedules",
        "samplers.sgld",
        "samplers.sghmc",
        "samplers.psgld",
        "priors.spike_slab",
        "pruning.pruner",
        "presets",
    ):
        tests = finder.find(importlib.import_module(f"spikeslab.{name}"))
        assert any(test.examples for test in tests), name
