"""Errors and warnings that carry their parts, and checks of arguments.

A message marks the names of arguments with :func:`mark`. As text they are Python's keywords; the command line spells
the same message with its options. The marks are control characters, which no path or name of a column holds.
"""

from __future__ import annotations

import math
import re
import sys
import warnings
from collections.abc import Callable, Collection, Iterable
from numbers import Integral, Real
from typing import Self, TypeAlias

Spelling: TypeAlias = Callable[[str, str | None], str]
"""Function from the name of an argument and its value, if the message has one, to the text that a user would write."""

SKIPPED = ("spikeslab", "torch", "contextlib", "sklearn", "joblib")
"""Packages whose frames are not the user's code."""
LONG_NUMBER, SHOWN_DIGITS = 60, 20
"""Characters from which on a number is shortened in a message, and how many of them are shown then."""
LARGEST_FLOAT = f"{sys.float_info.max:.2g}"
START, END = "\x02", "\x03"
MARKED = re.compile(f"{START}([^{START}{END}=]+)(?:=([^{START}{END}]*))?{END}")


def spell_keyword(name: str, value: str | None = None) -> str:
    """Spell an argument as in a call of a Python function.

    >>> spell_keyword("lr"), spell_keyword("resume", "True")
    ('lr', 'resume=True')
    """
    return name if value is None else f"{name}={value}"


def spell(message: str, spelling: Spelling = spell_keyword) -> str:
    """Return a message with its marked arguments spelled out.

    >>> spell(f"Continue the run with {mark('resume', True)}.")
    'Continue the run with resume=True.'
    """
    return MARKED.sub(lambda match: spelling(match[1], match[2]), message)


def mark(name: str, value: object = None) -> str:
    """Mark the name of an argument, and a value to give it, for a message.

    >>> spell(mark("lr")), spell(mark("count", "layers")), spell(mark("adapt", Phrase("Marginal()")))
    ('lr', "count='layers'", 'adapt=Marginal()')

    Args:
        name: Name of the argument.
        value: Value that the user should set, shown by ``repr``; a :class:`Phrase` is shown as it is.
    """
    text = value if isinstance(value, Phrase) else repr(value)
    return f"{START}{name if value is None else spell_keyword(name, text)}{END}"


class MarkedMessage(BaseException):
    """Exception or warning of one or several sentences that mark the names of arguments."""

    def describe(self, spelling: Spelling = spell_keyword) -> str:
        """Return the message, with arguments spelled by ``spelling``."""
        return " ".join(spell(str(sentence), spelling) for sentence in self.args)

    def __str__(self) -> str:
        return self.describe()


class SpikeSlabError(MarkedMessage, Exception):
    """Error whose message marks the names of arguments.

    >>> str(SpikeSlabError("The folder holds a run.", f"Continue it with {mark('resume', True)}."))
    'The folder holds a run. Continue it with resume=True.'
    """


class ArgumentError(SpikeSlabError):
    """An argument has a value that is not allowed.

    >>> str(ArgumentError("lr", "must be a number >= 0", -1.0, f"try {mark('lr', 0.1)}"))
    'lr must be a number >= 0, but got -1.0: try lr=0.1.'

    Args:
        argument: Name of the argument.
        expectation: What is allowed, a phrase behind the name; it may mark other arguments.
        value: The value, shown by ``repr``; a :class:`Phrase` is shown as it is.
        hint: What to do about it.

    Attributes:
        argument: Name of the argument.
    """

    def __init__(self, argument: str, expectation: str, value: object = None, hint: str = "") -> None:
        super().__init__(argument, expectation, value, hint)
        self.argument = argument

    def describe(self, spelling: Spelling = spell_keyword) -> str:
        """Return the sentence, with arguments spelled by ``spelling``."""
        argument, expectation, value, hint = self.args
        got = spell(value, spelling) if isinstance(value, Phrase) else f"got {show(value)}"
        rest = f": {spell(hint, spelling)}" if hint else ""
        return f"{spelling(argument, None)} {spell(expectation, spelling)}, but {got}{rest}."

    def change(self, *, argument: str | None = None, hint: str | None = None) -> Self:
        """Return the same error about another argument or with another hint.

        >>> str(ArgumentError("lr", "must be positive", 0).change(argument="step size"))
        'step size must be positive, but got 0.'
        """
        own, expectation, value, advice = self.args
        return type(self)(argument or own, expectation, value, advice if hint is None else hint)


def show(value: object) -> str:
    """Return the ``repr`` of a value, a long number shortened.

    >>> show(0.1), show(-(10**400))
    ('0.1', '-1000000000000000000... (402 characters)')
    """
    try:
        text = repr(value)
    except ValueError:  # Python writes no integer of more digits
        return f"a number of more than {sys.get_int_max_str_digits():,} digits"
    if isinstance(value, Real) and len(text) > LONG_NUMBER:
        return f"{text[:SHOWN_DIGITS]}... ({len(text)} characters)"
    return text


class Phrase(str):
    """Value of an argument in words, the end of "lr must be a number, but ..."."""

    __slots__ = ()


class ArgumentValueError(ArgumentError, ValueError):
    """An argument has a value that is not allowed."""


class ArgumentTypeError(ArgumentError, TypeError):
    """An argument has a type that is not allowed."""


class StateError(SpikeSlabError, RuntimeError):
    """An object cannot do in its present state what it was asked for."""


class NonFiniteError(SpikeSlabError, ArithmeticError):
    """A weight, a gradient or a prediction is NaN or infinite."""


class MissingExtraError(ImportError):
    """A package of an optional extra is not installed; the message says how to install it."""


class Interrupted(MarkedMessage, KeyboardInterrupt):
    """Raised when a signal stopped a run, after its state was saved.

    Attributes:
        signal: Number of the signal.
    """

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.signal = number

    @property
    def exit_code(self) -> int:
        """Exit code by which shells recognise a process that a signal stopped."""
        return 128 + self.signal


class SpikeSlabWarning(MarkedMessage, UserWarning):
    """A setting is legal but probably not what the user wants."""


def warn(message: str | Warning) -> None:
    """Show a warning at the line of the user's code that called the package.

    Frames of the package, and of the packages that call it or decorate its functions, are skipped.
    """
    level, frame = 2, sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").split(".")[0] in SKIPPED:
        level, frame = level + 1, frame.f_back
    warning = message if isinstance(message, Warning) else SpikeSlabWarning(message)
    warnings.warn(warning, stacklevel=level)


def check_number(name: str, value: object, allowed: str) -> float:
    """Return ``value`` as a float if it lies in ``allowed``, an interval such as ``"[0, 1)"`` or ``"> 0"``.

    >>> check_number("delta", 0.1, "(0, 1)")
    0.1
    >>> check_number("lr", -1.0, ">= 0")
    Traceback (most recent call last):
    spikeslab.errors.ArgumentValueError: lr must be a number >= 0, but got -1.0.
    """
    expectation = f"must be a number {allowed if allowed[0] in '<>' else 'in ' + allowed}"
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ArgumentTypeError(name, expectation, value)
    try:
        number = float(value)
    except OverflowError as error:  # an integer or a fraction
        hint = f"a float holds numbers up to {LARGEST_FLOAT}"
        raise ArgumentValueError(name, expectation, value, hint) from error
    if not math.isfinite(number) or not _inside(number, allowed):
        raise ArgumentValueError(name, expectation, value)
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


def check_count(name: str, value: object, minimum: int = 1, bits: int = 63) -> int:
    """Return ``value`` as an int if it is an integer of at least ``minimum`` and below ``2**bits``.

    >>> check_count("num_data", None)
    Traceback (most recent call last):
    spikeslab.errors.ArgumentTypeError: num_data must be an integer >= 1, but got None.
    """
    expectation = f"must be an integer >= {minimum}"
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise ArgumentTypeError(name, expectation, value)
    if value < minimum:
        raise ArgumentValueError(name, expectation, value)
    if int(value) >= 1 << bits:
        raise ArgumentValueError(name, f"must be an integer below 2**{bits}", value)
    return int(value)


def check_choice(name: str, value: object, choices: Collection[str]) -> str:
    """Return ``value`` if it is one of ``choices``.

    >>> check_choice("scope", "row", ("layer", "global"))
    Traceback (most recent call last):
    spikeslab.errors.ArgumentValueError: scope must be one of 'layer', 'global', but got 'row'.
    """
    if not isinstance(value, str) or value not in choices:
        raise ArgumentValueError(name, f"must be one of {quote(choices, len(choices))}", value)
    return value


def pluralize(number: int, noun: str) -> str:
    """Return a number and its noun, in the plural where it must be.

    >>> pluralize(1, "row"), pluralize(2000, "row")
    ('1 row', '2,000 rows')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def quote(names: Iterable[str], limit: int = 8) -> str:
    """Return names in quotes for a message, shortened after ``limit``.

    >>> quote(["a", "b", "c"], limit=2)
    "'a', 'b' and 1 more"
    """
    names = list(names)
    shown = ", ".join(repr(name) for name in names[:limit])
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"


def first_line(error: BaseException, marked: bool = False) -> str:
    r"""Return the first line of an exception's message without its full stop, or the name of its class.

    >>> first_line(ValueError("No such file.\nSee below.")), first_line(KeyError())
    ('No such file', 'KeyError')

    Args:
        error: The exception.
        marked: If True, arguments that its message marks stay marked, for another message.
    """
    text = str(error)
    if marked and isinstance(error, MarkedMessage):
        text = error.describe(lambda name, value: mark(name, value and Phrase(value)))
    lines = text.strip().splitlines()
    return lines[0].strip().rstrip(".") if lines else type(error).__name__
