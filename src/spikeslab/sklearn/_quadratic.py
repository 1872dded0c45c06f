r"""Quadratic expansion of a logistic likelihood, for many rows and for rows that come in batches.

With z = (x, 1), theta = (beta_c, b0_c) over the coefficient vectors c, and probabilities p at theta0,

    log p(y | theta) ~ const + h'theta - theta' A theta / 2,
    A = sum_i (diag(p_i) - p_i p_i') (x) z_i z_i',    h = A theta0 + sum_i (e_{y_i} - p_i) (x) z_i

(one vector and p (1 - p) for two classes). A and h are sums over rows: batches can be added up and no row
needs to be seen twice. Expanded at the posterior mean the error is of relative order n^(-1/2) (Bernstein
and von Mises), so that the exact Gibbs sampler of `_gibbs_linear` on (A, h), with a noise variance of one,
draws from the spike-and-slab posterior up to that error, at a cost per sweep that does not depend on n. The
flat intercepts are integrated out and drawn afterwards given the coefficients. Columns are scaled to equal
curvature, which makes sqrt(s2) the slab's standard deviation per standard deviation of x under the weights
p (1 - p).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse
from scipy.special import expit, log_expit, log_softmax

from spikeslab.sklearn._chains import ChainDraws, run_chains, share_with_any_class
from spikeslab.sklearn._gibbs_linear import GramChain, GramData
from spikeslab.sklearn._moments import Scaling, is_sparse

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.random import Generator
    from numpy.typing import NDArray

    from spikeslab.sklearn._sweep import PointMassPrior

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]
    Sample = Callable[[Sequence[GramChain], int], list[ChainDraws]]

BLOCK = 4_000_000  # entries of X made dense at once


@dataclass(frozen=True)
class Expansion:
    """Sum of quadratic expansions.

    Attributes:
        curvature: A, shape (vectors, p + 1, vectors, p + 1), the intercept last.
        slope: H, shape (vectors, p + 1).
        n: Number of rows.
        log_likelihood: Log likelihood of the rows at the points of expansion.
    """

    curvature: Floats
    slope: Floats
    n: float
    log_likelihood: float

    def __add__(self, other: Expansion) -> Expansion:
        return Expansion(
            self.curvature + other.curvature,
            self.slope + other.slope,
            self.n + other.n,
            self.log_likelihood + other.log_likelihood,
        )

    def rescale(self, n: float) -> Expansion:
        """Return the expansion of n rows distributed like these."""
        f = n / self.n
        return Expansion(f * self.curvature, f * self.slope, n, f * self.log_likelihood)


def expand(X: Any, labels: Ints, theta: Floats, scaling: Scaling) -> Expansion:
    """Expand the log likelihood of some rows at theta, shape (vectors, p + 1), block by block."""
    vectors, q = theta.shape
    curvature = np.zeros((vectors, q, vectors, q))
    gradient = np.zeros((vectors, q))
    fit = 0.0
    step = max(1, BLOCK // q)
    for start in range(0, X.shape[0], step):
        part = X[start : start + step]
        y = labels[start : start + step]
        z = np.ones((part.shape[0], q))
        z[:, :-1] = part.toarray() if is_sparse(part) else part
        z[:, :-1] -= scaling.x_mean
        z[:, :-1] /= scaling.x_scale
        psi = z @ theta.T
        if vectors == 1:
            proba = expit(psi)
            fit += float(log_expit(np.where(y == 1, psi[:, 0], -psi[:, 0])).sum())
            error = y[:, None] - proba
        else:
            log_proba = log_softmax(psi, axis=1)
            proba = np.exp(log_proba)
            fit += float(log_proba[np.arange(y.size), y].sum())
            error = np.eye(vectors)[y] - proba
        gradient += error.T @ z
        for c in range(vectors):
            for d in range(c + 1):
                weight = proba[:, c] * ((c == d) - proba[:, d])
                block = z.T @ (weight[:, None] * z)
                curvature[c, :, d, :] += block
                if d < c:
                    curvature[d, :, c, :] += block
    slope = (curvature.reshape(vectors * q, -1) @ theta.ravel()).reshape(vectors, q) + gradient
    return Expansion(curvature, slope, X.shape[0], fit)


class QuadraticPosterior:
    """Spike-and-slab posterior under an expansion.

    Args:
        expansion: Expansion of the log likelihood.
        prior: Prior of the coefficients.
    """

    def __init__(self, expansion: Expansion, prior: PointMassPrior) -> None:
        vectors, q = expansion.slope.shape
        size = vectors * (q - 1)
        inner = expansion.curvature[:, :-1, :, :-1].reshape(size, size)
        self.cross = expansion.curvature[:, :-1, :, -1].reshape(size, vectors)
        self.level_slope = expansion.slope[:, -1]
        self.level_cov = np.linalg.pinv(expansion.curvature[:, -1, :, -1], hermitian=True)
        gram = inner - self.cross @ self.level_cov @ self.cross.T
        shift = expansion.slope[:, :-1].ravel() - self.cross @ (self.level_cov @ self.level_slope)
        diagonal = np.diag(gram)
        unit = float(np.median(diagonal[diagonal > 0])) if (diagonal > 0).any() else 1.0
        self.factor = np.sqrt(unit / np.where(diagonal > 1e-9 * unit, diagonal, np.inf))
        gram *= np.outer(self.factor, self.factor)
        np.fill_diagonal(gram, unit)
        self.data = GramData(np.ascontiguousarray(gram), shift * self.factor, 0.0, expansion.n)
        self.vectors = vectors
        self.prior = prior._replace(noise_df=np.inf, noise_scale=1.0)

    def draw(self, sample: Sample, rngs: Sequence[Generator], burn_in: int, steps: int) -> list[ChainDraws]:
        """Run a chain per generator and return draws for the columns of the expansion."""
        chains = [GramChain(self.data, self.prior, burn_in, rng) for rng in rngs]
        return [self._finish(draws, rng) for draws, rng in zip(sample(chains, steps), rngs, strict=True)]

    def _finish(self, draws: ChainDraws, rng: Generator) -> ChainDraws:
        coef = sparse.csr_array(draws.coef @ sparse.diags_array(self.factor))
        coef.eliminate_zeros()
        spread = np.linalg.cholesky(self.level_cov + 1e-14 * np.trace(self.level_cov) * np.eye(self.vectors))
        noise = rng.standard_normal((coef.shape[0], self.vectors)) @ spread.T
        intercept = (self.level_slope - coef @ self.cross) @ self.level_cov + noise
        mean = (draws.mean[0] * self.factor).reshape(self.vectors, -1)
        square = (draws.square[0] * self.factor**2).reshape(self.vectors, -1)
        pip = draws.pip * (self.factor > 0) if self.vectors == 1 else share_with_any_class(coef, mean.shape[1])
        scalars = {name: draws.scalars[name] for name in ("slab_scale", "model_size")}
        return ChainDraws(coef, intercept, scalars, pip, mean, square, draws.steps)


def mean_of(draws: Sequence[ChainDraws]) -> Floats:
    """Return the posterior mean of theta = (beta, b0), shape (vectors, p + 1)."""
    coef = np.mean([d.mean for d in draws], axis=0)
    level = np.mean([d.intercept.mean(axis=0) for d in draws], axis=0)
    return np.column_stack([coef, level])


def settle(
    make: Callable[[Floats], Expansion], theta: Floats, prior: PointMassPrior, rng: Generator, rounds: int
) -> Expansion:
    """Move the point of expansion to the posterior mean.

    Args:
        make: Function that returns the expansion at a point.
        theta: Point to start from.
        prior: Prior of the coefficients.
        rng: Source of randomness of the short chains.
        rounds: Largest number of expansions.

    Returns:
        The last expansion. Unless `rounds` is used up, the last two means differ by less than a third of a posterior
        standard deviation in every direction that the data determine.
    """
    expansion = make(theta)
    for _ in range(rounds - 1):
        draws = QuadraticPosterior(expansion, prior).draw(partial(run_chains, n_jobs=1), rng.spawn(1), 100, 300)
        proposal = mean_of(draws)
        moved = (proposal - theta).ravel()
        distance = float(moved @ expansion.curvature.reshape(moved.size, -1) @ moved)
        following = make(proposal)
        for _ in range(4):  # an overshooting step is halved
            if following.log_likelihood >= expansion.log_likelihood - 2.0:
                break
            proposal = 0.5 * (proposal + theta)
            following = make(proposal)
        theta, expansion = proposal, following
        if distance < 0.1:
            break
    return expansion


def column_scaling(X: Any) -> Scaling:
    """Return the means and scales of all columns; a constant column has the scale 1."""
    mean = np.asarray(X.mean(axis=0), dtype=np.float64).ravel()
    if is_sparse(X):
        square = np.asarray(X.multiply(X).mean(axis=0), dtype=np.float64).ravel() - mean**2
    else:
        square = X.var(axis=0, dtype=np.float64)
    kept = Scaling.of_columns(mean, np.sqrt(np.maximum(square, 0.0)))
    scale = np.ones(mean.shape[0])
    scale[kept.kept] = kept.x_scale
    return replace(kept, kept=np.arange(mean.shape[0]), x_mean=mean, x_scale=scale)
