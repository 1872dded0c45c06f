"""Errors and warnings of the library as sentences about the options of a command."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from spikeslab.compression import Settings
from spikeslab.errors import Interrupted, Spelling, SpikeSlabError, SpikeSlabWarning, spell_keyword

SET, SETTINGS = "--set", {field.name for field in fields(Settings)}
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
            return names[name]
        if name in SETTINGS and any(SET in option.opts for option in command.params):
            return f"{SET} {spell_keyword(name, value)}"
        return spell_keyword(name, value)

    return spelling


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

    def invoke(self, ctx: Any) -> Any:
        """Call the command.

        Raises:
            InputError: In place of any error that names an argument.
            typer.Exit: In place of a signal, of which typer would make 130 whatever it was.
        """
        spelling = make_spelling(self)
        with print_warnings(spelling):
            try:
                return super().invoke(ctx)
            except Interrupted as error:
                print(error.describe(spelling), file=sys.stderr)
                raise typer.Exit(error.exit_code) from error
            except SpikeSlabError as error:
                raise InputError(error.describe(spelling)) from error


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


@contextmanager
def explain_os_errors(folder: Path) -> Iterator[None]:
    """Turn errors of the file system while a command works in ``--out`` into bad input."""
    try:
        yield
    except SpikeSlabError:
        raise
    except OSError as error:
        raise InputError(
            f"--out must be a folder that can be written to, but {folder}: {error.strerror or error}."
        ) from error
