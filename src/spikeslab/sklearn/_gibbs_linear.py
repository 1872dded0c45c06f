r"""Exact Gibbs sampling for linear regression under a point-mass spike and slab.

    y = X beta + e,  e ~ N(0, sigma2 I),  prior of beta, s2 and sigma2 as in `PointMassPrior`,

with X standardised and y centred: a flat intercept, integrated out, leaves n - 1 degrees of freedom. A sweep
draws (gamma_j, beta_j) with beta_j integrated out of the update of gamma_j, exchanges included for
excluded variables, redraws the indicators of a block with all coefficients integrated out (`_block`), draws the
included coefficients jointly, and then

    sigma2 | beta ~ IG((noise_df + n - 1) / 2, (noise_df noise_scale^2 + |y - X beta|^2) / 2),
    s2 | beta ~ IG((slab_df + |gamma|) / 2, (slab_df slab_scale^2 + |beta|^2) / 2).

It leaves p(beta, gamma, sigma2, s2 | y) invariant. `GramChain` holds X'X and the correlations X'r, so that looking
at a variable costs O(1) and changing a coefficient O(p); `ColumnChain` holds X and the residual r, and both cost O(n).
The moves and their references are in `_sweep`.

With many variables a sweep visits a random set V of them. V holds the variables that are often included, those
included at present, and each other one with probability rho. As an auxiliary variable it has the law

    p(V | gamma) = prod_{j not often} [j in V] if gamma_j = 1, else rho^[j in V] (1 - rho)^[j not in V],

so that given V the variables outside stay excluded, and the odds of gamma_j are multiplied by 1 / rho for each j in V
that is not often included: rare variables are visited rarely and accepted more readily, and the law of gamma stays
that of the posterior. (The order of the visits must depend on V alone, not on which of its variables are included.)
The first sweeps visit all variables; which ones are often included is settled by the end of the burn-in. The
probability to enter by an exchange counts as well, since one that is correlated with an included variable has hardly
another way in: a chain that counted it as rare would seldom take it up, and then keep it for long.
"""

from __future__ import annotations

from math import exp, log, log1p, sqrt
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from spikeslab.kernels.compiling import compile_cached
from spikeslab.sklearn._block import BLOCK, SPREAD, choose_block, draw_pattern
from spikeslab.sklearn._chains import GibbsChain, has_room, record
from spikeslab.sklearn._sweep import (
    JOINT_LIMIT,
    REORDER,
    draw_included,
    draw_index,
    draw_inverse_gamma,
    draw_normal,
    draw_slab,
    log_prior_odds,
)

if TYPE_CHECKING:
    from numpy.random import Generator
    from numpy.typing import NDArray

    from spikeslab.sklearn._chains import Room
    from spikeslab.sklearn._sweep import Floats, Ints, PointMassPrior

SCAN_LIMIT = 256  # variables up to which every sweep visits all
FULL_SWEEPS = 30  # sweeps at the beginning that visit all variables
ADAPTED = 130  # sweeps after which the variables often included are looked for again, before the end of the burn-in
OFTEN = (0.002, 0.01)  # bounds of the probability, 10 / p between them, from which a variable is often included
RARE_RATE = 0.03  # share of the other variables that a sweep visits
POOL = 100  # variables that a block may hold
PULLS = (0.05, 0.5)  # bounds of the weight of a variable in the choice of a block
ROUNDS = 3  # visits to the variables often included in a sweep that does not visit all others


class GramData(NamedTuple):
    """X'X of standardised columns (equal diagonal), X'y and y'y of a centred response, and the number of rows."""

    gram: Floats
    xty: Floats
    yty: float
    n: float


class SweepData(NamedTuple):
    """Data of a kernel: X'X and X'y if `is_gram` is True, otherwise X transposed and y.

    Attributes:
        rows: X'X or X transposed; row j belongs to variable j.
        target: X'y or y.
        xty: X'y.
        yty: Sum of squares of y.
        norm: Sum of squares of each column.
        n: Number of rows of X.
        is_gram: If True, `rows` is X'X.
        log_odds: What is added to the log prior odds of each variable: p(gamma) is multiplied by prod exp(log_odds_j)
            over the included ones.
    """

    rows: Floats
    target: Floats
    xty: Floats
    yty: float
    norm: float
    n: float
    is_gram: bool
    log_odds: Floats


class Scan(NamedTuple):
    """Variables that a sweep visits.

    Attributes:
        often: Variables that every sweep visits, in increasing order.
        is_often: Mask of `often`, shape (p,).
        rate: Probability of a visit to another variable that is excluded.
        rounds: Number of visits to each variable of `often`.
        pool: Variables that a block may hold, all of them often included.
        pulls: Weights of the variables of the pool in the choice of a block, given the first one by row.
        firsts: Sums of the weights of the variables of the pool, up to each of them, in the choice of the first one.
    """

    often: Ints
    is_often: NDArray[np.bool_]
    rate: float
    rounds: int
    pool: Ints
    pulls: Floats
    firsts: Floats

    @classmethod
    def of(cls, is_often: NDArray[np.bool_], rate: float, rounds: int, data: SweepData, shares: Floats) -> Scan:
        """Return the scan that always visits the variables of a mask.

        The pool of the blocks is those of them with the largest `shares`, estimates of their inclusion probabilities.
        """
        often = np.flatnonzero(is_often)
        pool = np.sort(often[np.argsort(-shares[often], kind="stable")[:POOL]])
        rows = data.rows[pool]
        correlation = (rows[:, pool] if data.is_gram else rows @ rows.T) / data.norm
        pulls = np.clip(shares[pool], *PULLS) * (SPREAD + correlation**2)
        return cls(often, is_often, rate, rounds, pool, pulls, np.diag(pulls).cumsum())


@compile_cached(fastmath=REORDER)
def _dot(rows: Floats, j: int, other: Floats) -> float:
    acc = 0.0
    for i in range(other.shape[0]):
        acc += rows[j, i] * other[i]
    return acc


@compile_cached(fastmath=REORDER)
def _shift(state: Floats, rows: Floats, j: int, change: float) -> None:
    for i in range(state.shape[0]):
        state[i] -= change * rows[j, i]


@compile_cached()
def _correlate(rows: Floats, is_gram: bool, state: Floats, j: int) -> float:
    """Return x_j'r; `state` is X'r or r."""
    return float(state[j]) if is_gram else _dot(rows, j, state)


@compile_cached()
def draw_visits(beta: Floats, included: Ints, scan: Scan, rng: Generator, visits: Ints) -> int:
    """Write the variables of a sweep to `visits`, those often included first, and return their number.

    Args:
        beta: Coefficients.
        included: Included variables; those of them that are not often included are in increasing order.
        scan: Law of the visits.
        rng: Source of randomness.
        visits: Room for p variables.
    """
    p, size = beta.shape[0], scan.often.shape[0]
    visits[:size] = scan.often
    if size == p:
        return p
    rare = included[~scan.is_often[included]]
    step = 1.0 / log1p(-scan.rate)
    at = 0
    j = -1
    while j < p:
        j += 1 + int(log(1.0 - rng.random()) * step)  # the gaps between independent trials are geometric
        while at < rare.shape[0] and rare[at] < j:
            visits[size] = rare[at]
            size += 1
            at += 1
        if j < p and not scan.is_often[j] and beta[j] == 0.0:
            visits[size] = j
            size += 1
    return size


@compile_cached()
def _draw_coordinates(
    data: SweepData,
    state: Floats,
    beta: Floats,
    visits: Ints,
    size: int,
    scan: Scan,
    variances: Floats,
    prior: PointMassPrior,
    rng: Generator,
    sums: Floats,
) -> int:
    """Update the variables of `visits` as `_sweep.coordinate_sweep` does, with raised odds for the rare ones.

    `size` is the number of included variables before the update; that after it is returned.
    """
    p, norm, (noise, slab) = beta.shape[0], data.norm, variances
    rows, is_gram = data.rows, data.is_gram
    precision = norm / noise + 1.0 / slab
    penalty = 0.5 * log1p(slab * norm / noise)
    spread = 1.0 / sqrt(precision)
    often, tilt = scan.often.shape[0], -log(scan.rate)
    base = log_prior_odds(size, p, prior.a, prior.b) - penalty
    for i in range(visits.shape[0]):
        j = visits[i]
        old = beta[j]
        if old != 0.0:
            size -= 1
            base = log_prior_odds(size, p, prior.a, prior.b) - penalty
        c = (_correlate(rows, is_gram, state, j) + norm * old) / noise
        mean = c / precision
        log_odds = base + data.log_odds[j] + 0.5 * c * mean + (tilt if i >= often else 0.0)
        inclusion = 1.0 / (1.0 + exp(-log_odds)) if log_odds > -700.0 else 0.0
        share = inclusion / scan.rounds if i < often else inclusion
        sums[0, j] += share
        sums[1, j] += share * mean
        sums[2, j] += share * (mean * mean + spread * spread)
        new = 0.0
        if rng.random() < inclusion:
            new = mean + spread * rng.standard_normal()
            size += 1
            base = log_prior_odds(size, p, prior.a, prior.b) - penalty
        if new != old:
            _shift(state, rows, j, new - old)
            beta[j] = new
    return size


@compile_cached()
def _swap(
    data: SweepData,
    state: Floats,
    beta: Floats,
    visits: Ints,
    scan: Scan,
    variances: Floats,
    rng: Generator,
    entries: Floats,
) -> None:
    """Exchange variables of `visits` as `_sweep.swap` does, with raised weights for the rare ones.

    The probability of each to enter, or to return, is added to `entries`.
    """
    rows, is_gram, (noise, slab) = data.rows, data.is_gram, variances
    rank = draw_included(beta[visits], rng)
    if rank < 0:
        return
    leaving = visits[rank]
    _shift(state, rows, leaving, -beta[leaving])
    beta[leaving] = 0.0
    precision = data.norm / noise + 1.0 / slab
    gain = 0.5 / (noise * noise * precision)
    often, tilt = scan.often.shape[0], -log(scan.rate)
    log_weights = np.empty(visits.shape[0])
    for i in range(visits.shape[0]):
        if beta[visits[i]] == 0.0:
            log_weights[i] = gain * _correlate(rows, is_gram, state, visits[i]) ** 2 + (tilt if i >= often else 0.0)
            log_weights[i] += data.log_odds[visits[i]]
        else:
            log_weights[i] = -np.inf
    entering = visits[draw_index(log_weights, rng)]
    below, total = 0.0, log_weights[-1]  # `draw_index` has left the sums of the weights
    for i in range(visits.shape[0]):
        entries[visits[i]] += (log_weights[i] - below) / total
        below = log_weights[i]
    mean = _correlate(rows, is_gram, state, entering) / (noise * precision)
    beta[entering] = mean + rng.standard_normal() / sqrt(precision)
    _shift(state, rows, entering, beta[entering])


@compile_cached()
def _system(data: SweepData, active: Ints, variances: Floats) -> tuple[Floats, Floats]:
    """Return Q, of which the lower triangle is filled, and h of the joint law N(Q^-1 h, Q^-1) of some coefficients."""
    rows, (noise, slab) = data.rows, variances
    k = active.shape[0]
    precision = np.empty((k, k))
    for i in range(k):
        row = rows[active[i]]
        for m in range(i + 1):
            product = row[active[m]] if data.is_gram else _dot(rows, active[m], row)
            precision[i, m] = product / noise
        precision[i, i] += 1.0 / slab
    return precision, data.xty[active] / noise


@compile_cached()
def _redraw_block(
    data: SweepData,
    beta: Floats,
    visits: Ints,
    size: int,
    scan: Scan,
    variances: Floats,
    prior: PointMassPrior,
    rng: Generator,
) -> None:
    """Redraw the indicators of some variables of the pool, with all coefficients integrated out.

    A block is a random variable and others that are correlated with it. A coefficient whose indicator becomes one is
    set to one: it is drawn by `_draw_jointly`, which must come next. `size` is the number of included variables.
    """
    many = min(BLOCK, scan.pool.shape[0])
    if many == 0 or size + many > JOINT_LIMIT:
        return
    first = np.searchsorted(scan.firsts, rng.random() * scan.firsts[-1], side="right")
    block = scan.pool[choose_block(scan.pulls[first], many, rng)]
    beta[block] = 0.0
    outside = visits[beta[visits] != 0.0]
    matrix, shift = _system(data, np.concatenate((outside, block)), variances)
    extra = data.log_odds[block]
    pattern = draw_pattern(matrix, shift, outside.shape[0], variances[1], beta.shape[0], prior, extra, rng)
    for i in range(many):
        if pattern >> (many - 1 - i) & 1:
            beta[block[i]] = 1.0


@compile_cached()
def _draw_jointly(
    data: SweepData, state: Floats, beta: Floats, included: Ints, variances: Floats, rng: Generator
) -> None:
    """Draw all included coefficients jointly, and compute the state afresh so that rounding does not add up."""
    if included.shape[0] <= JOINT_LIMIT:
        precision, shift = _system(data, included, variances)
        beta[included] = draw_normal(precision, shift, rng)
    state[:] = data.target
    for j in included:
        _shift(state, data.rows, j, beta[j])


@compile_cached()
def linear_sweeps(
    data: SweepData,
    state: Floats,
    beta: Floats,
    variances: Floats,
    scan: Scan,
    entries: Floats,
    prior: PointMassPrior,
    swaps: int,
    sweeps: int,
    rng: Generator,
    sums: Floats,
    room: Room,
) -> int:
    """Run up to `sweeps` sweeps, recording each; return how many fitted in the buffer.

    `variances` is (sigma2, s2), `state` is X'r or r, and `entries` sums the probabilities to enter by an exchange;
    they and `beta` are updated in place.
    """
    space = np.empty(beta.shape[0], np.int64)
    included = np.flatnonzero(beta)
    for sweep in range(sweeps):
        if not has_room(beta, room, sweep):
            return sweep
        visits = space[: draw_visits(beta, included, scan, rng, space)]
        size = included.shape[0]
        for step in range(scan.rounds):
            part = visits if step == 0 else scan.often
            size = _draw_coordinates(data, state, beta, part, size, scan, variances, prior, rng, sums)
            for _ in range(swaps):
                _swap(data, state, beta, part, scan, variances, rng, entries)
        _redraw_block(data, beta, visits, size, scan, variances, prior, rng)
        included = visits[beta[visits] != 0.0]
        _draw_jointly(data, state, beta, included, variances, rng)
        rss = data.yty if data.is_gram else np.dot(state, state)
        if data.is_gram:
            for j in included:
                rss -= beta[j] * (data.xty[j] + state[j])
        if prior.noise_df < np.inf:
            rate = 0.5 * (prior.noise_df * prior.noise_scale**2 + max(rss, 0.0))
            variances[0] = draw_inverse_gamma(0.5 * (prior.noise_df + data.n - 1.0), rate, rng)
        variances[1] = draw_slab(beta[included], prior.slab_df, prior.slab_scale**2, rng)
        room.scalars[sweep, 0] = sqrt(variances[0])
        room.scalars[sweep, 1] = sqrt(variances[1])
        room.scalars[sweep, 2] = record(beta, np.sort(included), room, sweep)
    return sweeps


class LinearChain(GibbsChain):
    """Chain for a linear model; the rest as in `GibbsChain`.

    Args:
        data: Data of the kernel.
        prior: Prior of the coefficients and variances.
    """

    kernel = staticmethod(linear_sweeps)
    scalar_names = ("sigma", "slab_scale", "model_size")
    swaps = 2

    def __init__(self, data: SweepData, prior: PointMassPrior, burn_in: int, rng: Generator) -> None:
        p = data.xty.shape[0]
        super().__init__(1, p, prior, burn_in, rng)
        self.data = data
        self.state = data.target.copy()
        noise = data.yty / data.n if prior.noise_df < np.inf else prior.noise_scale**2
        self.variances = np.array([max(noise, 1e-10), prior.slab_scale**2])
        often = np.ones(p, dtype=bool)
        self.scan = Scan.of(often, 1.0, 1, data, np.ones(p))
        self.entries = np.zeros(p)
        if p > SCAN_LIMIT and burn_in >= FULL_SWEEPS:
            self.milestones = (FULL_SWEEPS, min(ADAPTED, burn_in), burn_in)
            self.swaps = 1  # per round, of which there will be more

    def _arrays(self) -> tuple[Any, ...]:
        return self.data, self.state, self.beta[0], self.variances, self.scan, self.entries

    def _adapt(self, sweeps: int) -> None:
        p = self.beta.size
        shares = (self.sums[0, 0] + self.entries) / sweeps
        self.entries[:] = 0.0
        if len(self.milestones) == 1:
            self.scan = Scan.of(self.scan.is_often, self.scan.rate, self.scan.rounds, self.data, shares)
            return
        often = shares > min(max(10.0 / p, OFTEN[0]), OFTEN[1])
        if self.scan.rate < 1.0:  # a variable that was often included once stays so
            often |= self.scan.is_often
        rounds = p // (2 * max(int(often.sum()), 1))  # at most the cost of half of all visits
        self.scan = Scan.of(often, RARE_RATE, min(max(rounds, 1), ROUNDS), self.data, shares)


class GramChain(LinearChain):
    """Chain that works on X'X, for p up to a few thousand and any n.

    Args:
        data: Sums of squares and products.
        prior: Prior; this and the rest as in `GibbsChain`.
        log_odds: What is added to the log prior odds of each variable; nothing if not given.
    """

    def __init__(
        self, data: GramData, prior: PointMassPrior, burn_in: int, rng: Generator, log_odds: Floats | None = None
    ) -> None:
        norm = float(data.gram[0, 0]) if data.xty.size else 1.0
        extra = np.zeros(data.xty.size) if log_odds is None else log_odds
        linear = SweepData(data.gram, data.xty, data.xty, data.yty, norm, float(data.n), True, extra)
        super().__init__(linear, prior, burn_in, rng)


class ColumnChain(LinearChain):
    """Chain that works on the columns of X, for p beyond what X'X allows.

    Args:
        columns: X transposed, standardised, shape (p, n), contiguous.
        y: Centred response.
        prior: Prior; this and the rest as in `GibbsChain`.
        log_odds: What is added to the log prior odds of each variable; nothing if not given.
        lost: Degrees of freedom that columns regressed out of both have taken.
    """

    def __init__(
        self,
        columns: Floats,
        y: Floats,
        prior: PointMassPrior,
        burn_in: int,
        rng: Generator,
        log_odds: Floats | None = None,
        lost: int = 0,
    ) -> None:
        n = float(y.shape[0])
        extra = np.zeros(columns.shape[0]) if log_odds is None else log_odds
        data = SweepData(columns, y, columns @ y, float(y @ y), n, n - lost, False, extra)
        super().__init__(data, prior, burn_in, rng)
