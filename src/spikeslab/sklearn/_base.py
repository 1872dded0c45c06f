"""Shared part of the two estimators: parameters, selection, intervals, tables and figures."""

from __future__ import annotations

import functools
import os
import time
from abc import abstractmethod
from numbers import Integral
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar, cast

import numpy as np
from scipy import sparse
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_selection import SelectorMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from spikeslab.errors import (
    LARGEST_FLOAT,
    ArgumentTypeError,
    ArgumentValueError,
    Phrase,
    check_choice,
    check_count,
    check_number,
    mark,
    warn,
)
from spikeslab.functional.convergence import ess_bulk, rhat
from spikeslab.report.progress import Progress
from spikeslab.sklearn._chains import run_chains
from spikeslab.sklearn._convergence import assess
from spikeslab.sklearn._moments import standardise
from spikeslab.sklearn._sgld import SGLDChain, SGLDOptions
from spikeslab.sklearn._sweep import PointMassPrior

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pandas as pd
    from matplotlib.axes import Axes
    from numpy.random import Generator
    from numpy.typing import NDArray

    from spikeslab.sklearn._chains import Chain, ChainDraws, GibbsChain
    from spikeslab.sklearn._convergence import FitConvergence
    from spikeslab.sklearn._moments import Scaling
    from spikeslab.sklearn._posterior import LinearPosterior
    from spikeslab.sklearn._sweep import Floats

RHAT_LIMIT = 1.1
SHAPE = 0.5  # a of the Beta law: broad, so that the data soon say how many variables there are
EXPECTED_SIZE = 2.5  # of many variables; it is 2.5 p / (p + 7.5), less if there are few
STORED = 4000  # draws of a chain that are stored when it runs on; the others count in the estimates alone
GROWTH = (1.3, 4.0)  # bounds of the factor by which the number of draws grows at a time

F = TypeVar("F", bound="Callable[..., Any]")


def check_table(estimator: BaseEstimator, *data: Any, **options: Any) -> Any:
    """Return what scikit-learn's ``validate_data`` does; it has no sentence for integers beyond the largest float."""
    try:
        return validate_data(estimator, *data, **options)
    except OverflowError as error:
        expectation = f"must hold numbers up to {LARGEST_FLOAT}, and so must y"
        raise ArgumentValueError("X", expectation, Phrase("got a larger integer")) from error


def select_variables(pip: NDArray[np.float64], threshold: float = 0.5, fdr: float | None = None) -> NDArray[np.bool_]:
    """Select the variables above a threshold, or at an expected false discovery rate.

    >>> select_variables(np.array([0.95, 0.2, 0.9]), fdr=0.1)
    array([ True, False,  True])

    Args:
        pip: Posterior inclusion probability of each variable.
        threshold: Variables above it are selected.
        fdr: If given, `threshold` is ignored and the largest set is selected, most probable variables first, whose
            expected share of false discoveries (the mean of 1 - `pip` over the set) is at most `fdr`. A variable that
            is more likely out than in is not selected, however sure the others are.
    """
    if fdr is None:
        return pip > threshold
    order = np.argsort(-pip, kind="stable")
    share = np.cumsum(1.0 - pip[order]) / np.arange(1, order.size + 1)
    mask = np.zeros(order.size, dtype=bool)
    mask[order[: int(np.searchsorted(share, fdr, side="right"))]] = True
    return mask & (pip >= 0.5)


def guard_fit(fit: F) -> F:
    """Make a method that fits an estimator restore all attributes if it fails, and warn of chains that disagree."""

    @functools.wraps(fit)
    def wrapped(estimator: SpikeSlabBase, *args: Any, **kwargs: Any) -> Any:
        before = dict(estimator.__dict__)
        try:
            fit(estimator, *args, **kwargs)
        except BaseException:
            estimator.__dict__ = before
            raise
        found = estimator._convergence
        given = estimator.n_iter is not None or estimator.method_.startswith("sgld")
        if found.largest_rhat > RHAT_LIMIT or (not given and not found.reached):
            numbers, remedy = found.describe(estimator._names()), "n_iter or burn_in" if given else "max_time"
            warn(ConvergenceWarning(f"The chains have not converged ({numbers}): raise {remedy}."))
        return estimator

    return cast("F", wrapped)


class SpikeSlabBase(SelectorMixin, BaseEstimator):  # type: ignore[misc]
    """Shared part of `SpikeSlabRegressor` and `SpikeSlabClassifier`; not an estimator by itself.

    In a pipeline it is a selector too: `transform` keeps the columns of `get_support()`.
    """

    _methods: ClassVar[tuple[str, ...]] = ("auto", "gibbs", "sgld-sa", "sgld-em", "sgld")
    _default_slab: ClassVar[tuple[float, float]]

    method_: str
    pip_: Floats
    coef_: Floats
    coef_std_: Floats
    intercept_: Any
    rhat_: dict[str, float]
    ess_: dict[str, float]
    pip_error_: Floats
    converged_: bool
    n_iter_: int
    n_features_in_: int
    feature_names_in_: NDArray[np.object_]
    _posterior: LinearPosterior
    _convergence: FitConvergence

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
        sgld: SGLDOptions | None = None,
        n_jobs: int | None = None,
        random_state: int | np.random.RandomState | np.random.Generator | None = None,
        verbose: int = 0,
    ) -> None:
        self.method = method
        self.n_chains = n_chains
        self.n_iter = n_iter
        self.burn_in = burn_in
        self.max_time = max_time
        self.inclusion_prior = inclusion_prior
        self.expected_size = expected_size
        self.slab_scale = slab_scale
        self.slab_df = slab_df
        self.sgld = sgld
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose

    @abstractmethod
    def fit(self, X: Any, y: Any) -> Self:
        """Draw from the posterior."""

    def _check_params(self) -> None:
        check_choice("method", self.method, self._methods)
        check_count("n_chains", self.n_chains)
        for name, minimum in (("n_iter", 1), ("burn_in", 0)):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name), minimum)
        check_number("max_time", self.max_time, ">= 0")
        for name in ("slab_scale", "slab_df"):
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name), "> 0")
        if self.n_jobs == 0 or not isinstance(self.n_jobs, Integral | None):
            raise ArgumentValueError("n_jobs", "must be None or an integer other than 0", self.n_jobs)
        if self.expected_size is not None:
            check_number("expected_size", self.expected_size, "> 0")
            if self.inclusion_prior is not None:
                both = Phrase(f"got {self.inclusion_prior!r} and {mark('expected_size', self.expected_size)}")
                raise ArgumentValueError("inclusion_prior", f"replaces {mark('expected_size')}", both)
        prior = self.inclusion_prior
        if prior is None:
            return
        if not (isinstance(prior, tuple | list) and len(prior) == 2):
            raise ArgumentValueError("inclusion_prior", "must be a pair (a, b) of a Beta law", prior)
        check_number("inclusion_prior[0]", prior[0], "> 0")
        if prior[1] is not None:
            check_number("inclusion_prior[1]", prior[1], "> 0")

    def _inclusion_law(self, n_features: int) -> tuple[float, float]:
        """Return (a, b) of the Beta law of the inclusion probability of `n_features` coefficients."""
        p = max(n_features, 1)
        if self.inclusion_prior is not None:
            a, b = self.inclusion_prior
            return float(a), float(p if b is None else b)
        if self.expected_size is None:
            return SHAPE, 1.0 + SHAPE * p / EXPECTED_SIZE
        if self.expected_size >= p:
            allowed = f"must be less than {p:,}, the number of coefficients that vary"
            raise ArgumentValueError("expected_size", allowed, self.expected_size)
        return SHAPE, SHAPE * (p / self.expected_size - 1.0)

    def _prior(self, n_features: int, noise_scale: float = 1.0) -> PointMassPrior:
        a, b = self._inclusion_law(n_features)
        df, scale = self._default_slab
        return PointMassPrior(
            a,
            b,
            float(df if self.slab_df is None else self.slab_df),
            float(scale if self.slab_scale is None else self.slab_scale),
            1.0,
            noise_scale,
        )

    def set_params(self, **params: Any) -> Self:
        """Set parameters by name; `sgld__v0` and the like change single options of `sgld`."""
        before = self.sgld
        if before is None and any(name.startswith("sgld__") for name in params):
            self.sgld = SGLDOptions()
        try:
            super().set_params(**params)
        except (ValueError, TypeError):
            self.sgld = before
            raise
        return self

    def _steps(self, burn_in: int, kept: int) -> tuple[int, int]:
        """Return (burn-in, kept) steps per chain from the defaults of a method."""
        return burn_in if self.burn_in is None else self.burn_in, kept if self.n_iter is None else self.n_iter

    def _check_rows(self, X: Any) -> Any:
        check_is_fitted(self)
        # One order in memory, so that the same rows give the same digits however a table holds its columns.
        return check_table(self, X, reset=False, accept_sparse="csr", dtype=(np.float64, np.float32), order="C")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def _threads(self) -> int:
        jobs = 1 if self.n_jobs is None else self.n_jobs
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return jobs if jobs > 0 else max(1, cores + 1 + jobs)

    def _sample_sgld(
        self, X: Any, y: Floats, n_classes: int, method: str, rngs: Sequence[Generator]
    ) -> tuple[list[ChainDraws], Scaling]:
        """Run one of the paper's methods on standardised X and return (draws, scaling)."""
        options = SGLDOptions() if self.sgld is None else self.sgld
        if not isinstance(options, SGLDOptions):
            raise ArgumentTypeError("sgld", "must be an SGLDOptions or None", options)
        options.check()
        columns, scaling = standardise(X)
        if not scaling.kept.size:
            raise ArgumentValueError("X", "must have a column that varies", Phrase(f"got {X.shape[1]} constant ones"))
        kind = np.dtype(np.float32 if X.dtype == np.float32 else np.float64)
        rows: NDArray[np.floating] = np.ascontiguousarray(columns.T).astype(kind)
        burn_in, kept = self._steps(12_000, 48_000)
        steps = burn_in + kept
        chains = [SGLDChain(rows, y.astype(kind), n_classes, method, options, burn_in, steps, rng) for rng in rngs]
        return self._run(chains, steps, type(self).__name__), scaling

    def _run(self, chains: Sequence[Chain], steps: int, stage: str) -> list[ChainDraws]:
        if not self.verbose:
            return run_chains(chains, steps, self._threads())
        with Progress({stage: steps * len(chains)}) as progress:
            return run_chains(chains, steps, self._threads(), lambda done, total: progress.update(stage, done))

    def _sample(self, chains: Sequence[GibbsChain], steps: int) -> list[ChainDraws]:
        """Run the chains for `steps` steps and, unless `n_iter` is given, on until they converge or time is up.

        Chains that disagree start their draws anew, since what came before was a part of their burn-in.
        """
        begin = time.monotonic()
        name = type(self).__name__
        draws = self._run(chains, steps, name)
        while self.n_iter is None:
            coef = sparse.csr_array(sparse.vstack([each.coef for each in draws], format="csr"))
            scalars = {name: np.stack([each.scalars[name] for each in draws]) for name in draws[0].scalars}
            features = draws[0].mean.shape[1]
            pip = np.mean([each.pip for each in draws], axis=0)
            found = assess(coef, len(draws), scalars, pip[:features])
            left = self.max_time - (time.monotonic() - begin)
            if found.reached or left <= 0.0:
                break
            kept, done = draws[0].steps, chains[0].done
            speed = done / (self.max_time - left)
            wanted = int(kept * (np.clip(1.2 * found.missing_factor, *GROWTH) - 1.0))
            more = min(wanted, int(speed * left))
            if 8 * more < kept:
                break
            for chain in chains:
                chain.buffer.limit = STORED
                if found.largest_rhat > RHAT_LIMIT and 2 * more > kept:
                    chain.restart()
            draws = self._run(chains, done + more, f"{name}, continued")
        return draws

    def _store(self, posterior: LinearPosterior, method: str, n_iter: int, intercept: Any) -> None:
        """Set the fitted attributes, at the very end of a fit and of loading a model."""
        self._posterior, self.method_, self.n_iter_, self.intercept_ = posterior, method, n_iter, intercept
        self.pip_, self.coef_, self.coef_std_ = posterior.pip, posterior.mean, posterior.std
        exact = not method.startswith("sgld")
        self._convergence = assess(
            posterior.coef, posterior.n_chains, posterior.scalars, posterior.pip, exact_zeros=exact
        )
        self.rhat_, self.pip_error_ = self._convergence.scalars, self._convergence.error
        self.converged_ = self._convergence.reached
        self.ess_ = {name: ess_bulk(draws) for name, draws in posterior.scalars.items()}

    def get_support(
        self, indices: bool = False, *, threshold: float = 0.5, fdr: float | None = None
    ) -> NDArray[np.bool_] | NDArray[np.int64]:
        """Return a mask of the selected variables, or their indices if `indices`; see `select_variables`."""
        check_is_fitted(self)
        check_number("threshold", threshold, "[0, 1]")
        if fdr is not None:
            check_number("fdr", fdr, "(0, 1)")
        mask = select_variables(self.pip_, threshold, fdr)
        return np.flatnonzero(mask) if indices else mask

    def _get_support_mask(self) -> NDArray[Any]:
        return self.get_support()

    def coef_interval(self, level: float = 0.95) -> Floats:
        """Compute equal-tailed intervals of posterior probability `level` of the coefficients, zeros included.

        The shape is (n_features, 2), or (n_classes, n_features, 2) where `coef_` has a row per class.
        """
        check_is_fitted(self)
        check_number("level", level, "(0, 1)")
        interval = self._posterior.interval(level)
        return interval[0] if interval.shape[0] == 1 else interval

    def _names(self) -> NDArray[np.object_]:
        if hasattr(self, "feature_names_in_"):
            return np.asarray(self.feature_names_in_, dtype=object)
        return np.array([f"x{j}" for j in range(self.n_features_in_)], dtype=object)

    def _class_labels(self) -> list[Any]:
        return [None]

    def summary(self, level: float = 0.95, threshold: float = 0.0) -> pd.DataFrame:
        """Tabulate the variables, the most probable ones first, by name.

        The columns are pip, pip_error (its Monte Carlo standard error), mean, std, lower, upper, rhat and ess; several
        coefficient vectors also have class_pip, the probability that the class uses the variable.

        Args:
            level: Posterior probability of the intervals.
            threshold: Leave out variables whose `pip_` is below this value.

        Returns:
            A DataFrame by feature name, and by class where there are several coefficient vectors.
        """
        import pandas as pd

        check_is_fitted(self)
        check_number("level", level, "(0, 1)")
        post = self._posterior
        order = np.argsort(-post.pip, kind="stable")
        order = order[post.pip[order] >= threshold]
        interval, class_pip = post.interval(level), post.class_pip()
        frames = []
        for c, label in enumerate(self._class_labels()):
            columns = {"pip": post.pip[order], "pip_error": self.pip_error_[order]}
            if label is not None and not self.method_.startswith("sgld"):
                columns["class_pip"] = class_pip[c, order]
            columns |= {"mean": post.mean[c, order], "std": post.std[c, order]}
            columns |= {"lower": interval[c, order, 0], "upper": interval[c, order, 1]}
            columns |= {name: np.full(order.size, np.nan) for name in ("rhat", "ess")}
            for i in np.flatnonzero(post.pip[order] >= 0.05):
                draws = post.coef_of(c * self.n_features_in_ + order[i])
                columns["rhat"][i], columns["ess"][i] = rhat(draws), ess_bulk(draws)
            frame = pd.DataFrame(columns, index=pd.Index(self._names()[order], name="feature"))
            frames.append(frame if label is None else frame.assign(**{"class": label}).set_index("class", append=True))
        if len(frames) == 1:
            return frames[0]
        return pd.concat(frames).sort_values("pip", ascending=False, kind="stable")

    def plot_inclusion(self, threshold: float = 0.5, ax: Axes | None = None) -> Axes:
        """Draw the inclusion probabilities and name the variables above `threshold` (needs matplotlib).

        Args:
            threshold: Probability at which to draw a line.
            ax: Axes to draw on and to return; new ones by default.
        """
        import matplotlib.pyplot as plt

        check_is_fitted(self)
        if ax is None:
            _, ax = plt.subplots(figsize=(8, 3.5), layout="constrained")
        chosen = np.flatnonzero(self.pip_ > threshold)
        ax.vlines(np.arange(self.pip_.size), 0.0, self.pip_, color="0.6", linewidth=1.0)
        ax.plot(chosen, self.pip_[chosen], "o", color="C0")
        for j in chosen[np.argsort(-self.pip_[chosen], kind="stable")][:25]:
            ax.annotate(str(self._names()[j]), (j, self.pip_[j]), xytext=(4, 2), textcoords="offset points", fontsize=8)
        ax.axhline(threshold, color="C3", linewidth=0.8, linestyle="--")
        ax.set(xlabel="feature", ylabel="inclusion probability", ylim=(0.0, 1.08))
        return ax

    def to_arviz(self, threshold: float = 0.0) -> Any:
        """Return the draws, of variables with a `pip_` of at least `threshold`, for ArviZ (needs arviz)."""
        import arviz

        check_is_fitted(self)
        post = self._posterior
        chains, classes = post.n_chains, post.mean.shape[0]
        kept = np.flatnonzero(post.pip >= threshold)
        columns = (np.arange(classes)[:, None] * self.n_features_in_ + kept).ravel()
        coef = post.coef[:, columns].toarray().reshape(chains, -1, classes, kept.size)
        intercept = post.intercept.reshape(chains, -1, classes)
        dims = {"coef": ["feature"]}
        coords: dict[str, Any] = {"feature": self._names()[kept]}
        if classes == 1:
            coef, intercept = coef[:, :, 0], intercept[:, :, 0]
        else:
            dims = {"coef": ["class", "feature"], "intercept": ["class"]}
            coords["class"] = self._class_labels()
        values = {"coef": coef, "intercept": intercept, **post.scalars}
        return arviz.from_dict(posterior=values, coords=coords, dims=dims)
