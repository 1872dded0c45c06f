"""Checks of options before any work is done, and ``--set NAME=VALUE``: a field of `spikeslab.compression.Settings`."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from tempfile import TemporaryFile
from typing import Annotated, Any

import typer

from spikeslab.cli._errors import SET, InputError
from spikeslab.errors import check_choice, check_count, quote

HEAD = 200
"""Bytes at the beginning of a file in which a mark must be."""
BLOCK = 4096
"""Bytes that a disk must have left."""
TABLE_MARK, PNG_MARK = '{\n  "title": ', "PNG"
TRUTHS = {"true": True, "false": False}
COPY = "recipe.py"
"""Copy of the recipe in the folder of a run."""

ModelArgument = Annotated[
    Path, typer.Argument(metavar="MODEL", help="Folder of a compressed model, or a safetensors file.")
]
RecipeOption = Annotated[
    Path | None,
    typer.Option(help="Python file with model() and val_data(); by default recipe.py in the folder."),
]
MaxBytes = Annotated[
    int | None,
    typer.Option(
        help="Memory that reading a sparse file may take beside its own bytes.",
        show_default="its length and 128 MiB",
    ),
]


def check_folder(out: Path) -> None:
    """Raise if ``out`` cannot be a folder that is written to, before any work is done."""
    for path in (out, *out.parents):
        if path.exists():
            if not path.is_dir():
                raise InputError(f"--out must be a folder, but {path} is a file.")
            break
    _check_writable("--out", out)


def check_file(option: str, path: Path, mark: str | None, what: str) -> None:
    """Raise if ``path`` cannot be written, or is a file that does not begin with ``mark``."""
    if path.is_dir():
        raise InputError(f"{option} must be a file, but {path} is a folder.")
    parent = next(folder for folder in path.absolute().parents if folder.exists())
    if not parent.is_dir():
        raise InputError(f"{option} must be in a folder, but {parent} is a file.")
    _check_writable(option, path.parent)
    path.with_name(f"{path.name}.{os.getpid()}.tmp").exists()  # the name under which it is written may be too long
    if not path.exists():
        return
    if not path.is_file():
        raise InputError(f"{option} must be a file, but {path} is a device or a pipe.")
    with path.open("rb") as file:
        head = file.read(HEAD).decode("utf-8", errors="replace")
    if mark is None or mark not in head:
        raise InputError(f"{option} must be a new file or one with {what}, but {path} holds something else.")


def check_results(out: Path, tables: Iterable[str], figures: Iterable[str]) -> None:
    """Raise if ``out`` cannot be a folder, or has other files with the names of the tables and figures."""
    check_folder(out)
    for name in tables:
        numbers = out / f"{name}.json"
        check_file("--out", numbers, TABLE_MARK, "a table")
        # A table is known by its numbers: anybody's Markdown begins with a title.
        check_file("--out", numbers.with_suffix(".md"), "" if numbers.exists() else None, "a table")
    for name in figures:
        check_file("--out", out / f"{name}.png", PNG_MARK, "a figure")


def check_counts(**counts: int | None) -> None:
    """Raise if an option that is given is not an integer of at least 1."""
    for name, value in counts.items():
        if value is not None:
            check_count(name, value)


def check_new(out: Path, resume: bool, paths: Iterable[Path]) -> None:
    """Raise if one of the paths in ``out`` exists, unless ``--resume`` is given."""
    if not resume and any(path.exists() for path in paths):
        raise InputError(
            f"--out must not hold these results yet, but {out} does: continue with --resume, or choose another folder."
        )


def _check_writable(option: str, folder: Path) -> None:
    """Raise if nothing can be written to the folder, or to its nearest parent."""
    parent = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    try:
        with TemporaryFile(dir=parent) as file:
            file.write(bytes(BLOCK))
    except OSError as error:
        raise InputError(f"{option} must be writable, but {parent}: {error.strerror}.") from error


def check_seed(seed: int) -> None:
    """Raise if ``--seed`` is not a seed of both torch and NumPy."""
    check_count("seed", seed, minimum=0)


def use_threads(threads: int | None) -> None:
    """Limit torch to ``--threads`` threads; ``None`` leaves it torch's choice."""
    if threads is not None:
        import torch

        torch.set_num_threads(check_count("threads", threads))


def check_choices(option: str, value: str, choices: Collection[str]) -> tuple[str, ...]:
    """Return the parts of a list with commas if each is one of ``choices``; duplicates are dropped."""
    return tuple(dict.fromkeys(check_choice(option, part.strip(), choices) for part in value.split(",")))


def _setting_types() -> dict[str, str]:
    """Return the types of the settings that one word can hold; the scope has an option of its own."""
    from spikeslab.compression import Settings

    settings = fields(Settings)
    return {field.name: str(field.type) for field in settings if field.name not in ("prior", "scope")}


def read_settings(texts: Sequence[str], without: Collection[str] = ()) -> list[tuple[str, list[Any]]]:
    """Return settings and their values from ``NAME=VALUE,VALUE``; the parts of a pair have a colon between.

    Settings ``without`` are not known.

    >>> read_settings(["lr=0.05,0.1", "kappa=5e-4:5e-4"])
    [('lr', [0.05, 0.1]), ('kappa', [(0.0005, 0.0005)])]

    Raises:
        InputError: If a name is not known or is there twice, or a value is not of its type.
    """
    types = {name: kind for name, kind in _setting_types().items() if name not in without} if texts else {}
    read = [_read_setting(text, types) for text in texts]
    twice = {name for name, _ in read if sum(name == other for other, _ in read) > 1}
    if twice:
        raise InputError(f"{SET} must name a setting once, with commas between its values, but got {min(twice)} twice.")
    return read


def _read_setting(text: str, types: Mapping[str, str]) -> tuple[str, list[Any]]:
    name, equals, values = text.partition("=")
    if name not in types or not equals:
        raise InputError(f"{SET} must be NAME=VALUE with a name among {quote(types, 99)}, but got {text!r}.")
    return name, [_read_value(name, types[name], value) for value in values.split(",")]


def _read_value(name: str, kind: str, text: str) -> Any:
    if kind == "str":
        return text
    if kind == "bool":
        if text not in TRUTHS:
            raise InputError(f"{SET} must be {name}=true or {name}=false, but got {name}={text}.")
        return TRUTHS[text]
    try:
        parts = [_read_number(part) for part in text.split(":")]
    except ValueError:
        raise InputError(f"{SET} must be NAME=VALUE with a number, but got {name}={text}.") from None
    if "tuple" in kind:
        return tuple(parts)
    if len(parts) > 1:
        raise InputError(f"{SET} must give {name} one number at a time, but got {name}={text}.")
    return parts[0]


def _read_number(text: str) -> float:
    """Return an int if the text is one (a count), else a float (a share)."""
    try:
        return int(text)
    except ValueError:
        return float(text)
