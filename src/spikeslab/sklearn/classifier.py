"""Classification with spike-and-slab variable selection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from scipy.special import expit, softmax
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets

from spikeslab.errors import ArgumentValueError, Phrase, check_count, pluralize
from spikeslab.sklearn._base import SpikeSlabBase, check_table, guard_fit
from spikeslab.sklearn._chains import spawn
from spikeslab.sklearn._gibbs_logistic import LogisticChain
from spikeslab.sklearn._gibbs_multinomial import MultinomialChain
from spikeslab.sklearn._moments import is_sparse, standardise
from spikeslab.sklearn._posterior import pool
from spikeslab.sklearn._quadratic import QuadraticPosterior, column_scaling, expand, mean_of, settle

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from spikeslab.sklearn._chains import ChainDraws, GibbsChain
    from spikeslab.sklearn._moments import Scaling
    from spikeslab.sklearn._quadratic import Expansion
    from spikeslab.sklearn._sweep import Floats, Ints

    Stream = tuple[Scaling, Floats, Expansion]

GIBBS_LIMIT = 5_000_000  # n_samples * (n_features + 300) * vectors; a sweep then takes a few milliseconds
QUADRATIC_ROWS = 5000  # below, the expansion is not chosen by default
SETTLE_ROUNDS = 8  # the most passes over the rows that move the point of expansion
QUADRATIC_LIMIT = 8192  # coefficients; their curvature matrix then takes up to 537 MB


def _vectors(n_classes: int) -> int:
    """Return the number of coefficient vectors: one for two classes, otherwise one for each class."""
    return 1 if n_classes == 2 else n_classes


class SpikeSlabClassifier(ClassifierMixin, SpikeSlabBase):  # type: ignore[misc]
    """Bayesian logistic regression, for two classes or more, that says which variables matter.

    A coefficient is exactly zero or drawn from a normal slab; the share of non-zero coefficients and the
    scale of the slab are learned. X is standardised inside, and every result is on the user's scale. Three
    classes or more have a coefficient vector each (no class is the reference).

    The intercepts, at the mean of X, are not penalised but by "gibbs", where they have a normal prior of
    standard deviation 10 in log odds: under a flat one the posterior has no finite integral if the classes
    are separable and their number is `slab_df` + 1 or more. The other methods have flat intercepts: if
    hyperplanes separate the classes, use "gibbs".

    Args:
        method: Method to draw from the posterior.

            - "auto": "gibbs", which is exact but has a cost that grows with the size of X, or "minibatch" if
              n_samples >= 5000, n_samples * (n_features + 300) * (number of coefficient vectors) > 5e6 and
              the number of coefficients allows it.
            - "gibbs": exact Polya-Gamma sampler for the point-mass spike and slab.
            - "minibatch": passes over blocks of rows that replace the likelihood by its quadratic expansion
              at the posterior mean, then the same sampler at a cost that does not depend on the number of
              rows; up to 8192 coefficients. The error falls with the number of rows.
            - "sgld-sa", "sgld-em", "sgld": the algorithms of the paper, with the options `sgld`. Their
              inclusion probabilities are not calibrated.
        n_chains: Independent chains, run in threads.
        n_iter: Steps kept per chain after the burn-in; None is at least 500 to 2000 sweeps of "gibbs" (more for small
            data), 1000 of "minibatch", and 48000 steps of the paper's methods.
        burn_in: Steps discarded per chain; None is half as many as kept but at least 300 sweeps, and 12000
            steps of the paper's methods.
        max_time: Seconds after which chains of the exact samplers that have not converged stop. With n_iter=None
            they run on, after the number of steps above, until R-hat is at most 1.01 and the Monte Carlo standard
            error of `pip_` at most 0.02 for every feature with a `pip_` of 0.05 or more. A fit that reaches the
            limit depends on the speed of the machine.
        inclusion_prior: (a, b) of the Beta prior of the inclusion probability of a coefficient; None follows from
            `expected_size`, and b=None is the number of coefficients.
        expected_size: Prior mean of the number of non-zero coefficients, over all classes, in a prior that allows for
            many times as many; None is about 2.5, with a prior probability of 0.4 that there is none.
        slab_scale: Prior scale of the slab's standard deviation, in log odds per sd(x); None is 1.
        slab_df: Prior degrees of freedom of the slab's variance; None is 3. A large value fixes the slab.
        sgld: Options of the stochastic-gradient methods; None is the paper's.
        n_jobs: Number of chains to run at the same time, in threads; None is 1 and -1 one per core.
        random_state: Seed, RandomState or Generator.
        verbose: 1 shows the progress.

    Attributes:
        classes_: Classes in sorted order.
        coef_: Posterior means of the coefficients, shape (1, n_features) for two classes and otherwise
            (n_classes, n_features).
        coef_std_: Posterior standard deviations of the coefficients.
        pip_: Posterior probability that a feature has a non-zero coefficient in any class, shape
            (n_features,); 0 for constant columns.
        intercept_: Posterior means of the intercepts, shape (1,) or (n_classes,).
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
        >>> from spikeslab.sklearn import SpikeSlabClassifier
        >>> X = np.random.default_rng(0).standard_normal((100, 50))
        >>> model = SpikeSlabClassifier(random_state=0).fit(X, X[:, 7] > 0)
        >>> model.get_support(indices=True)
        array([7])
    """

    _methods: ClassVar[tuple[str, ...]] = ("auto", "gibbs", "minibatch", "sgld-sa", "sgld-em", "sgld")
    _default_slab: ClassVar[tuple[float, float]] = (3.0, 1.0)

    classes_: NDArray[Any]
    intercept_: Floats
    _stream: Stream | None

    @guard_fit
    def fit(self, X: Any, y: Any) -> Self:
        """Draw from the posterior of the coefficients.

        Args:
            X: Table of shape (n_samples, n_features): array, DataFrame or sparse matrix.
            y: Classes of shape (n_samples,), of any type that can be sorted.
        """
        self._check_params()
        X, y = check_table(self, X, y, accept_sparse=("csr", "csc"), dtype=(np.float64, np.float32))
        check_classification_targets(y)
        classes, labels = np.unique(y, return_inverse=True)
        if classes.size < 2:
            raise ArgumentValueError(
                "y", "must hold at least 2 classes", Phrase(f"got 1 class: {classes.tolist()[0]!r}")
            )
        method = self._choose_method(X.shape, classes.size)
        rngs = spawn(self.random_state, self.n_chains)
        if method.startswith("sgld"):
            draws, scaling = self._sample_sgld(X, labels.astype(np.float64), classes.size, method, rngs)
            return self._finish(draws, scaling, classes, method)
        if method == "minibatch":
            self._fit_quadratic(X.tocsr() if is_sparse(X) else X, labels, classes, None)
            return self
        columns, scaling = standardise(X)
        vectors = _vectors(classes.size)
        default = int(np.clip(300_000_000 / max(columns.size * vectors, 1), 500, 2000))
        burn_in, kept = self._steps(max(300, default // 2), default)
        prior = self._prior(scaling.kept.size * vectors)
        chains: Sequence[GibbsChain]
        if classes.size == 2:
            chains = [LogisticChain(columns, labels.astype(np.float64), prior, burn_in, rng) for rng in rngs]
        else:
            chains = [MultinomialChain(columns, labels, classes.size, prior, burn_in, rng) for rng in rngs]
        return self._finish(self._sample(chains, burn_in + kept), scaling, classes, method)

    def _choose_method(self, shape: tuple[int, int], n_classes: int) -> str:
        if self.method != "auto":
            return self.method
        vectors, (n, p) = _vectors(n_classes), shape
        slow = n >= QUADRATIC_ROWS and n * (p + 300) * vectors > GIBBS_LIMIT
        return "minibatch" if slow and p * vectors <= QUADRATIC_LIMIT else "gibbs"

    def _fit_quadratic(
        self, X: Any, labels: Ints, classes: NDArray[Any], stream: Stream | None, num_data: int | None = None
    ) -> Stream:
        """Sample the posterior under the quadratic expansion of these rows and those of `stream`; return both."""
        vectors, p = _vectors(classes.size), X.shape[1]
        if p * vectors > QUADRATIC_LIMIT:
            allowed = f"must have at most {QUADRATIC_LIMIT // vectors} features for mini-batches"
            allowed += f" of {pluralize(vectors, 'coefficient vector')}"
            raise ArgumentValueError("X", allowed, Phrase(f"got {p}"))
        prior = self._prior(p * vectors)
        rng, *rngs = spawn(self.random_state, self.n_chains + 1)
        scaling, theta, past = stream or (column_scaling(X), np.zeros((vectors, p + 1)), None)

        def total(at: Floats) -> Expansion:
            batch = expand(X, labels, at, scaling)
            return batch if past is None else past + batch

        expansion = settle(total, theta, prior, rng, rounds=SETTLE_ROUNDS if past is None else 2)
        burn_in, kept = self._steps(500, 1000)
        scaled = expansion if num_data is None else expansion.rescale(num_data)
        draws = QuadraticPosterior(scaled, prior).draw(self._sample, rngs, burn_in, burn_in + kept)
        self._finish(draws, scaling, classes, "minibatch")
        return scaling, mean_of(draws), expansion

    @guard_fit
    def partial_fit(self, X: Any, y: Any, classes: Any = None, num_data: int | None = None) -> Self:
        """Take in more rows.

        The likelihood of each batch is replaced by its quadratic expansion at the posterior mean that includes the
        batch; the expansions add up, and the posterior given all rows seen so far is sampled anew. It starts afresh
        after `fit`.

        Args:
            X: New rows, shape (n_samples, n_features).
            y: Their classes.
            classes: All classes; needed at the first call unless `fit` was called before.
            num_data: Number of rows of the whole data set. The rows seen so far then stand for all of it;
                None takes them as they are.
        """
        self._check_params()
        if num_data is not None:
            check_count("num_data", num_data)
        stream = getattr(self, "_stream", None)
        X, y = check_table(self, X, y, reset=stream is None, accept_sparse="csr", dtype=(np.float64, np.float32))
        known = self._check_classes(y, classes)
        self._stream = self._fit_quadratic(X, np.searchsorted(known, y), known, stream, num_data)
        return self

    def _check_classes(self, y: NDArray[Any], classes: Any) -> NDArray[Any]:
        """Return all classes of a stream after checking that they are given, unchanged and complete."""
        check_classification_targets(y)
        started = getattr(self, "_stream", None) is not None
        if classes is None:
            classes = getattr(self, "classes_", None)
        if classes is None:
            raise ArgumentValueError("classes", "must be given at the first call of partial_fit")
        known = np.asarray(self.classes_ if started else np.unique(classes))
        if not np.array_equal(np.unique(classes), known):
            raise ArgumentValueError("classes", f"must be the same at every call, {known.tolist()}", list(classes))
        unknown = np.setdiff1d(y, known)
        if unknown.size:
            raise ArgumentValueError("y", f"must hold only the given classes {known.tolist()}", unknown.tolist())
        return known

    def _finish(self, chains: Sequence[ChainDraws], scaling: Scaling, classes: NDArray[Any], method: str) -> Self:
        centred = np.concatenate([chain.intercept for chain in chains])
        posterior = pool(chains, scaling, centred)
        intercept = centred.mean(axis=0) - posterior.mean[:, scaling.kept] @ scaling.x_mean
        self._store(posterior, method, chains[0].steps, intercept)
        self._stream, self.classes_ = None, classes
        return self

    def _class_labels(self) -> list[Any]:
        return [None] if self.coef_.shape[0] == 1 else list(self.classes_)

    def predict_proba(self, X: Any) -> Floats:
        """Predict class probabilities, averaged over the posterior draws: shape (n_samples, n_classes)."""
        X = self._check_rows(X)
        out = np.empty((X.shape[0], self.classes_.size))
        for rows, draws in self._posterior.linear_predictor(X):
            if draws.shape[2] == 1:
                positive = expit(draws[:, :, 0]).mean(axis=1)
                out[rows] = np.column_stack([1.0 - positive, positive])
            else:
                out[rows] = softmax(draws, axis=2).mean(axis=1)
        return out

    def predict_log_proba(self, X: Any) -> Floats:
        """Predict the logarithms of the class probabilities."""
        return np.log(np.maximum(self.predict_proba(X), 1e-300))

    def predict(self, X: Any) -> NDArray[Any]:
        """Predict the most probable class of each row."""
        best = self.predict_proba(X).argmax(axis=1)  # first, because it checks that there are classes
        return np.asarray(self.classes_[best])
