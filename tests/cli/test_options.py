"""Options: ``--set NAME=VALUE``."""

from __future__ import annotations

from dataclasses import fields

import pytest

from spikeslab.cli._errors import InputError
from spikeslab.cli._options import read_settings
from spikeslab.compression import Settings

NAMES = ", ".join(repr(field.name) for field in fields(Settings) if field.name not in ("prior", "scope"))


def test_settings_keep_their_types() -> None:
    assert read_settings(["samples=5", "ramp=cubic,exponential", "drops=0.5:0.8", "condition=false"]) == [
        ("samples", [5]),
        ("ramp", ["cubic", "exponential"]),
        ("drops", [(0.5, 0.8)]),
        ("condition", [False]),
    ]


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["lr=high"], "--set must be NAME=VALUE with a number, but got lr=high."),
        (["condition=no"], "--set must be condition=true or condition=false, but got condition=no."),
        (["lr=1:2"], "--set must give lr one number at a time, but got lr=1:2."),
        (["lr=1", "lr=2"], "--set must name a setting once, with commas between its values, but got lr twice."),
        (["lr"], f"--set must be NAME=VALUE with a name among {NAMES}, but got 'lr'."),
    ],
)
def test_bad_settings_are_one_sentence(texts: list[str], message: str) -> None:
    with pytest.raises(InputError) as error:
        read_settings(texts)
    assert str(error.value) == message
