"""What a person sees of a run: a bar with numbers on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from spikeslab.training.callbacks import Callback
from spikeslab.training.duration import duration

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from spikeslab.training.loop import Training

REFRESH = 0.2  # seconds between two looks at the numbers
LINE = 30.0  # seconds between two plain lines


class ShowProgress(Callback):
    """Shows how a run is doing: loss, accuracy, sparsity, temperature and the time that is left.

    With ``rich`` (extra ``cli``) on a terminal it is a bar; elsewhere a plain line at the first step, every half minute
    and at the end.

    Args:
        title: Name of the run.
    """

    def __init__(self, title: str = "Sampling") -> None:
        self.title = title
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._shown = float("-inf")
        self._loss: float | None = None
        self._start = (0, 0.0)

    def begin(self, run: Training) -> None:
        """Open the bar, on a terminal."""
        self._bar = _bar() if sys.stderr.isatty() else None
        if self._bar is not None:
            self._bar.start()
            self._task = self._bar.add_task(self.title, total=run.total_steps, completed=run.steps, numbers="")
        self._shown = float("-inf")
        self._loss = None

    def after_step(self, run: Training) -> None:
        """Show the numbers, unless they were shown just now."""
        value = run.last_loss
        if self._loss is None:
            self._start = (run.steps, run.seconds)  # the first step, which may compile, is not like the others
        self._loss = value if self._loss is None else 0.98 * self._loss + 0.02 * value
        if run.seconds - self._shown >= (LINE if self._bar is None else REFRESH):
            self._show(run)

    def end(self, run: Training) -> None:
        """Show the last numbers."""
        self._show(run)

    def close(self) -> None:
        """Close the bar, however the run ended."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _show(self, run: Training) -> None:
        self._shown = run.seconds
        numbers = ", ".join(f"{name} {value}" for name, value in self._numbers(run).items())
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=run.steps, numbers=numbers)
        else:
            line = f"{self.title}: step {run.steps:,} of {run.total_steps:,}, {numbers}{self._left(run)}"
            print(line, file=sys.stderr, flush=True)

    def _left(self, run: Training) -> str:
        """How long the rest will take at the speed so far."""
        steps, seconds = run.steps - self._start[0], run.seconds - self._start[1]
        left = run.total_steps - run.steps
        return f", {duration(seconds / steps * left)} left" if steps > 0 and left > 0 else ""

    def _numbers(self, run: Training) -> dict[str, str]:
        found: dict[str, Any] = {}
        for callback in run.callbacks:
            found |= callback.metrics()
        accuracy = found.get("evaluation", {}).get("accuracy")
        sparsity = found.get("sparsity", found.get("sparsity_sparse"))
        dead = found.get("dead_channels")
        numbers = {
            "loss": None if self._loss is None else f"{self._loss:.4f}",
            "accuracy": None if accuracy is None else f"{accuracy:.2%}",
            "dead channels": None if dead is None else f"{dead:.1%}",
            "sparsity": None if sparsity is None or dead is not None else f"{sparsity:.1%}",
            "T": f"{run.sampler.param_groups[0].get('temperature', 0.0):.3g}",
        }
        return {name: value for name, value in numbers.items() if value is not None}


def _bar() -> Progress | None:
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
        from rich.table import Column
    except ImportError:
        return None
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=None, table_column=Column(ratio=1, min_width=4)),
        MofNCompleteColumn(table_column=Column(no_wrap=True)),
        # On a narrow terminal the last numbers go first, never the count or the time that is left.
        TextColumn("{task.fields[numbers]}", table_column=Column(ratio=3, no_wrap=True, overflow="ellipsis")),
        TimeRemainingColumn(table_column=Column(no_wrap=True)),
    )
    return Progress(*columns, console=Console(stderr=True), expand=True)
