"""``spikeslab doctor`` and ``spikeslab report``: how a run went, in words and as a page."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spikeslab.cli.errors import InputError
from spikeslab.cli.options import bad_input
from spikeslab.cli.output import plain_console

if TYPE_CHECKING:
    from spikeslab.training.doctor import Finding
    from spikeslab.training.run_facts import RunFacts

DIAGNOSIS, PAGE = '{\n "diagnosis of": ', '<meta name="generator" content="spikeslab">'
"""What tells files of these commands from others, within their first ``HEAD`` bytes."""
HEAD = 200

Run = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run.", show_default=False)]


def doctor(
    run: Run,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the findings to this file as well.")
    ] = None,
) -> None:
    """Say in plain words how a run went: did it mix, did the prior settle, are lr and temperature right.

    Reads the folder of a run and prints what it found, with what to change. Problems of the run are what it is for, so
    the exit code is 0 whatever they are.

    Example: `spikeslab doctor out/run --json findings.json`
    """
    from spikeslab.training.doctor import examine, findings_table, verdict
    from spikeslab.training.run_reader import read_run

    if json_file is not None:
        _check_file("--json", json_file, DIAGNOSIS, "a diagnosis")
    with bad_input():
        facts = read_run(run)
    findings = examine(facts)
    console = plain_console()
    console.print(verdict(findings), soft_wrap=True)
    console.print()
    console.print(findings_table(findings).rich())
    if json_file is not None:
        _write("--json", json_file, _json(run, facts, findings))
        console.print(f"Files written:\n  {json_file}", soft_wrap=True)


def report(
    run: Run,
    out: Annotated[
        Path | None, typer.Option(help="File to write; report.html in the folder of the run if not given.")
    ] = None,
) -> None:
    """Make the report of a run, a single HTML file that needs no network, from its folder.

    Example: `spikeslab report out/run`
    """
    from spikeslab.training.report import REPORT, run_page

    path = run / REPORT if out is None else out
    if out is not None:
        _check_file("--out", path, PAGE, "a report")
    with bad_input():
        page = run_page(run).html()
    _write("--out", path, page)
    plain_console().print(f"Files written:\n  {path}", soft_wrap=True)


def _check_file(option: str, path: Path, mark: str, what: str) -> None:
    """Raise if ``path`` cannot be written, or is a file without the mark of those which the command writes."""
    if path.is_dir():
        raise InputError(f"{option} must be a file, but {path} is a folder.")
    parent = next(folder for folder in path.absolute().parents if folder.exists())
    if not parent.is_dir():
        raise InputError(f"{option} must be in a folder, but {parent} is a file.")
    if path.exists() and mark not in path.read_bytes()[:HEAD].decode("utf-8", errors="replace"):
        raise InputError(f"{option} must be a new file or one with {what}, but {path} holds something else.")


def _write(option: str, path: Path, text: str) -> None:
    from spikeslab.files import write_atomically

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text.encode())
    except OSError as error:
        raise InputError(f"{option} must be a file that can be written, but {path}: {error.strerror}.") from error


def _json(run: Path, facts: RunFacts, findings: list[Finding]) -> str:
    from spikeslab.training.doctor import verdict

    def finite(item: dict[str, Any]) -> dict[str, Any]:
        return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in item.items()}

    record = {
        "diagnosis of": str(run),
        "verdict": verdict(findings),
        "findings": [asdict(finding) for finding in findings],
        "convergence": [finite(asdict(item)) for item in facts.convergence],
    }
    return json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
