"""Errors and warnings of the library, spelled with the options of a command."""

from __future__ import annotations

import errno
import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import pytest
import typer
from safetensors import SafetensorError

from spikeslab.cli._errors import LIMITS, Command, InputError, spells
from spikeslab.errors import ArgumentValueError, SpikeSlabError, SpikeSlabWarning, mark
from spikeslab.training import Interrupted


def invoke(raised: BaseException | None, warning: str | None = None, arguments: Sequence[str] = ("file.py",)) -> None:
    @spells(train_loader="train_data()", n_iter="--iterations")
    def command(
        recipe: Annotated[Path, typer.Argument(metavar="RECIPE")],
        num_data: int = 1,
        count: str = "network",
        resume: Annotated[bool, typer.Option("--resume")] = False,
        report: bool = True,
        settings: Annotated[str, typer.Option("--set")] = "",
        threads: int = 1,
        out: Path = Path("out"),
    ) -> None:
        if warning is not None:
            warnings.warn(warning, SpikeSlabWarning, stacklevel=1)
        if raised is not None:
            raise raised

    app = typer.Typer()
    app.command(cls=Command)(command)
    typer.main.get_command(app).main(list(arguments), standalone_mode=False)


@pytest.mark.parametrize(
    ("name", "value", "spelled"),
    [
        ("num_data", None, "--num-data"),
        ("count", "layers", "--count layers"),
        ("resume", True, "--resume"),
        ("report", False, "--no-report"),
        ("recipe", None, "RECIPE"),
        ("train_loader", None, "train_data()"),
        ("n_iter", None, "--iterations"),
        ("n_iter", 80, "--iterations 80"),
        ("momentum", None, "--set momentum"),
        ("momentum", 0.5, "--set momentum=0.5"),
        ("burn_in", 5, "burn_in=5"),
    ],
)
def test_arguments_are_spelled_as_options(name: str, value: object, spelled: str) -> None:
    with pytest.raises(InputError, match=f"^Try {re.escape(spelled)} of /tmp/{{out}}[.]$"):
        invoke(SpikeSlabError(f"Try {mark(name, value)} of /tmp/{{out}}."))


def test_an_error_with_parts_names_its_option() -> None:
    with pytest.raises(InputError, match=r"^--num-data must be > 0, but got 0: see train_data\(\)\.$"):
        invoke(ArgumentValueError("num_data", "must be > 0", 0, f"see {mark('train_loader')}"))


def test_warnings_and_signals_are_sentences(capsys: pytest.CaptureFixture[str]) -> None:
    invoke(None, f"Set {mark('num_data')}.")
    assert capsys.readouterr().err == "Warning: Set --num-data.\n"
    invoke(Interrupted(f"Stopped: continue with {mark('resume', True)}.", 15))
    assert capsys.readouterr().err == "Stopped: continue with --resume.\n"


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (OSError(errno.ENOSPC, "No space left"), "--out must be writable, but out: No space left."),
        (OSError(errno.EACCES, "Denied", "out/x.1.tmp"), "--out must be writable, but out: Denied."),
        (OSError(errno.EACCES, "Denied", "file.py"), "RECIPE must be readable, but file.py: Denied."),
        (OSError(errno.EACCES, "Denied", "/else"), "/else: Denied."),
        (ConnectionError("No network."), "No network."),
        (MemoryError("Unable to allocate 7 TiB"), "There is not enough memory: Unable to allocate 7 TiB."),
        (RuntimeError("DefaultCPUAllocator: can't allocate"), "There is not enough memory: DefaultCPUAllocator: .*"),
        (RecursionError("maximum recursion depth"), "A file is nested too deeply: maximum recursion depth."),
        (OverflowError("int too large"), "A number is too large: int too large."),
        (UnicodeEncodeError("ascii", "é", 0, 1, "no"), "A text cannot be read or written in its encoding: .*"),
        (SafetensorError("I/O error: full (os error 28)"), "--out must be writable: I/O error: full .os error 28.."),
        (SafetensorError("HeaderTooLarge"), "A safetensors file cannot be read or written: HeaderTooLarge."),
    ],
    ids=lambda value: type(value).__name__,
)
def test_errors_of_the_system_are_sentences(error: Exception, sentence: str) -> None:
    with pytest.raises(InputError, match=f"^{sentence}$"):
        invoke(error)


@pytest.mark.parametrize("error", [ValueError("a bug"), BrokenPipeError()])
def test_other_errors_stay_as_they_are(error: Exception) -> None:
    with pytest.raises((type(error), SystemExit)):  # typer ends without a word where the reader of a pipe is gone
        invoke(error)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["file.py", "--out", ""], "--out must not be empty."),
        (["file.py", "--out="], "--out must not be empty."),
        ([""], "An argument must not be empty."),
        (
            ["file.py", "--threads", "100000"],
            f"--threads must be an integer up to {LIMITS['threads']}.*",
        ),
        (
            ["file.py", "--num-data", f"{10**10}"],
            "--num-data must be an integer up to 1,000,000,000.*",
        ),
    ],
)
def test_options_that_no_command_can_take(arguments: list[str], sentence: str) -> None:
    with pytest.raises(InputError, match=f"^{sentence}$"):
        invoke(None, arguments=arguments)
