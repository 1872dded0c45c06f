"""What can go wrong, said in one sentence that names the argument, what it got and what is allowed."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from numbers import Integral, Real


class SpikeSlabWarning(UserWarning):
    """A setting is legal but probably not what the user wants."""


class NonFiniteError(ArithmeticError):
    """A weight, a gradient or a prediction is NaN or infinite."""


def check_number(name: str, value: object, allowed: str) -> float:
    """Return ``value`` as a float if it lies in ``allowed``, an interval such as ``"[0, 1)"`` or ``"> 0"``.

    >>> check_number("delta", 0.1, "(0, 1)")
    0.1
    >>> check_number("lr", -1.0, ">= 0")
    Traceback (most recent call last):
    ValueError: lr must be a number >= 0, but got -1.0.
    """
    phrase = f"{name} must be a number {allowed if allowed[0] in '<>' else 'in ' + allowed}"
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{phrase}, but got {value!r}.")
    number = float(value)
    if not math.isfinite(number) or not _inside(number, allowed):
        raise ValueError(f"{phrase}, but got {value!r}.")
    return number


def _inside(number: float, allowed: str) -> bool:
    if allowed.startswith(">="):
        return number >= float(allowed[2:])
    if allowed.startswith(">"):
        return number > float(allowed[1:])
    low, high = (float(end) for end in allowed[1:-1].split(","))
    above = number > low or (allowed[0] == "[" and number == low)
    below = number < high or (allowed[-1] == "]" and number == high)
    return above and below


def check_count(name: str, value: object, minimum: int = 1) -> int:
    """Return ``value`` as an int if it is an integer of at least ``minimum``.

    >>> check_count("num_data", None)
    Traceback (most recent call last):
    TypeError: num_data must be an integer >= 1, but got None.
    """
    phrase = f"{name} must be an integer >= {minimum}"
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{phrase}, but got {value!r}.")
    if value < minimum:
        raise ValueError(f"{phrase}, but got {value!r}.")
    return int(value)


def check_choice(name: str, value: object, choices: Collection[str]) -> str:
    """Return ``value`` if it is one of ``choices``.

    >>> check_choice("scope", "row", ("layer", "global"))
    Traceback (most recent call last):
    ValueError: scope must be one of 'layer', 'global', but got 'row'.
    """
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name} must be one of {quoted(choices, len(choices))}, but got {value!r}.")
    return value


def counted(number: int, noun: str) -> str:
    """A number and its noun, in the plural where it must be.

    >>> counted(1, "row"), counted(2000, "row")
    ('1 row', '2,000 rows')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def quoted(names: Iterable[str], limit: int = 8) -> str:
    """Join names for a message, shortened after ``limit``.

    >>> quoted(["a", "b", "c"], limit=2)
    "'a', 'b' and 1 more"
    """
    names = list(names)
    shown = ", ".join(repr(name) for name in names[:limit])
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"
