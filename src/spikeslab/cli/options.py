"""Checks of options before any work is done."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from spikeslab.cli.errors import InputError
from spikeslab.errors import check_count, quoted


def check_folder(out: Path) -> None:
    """Raise if ``out`` cannot be a folder, before any work is done."""
    for path in (out, *out.parents):
        if path.exists():
            if not path.is_dir():
                raise InputError(f"--out must be a folder, but {path} is a file.")
            return


def check_option(option: str, value: int, minimum: int) -> None:
    """Raise if an option is not an integer of at least ``minimum``."""
    with bad_input():
        check_count(option, value, minimum)


def check_names(option: str, value: str, choices: Collection[str]) -> tuple[str, ...]:
    """The names in a list separated by commas; raise if one is unknown or there is none."""
    names = tuple(dict.fromkeys(name.strip() for name in value.split(",") if name.strip()))
    unknown = [name for name in names if name not in choices]
    if unknown or not names:
        raise InputError(f"{option} must be among {quoted(choices)}, but got {quoted(unknown) or 'none'}.")
    return names


@contextmanager
def bad_input() -> Iterator[None]:
    """Turn the errors of checks, whose message is a sentence, into bad input."""
    try:
        yield
    except ValueError as error:
        raise InputError(str(error)) from error
