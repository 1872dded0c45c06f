"""Ctrl-C and SIGTERM, which stop the loop after its current step."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

from spikeslab.errors import Spelling, spell, spell_keyword

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(KeyboardInterrupt):
    """Raised when a signal stopped a run, after its state was saved.

    Attributes:
        signal: Number of the signal.
    """

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.signal = number

    def describe(self, spelling: Spelling = spell_keyword) -> str:
        """Return the message, with arguments spelled by ``spelling``."""
        return spell(str(self.args[0]), spelling)

    def __str__(self) -> str:
        return self.describe()

    @property
    def exit_code(self) -> int:
        """Exit code by which shells recognise a process that a signal stopped."""
        return 128 + self.signal


class Interruption:
    """Context manager that records the first signal; a second Ctrl-C stops at once.

    Python handles signals in the main thread only; elsewhere nothing is recorded.

    Attributes:
        signal: Number of the recorded signal, or ``None``.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interruption:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.signal = number
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}
