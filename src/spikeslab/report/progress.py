"""Progress of long work on standard error: bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

REFRESH = 0.2
"""Seconds between two updates of a bar."""
LINE = 30.0
"""Seconds between two plain lines of a stage."""


def format_duration(seconds: float) -> str:
    """Format a time in its two most significant units.

    >>> format_duration(12.34), format_duration(754), format_duration(9000)
    ('12.3 s', '12 min 34 s', '2 h 30 min')
    """
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


class Progress:
    """Progress of one or more named stages.

    With ``rich`` (extra ``cli``) on a terminal or in a notebook, each stage has a bar. Otherwise it has a plain line
    after its first update, at most every half minute, and at its end.

    >>> with Progress({"Sampling": 100}) as progress:
    ...     progress.advance("Sampling", 50)
    ...     progress.update("Sampling", 100, lambda: "loss 0.1")

    Args:
        stages: Number of steps of each stage.
        unit: Plural of what is counted.
    """

    def __init__(self, stages: Mapping[str, int], unit: str = "steps") -> None:
        self.unit = unit
        self._stages = {name: _Stage(total) for name, total in stages.items()}
        self._bars: Bars | None = None
        self._tasks: dict[str, TaskID] = {}

    def start(self) -> None:
        """Show the bars, if there is a terminal."""
        self._bars = _make_bars()
        if self._bars is not None:
            self._bars.start()
            for name, stage in self._stages.items():
                self._tasks[name] = self._bars.add_task(name, total=stage.total, start=False, numbers="")

    def close(self) -> None:
        """Stop the bars and leave them on the screen."""
        if self._bars is not None:
            self._bars.stop()
            self._bars = None

    def __enter__(self) -> Progress:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def advance(self, stage: str, steps: int = 1) -> None:
        """Count ``steps`` more steps of a stage."""
        self.update(stage, self._stages[stage].completed + steps)

    def update(self, stage: str, completed: int, numbers: Callable[[], str] | None = None) -> None:
        """Set the number of completed steps of a stage.

        Args:
            stage: Name of the stage.
            completed: Steps completed so far.
            numbers: Function that describes the present state in a few words; called only if the update is shown.
        """
        state, now = self._stages[stage], time.monotonic()
        state.completed = completed
        if state.first is None:
            state.first = completed, now
        if completed < state.total and now - state.shown < (LINE if self._bars is None else REFRESH):
            return
        state.shown = now
        described = "" if numbers is None else numbers()
        if self._bars is not None:
            self._bars.start_task(self._tasks[stage])
            self._bars.update(self._tasks[stage], completed=completed, numbers=described)
        else:
            parts = f"{completed:,} of {state.total:,} {self.unit}", described, state.time_left(now)
            print(f"{stage}: {', '.join(part for part in parts if part)}", file=sys.stderr, flush=True)


@dataclass
class _Stage:
    total: int
    completed: int = 0
    shown: float = float("-inf")
    first: tuple[int, float] | None = None  # steps and time at the first update: the first step may compile

    def time_left(self, now: float) -> str:
        """Estimate the remaining time from the speed since the first update."""
        steps, begin = self.first or (0, now)
        done, left = self.completed - steps, self.total - self.completed
        return f"{format_duration((now - begin) / done * left)} left" if done > 0 and left > 0 else ""


def _make_bars() -> Bars | None:
    """Return rich's bars, or None without rich or without a terminal or notebook."""
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bars
        from rich.table import Column
    except ImportError:
        return None
    console = Console(stderr=True)
    if not (sys.stderr.isatty() or console.is_jupyter):
        return None
    cut = Column(ratio=3, no_wrap=True, overflow="ellipsis")
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=None, table_column=Column(ratio=1, min_width=4)),
        MofNCompleteColumn(table_column=Column(no_wrap=True)),
        # On a narrow terminal the last numbers are cut first, never the count or the time left.
        TextColumn("{task.fields[numbers]}", markup=False, table_column=cut),
        TimeRemainingColumn(elapsed_when_finished=True, table_column=Column(no_wrap=True)),
    )
    return Bars(*columns, console=console, expand=True)
