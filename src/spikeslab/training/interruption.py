"""Ctrl-C and SIGTERM, which stop the loop after its current step."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


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
