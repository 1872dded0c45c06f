"""Run a function in a forked process that is killed before its n-th operation on a file."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from unittest import mock

AUDITED = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "shutil.copyfile")
DIRECTORY = {"os.rename": 2, "os.remove": 1, "os.mkdir": 2, "os.rmdir": 1}
"""Place of the open directory that a path is relative to among the arguments of an operation, which is -1 for none."""


def run_killed(work: Callable[[], object], folder: Path, at: int | None) -> tuple[int, int]:
    """Run ``work`` in a child and return its exit code and the number of its operations below ``folder``.

    The child is killed by SIGKILL before operation ``at``, counted from 0, so nothing of it is cleaned up.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        code = 1
        try:
            _count_operations(folder, at, writer)
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        operations = len(pipe.read())
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), operations


def _count_operations(folder: Path, at: int | None, writer: int) -> None:
    count, root = 0, folder.absolute()

    def operate() -> None:
        nonlocal count
        if count == at:
            os.kill(os.getpid(), signal.SIGKILL)
        count += 1
        os.write(writer, b".")

    def audit(event: str, arguments: tuple[object, ...]) -> None:
        if event not in AUDITED:
            return
        handle = arguments[DIRECTORY[event]] if event in DIRECTORY else -1
        parent = Path.cwd() if handle == -1 else Path(f"/proc/self/fd/{handle}").resolve()
        if (parent / str(arguments[0])).is_relative_to(root):
            operate()

    sys.addaudithook(audit)
    fsync = os.fsync
    mock.patch("os.fsync", lambda handle: (operate(), fsync(handle))[1]).start()
