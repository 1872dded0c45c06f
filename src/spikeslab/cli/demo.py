"""``spikeslab demo``: the main job on embedded data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from spikeslab.cli.errors import InputError
from spikeslab.errors import check_count


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the tables and figures.")] = Path("out/demo"),
    seed: Annotated[int, typer.Option(help="Seed of the data, the mini-batches and the noise.")] = 0,
    steps: Annotated[
        int, typer.Option(help="Steps of each regression chain, and the most that a digits phase takes.")
    ] = 20_000,
) -> None:
    """Show the method at work on data that needs no download, in under two minutes.

    The paper's regression with 100 rows and 1000 variables, by SGLD-SA, SGLD-EM and SGLD; and a CNN on scikit-learn's
    digits, pruned to 90 % while SGHMC-SA samples it. Tables (Markdown and JSON) and figures (PNG) go to --out, where
    those of an earlier demo are replaced and all other files stay.

    Examples: `spikeslab demo` runs it all, `spikeslab demo --out /tmp/demo --seed 1` another draw elsewhere, and
    `spikeslab demo --steps 500` takes a quick look.
    """
    from spikeslab.experiments.demo import run_demo, stages

    _check_folder(out)
    _check_count("--seed", seed, minimum=0)
    _check_count("--steps", steps, minimum=1)
    console = Console(highlight=False)
    with _progress_bars(console, stages(steps)) as progress:
        try:
            result = run_demo(out, seed=seed, steps=steps, progress=progress)
        except OSError as error:
            raise InputError(f"--out must be a folder that can be written to, but {out}: {error.strerror}.") from error
    for table in result.tables:
        console.print(table.rich())
        for note in table.notes:
            console.print(note, style="dim")
        console.print()
    console.print("Files written:")
    for file in result.files:
        console.print(f"  {file}", soft_wrap=True)


def _check_folder(out: Path) -> None:
    """Raise if ``out`` cannot be a folder, before any work is done."""
    for path in (out, *out.parents):
        if path.exists():
            if not path.is_dir():
                raise InputError(f"--out must be a folder, but {path} is a file.")
            return


def _check_count(option: str, value: int, minimum: int) -> None:
    try:
        check_count(option, value, minimum)
    except ValueError as error:
        raise InputError(str(error)) from error


@contextmanager
def _progress_bars(console: Console, stages: dict[str, int]) -> Iterator[Callable[[str, int], None]]:
    """A bar for each stage on a terminal; elsewhere a plain line when a stage begins."""
    if not console.is_terminal:
        begun: set[str] = set()

        def announce(stage: str, steps: int) -> None:
            if stage not in begun:
                begun.add(stage)
                print(f"{stage}: {stages[stage]:,} steps", flush=True)

        yield announce
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as bars:
        tasks = {stage: bars.add_task(stage, total=total, start=False) for stage, total in stages.items()}

        def advance(stage: str, steps: int) -> None:
            bars.start_task(tasks[stage])
            bars.advance(tasks[stage], steps)

        yield advance
