"""Ctrl-C and SIGTERM as a wish to stop, which the loop grants after the step."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

from spikeslab.errors import Spelling, spell, spell_keyword

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(KeyboardInterrupt):
    """A run was stopped by a signal after its state was saved.

    Attributes:
        signal: The signal's number.
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
        """What a shell expects of a process that a signal stopped."""
        return 128 + self.signal


class Interruption:
    """Notes the first signal while a ``with`` block runs; a second one of Ctrl-C stops at once.

    Outside of the main thread, where Python takes no signals, it notes none.

    Attributes:
        signal: Number of the signal that came, or ``None``.
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
