"""Linear regression with spike-and-slab variable selection."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from numbers import Integral
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from scipy.special import ndtri
from sklearn.base import RegressorMixin

from spikeslab.errors import ArgumentTypeError, ArgumentValueError, Phrase, check_count, check_number
from spikeslab.sklearn._always import regress_out, regress_out_rows
from spikeslab.sklearn._base import SpikeSlabBase, check_table, guard_fit
from spikeslab.sklearn._chains import spawn
from spikeslab.sklearn._gibbs_linear import ColumnChain, GramChain
from spikeslab.sklearn._moments import Moments, standardise
from spikeslab.sklearn._posterior import pool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.random import Generator

    from spikeslab.sklearn._always import AlwaysIncluded
    from spikeslab.sklearn._chains import ChainDraws, GibbsChain
    from spikeslab.sklearn._moments import Scaling
    from spikeslab.sklearn._posterior import LinearPosterior
    from spikeslab.sklearn._sgld import SGLDOptions
    from spikeslab.sklearn._sweep import Floats, Ints

GRAM_LIMIT = 4096  # features; X'X then takes up to 134 MB
WIDE = 8  # features per row from which on X itself is cheaper than X'X; the draws are the same


class SpikeSlabRegressor(RegressorMixin, SpikeSlabBase):  # type: ignore[misc]
    """Bayesian linear regression that says which variables matter, and how surely.

    A coefficient is exactly zero or drawn from a normal slab; the share of non-zero coefficients, the scale
    of the slab and the noise are learned. X is standardised inside, the intercept is not penalised, and
    every result is on the user's scale.

    Args:
        method: Method to draw from the posterior.

            - "auto": "gibbs", which was the most accurate and the fastest in measurements.
            - "gibbs": exact sampler for the point-mass spike and slab. Up to 4096 features, unless they are eight times
              as many as the rows, the rows are read once, in blocks, and the cost of a sweep does not depend on
              their number; beyond, it is proportional to the number of rows. Beyond 256 features a sweep visits
              the variables with a small inclusion probability rarely, in a way that keeps the posterior exact.
            - "sgld-sa", "sgld-em", "sgld": the algorithms of the paper, with the options `sgld`. Their
              inclusion probabilities are not calibrated.
        n_chains: Independent chains, run in threads.
        n_iter: Steps kept per chain after the burn-in; None is at least 1000 sweeps of "gibbs" and 48000 steps of the
            paper's methods.
        burn_in: Steps discarded per chain; None is 500 sweeps and 12000 steps.
        max_time: Seconds after which chains of the exact samplers that have not converged stop. With n_iter=None
            they run on, after the number of steps above, until R-hat is at most 1.01 and the Monte Carlo standard
            error of `pip_` at most 0.02 for every feature with a `pip_` of 0.05 or more. A fit that reaches the
            limit depends on the speed of the machine.
        inclusion_prior: (a, b) of the Beta prior of the inclusion probability; None follows from `expected_size`, and
            b=None is n_features.
        expected_size: Prior mean of the number of relevant variables, in a prior that allows for many times as many;
            None is about 2.5, with a prior probability of 0.4 that there is none.
        slab_scale: Prior scale of the slab's standard deviation, in units of sd(y) per sd(x); None is 0.4.
        slab_df: Prior degrees of freedom of the slab's variance; None is 3. A large value fixes the slab.
        prior_weights: Factors of the prior odds that a column is relevant, given the other columns: an array of shape
            (n_features,), or a mapping from names or indices to factors, where 1 is the rest. Not with the paper's
            methods.
        always: Names or indices of columns that are always in the model, such as confounders. Their coefficients have
            a flat prior and are not counted among the relevant variables; the other columns are standardised by what
            these leave of them. Not with the paper's methods.
        sgld: Options of the stochastic-gradient methods; None is the paper's.
        n_jobs: Number of chains to run at the same time, in threads; None is 1 and -1 one per core.
        random_state: Seed, RandomState or Generator.
        verbose: 1 shows the progress.

    Attributes:
        coef_: Posterior means of the coefficients, shape (n_features,).
        coef_std_: Posterior standard deviations of the coefficients.
        pip_: Posterior inclusion probabilities, shape (n_features,); 0 for constant columns.
        intercept_: Posterior mean of the intercept.
        sigma_: Posterior mean of the standard deviation of the noise.
        rhat_: Rank-normalised split R-hat of the monitored scalars, by name.
        ess_: Bulk effective sample sizes of the monitored scalars, by name.
        pip_error_: Monte Carlo standard errors of `pip_`; NaN where it is below 0.05, and for the paper's methods.
        converged_: True if R-hat and `pip_error_` are as small as `max_time` asks for.
        n_iter_: Steps kept per chain after the burn-in.
        method_: Method that was used.
        n_features_in_: Number of features.
        feature_names_in_: Names of the features, if X had names.

    Example:
        >>> import numpy as np
        >>> from spikeslab.sklearn import SpikeSlabRegressor
        >>> X = np.random.default_rng(0).standard_normal((50, 200))
        >>> model = SpikeSlabRegressor(random_state=0).fit(X, 3.0 * X[:, 7])
        >>> model.get_support(indices=True)
        array([7])
    """

    _default_slab: ClassVar[tuple[float, float]] = (3.0, 0.4)
    _noise_scale: ClassVar[float] = 0.5

    intercept_: float
    sigma_: float
    _moments: Moments | None

    def __init__(
        self,
        method: str = "auto",
        *,
        n_chains: int = 4,
        n_iter: int | None = None,
        burn_in: int | None = None,
        max_time: float = 30.0,
        inclusion_prior: tuple[float, float | None] | None = None,
        expected_size: float | None = None,
        slab_scale: float | None = None,
        slab_df: float | None = None,
        prior_weights: Mapping[str | int, float] | Sequence[float] | None = None,
        always: Sequence[str | int] | None = None,
        sgld: SGLDOptions | None = None,
        n_jobs: int | None = None,
        random_state: int | np.random.RandomState | np.random.Generator | None = None,
        verbose: int = 0,
    ) -> None:
        super().__init__(
            method,
            n_chains=n_chains,
            n_iter=n_iter,
            burn_in=burn_in,
            max_time=max_time,
            inclusion_prior=inclusion_prior,
            expected_size=expected_size,
            slab_scale=slab_scale,
            slab_df=slab_df,
            sgld=sgld,
            n_jobs=n_jobs,
            random_state=random_state,
            verbose=verbose,
        )
        self.prior_weights = prior_weights
        self.always = always

    @guard_fit
    def fit(self, X: Any, y: Any) -> Self:
        """Draw from the posterior of the coefficients.

        Args:
            X: Table of shape (n_samples, n_features): array, DataFrame or sparse matrix.
            y: Response of shape (n_samples,).
        """
        self._check_params()
        X, y = self._check_table(X, y, reset=True, min_samples=2)
        method = "gibbs" if self.method == "auto" else self.method
        always = self._find_always(y.size)
        if method != "gibbs":
            for name in ("always", "prior_weights"):
                if getattr(self, name) is not None:
                    raise ArgumentValueError(name, "must be None with the paper's methods", getattr(self, name))
            *rngs, rng = spawn(self.random_state, self.n_chains + 1)
            draws, scaling = self._sample_sgld(X, y - y.mean(), 0, method, rngs)
            return self._finish(draws, replace(scaling, y_mean=float(y.mean())), y.size, method, rng)
        if X.shape[1] <= GRAM_LIMIT and X.shape[1] < WIDE * X.shape[0]:
            return self._fit_moments(Moments.of(X, y))
        found = None
        if always.size:
            with self._explain_collinear():
                X, y, found = regress_out_rows(X, y, always)
        columns, scaling = standardise(X)
        scaling = scaling.with_response(float(y.mean()), float(y.var()))
        z = (y - scaling.y_mean) / scaling.y_scale
        return self._fit_gibbs(partial(ColumnChain, columns, z, lost=always.size), scaling, y.size, found)

    def _find_always(self, n: int) -> Ints:
        """Return the indices of the columns of `always` in increasing order."""
        if self.always is None:
            return np.empty(0, dtype=np.int64)
        if isinstance(self.always, str) or not isinstance(self.always, Iterable):
            raise ArgumentTypeError("always", "must be a list of names or indices of columns", self.always)
        names = self._places()
        found = [self._find_column("always", each, names) for each in self.always]
        if len(set(found)) < len(found):
            raise ArgumentValueError("always", "must name each column once", list(self.always))
        if len(found) > n - 2:
            raise ArgumentValueError("always", f"must hold at most {max(n - 2, 0)} columns for {n} rows", len(found))
        return np.array(sorted(found), dtype=np.int64)

    def _places(self) -> dict[str, int]:
        return {str(name): j for j, name in enumerate(self._names())}

    def _find_column(self, argument: str, given: Any, places: Mapping[str, int]) -> int:
        index = places.get(given, -1) if isinstance(given, str) else given
        if isinstance(index, bool) or not isinstance(index, Integral) or int(index) not in range(len(places)):
            allowed = f"must hold names of columns, or indices below {self.n_features_in_}"
            raise ArgumentValueError(argument, allowed, given)
        return int(index)

    def _log_odds(self) -> Floats:
        """Return what `prior_weights` adds to the log prior odds of each column."""
        given, places = self.prior_weights, self._places()
        weights = np.ones(self.n_features_in_)
        if isinstance(given, Mapping):
            for each, weight in given.items():
                weights[self._find_column("prior_weights", each, places)] = check_number(
                    f"prior_weights[{each!r}]", weight, "> 0"
                )
        elif given is not None:
            try:
                weights = np.asarray(given, dtype=np.float64)
            except (OverflowError, TypeError, ValueError) as error:
                raise ArgumentTypeError("prior_weights", "must hold numbers > 0", given) from error
            if weights.shape != (self.n_features_in_,):
                allowed = f"must be a mapping, or hold a number for each of {self.n_features_in_} columns"
                raise ArgumentValueError("prior_weights", allowed, Phrase(f"got the shape {weights.shape}"))
            wrong = weights[~(np.isfinite(weights) & (weights > 0.0))]
            if wrong.size:
                raise ArgumentValueError("prior_weights", "must hold numbers > 0", float(wrong[0]))
        return np.log(weights)

    @contextmanager
    def _explain_collinear(self) -> Iterator[None]:
        try:
            yield
        except np.linalg.LinAlgError as error:
            allowed = "must hold columns that vary and are not collinear"
            raise ArgumentValueError("always", allowed, list(self.always or ())) from error

    @guard_fit
    def partial_fit(self, X: Any, y: Any, classes: None = None, num_data: int | None = None) -> Self:
        """Take in more rows.

        Up to 4096 features this is exact: sums of squares and products are kept, and the posterior given all
        rows seen so far is sampled anew. It starts afresh after `fit`.

        Args:
            X: New rows, shape (n_samples, n_features).
            y: Their responses.
            classes: Not used; present for a common interface.
            num_data: Number of rows of the whole data set. The rows seen so far then stand for all of it;
                None takes them as they are.
        """
        self._check_params()
        past = getattr(self, "_moments", None)
        X, y = self._check_table(X, y, reset=past is None, min_samples=1)
        if X.shape[1] > GRAM_LIMIT:
            allowed = f"must have at most {GRAM_LIMIT} features for partial_fit"
            raise ArgumentValueError("X", allowed, Phrase(f"got {X.shape[1]}"), "use fit")
        if num_data is not None:
            check_count("num_data", num_data)
        moments = Moments.of(X, y) if past is None else past.merge(Moments.of(X, y))
        self._fit_moments(moments if num_data is None else moments.rescale(num_data))
        self._moments = moments
        return self

    def _check_table(self, X: Any, y: Any, *, reset: bool, min_samples: int) -> tuple[Any, Floats]:
        kinds = {"accept_sparse": ("csr", "csc"), "dtype": (np.float64, np.float32), "y_numeric": True}
        X, y = check_table(self, X, y, reset=reset, ensure_min_samples=min_samples, **kinds)
        return X, np.asarray(y, dtype=np.float64)

    def _fit_moments(self, moments: Moments) -> Self:
        always, n, found = self._find_always(int(moments.n)), moments.n, None
        if always.size:
            with self._explain_collinear():
                moments, found = regress_out(moments, always)
        data, scaling = moments.standardise()
        return self._fit_gibbs(partial(GramChain, data), scaling, n, found)

    def _fit_gibbs(
        self, make_chain: Callable[..., GibbsChain], scaling: Scaling, n: float, always: AlwaysIncluded | None = None
    ) -> Self:
        prior = self._prior(scaling.kept.size, self._noise_scale)
        burn_in, kept = self._steps(500, 1000)
        *rngs, rng = spawn(self.random_state, self.n_chains + 1)
        places = (scaling if always is None else always.locate(scaling)).kept
        log_odds = self._log_odds()[places]
        draws = self._sample([make_chain(prior, burn_in, r, log_odds=log_odds) for r in rngs], burn_in + kept)
        return self._finish(draws, scaling, n, "gibbs", rng, always)

    def _finish(
        self,
        chains: Sequence[ChainDraws],
        scaling: Scaling,
        n: float,
        method: str,
        rng: Generator,
        always: AlwaysIncluded | None = None,
    ) -> Self:
        for chain in chains:
            chain.scalars["sigma"] *= scaling.y_scale
        sigma = np.concatenate([chain.scalars["sigma"] for chain in chains])
        level = scaling.y_mean + sigma / np.sqrt(n) * rng.standard_normal(sigma.size)
        located = scaling if always is None else always.locate(scaling)
        posterior = pool(chains, located, level[:, None])
        intercept = scaling.y_mean - scaling.x_mean @ posterior.mean[0, located.kept]
        if always is not None:
            posterior = always.complete(posterior, rng)
            intercept -= always.mean @ posterior.mean[0, always.columns]
        self._store(posterior, method, chains[0].steps, intercept)
        return self

    def _store(self, posterior: LinearPosterior, method: str, n_iter: int, intercept: Any) -> None:
        super()._store(posterior, method, n_iter, float(intercept))
        self.coef_, self.coef_std_ = posterior.mean[0], posterior.std[0]
        self.sigma_ = float(posterior.scalars["sigma"].mean())
        self._moments = None

    def predict(self, X: Any, return_std: bool = False) -> Floats | tuple[Floats, Floats]:
        """Predict the posterior mean of the response, shape (n_samples,).

        Args:
            X: Rows to predict, shape (n_samples, n_features).
            return_std: If True, also return the standard deviation of a new response, noise included.
        """
        X = self._check_rows(X)
        mean: Floats = np.asarray(X @ self.coef_ + self.intercept_, dtype=np.float64)
        if not return_std:
            return mean
        noise = float(np.mean(self._posterior.scalars["sigma"] ** 2))
        variance = np.empty(X.shape[0])
        for rows, draws in self._posterior.linear_predictor(X):
            variance[rows] = draws[:, :, 0].var(axis=1)
        return mean, np.sqrt(variance + noise)

    def predict_interval(self, X: Any, level: float = 0.9) -> Floats:
        """Compute equal-tailed intervals of new responses, lower and upper ends of shape (n_samples, 2).

        Args:
            X: Rows to predict, shape (n_samples, n_features).
            level: Probability that a new response falls into its interval.
        """
        X = self._check_rows(X)
        check_number("level", level, "(0, 1)")
        sigma = self._posterior.scalars["sigma"].ravel()
        grid = (np.arange(sigma.size) + 0.5) / sigma.size
        noise = sigma * ndtri(np.random.default_rng(0).permutation(grid))
        out = np.empty((X.shape[0], 2))
        for rows, draws in self._posterior.linear_predictor(X):
            out[rows] = np.quantile(draws[:, :, 0] + noise, [0.5 - level / 2, 0.5 + level / 2], axis=1).T
        return out
