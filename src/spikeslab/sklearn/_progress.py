"""Progress of a fit: a bar where rich is installed, plain lines otherwise."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Report = Callable[[int, int], None]


@contextmanager
def progress(verbose: int, label: str) -> Iterator[Report | None]:
    """Yield the function to call with (done, total), or None when nothing is to be shown."""
    if not verbose:
        yield None
        return
    try:
        from rich.progress import Progress
    except ImportError:
        yield _plain(label)
        return
    with Progress() as bar:
        task = bar.add_task(label, total=None)

        def report(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        yield report


def _plain(label: str) -> Report:
    last = time.monotonic()

    def report(done: int, total: int) -> None:
        nonlocal last
        if done == total or time.monotonic() - last > 5.0:
            last = time.monotonic()
            print(f"{label}: {done} of {total} steps", file=sys.stderr, flush=True)

    return report
