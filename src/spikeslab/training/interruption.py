"""Ctrl-C and SIGTERM, which stop the loop after its current step."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from spikeslab.errors import MarkedMessage

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(MarkedMessage, KeyboardInterrupt):
    """Raised when a signal stopped a run, after its state was saved.

    Attributes:
        signal: Number of the signal.
    """

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.signal = number

    @property
    def exit_code(self) -> int:
        """Exit code by which shells recognise a process that a signal stopped."""
        return 128 + self.signal


@contextmanager
def record_signals() -> Iterator[list[int]]:
    """Yield a list that receives the first Ctrl-C or SIGTERM; a second Ctrl-C stops at once.

    Python handles signals in the main thread only; elsewhere nothing is recorded.
    """
    recorded: list[int] = []
    before: dict[int, Any] = {}

    def restore() -> None:
        while before:
            signal.signal(*before.popitem())

    def record(number: int, frame: FrameType | None) -> None:
        recorded.append(number)
        restore()

    if threading.current_thread() is threading.main_thread():
        before |= {number: signal.signal(number, record) for number in SIGNALS}
    try:
        yield recorded
    finally:
        restore()
