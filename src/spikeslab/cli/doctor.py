"""``spikeslab doctor`` and ``spikeslab report``: a run's findings in words and as a page."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spikeslab.cli._options import check_file
from spikeslab.cli._output import plain_console, print_result, write_file

if TYPE_CHECKING:
    from spikeslab.diagnostics.findings import Finding
    from spikeslab.diagnostics.run_reader import RunFacts

DIAGNOSIS, PAGE = '{\n "diagnosis of": ', '<meta name="generator" content="spikeslab">'
"""Marks by which files of these commands are recognised."""

Run = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run.", show_default=False)]


def doctor(
    run: Run,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the findings to this file as well.")
    ] = None,
) -> None:
    """Diagnose a run in plain words: did it mix, did the prior settle, are lr and temperature right.

    Reads the folder of a run and prints findings with advice. The exit code is 0 even if the run has problems.

    Example: `spikeslab doctor out/run --json findings.json`
    """
    if json_file is not None:
        check_file("--json", json_file, DIAGNOSIS, "a diagnosis")
    from spikeslab.diagnostics.doctor import examine
    from spikeslab.diagnostics.findings import findings_table, verdict
    from spikeslab.diagnostics.run_reader import read_run

    facts = read_run(run)
    findings = examine(facts)
    console = plain_console()
    console.print(verdict(findings), soft_wrap=True)
    console.print()
    console.print(findings_table(findings).rich())
    if json_file is not None:
        write_file(json_file, _to_json(run, facts, findings).encode())
        print_result(console, [], [json_file])


def report(
    run: Run,
    out: Annotated[
        Path | None, typer.Option(help="File to write; report.html in the folder of the run if not given.")
    ] = None,
) -> None:
    """Write the report of a run, a single HTML file that works offline.

    Example: `spikeslab report out/run`
    """
    if out is not None:
        check_file("--out", out, PAGE, "a report")
    from spikeslab.diagnostics import REPORT
    from spikeslab.diagnostics.report import run_page  # needs the extra `report`

    path = run / REPORT if out is None else out
    write_file(path, run_page(run).html().encode())
    print_result(plain_console(), [], [path])


def _to_json(run: Path, facts: RunFacts, findings: list[Finding]) -> str:
    from spikeslab.diagnostics.findings import verdict
    from spikeslab.training.log import nan_to_null

    record = {
        "diagnosis of": str(run),
        "verdict": verdict(findings),
        "findings": [asdict(finding) for finding in findings],
        "convergence": [nan_to_null(asdict(item)) for item in facts.convergence],
    }
    return json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
