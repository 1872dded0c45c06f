"""Output of commands: warnings, tables and files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from spikeslab.files import write_atomically

if TYPE_CHECKING:
    from rich.console import Console

    from spikeslab.report.tables import Table

WIDE = 200
"""Letters in a line of a table that is written to a file."""


def plain_console(width: int = 120) -> Console:
    """Return a console without markup, with lines of ``width`` letters where there is no terminal."""
    from rich.console import Console

    console = Console(highlight=False, markup=False, emoji=False)
    return console if console.is_terminal else Console(highlight=False, markup=False, emoji=False, width=width)


def write_file(path: Path, content: bytes) -> None:
    """Write a file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, content)


def print_result(console: Console, tables: Sequence[Table], files: Sequence[Path]) -> None:
    """Print the tables with their notes, then the paths of the files."""
    for table in tables:
        console.print(table.rich())
        for note in table.notes:
            console.print(note, style="dim")
        console.print()
    if files:
        console.print("Files written:")
    for file in files:
        console.print(f"  {file}", soft_wrap=True)
