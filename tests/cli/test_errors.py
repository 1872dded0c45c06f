"""Errors and warnings of the library, spelled with the options of a command."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Annotated

import pytest
import typer

from spikeslab.cli._errors import Command, InputError, explain_os_errors, spells
from spikeslab.errors import ArgumentValueError, SpikeSlabError, SpikeSlabWarning
from spikeslab.training import Interrupted


def invoke(raised: BaseException | None, warning: str | None = None) -> None:
    @spells(train_loader="train_data()")
    def command(
        recipe: Annotated[Path, typer.Argument(metavar="RECIPE")],
        num_data: int = 1,
        count: str = "network",
        resume: Annotated[bool, typer.Option("--resume")] = False,
        report: bool = True,
        settings: Annotated[str, typer.Option("--set")] = "",
    ) -> None:
        if warning is not None:
            warnings.warn(warning, SpikeSlabWarning, stacklevel=1)
        if raised is not None:
            raise raised

    app = typer.Typer()
    app.command(cls=Command)(command)
    typer.main.get_command(app).main(["file.py"], standalone_mode=False)


@pytest.mark.parametrize(
    ("marked", "spelled"),
    [
        ("{num_data}", "--num-data"),
        ("{count='layers'}", "--count layers"),
        ("{resume=True}", "--resume"),
        ("{report=False}", "--no-report"),
        ("{recipe}", "RECIPE"),
        ("{train_loader}", "train_data()"),
        ("{momentum}", "--set momentum"),
        ("{momentum=0.5}", "--set momentum=0.5"),
        ("{burn_in=5}", "burn_in=5"),
    ],
)
def test_arguments_are_spelled_as_options(marked: str, spelled: str) -> None:
    with pytest.raises(InputError, match=f"^Try {spelled.replace('(', '[(]').replace(')', '[)]')}[.]$"):
        invoke(SpikeSlabError(f"Try {marked}."))


def test_an_error_with_parts_names_its_option() -> None:
    with pytest.raises(InputError, match=r"^--num-data must be > 0, but got 0: see train_data\(\)\.$"):
        invoke(ArgumentValueError("num_data", "must be > 0", 0, "see {train_loader}"))


def test_warnings_and_signals_are_sentences(capsys: pytest.CaptureFixture[str]) -> None:
    invoke(None, "Set {num_data}.")
    assert capsys.readouterr().err == "Warning: Set --num-data.\n"
    invoke(Interrupted("Stopped: continue with {resume=True}.", 15))
    assert capsys.readouterr().err == "Stopped: continue with --resume.\n"


def test_errors_of_the_file_system_name_the_folder(tmp_path: Path) -> None:
    message = r"^--out must be a folder that can be written to, but .*: No space left\.$"
    with pytest.raises(InputError, match=message), explain_os_errors(tmp_path):
        raise OSError(28, "No space left")
