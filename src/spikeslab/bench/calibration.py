r"""Simulation-based calibration of the Gibbs samplers: data from the model's own prior, and where the truth ranks.

Draw the parameters from the prior and the data given them; then the parameters are themselves a draw from the
posterior, so that the rank of any function of them among posterior draws is uniform. A constant that is wrong
anywhere in a sampler bends the ranks of something. Functions that also look at the data, such as the log likelihood,
find what functions of the parameters alone can miss.

References:
    S. Talts, M. Betancourt, D. Simpson, A. Vehtari and A. Gelman (2018), Validating Bayesian inference algorithms with
    simulation-based calibration, arXiv 1804.06788.
    M. Modrák, A. H. Moon, S. Kim, P.-C. Bürkner, N. Huurre, K. Faltejsková, A. Gelman and A. Vehtari (2023),
    Simulation-based calibration checking for Bayesian computation: the choice of test quantities shapes sensitivity,
    Bayesian Analysis.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from scipy.special import expit, log_expit, log_softmax

from spikeslab.sklearn._chains import ChainDraws, GibbsChain
from spikeslab.sklearn._gibbs_linear import ColumnChain, GramChain, GramData
from spikeslab.sklearn._gibbs_logistic import LogisticChain
from spikeslab.sklearn._gibbs_multinomial import MultinomialChain
from spikeslab.sklearn._sweep import PointMassPrior

Floats = NDArray[np.float64]


class Truth(NamedTuple):
    """Parameters drawn from the prior: coefficients (vectors, p), intercepts (vectors,), sqrt(s2) and sigma."""

    beta: Floats
    intercept: Floats
    slab: float
    sigma: float


def draw_truth(prior: PointMassPrior, n_features: int, vectors: int, rng: Generator) -> Truth:
    """Draw the parameters from the prior; the intercepts of several vectors have the mean 0, as in the sampler."""
    slab = _draw_scale(prior.slab_df, prior.slab_scale, rng)
    included = rng.random((vectors, n_features)) < rng.beta(prior.a, prior.b)
    beta = included * slab * rng.standard_normal((vectors, n_features))
    intercept = prior.intercept_scale * rng.standard_normal(vectors)
    if vectors > 1:
        intercept -= intercept.mean()
    return Truth(beta, intercept, slab, _draw_scale(prior.noise_df, prior.noise_scale, rng))


def _draw_scale(df: float, scale: float, rng: Generator) -> float:
    """The square root of a draw from IG(df / 2, df scale^2 / 2)."""
    return float(np.sqrt(df * scale**2 / 2.0 / rng.standard_gamma(df / 2.0)))


def correlated_rows(n: int, p: int, correlation: float, rng: Generator) -> Floats:
    """Rows whose columns follow a stationary autoregression."""
    x = rng.standard_normal((n, p))
    for j in range(1, p):
        x[:, j] = correlation * x[:, j - 1] + np.sqrt(1.0 - correlation**2) * x[:, j]
    return x


def standardised(x: Floats) -> Floats:
    """Columns of mean 0 and standard deviation 1."""
    centred: Floats = (x - x.mean(axis=0)) / x.std(axis=0)
    return centred


def gram_data(x: Floats, y: Floats) -> GramData:
    """Sums of squares and products of standardised columns and a response, which is centred here."""
    centred = y - y.mean()
    return GramData(x.T @ x, x.T @ centred, float(centred @ centred), float(len(y)))


@dataclass(frozen=True)
class Case:
    """A sampler, the size of its data, its prior, and how many draws it takes.

    Attributes:
        label: What to call it.
        family: "gram" and "columns" for linear regression from X'X and from X, "logistic" or "multinomial".
        n: Rows.
        p: Columns.
        prior: The prior of the data and of the sampler.
        classes: Number of classes.
        kept: Draws among which the truth is ranked.
        thin: Sweeps between them.
        warmup: Sweeps before them.
    """

    label: str
    family: str
    n: int
    p: int
    prior: PointMassPrior
    classes: int = 2
    kept: int = 63
    thin: int = 4
    warmup: int = 100


_LINEAR = PointMassPrior(a=1.0, b=4.0, slab_df=4.0, slab_scale=0.7, noise_df=3.0, noise_scale=0.8)
_LOGISTIC = PointMassPrior(a=1.0, b=4.0, slab_df=4.0, slab_scale=1.0, intercept_scale=1.0)
_WIDE = _LOGISTIC._replace(intercept_scale=10.0)
CASES = {
    "gram": Case("linear, from X'X", "gram", 20, 8, _LINEAR),
    "columns": Case("linear, from X", "columns", 20, 8, _LINEAR),
    "logistic": Case("logistic", "logistic", 40, 5, _LOGISTIC, thin=8, warmup=200),
    "logistic-10": Case("logistic, intercept N(0, 10²)", "logistic", 40, 5, _WIDE, thin=16, warmup=400),
    "multinomial": Case("3 classes", "multinomial", 40, 3, _LOGISTIC, classes=3, thin=8, warmup=200),
    "multinomial-10": Case("4 classes, intercepts N(0, 10²)", "multinomial", 40, 3, _WIDE, 4, thin=16, warmup=400),
}


def sbc_ranks(case: Case, seed: int) -> dict[str, float]:
    """Ranks in [0, 1] of functions of the truth among the draws of one chain; ties are broken at random."""
    rng = np.random.default_rng([seed, *case.label.encode()])
    x = standardised(correlated_rows(case.n, case.p, 0.5, rng))
    vectors = case.classes if case.family == "multinomial" else 1
    truth = draw_truth(case.prior, case.p, vectors, rng)
    y = _response(case, x, truth, rng)
    chain = _chain(case, x, y, rng.spawn(1)[0])
    while chain.done < case.warmup + case.kept * case.thin:
        chain.advance(case.warmup + case.kept * case.thin - chain.done)
    draws = chain.collect()
    kept = slice(case.thin - 1, None, case.thin)
    coef = draws.coef.toarray().reshape(-1, vectors, case.p)[kept]
    posterior = _quantities(case, x, y, coef, draws.intercept[kept], _sigma(draws)[kept])
    posterior["slab"] = draws.scalars["slab_scale"][kept]
    sigma = np.array([truth.sigma])
    own = _quantities(case, x, y, truth.beta[None], truth.intercept[None], sigma)
    own["slab"] = np.array([truth.slab])
    return {name: _rank(posterior[name], float(own[name][0]), rng) for name in posterior}


def _response(case: Case, x: Floats, truth: Truth, rng: Generator) -> Floats:
    psi: Floats = x @ truth.beta.T
    if case.family == "logistic":
        y = rng.random(case.n) < expit(psi[:, 0] + truth.intercept[0])
    elif case.family == "multinomial":
        y = (psi + truth.intercept + rng.gumbel(size=psi.shape)).argmax(axis=1)
    else:
        y = psi[:, 0] + truth.sigma * rng.standard_normal(case.n)
        y -= y.mean()
    return np.asarray(y, dtype=np.float64)


def _chain(case: Case, x: Floats, y: Floats, rng: Generator) -> GibbsChain:
    columns = np.ascontiguousarray(x.T)
    if case.family == "gram":
        return GramChain(gram_data(x, y), case.prior, case.warmup, rng)
    if case.family == "columns":
        return ColumnChain(columns, y, case.prior, case.warmup, rng)
    if case.family == "logistic":
        return LogisticChain(columns, y, case.prior, case.warmup, rng)
    return MultinomialChain(columns, y.astype(np.int64), case.classes, case.prior, case.warmup, rng)


def _sigma(draws: ChainDraws) -> Floats:
    return draws.scalars.get("sigma", np.ones(draws.coef.shape[0]))


def _quantities(case: Case, x: Floats, y: Floats, coef: Floats, intercept: Floats, sigma: Floats) -> dict[str, Floats]:
    """Functions of the parameters, an entry for each draw: coef (draws, vectors, p), intercept (draws, vectors)."""
    psi = np.einsum("dcp,np->dnc", coef, x)
    found = {"size": np.count_nonzero(coef, axis=(1, 2)).astype(np.float64), "coefficient": coef[:, 0, 0]}
    if case.family in ("gram", "columns"):  # the flat intercept is integrated out, and y is centred
        squares = np.square(y - psi[:, :, 0]).sum(axis=1)
        log_likelihood = -case.n * np.log(sigma) - squares / (2.0 * sigma**2)
        return {**found, "fit": psi[:, 0, 0], "log likelihood": log_likelihood, "sigma": sigma}
    psi += intercept[:, None, :]
    found |= {"intercept": intercept[:, 0]}
    if case.family == "logistic":
        signed = np.where(y == 1, psi[:, :, 0], -psi[:, :, 0])
        return {**found, "fit": psi[:, 0, 0], "log likelihood": log_expit(signed).sum(axis=1)}
    chosen = log_softmax(psi, axis=2)[:, np.arange(case.n), y.astype(np.int64)]
    return {**found, "fit": psi[:, 0, 0] - psi[:, 0, 1], "log likelihood": chosen.sum(axis=1)}


def _rank(draws: Floats, truth: float, rng: Generator) -> float:
    below, equal = int(np.sum(draws < truth)), int(np.sum(draws == truth))
    return float((below + rng.random() * (equal + 1)) / (len(draws) + 1))
