"""Chains, and running several of them in threads with progress and a clean interrupt."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from spikeslab.errors import check_count
from spikeslab.sklearn._draws import Buffer, ChainDraws

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.random import Generator

TICK = 0.1  # seconds between returns from a kernel to Python


class Chain(ABC):
    """One Markov chain whose kernel runs without Python for as many steps as it is told."""

    done: int = 0

    @abstractmethod
    def advance(self, steps: int) -> int:
        """Run about `steps` steps, at least one, and return how many were run."""

    @abstractmethod
    def collect(self) -> ChainDraws:
        """Return what was kept."""


class GibbsChain(Chain):
    """What the Gibbs chains share: warm-up, the buffer of draws and the Rao-Blackwell sums.

    Args:
        n_classes: number of coefficient vectors (1 but for several classes).
        n_features: number of columns of X.
        warmup: sweeps to discard.
        rng: the chain's own source of randomness.
        intercepts: number of intercepts, which the kernel writes after the scalars.
    """

    scalar_names: ClassVar[tuple[str, ...]]

    def __init__(self, n_classes: int, n_features: int, warmup: int, rng: Generator, intercepts: int = 0) -> None:
        self.warmup = warmup
        self.rng = rng
        self.beta = np.zeros((n_classes, n_features))
        self.sums = np.zeros((n_classes, 3, n_features))
        self.buffer = Buffer(n_classes * n_features, len(self.scalar_names) + intercepts)

    @abstractmethod
    def _run(self, sweeps: int) -> int:
        """Call the kernel."""

    def advance(self, steps: int) -> int:
        """Run up to `steps` sweeps and keep their draws if the warm-up is over."""
        steps = min(steps, self.buffer.rows)
        if self.done < self.warmup:
            steps = min(steps, self.warmup - self.done)
        ran = self._run(steps)
        if self.done >= self.warmup:
            self.buffer.flush(ran)
        self.done += ran
        if self.done == self.warmup:
            self.sums[:] = 0.0
        return ran

    def collect(self) -> ChainDraws:
        """Return the draws and the Rao-Blackwell estimates."""
        coef, scalars = self.buffer.collect()
        pip, mean, square = (self.sums / max(self.done - self.warmup, 1)).transpose(1, 0, 2)
        named = {name: scalars[:, i] for i, name in enumerate(self.scalar_names)}
        return ChainDraws(coef, scalars[:, len(named) :], named, pip[0], mean, square)


def spawn(random_state: int | np.random.RandomState | Generator | None, n: int) -> list[Generator]:
    """Return n independent generators from scikit-learn's kind of `random_state`."""
    if isinstance(random_state, np.random.Generator):
        return random_state.spawn(n)
    if isinstance(random_state, np.random.RandomState):
        random_state = int(random_state.randint(np.iinfo(np.int32).max))
    elif random_state is not None:
        check_count("random_state", random_state, minimum=0)
    return [np.random.default_rng(seed) for seed in np.random.SeedSequence(random_state).spawn(n)]


def _run_one(chain: Chain, steps: int, counts: list[int], index: int, stop: threading.Event) -> None:
    chunk = 1
    while chain.done < steps and not stop.is_set():
        begin = time.perf_counter()
        ran = chain.advance(min(chunk, steps - chain.done))
        counts[index] = chain.done
        elapsed = time.perf_counter() - begin
        chunk = max(1, min(4 * chunk, int(ran * TICK / max(elapsed, 1e-9))))


def run_chains(
    chains: Sequence[Chain], steps: int, n_jobs: int, on_progress: Callable[[int, int], None] | None = None
) -> list[ChainDraws]:
    """Run every chain for `steps` steps, at most `n_jobs` at a time, and return their draws.

    The kernels release the interpreter's lock and return every tenth of a second or so. An interrupt, or an
    error in a chain, stops all of them before it is raised.

    Args:
        chains: the chains.
        steps: steps per chain, warm-up included.
        n_jobs: number of threads.
        on_progress: called from this thread with (steps done, steps in all) about ten times a second.
    """
    counts = [0] * len(chains)
    stop = threading.Event()
    total = steps * len(chains)
    with ThreadPoolExecutor(max_workers=max(1, min(n_jobs, len(chains)))) as pool:
        futures = [pool.submit(_run_one, c, steps, counts, i, stop) for i, c in enumerate(chains)]
        try:
            pending = set(futures)
            while pending:
                finished, pending = wait(pending, timeout=TICK, return_when=FIRST_EXCEPTION)
                for future in finished:
                    future.result()
                if on_progress is not None:
                    on_progress(sum(counts), total)
        finally:
            stop.set()
    return [chain.collect() for chain in chains]
