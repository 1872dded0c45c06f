r"""R-hat and effective sample sizes of the draws of several Markov chains.

Every chain is split in two, so that drift within a chain counts as disagreement. With :math:`W` the mean variance
within the :math:`M` parts of :math:`n` draws, and :math:`B/n` the variance of their means,

.. math:: \hat R = \sqrt{\frac{n-1}{n} + \frac{B/n}{W}}, \qquad
    N_\mathrm{eff} = \frac{Mn}{1 + 2 \sum_{t \ge 1} \hat\rho_t},

where the sum of the autocorrelations :math:`\hat\rho_t`, over lags and all chains, is truncated by Geyer's initial
monotone sequence. Draws are replaced by the normal scores of their ranks, so that heavy tails do no harm.

Reference: Vehtari, Gelman, Simpson, Carpenter and Bürkner, "Rank-normalization, folding, and localization: an improved
R-hat for assessing convergence of MCMC", Bayesian Analysis 16, 2021.
"""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Draws = NDArray[np.float64]

NEEDED_DRAWS = 4
"""Draws of each chain below which there is no number."""


def rhat(draws: Draws) -> float:
    """Compute the rank-normalised split R-hat: the larger one of bulk and tails.

    >>> chains = np.random.default_rng(0).normal(size=(4, 500))
    >>> rhat(chains) < 1.01, rhat(chains + np.arange(4)[:, None]) > 1.3
    (True, True)

    Args:
        draws: Draws of one scalar, of shape (chains, draws).

    Returns:
        About 1 for chains that agree; NaN for fewer than 4 draws and for draws that do not vary.
    """
    if not _enough(draws):
        return math.nan
    parts = _split(draws)
    bulk, tails = (_basic_rhat(_normal_scores(x)) for x in (parts, np.abs(parts - np.median(parts))))
    return bulk if math.isnan(tails) else max(bulk, tails)


def ess_bulk(draws: Draws) -> float:
    """Compute the effective sample size of the normal scores, over all chains.

    >>> round(ess_bulk(np.random.default_rng(0).normal(size=(4, 500))), -2)
    2000.0

    Args:
        draws: Draws of one scalar, of shape (chains, draws).

    Returns:
        The number of independent draws that would estimate the centre as well; NaN where :func:`rhat` is.
    """
    return _ess(_normal_scores(_split(draws))) if _enough(draws) else math.nan


def ess_tail(draws: Draws) -> float:
    """Compute the smaller one of the effective sample sizes of the 5 % and the 95 % quantile, over all chains.

    Args:
        draws: Draws of one scalar, of shape (chains, draws).

    Returns:
        The number of independent draws that would estimate the quantile as well; NaN where :func:`rhat` is.
    """
    if not _enough(draws):
        return math.nan
    return min(_ess(_split((draws <= quantile).astype(np.float64))) for quantile in np.quantile(draws, (0.05, 0.95)))


def _enough(draws: Draws) -> bool:
    return draws.shape[1] >= NEEDED_DRAWS and bool(np.isfinite(draws).all() and np.ptp(draws) > 0)


def _split(draws: Draws) -> Draws:
    half = draws.shape[1] // 2
    return np.concatenate([draws[:, :half], draws[:, -half:]])


def _normal_scores(draws: Draws) -> Draws:
    """Return the normal quantiles of the ranks; equal draws share their mean rank.

    Indicators are returned as they are: the scores are an affine function of them, which changes no ratio.
    """
    if ((draws == draws.min()) | (draws == draws.max())).all():
        return draws
    _, place, counts = np.unique(draws, return_inverse=True, return_counts=True)
    twice = 2 * np.cumsum(counts) - counts - 1  # 0 for the rank 1, 1 for 1.5, 2 for 2, ...
    scores: Draws = _score_table(draws.size)[twice[place.reshape(draws.shape)]]
    return scores


@lru_cache(maxsize=4)
def _score_table(total: int) -> Draws:
    """Return the normal quantiles of the ranks 1, 1.5, 2, ... among `total` draws."""
    ranks = np.arange(1.0, total + 0.5, 0.5)
    return np.fromiter(map(NormalDist().inv_cdf, (ranks - 0.375) / (total + 0.25)), np.float64, ranks.size)


def _basic_rhat(draws: Draws) -> float:
    n = draws.shape[1]
    within, between = float(draws.var(axis=1, ddof=1).mean()), float(draws.mean(axis=1).var(ddof=1))
    if within == 0:
        return math.inf if between > 0 else math.nan
    return math.sqrt((n - 1) / n + between / within)


def _ess(draws: Draws) -> float:
    """Return the effective sample size of the mean, from the autocovariances by FFT."""
    n = draws.shape[1]
    if np.ptp(draws) == 0:  # an indicator of a quantile that no draw exceeds
        return float(draws.size)
    spectrum = np.fft.rfft(draws - draws.mean(axis=1, keepdims=True), 2 * n, axis=1)
    covariance = np.fft.irfft(np.abs(spectrum) ** 2, axis=1)[:, :n].mean(axis=0) / n
    within = covariance[0] * n / (n - 1)
    rho = 1.0 - (within - covariance) / (covariance[0] + draws.mean(axis=1).var(ddof=1))
    rho[0] = 1.0
    even = rho[: n - n % 2 : 2]
    pairs = (even + rho[1::2])[: max(1, (n - 1) // 2)]  # as Stan and ArviZ, without the last lag
    last = int(np.argmax(pairs <= 0)) if (pairs <= 0).any() else pairs.size - 1
    rest = even[last] if pairs[last] >= 0 else max(even[last], 0.0)
    time = 2.0 * float(np.minimum.accumulate(pairs[:last]).sum()) + float(rest) - 1.0
    return draws.size / max(time, 1.0 / math.log10(draws.size))
