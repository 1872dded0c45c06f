"""Parallel loops on several threads.

The work is compiled code that releases Python's lock. numba's own threads would do, but its default layer ends the
process when two Python threads enter it at once, compiles every kernel a second time, and caps their number when it is
first used; torch's threads cannot be had from Python.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

T = TypeVar("T")

# A thread takes some 20 microseconds to wake, as long as a piece should: it is worth it for some, not for one.
PIECES_OF_A_THREAD = 2

_pool: ThreadPoolExecutor | None = None
_pool_size = 0


def run(work: Callable[[int, int], T], count: int, threads: int, piece: int = 32) -> list[T]:
    """Call ``work(first, last)`` on consecutive ranges that make up ``range(count)``, and return all results.

    Which thread takes a range, and when, is left to chance: nothing may depend on it.

    Args:
        work: Function of the items from ``first`` to below ``last``.
        count: Number of items.
        threads: Largest number of threads, the caller's included.
        piece: Length of the ranges, some tens of microseconds of work.

    >>> sorted(run(range, 130, threads=2, piece=32), key=min)
    [range(0, 32), range(32, 64), range(64, 96), range(96, 128), range(128, 130)]
    """
    threads = min(threads, count // (PIECES_OF_A_THREAD * piece))
    if threads <= 1:
        return [work(0, count)]
    starts = iter(range(0, count, piece))

    def take() -> list[T]:
        return [work(start, min(start + piece, count)) for start in starts]

    others = [_executor(threads - 1).submit(take) for _ in range(threads - 1)]
    try:
        results = take()
    finally:
        # On a busy machine a thread may not have started when all is done. The others are waited for even after an
        # error or Ctrl-C: nobody may free the memory that they still work on.
        begun = [other for other in others if not other.cancel()]
        wait(begun)
    for other in begun:
        results += other.result()
    return results


def _executor(size: int) -> ThreadPoolExecutor:
    global _pool, _pool_size
    if _pool is None or _pool_size < size:
        _pool, _pool_size = ThreadPoolExecutor(size, thread_name_prefix="spikeslab"), size
    return _pool


def _forget() -> None:
    """Forget the threads in a forked process, which has none of its parent's."""
    global _pool
    _pool = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
