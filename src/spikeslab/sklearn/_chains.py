"""Chains, their draws, and running several chains in threads with progress and a clean interrupt."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from scipy import sparse

from spikeslab.errors import check_count
from spikeslab.kernels.compiling import compile_cached

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.random import Generator
    from numpy.typing import NDArray

    from spikeslab.sklearn._sweep import PointMassPrior

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

TICK = 0.1  # seconds between returns from a kernel to Python


class Room(NamedTuple):
    """Arrays for the draws of a kernel: a compressed sparse matrix and the scalars of each draw."""

    indices: Ints
    values: Floats
    indptr: Ints
    scalars: Floats


@compile_cached()
def has_room(beta: Floats, room: Room, row: int) -> bool:
    """Return True if row `row` fits even without a zero; asked before a sweep, so that no draw is lost."""
    return bool(room.indptr[row] + beta.size <= room.indices.shape[0])


@compile_cached()
def record(beta: Floats, included: Ints, room: Room, row: int) -> int:
    """Write the coefficients `included` as row `row` of a compressed sparse matrix and return their number."""
    start = room.indptr[row]
    end = start + included.shape[0]
    room.indices[start:end] = included
    room.values[start:end] = beta[included]
    room.indptr[row + 1] = end
    return included.shape[0]


class Buffer:
    """Room for the draws of one call of a kernel, emptied into a list of matrices after it.

    Of n draws only every `thin`-th is stored, where `thin` is the smallest power of 2 that stores at most `limit`.
    """

    def __init__(self, n_columns: int, n_scalars: int, rows: int = 256) -> None:
        self.n_columns = n_columns
        self.rows = rows
        self.limit: int | None = None
        self.thin = 1
        self.seen = 0
        size = max(4 * n_columns, 32 * rows)
        pointers = np.zeros(rows + 1, dtype=np.int64)
        self.room = Room(np.empty(size, np.int64), np.empty(size), pointers, np.empty((rows, n_scalars)))
        self.clear()

    def clear(self) -> None:
        """Forget all draws."""
        self._coefs: list[sparse.csr_array] = []
        self._scalars: list[Floats] = []
        self.thin, self.seen = 1, 0

    def flush(self, rows: int) -> None:
        """Take the first `rows` draws out of the buffer."""
        if rows == 0:
            return
        room = self.room
        end = room.indptr[rows]
        parts = (room.values[:end].copy(), room.indices[:end].copy(), room.indptr[: rows + 1].copy())
        kept = slice(-self.seen % self.thin, None, self.thin)
        self._coefs.append(sparse.csr_array(parts, shape=(rows, self.n_columns))[kept])
        self._scalars.append(room.scalars[:rows][kept].copy())
        self.seen += rows
        while self.limit is not None and -(-self.seen // self.thin) > self.limit:
            coef, scalars = self.collect()
            self._coefs, self._scalars = [coef[::2]], [scalars[::2]]
            self.thin *= 2

    def collect(self) -> tuple[sparse.csr_array, Floats]:
        """Return all draws taken so far: coefficients (draws, columns) and scalars (draws, n_scalars)."""
        if not self._coefs:
            return sparse.csr_array((0, self.n_columns)), np.empty((0, self.room.scalars.shape[1]))
        return sparse.csr_array(sparse.vstack(self._coefs, format="csr")), np.concatenate(self._scalars)


@dataclass(frozen=True)
class ChainDraws:
    """Draws and estimates of one chain.

    Attributes:
        coef: Draws of the coefficients, shape (draws, classes * features), class by class.
        intercept: Draws of the intercepts, shape (draws, classes), or (draws, 0) if integrated out.
        scalars: Draws of the monitored scalars by name, each of shape (draws,).
        pip: Estimate of P(gamma_j = 1), shape (features,).
        mean: Estimate of E[beta], shape (classes, features).
        square: Estimate of E[beta^2], shape (classes, features).
        steps: Number of steps after the burn-in.
    """

    coef: sparse.csr_array
    intercept: Floats
    scalars: dict[str, Floats]
    pip: Floats
    mean: Floats
    square: Floats
    steps: int


def share_with_any_class(coef: sparse.csr_array, n_features: int) -> Floats:
    """Return the share of draws, shape (draws, classes * n_features), in which any class uses each feature."""
    rows = np.repeat(np.arange(coef.shape[0]), np.diff(coef.indptr))
    pairs = np.unique(rows * n_features + coef.indices % n_features)
    return np.bincount(pairs % n_features, minlength=n_features) / max(coef.shape[0], 1)


class Chain(ABC):
    """Markov chain whose kernel runs many steps without returning to Python."""

    done: int = 0

    @abstractmethod
    def advance(self, steps: int) -> int:
        """Run about `steps` steps, at least one, and return how many were run."""

    @abstractmethod
    def collect(self) -> ChainDraws:
        """Return the draws that were kept."""


class GibbsChain(Chain):
    """Gibbs chain with a burn-in, a buffer of draws and Rao-Blackwell sums.

    A subclass has a kernel, which runs sweeps in place and returns how many fitted in the buffer.

    Args:
        n_classes: Number of coefficient vectors: 1, or the number of classes if there are more than two.
        n_features: Number of columns of X.
        prior: Prior of the coefficients.
        burn_in: Sweeps to discard.
        rng: Source of randomness of this chain alone.
        intercepts: Number of intercepts, which the kernel writes after the scalars.

    Attributes:
        kernel: Compiled function of `_arrays()`, prior, swaps, sweeps, generator, sums and room.
        scalar_names: Names of the monitored scalars.
        swaps: Exchanges of variables per sweep and class.
        milestones: Numbers of sweeps of the burn-in after which the sums start afresh, in increasing order.
    """

    kernel: ClassVar[Callable[..., int]]
    scalar_names: ClassVar[tuple[str, ...]]
    swaps: int = 1

    def __init__(
        self, n_classes: int, n_features: int, prior: PointMassPrior, burn_in: int, rng: Generator, intercepts: int = 0
    ) -> None:
        self.prior = prior
        self.burn_in = burn_in
        self.milestones: tuple[int, ...] = (burn_in,)
        self.rng = rng
        self.beta = np.zeros((n_classes, n_features))
        self.sums = np.zeros((n_classes, 3, n_features))
        self.buffer = Buffer(n_classes * n_features, len(self.scalar_names) + intercepts)

    @abstractmethod
    def _arrays(self) -> tuple[Any, ...]:
        """Return the first arguments of the kernel: the data and the state that it changes in place."""

    def advance(self, steps: int) -> int:
        """Run up to `steps` sweeps and keep their draws if the burn-in is over."""
        steps = min(steps, self.buffer.rows)
        steps = min([steps, *(after - self.done for after in self.milestones if after > self.done)])
        sums = self.sums if self.sums.shape[0] > 1 else self.sums[0]
        ran = self.kernel(*self._arrays(), self.prior, self.swaps, steps, self.rng, sums, self.buffer.room)
        if self.done >= self.burn_in:
            self.buffer.flush(ran)
        self.done += ran
        if self.done in self.milestones:
            self._adapt(self.done - max([0, *(before for before in self.milestones if before < self.done)]))
            self.sums[:] = 0.0
        return ran

    def _adapt(self, sweeps: int) -> None:
        """Tune the moves at a milestone; `sums` is over the last `sweeps` sweeps."""

    def restart(self) -> None:
        """Turn all draws so far into burn-in, after which the moves are tuned anew."""
        self._adapt(self.done - self.burn_in)
        self.burn_in = self.done
        self.sums[:] = 0.0
        self.buffer.clear()

    def collect(self) -> ChainDraws:
        """Return the draws and the Rao-Blackwell estimates."""
        coef, scalars = self.buffer.collect()
        pip, mean, square = (self.sums / max(self.done - self.burn_in, 1)).transpose(1, 0, 2)
        named = {name: scalars[:, i] for i, name in enumerate(self.scalar_names)}
        return ChainDraws(coef, scalars[:, len(named) :], named, pip[0], mean, square, self.done - self.burn_in)


def spawn(random_state: int | np.random.RandomState | Generator | None, n: int) -> list[Generator]:
    """Return n independent generators from scikit-learn's kind of `random_state`."""
    if isinstance(random_state, np.random.Generator):
        return random_state.spawn(n)
    if isinstance(random_state, np.random.RandomState):
        random_state = int(random_state.randint(np.iinfo(np.int32).max))
    elif random_state is not None:
        check_count("random_state", random_state, minimum=0, bits=128)
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

    The kernels release the interpreter's lock and return every tenth of a second or so. An interrupt, or an error in a
    chain, stops all of them before it is raised.

    Args:
        chains: Chains to run.
        steps: Steps per chain, burn-in included.
        n_jobs: Number of threads.
        on_progress: Called from this thread with (steps done, steps in all) about ten times a second.
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
