"""Write api.md: every public name, its arguments, and the first sentence of its docstring.

    python docs/make_api.py

A test compares the page with the code.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

PAGE = Path(__file__).resolve().parent / "api.md"
HEAD = """# All public names

Made by `python docs/make_api.py` from the docstrings; `help(name)` says the rest. What is not here may change without
notice.
"""
MODULES = (
    "spikeslab",
    "spikeslab.compression",
    "spikeslab.sklearn",
    "spikeslab.training",
    "spikeslab.posterior",
    "spikeslab.priors",
    "spikeslab.pruning",
    "spikeslab.samplers",
    "spikeslab.presets",
    "spikeslab.metrics",
    "spikeslab.attacks",
    "spikeslab.models",
    "spikeslab.datasets",
    "spikeslab.report.plots",
    "spikeslab.report.tables",
)


def public_names(module: ModuleType) -> list[str]:
    """What a module exports: its ``__all__``, or the functions and classes that it defines."""
    exported = getattr(module, "__all__", None)
    if exported is not None:
        return sorted(exported, key=str.lower)
    own = (
        name
        for name, value in vars(module).items()
        if (inspect.isclass(value) or inspect.isfunction(value)) and value.__module__ == module.__name__
    )
    return sorted((name for name in own if not name.startswith("_")), key=str.lower)


def call(name: str, value: object) -> str:
    """A name with its arguments, where it can be called.

    >>> call("sample", lambda model, *, seed=0: None)
    'sample(model, *, seed)'
    """
    if not callable(value) or (inspect.isclass(value) and issubclass(value, BaseException)):
        return name
    parameters = inspect.signature(value).parameters.values()
    words: list[str] = []
    for parameter in parameters:
        if parameter.kind is parameter.KEYWORD_ONLY and not any(word.startswith("*") for word in words):
            words.append("*")
        stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        words.append(f"{stars}{parameter.name}")
    return f"{name}({', '.join(words)})"


def sentence(value: object) -> str:
    """The first paragraph of a docstring, without the marks of reStructuredText; of a table its keys.

    >>> sentence(public_names)
    'What a module exports: its `__all__`, or the functions and classes that it defines.'
    """
    if isinstance(value, Mapping):
        return ", ".join(f"`{key}`" for key in value)
    if not callable(value) and not inspect.ismodule(value):
        return f"`{value!r}`"
    first = " ".join((inspect.getdoc(value) or "").partition("\n\n")[0].split())
    first = re.sub(r":math:`([^`]*)`", r"`\1`", first)
    first = re.sub(r":\w+:`~?(?:[\w.]*\.)?(\w+)`", r"`\1`", first)
    return first.replace("``", "`").replace("|", r"\|")


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for path in MODULES:
        module = importlib.import_module(path)
        rows = [(call(name, getattr(module, name)), sentence(getattr(module, name))) for name in public_names(module)]
        table = "\n".join(f"| `{name}` | {text} |" for name, text in rows)
        parts.append(f"## `{path}`\n\n{sentence(module)}\n\n| | |\n|---|---|\n{table}\n")
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
