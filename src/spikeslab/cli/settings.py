"""``--set NAME=VALUE``: a field of `spikeslab.compression.Settings` on the command line."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import fields
from typing import Any

from spikeslab.cli.errors import SET
from spikeslab.compression import Settings
from spikeslab.errors import quote

NAMES = tuple(field.name for field in fields(Settings) if field.name not in ("prior", "scope"))
"""Settings that one word can hold; the scope has an option of its own."""
TRUTHS = {"true": True, "false": False}


def read_settings(texts: Sequence[str], names: Collection[str] = NAMES) -> list[tuple[str, list[Any]]]:
    """Settings and the values that they take, from ``NAME=VALUE,VALUE``; the parts of a pair have a colon between.

    >>> read_settings(["lr=0.05,0.1", "kappa=5e-4:5e-4"])
    [('lr', [0.05, 0.1]), ('kappa', [(0.0005, 0.0005)])]

    Raises:
        ValueError: If a name is not among ``names`` or is there twice, or a value is no number where it must be.
    """
    read = [_read(text, names) for text in texts]
    twice = {name for name, _ in read if sum(name == other for other, _ in read) > 1}
    if twice:
        raise ValueError(f"{SET} must name a setting once, with commas between its values, but got {min(twice)} twice.")
    return read


def _read(text: str, names: Collection[str]) -> tuple[str, list[Any]]:
    name, equals, values = text.partition("=")
    if name not in names or not equals:
        raise ValueError(f"{SET} must be NAME=VALUE with a name among {quote(names, 99)}, but got {text!r}.")
    return name, [_value(name, value) for value in values.split(",")]


def _value(name: str, text: str) -> Any:
    kind = {field.name: str(field.type) for field in fields(Settings)}[name]
    if kind == "str":
        return text
    if kind == "bool":
        if text not in TRUTHS:
            raise ValueError(f"{SET} must be {name}=true or {name}=false, but got {name}={text}.")
        return TRUTHS[text]
    try:
        parts = [_number(part) for part in text.split(":")]
    except ValueError:
        raise ValueError(f"{SET} must be NAME=VALUE with a number, but got {name}={text}.") from None
    if "tuple" in kind:
        return tuple(parts)
    if len(parts) > 1:
        raise ValueError(f"{SET} must give {name} one number at a time, but got {name}={text}.")
    return parts[0]


def _number(text: str) -> float:
    """An integer where it is written as one, since a count and a share are told apart by it."""
    try:
        return int(text)
    except ValueError:
        return float(text)
