"""Errors and warnings of the library as sentences about the options of a command."""

from __future__ import annotations

import errno
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from spikeslab.errors import (
    ArgumentValueError,
    Interrupted,
    Spelling,
    SpikeSlabError,
    SpikeSlabWarning,
    first_line,
    spell_keyword,
)

SET = "--set"
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
"""Cores that this process may use."""
LARGEST = 10**9
LIMITS = {
    "threads": 4 * CORES,
    "workers": 4 * CORES,
    "seeds": 10_000,
    "sgld_seeds": 10_000,
    "repeats": 10_000,
    "iterations": 1_000_000,
    "chains": 10**7,
    "max_bytes": 10**15,
}
"""Largest values of options; that of other counts is ``LARGEST``."""
OUT = "--out"
WRITTEN = (OUT, "--json")
"""Options that name what a command writes."""
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG)
"""Errors of a disk, which do not say where it is full."""
SPELLED = "__spelled__"
"""Attribute of a command's function with the spelling of arguments that are not options of it."""

Function = TypeVar("Function", bound=Callable[..., Any])


class InputError(Exception):
    """Bad input on the command line: one sentence that names the option, what it got and what is allowed."""


def spells(**names: str) -> Callable[[Function], Function]:
    """Decorate a command with the spelling of arguments that have another name on the command line.

    >>> @spells(train_loader="train_data()", folder="--out")
    ... def compress() -> None: ...
    """

    def decorate(function: Function) -> Function:
        setattr(function, SPELLED, names)
        return function

    return decorate


def make_spelling(command: TyperCommand) -> Spelling:
    """Return the spelling of arguments as options of a command.

    What :func:`spells` says comes first, then the command's own options and arguments, then the settings that ``--set``
    takes; other names stay Python's.
    """
    names: Mapping[str, str] = getattr(command.callback, SPELLED, {})
    parameters = {parameter.name: parameter for parameter in command.params}

    def spelling(name: str, value: str | None = None) -> str:
        parameter = None if name in names else parameters.get(name)
        if isinstance(parameter, TyperOption):
            flags = {"True": parameter.opts, "False": parameter.secondary_opts} if parameter.is_flag else {}
            if value in flags:
                return flags[value][0]
            return " ".join([parameter.opts[0], *([] if value is None else [value.strip("'\"")])])
        if isinstance(parameter, TyperArgument):
            return parameter.metavar or name.upper()
        if name in names:
            option = names[name].startswith("-") and value is not None
            return f"{names[name]} {value}" if option else names[name]
        if any(SET in option.opts for option in command.params) and _is_setting(name):
            return f"{SET} {spell_keyword(name, value)}"
        return spell_keyword(name, value)

    return spelling


def _is_setting(name: str) -> bool:
    from spikeslab.compression import Settings

    return name in Settings.__dataclass_fields__


class PlainFlags:
    """Mixin for commands: the help of a flag has no type, where newer versions of typer show ``<bool>``."""

    def get_params(self, ctx: Any) -> Any:
        """Return the options and arguments."""
        parameters = super().get_params(ctx)  # type: ignore[misc]
        for parameter in parameters:
            if getattr(parameter, "is_flag", False):
                parameter.metavar = ""
        return parameters


class Group(PlainFlags, TyperGroup):
    """Group of commands."""


class Command(PlainFlags, TyperCommand):
    """Command that shows errors and warnings of the library as sentences about its own options."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the options; an empty text would be the present folder where it stands for a path."""
        for before, text in zip(["", *args], args, strict=False):
            option = before if not text else text[:-1] if text.endswith("=") else ""
            if option.startswith("--") or not text:
                raise InputError(f"{option if option.startswith('-') else 'An argument'} must not be empty.")
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Call the command.

        Raises:
            InputError: In place of any error that names an argument, and of those of the system.
            typer.Exit: In place of a signal, of which typer would make 130 whatever it was.
        """
        spelling = make_spelling(self)
        with print_warnings(spelling):
            try:
                self._check(ctx.params)
                return super().invoke(ctx)
            except Interrupted as error:
                print(error.describe(spelling), file=sys.stderr)
                raise typer.Exit(error.exit_code) from error
            except SpikeSlabError as error:
                raise InputError(error.describe(spelling)) from error
            except Exception as error:
                sentence = self._explain(error, ctx.params)
                if sentence is None:
                    raise
                raise InputError(sentence) from error

    def _check(self, values: Mapping[str, Any]) -> None:
        """Raise if a count is larger than any machine can take."""
        for name, value in values.items():
            limit = LIMITS.get(name, LARGEST)
            if type(value) is int and name != "seed" and value > limit:
                raise ArgumentValueError(name, f"must be an integer up to {limit:,}", value)

    def _explain(self, error: Exception, values: Mapping[str, Any]) -> str | None:
        """Return a sentence about an error of the system, or ``None`` if it is of another kind."""
        reason = first_line(error)
        if isinstance(error, BrokenPipeError):  # the reader of the output is gone, which is no error
            return None
        if isinstance(error, OSError):
            paths = {_option_of(item): values.get(str(item.name)) for item in self.params}
            return _explain_os_error(error, paths)
        if isinstance(error, MemoryError) or "DefaultCPUAllocator" in reason:
            return f"There is not enough memory: {reason}."
        if isinstance(error, RecursionError):
            return f"A file is nested too deeply: {reason}."
        if isinstance(error, OverflowError):
            return f"A number is too large: {reason}."
        if isinstance(error, UnicodeError):
            return f"A text cannot be read or written in its encoding: {reason}."
        if type(error).__name__ == "SafetensorError":
            if "os error" in reason and "out" in values:
                return f"{OUT} must be writable: {reason}."
            return f"A safetensors file cannot be read or written: {reason}."
        return None


def _option_of(parameter: Any) -> str:
    """Return how a user spells an option or argument."""
    option: str = parameter.opts[0]
    return option if option.startswith("-") else parameter.metavar or option.upper()


def _explain_os_error(error: OSError, values: Mapping[str, Any]) -> str:
    """Return a sentence that names the option in whose place the error was."""
    reason = error.strerror or first_line(error)
    file = Path(os.fsdecode(error.filename)) if isinstance(error.filename, str | bytes) else None
    for name, path in values.items():
        if file is not None and isinstance(path, Path) and file.is_relative_to(path):
            needed, place = ("writable", path) if name in WRITTEN else ("readable", file)
            return f"{name} must be {needed}, but {place}: {reason}."
    if file is None and error.errno in FULL and OUT in values:
        folder = "" if values[OUT] is None else f", but {values[OUT]}"
        return f"{OUT} must be writable{folder}: {reason}."
    return f"{reason}." if file is None else f"{file}: {reason}."


@contextmanager
def print_warnings(spelling: Spelling) -> Iterator[None]:
    """Print the library's warnings at once, one sentence each."""
    with warnings.catch_warnings():
        warnings.simplefilter("once", SpikeSlabWarning)
        show = warnings.showwarning

        def print_warning(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
            if isinstance(message, SpikeSlabWarning):
                print(f"Warning: {message.describe(spelling)}", file=sys.stderr)
            else:
                show(message, category, *place, **more)

        warnings.showwarning = print_warning
        yield
