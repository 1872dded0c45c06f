"""Chains, their draws, and running several chains in threads with progress and a clean interrupt."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np
from numba import njit
from scipy import sparse

from spikeslab.errors import check_count

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.random import Generator
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

TICK = 0.1  # seconds between returns from a kernel to Python


class Room(NamedTuple):
    """Arrays that a kernel writes draws to: a compressed sparse matrix and the scalars of each draw."""

    indices: Ints
    values: Floats
    indptr: Ints
    scalars: Floats


@njit(cache=True, nogil=True)
def has_room(beta: Floats, room: Room, row: int) -> bool:
    """Whether row `row` fits whatever it will hold: asked before a sweep, so that no draw is ever dropped."""
    return bool(room.indptr[row] + beta.size <= room.indices.shape[0])


@njit(cache=True, nogil=True)
def record(beta: Floats, room: Room, row: int) -> int:
    """Write the non-zeros of `beta` as row `row` of a compressed sparse matrix and return their number."""
    start = room.indptr[row]
    at = start
    flat = beta.ravel()
    for j in range(flat.shape[0]):
        if flat[j] != 0.0:
            room.indices[at] = j
            room.values[at] = flat[j]
            at += 1
    room.indptr[row + 1] = at
    return int(at - start)


class Buffer:
    """Room for the draws of one call of a kernel, emptied into a list of matrices after it."""

    def __init__(self, n_columns: int, n_scalars: int, rows: int = 256) -> None:
        self.n_columns = n_columns
        self.rows = rows
        size = max(4 * n_columns, 32 * rows)
        pointers = np.zeros(rows + 1, dtype=np.int64)
        self.room = Room(np.empty(size, np.int64), np.empty(size), pointers, np.empty((rows, n_scalars)))
        self._coefs: list[sparse.csr_array] = []
        self._scalars: list[Floats] = []

    def flush(self, rows: int) -> None:
        """Take the first `rows` draws out of the buffer."""
        if rows == 0:
            return
        room = self.room
        end = room.indptr[rows]
        parts = (room.values[:end].copy(), room.indices[:end].copy(), room.indptr[: rows + 1].copy())
        self._coefs.append(sparse.csr_array(parts, shape=(rows, self.n_columns)))
        self._scalars.append(room.scalars[:rows].copy())

    def collect(self) -> tuple[sparse.csr_array, Floats]:
        """Return all draws taken so far: coefficients (draws, columns) and scalars (draws, n_scalars)."""
        if not self._coefs:
            return sparse.csr_array((0, self.n_columns)), np.empty((0, self.room.scalars.shape[1]))
        return sparse.csr_array(sparse.vstack(self._coefs, format="csr")), np.concatenate(self._scalars)


@dataclass(frozen=True)
class ChainDraws:
    """What one chain leaves behind.

    Attributes:
        coef: draws of the coefficients, shape (draws, classes * features), class by class.
        intercept: draws of the intercepts, shape (draws, classes), or (draws, 0) if integrated out.
        scalars: draws of the monitored scalars by name, each of shape (draws,).
        pip: estimate of P(gamma_j = 1), shape (features,).
        mean: estimate of E[beta], shape (classes, features).
        square: estimate of E[beta^2], shape (classes, features).
    """

    coef: sparse.csr_array
    intercept: Floats
    scalars: dict[str, Floats]
    pip: Floats
    mean: Floats
    square: Floats


def any_class(coef: sparse.csr_array, n_features: int) -> Floats:
    """Share of the draws, shape (draws, classes * n_features), in which some class uses a feature."""
    rows = np.repeat(np.arange(coef.shape[0]), np.diff(coef.indptr))
    pairs = np.unique(rows * n_features + coef.indices % n_features)
    return np.bincount(pairs % n_features, minlength=n_features) / max(coef.shape[0], 1)


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
