"""Convergence diagnostics: rank-normalised split R-hat and bulk effective sample size.

References:
    A. Vehtari, A. Gelman, D. Simpson, B. Carpenter and P.-C. Bürkner (2021), Rank-normalization, folding, and
    localization: an improved R-hat for assessing convergence of MCMC, Bayesian Analysis 16.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.special import ndtri
from scipy.stats import rankdata

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]


def _split(draws: Floats) -> Floats:
    half = draws.shape[1] // 2
    return np.concatenate([draws[:, :half], draws[:, draws.shape[1] - half :]])


def _normal_scores(draws: Floats) -> Floats:
    ranks = rankdata(draws, method="average").reshape(draws.shape)
    scores: Floats = ndtri((ranks - 0.375) / (draws.size + 0.25))
    return scores


def _basic_rhat(draws: Floats) -> float:
    n = draws.shape[1]
    within = draws.var(axis=1, ddof=1).mean()
    between = draws.mean(axis=1).var(ddof=1)
    return float(np.sqrt((n - 1) / n + between / within)) if within > 0 else float("nan")


def rhat(draws: Floats) -> float:
    """Rank-normalised split R-hat, the larger one of bulk and tail.

    Args:
        draws: shape (chains, draws).

    Returns:
        About 1 for chains that agree; NaN for fewer than 4 draws or draws that do not vary.
    """
    if draws.shape[1] < 4 or np.ptp(draws) == 0:
        return float("nan")
    parts = _split(draws)
    folded = np.abs(parts - np.median(parts))
    values = [_basic_rhat(_normal_scores(parts)), _basic_rhat(_normal_scores(folded))]
    return float(np.nanmax(values)) if np.isfinite(values).any() else float("nan")


def _autocovariance(draws: Floats) -> Floats:
    n = draws.shape[1]
    centred = draws - draws.mean(axis=1, keepdims=True)
    spectrum = np.fft.rfft(centred, 2 * n, axis=1)
    covariance: Floats = np.fft.irfft(np.abs(spectrum) ** 2, axis=1)[:, :n] / n
    return covariance


def ess(draws: Floats) -> float:
    """Bulk effective sample size over all chains, by Geyer's initial monotone sequence.

    Args:
        draws: shape (chains, draws).

    Returns:
        The number of independent draws that would estimate the mean as well; NaN for fewer than 4 draws or
        draws that do not vary.
    """
    if draws.shape[1] < 4 or np.ptp(draws) == 0:
        return float("nan")
    scores = _normal_scores(_split(draws))
    chains, n = scores.shape
    covariance = _autocovariance(scores)
    within = covariance[:, 0].mean() * n / (n - 1)
    variance = within * (n - 1) / n + scores.mean(axis=1).var(ddof=1)
    rho = 1.0 - (within - covariance.mean(axis=0) * n / (n - 1)) / variance
    rho[0] = 1.0
    pairs = rho[: n - n % 2].reshape(-1, 2).sum(axis=1)
    negative = np.flatnonzero(pairs < 0)
    kept = np.minimum.accumulate(pairs[: negative[0] if negative.size else pairs.size])
    time = max(2.0 * kept.sum() - 1.0, 1.0 / np.log10(chains * n))
    return float(chains * n / time)
