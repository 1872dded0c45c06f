"""Errors that carry their parts, and warnings at the user's line."""

from __future__ import annotations

import pickle

import pytest

from spikeslab import errors
from spikeslab.errors import mark


def spell_option(name: str, value: str | None = None) -> str:
    return f"--{name}" if value in (None, "True") else f"--{name} {value}"


def test_an_error_is_spelled_for_python_and_for_the_command_line() -> None:
    error = errors.ArgumentValueError(
        "epochs", f"must be those of {mark('resume', True)}", 3, f"try {mark('epochs', 9)}"
    )
    assert str(error) == "epochs must be those of resume=True, but got 3: try epochs=9."
    assert error.describe(spell_option) == "--epochs must be those of --resume, but got 3: try --epochs 9."
    assert error.argument == "epochs"


def test_braces_in_a_users_text_are_left_alone() -> None:
    error = errors.ArgumentTypeError("table", "must be text", {"lr": "{lr}"})
    assert error.describe(spell_option) == "--table must be text, but got {'lr': '{lr}'}."
    for sentence in ("/tmp/{out}/x is a file", errors.quote(["{lr}"]), errors.first_line(OSError("no {out=1}"))):
        assert errors.SpikeSlabError(sentence).describe(spell_option) == sentence


def test_an_error_inside_a_message_keeps_its_marks() -> None:
    inner = errors.ArgumentValueError("lr", "must be positive", 0, f"try {mark('lr', 0.1)}")
    outer = errors.SpikeSlabError(f"This run cannot start: {errors.first_line(inner, marked=True)}.")
    assert outer.describe(spell_option) == "This run cannot start: --lr must be positive, but got 0: try --lr 0.1."


@pytest.mark.parametrize(("kind", "base"), [("ArgumentValueError", ValueError), ("ArgumentTypeError", TypeError)])
def test_an_error_is_also_pythons_and_survives_a_process(kind: str, base: type[Exception]) -> None:
    error = getattr(errors, kind)("lr", "must be a number >= 0", -1.0)
    again = pickle.loads(pickle.dumps(error))
    assert isinstance(again, base)
    assert str(again) == str(error)


def test_a_warning_points_at_the_line_of_the_user() -> None:
    with pytest.warns(errors.SpikeSlabWarning, match=r"^Choose lr\.$") as record:
        errors.warn(f"Choose {mark('lr')}.")
    assert record[0].filename == __file__


@pytest.mark.parametrize(
    ("value", "allowed", "inside"),
    [
        (0.0, "[0, 1)", True),
        (1.0, "[0, 1)", False),
        (0.0, "> 0", False),
        (0.0, ">= 0", True),
        (float("inf"), "> 0", False),
    ],
)
def test_intervals(value: float, allowed: str, inside: bool) -> None:
    if inside:
        assert errors.check_number("x", value, allowed) == value
    else:
        with pytest.raises(ValueError, match=r"^x must be a number"):
            errors.check_number("x", value, allowed)
