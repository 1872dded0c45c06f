"""Pieces of work on several threads: each once, errors raised, and nothing left running."""

from __future__ import annotations

import os
import threading
import time

import pytest

from spikeslab.kernels import _threads as parallel


def test_pieces_are_shared_out_once_each() -> None:
    for count in (0, 1, 31, 64, 1000):
        for threads in (1, 2, 5):
            pieces = [r for r in parallel.run(range, count, threads, piece=16) if len(r)]
            assert sorted(i for piece in pieces for i in piece) == list(range(count))


def test_an_error_in_a_piece_is_raised() -> None:
    def work(first: int, last: int) -> None:
        raise ArithmeticError(first)

    with pytest.raises(ArithmeticError):
        parallel.run(work, 1000, 2)


@pytest.mark.parametrize("error", [ArithmeticError, KeyboardInterrupt])
def test_no_thread_is_at_work_after_an_error(error: type[BaseException]) -> None:
    caller, begun = threading.get_ident(), threading.Event()
    ended: list[int] = []

    def work(first: int, last: int) -> None:
        if threading.get_ident() == caller:
            assert begun.wait(10)
            raise error
        begun.set()
        time.sleep(0.05)
        ended.append(first)

    with pytest.raises(error):
        parallel.run(work, 8, 2, piece=2)
    seen = len(ended)
    assert seen
    time.sleep(0.2)
    assert len(ended) == seen


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_process_has_threads_of_its_own() -> None:
    parallel.run(range, 1000, 2, piece=1)
    child = os.fork()
    if child == 0:
        os._exit(0 if len(parallel.run(range, 1000, 2, piece=1)) == 1000 else 1)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            assert status == 0
            return
        time.sleep(0.01)
    os.kill(child, 9)
    os.waitpid(child, 0)
    pytest.fail("the forked process did not end")
