"""``spikeslab doctor`` and ``spikeslab report``: how a run went, in words and as a page."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spikeslab.cli.options import bad_input, check_file
from spikeslab.cli.output import plain_console, write_file

if TYPE_CHECKING:
    from spikeslab.diagnostics.doctor import Finding
    from spikeslab.diagnostics.run_facts import RunFacts

DIAGNOSIS, PAGE = '{\n "diagnosis of": ', '<meta name="generator" content="spikeslab">'
"""What tells files of these commands from others, near their beginning."""

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
    from spikeslab.diagnostics.doctor import examine, findings_table, verdict
    from spikeslab.diagnostics.run_reader import read_run

    if json_file is not None:
        check_file("--json", json_file, DIAGNOSIS, "a diagnosis")
    with bad_input():
        facts = read_run(run)
    findings = examine(facts)
    console = plain_console()
    console.print(verdict(findings), soft_wrap=True)
    console.print()
    console.print(findings_table(findings).rich())
    if json_file is not None:
        write_file("--json", json_file, _json(run, facts, findings).encode())
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
    from spikeslab.diagnostics import REPORT
    from spikeslab.diagnostics.report import run_page

    path = run / REPORT if out is None else out
    if out is not None:
        check_file("--out", path, PAGE, "a report")
    with bad_input():
        page = run_page(run).html()
    write_file("--out", path, page.encode())
    plain_console().print(f"Files written:\n  {path}", soft_wrap=True)


def _json(run: Path, facts: RunFacts, findings: list[Finding]) -> str:
    from spikeslab.diagnostics.doctor import verdict

    def finite(item: dict[str, Any]) -> dict[str, Any]:
        return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in item.items()}

    record = {
        "diagnosis of": str(run),
        "verdict": verdict(findings),
        "findings": [asdict(finding) for finding in findings],
        "convergence": [finite(asdict(item)) for item in facts.convergence],
    }
    return json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
