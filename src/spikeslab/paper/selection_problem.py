"""Simulated regression with more variables than rows: its methods, and their fits to one data set."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib.util import find_spec
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning

from spikeslab.paper._selection_peers import Coefficients
from spikeslab.paper.grid import Cell, Record, round_digits
from spikeslab.paper.linear.data import SIGNAL_MEANS
from spikeslab.report.tables import Column
from spikeslab.sklearn import SGLDOptions, SpikeSlabClassifier, SpikeSlabRegressor
from spikeslab.sklearn._moments import standardise
from spikeslab.sklearn._sgld import SGLDChain
from spikeslab.sklearn._sgld_kernel import sgld_steps

Array: TypeAlias = NDArray[np.floating]
Estimator: TypeAlias = SpikeSlabRegressor | SpikeSlabClassifier
Pair: TypeAlias = tuple[float, float]

SGLD_METHODS = ("SGLD-SA", "SGLD-EM", "SGLD")
DEFAULT, ORACLE, LATENTS = "default", "oracle", "latents"
DRAWS = 400  # kept of a chain: more say nothing new, and predictions take as long as the chain
POINTS = 300  # of a curve
SIGNALS = len(SIGNAL_MEANS)  # real variables, which come first
RECOVERY = {"precision": "precision", "recall": "recall", "exact": "exact recovery"}
RECOVERY_COLUMNS = tuple(Column(key, title, ".2f") for key, title in RECOVERY.items())
RECOVERY_DIFFERENCES = tuple(Column(key, title, "+.3f") for key, title in RECOVERY.items())
_compiled: set[tuple[type, str]] = set()


class SelectionPreset(NamedTuple):
    """Values that the paper varies: the scale of the spike and the initial sigma."""

    v0: float
    sigma: float

    def __str__(self) -> str:
        return f"v0 = {self.v0:g}, σ = {self.sigma:g}"

    @property
    def latents_key(self) -> str:
        """Name of the chain that shows how the latent variables converge."""
        return f"{LATENTS} {self.v0:g} {self.sigma:g}"


@dataclass(frozen=True)
class SelectionMethod:
    """Method of variable selection, a row of the tables; ``key`` is its name in the file of cells.

    The paper's methods have a preset and the paper's MAE and MSE. A peer is a function from a table to coefficients; it
    may need a package. An oracle without such a function knows the truth.
    """

    key: str
    label: str
    preset: SelectionPreset | None = None
    paper: Pair | None = None
    peer: Callable[[Array, Array], Coefficients] | None = None
    package: str | None = None

    @property
    def missing(self) -> bool:
        """True if the package it needs is not installed."""
        return self.package is not None and find_spec(self.package) is None


def paper_methods(presets: Sequence[Pair], paper: Mapping[str, Sequence[Pair]]) -> tuple[SelectionMethod, ...]:
    """Return SGLD-SA, SGLD-EM and SGLD at each of the paper's pairs of v0 and sigma, with its MAE and MSE."""
    return tuple(
        SelectionMethod(f"{label} {v0:g} {sigma:g}", label, SelectionPreset(v0, sigma), numbers)
        for label in SGLD_METHODS
        for (v0, sigma), numbers in zip(presets, paper[label], strict=True)
    )


class FigureTruth(NamedTuple):
    """True coefficients, signals first, and the values of training and test rows that fits should be near.

    The values share ``label`` and the ``limits`` of their axes. Not every model has a ``sigma``.
    """

    beta: Array
    train: Array
    test: Array
    label: str
    limits: Pair
    sigma: float | None = None


@dataclass(frozen=True)
class SelectionProblem:
    """Data, methods to compare on them, and their scores. All functions are picklable.

    Attributes:
        name: Name of the command.
        tables: Names of the files of the tables, the paper's first.
        figures: Names of the files of the figures.
        title: Title of the tables.
        methods: The rows; one of them has the key ``"default"``.
        scores: Columns of the table of all methods, ``note`` below it; their keys are those of the cells.
        differences: Columns of the table of paired differences.
        spec: Format of errors.
        pictured: Preset of the figure of posteriors, of the ``predict`` of an estimator, and of the ``truth`` of data.
        estimator: Class of the default and of the paper's methods.
        simulate: Function from the seed to a data set.
        score: Function that scores a fitted model, ``None`` for an oracle without one, on a data set.
    """

    name: str
    tables: tuple[str, str, str]
    figures: tuple[str, str]
    title: str
    methods: tuple[SelectionMethod, ...]
    scores: tuple[Column, ...]
    differences: tuple[Column, ...]
    spec: str
    pictured: SelectionPreset
    estimator: type[Estimator]
    simulate: Callable[[int], Any]
    score: Callable[[Any, Any], Record]
    predict: Callable[[Any, Array], Any]
    truth: Callable[[Any], FigureTruth]
    note: str

    @property
    def presets(self) -> list[SelectionPreset]:
        """The paper's presets, in its order."""
        return list(dict.fromkeys(method.preset for method in self.methods if method.preset is not None))

    def method(self, key: str) -> SelectionMethod:
        """Return the method with that key."""
        return next(method for method in self.methods if method.key == key)

    def data(self, seed: int) -> Any:
        """Return the data set of a seed."""
        return _simulate(self.simulate, seed)


@lru_cache(maxsize=2)
def _simulate(simulate: Callable[[int], Any], seed: int) -> Any:
    return simulate(seed)


def fit_cell(problem: SelectionProblem, cell: Cell, *, steps: int) -> Record:
    """Fit one method to one data set and score it."""
    data, peer = problem.data(cell.seed), problem.method(cell.method).peer
    x, y, truth = data.x_train.numpy(), data.y_train.numpy(), data.beta.numpy() != 0.0
    model, selected, seconds = None, truth, None
    if peer is not None:
        model, seconds = _time_fit(partial(peer, x, y))
        selected = model.coef_ != 0.0
    elif cell.method != ORACLE:
        model = _make_estimator(problem, cell.method, steps, cell.seed)
        try:
            seconds = _fit_estimator(model, x, y)
        except FloatingPointError as error:
            return {"failed": str(error)}
        selected = model.pip_ > 0.5
    scores = {name: round_digits(score) for name, score in problem.score(model, data).items()}
    return {**scores, **score_selection(selected, truth), "seconds": round_digits(seconds)}


def picture_cell(problem: SelectionProblem, cell: Cell, *, steps: int) -> Record:
    """Run one chain of the figures.

    Return its latent variables if the cell is named after them; otherwise draws of the first coefficients, all
    posterior means, and predictions.
    """
    data = problem.data(cell.seed)
    x, y, x_test = (tensor.numpy() for tensor in (data.x_train, data.y_train, data.x_test))
    if cell.method.startswith(LATENTS):
        preset = next(preset for preset in problem.presets if preset.latents_key == cell.method)
        return record_latents(x, y, 2 if problem.estimator is SpikeSlabClassifier else 0, preset, steps, cell.seed)
    model = _make_estimator(problem, cell.method, steps, cell.seed)
    _time_fit(partial(model.fit, x, y))
    return {
        "draws": round_digits(model._posterior.coef[:, :SIGNALS].toarray().T),
        "coef": round_digits(np.ravel(model.coef_)),
        "fitted": round_digits(problem.predict(model, x)),
        "predicted": round_digits(problem.predict(model, x_test)),
    }


def _make_estimator(problem: SelectionProblem, key: str, steps: int, seed: int) -> Estimator:
    """Return the default estimator, or one of the paper's methods: one chain, a fifth of it burn-in."""
    kind, method = problem.estimator, problem.method(key)
    if method.preset is None:
        return kind(n_jobs=1, random_state=seed)
    burn_in, length = steps // 5, steps - steps // 5
    sgld = SGLDOptions(v0=method.preset.v0, sigma=method.preset.sigma, thin=max(100, length // DRAWS))
    chain: dict[str, Any] = {"n_chains": 1, "n_iter": length, "burn_in": burn_in, "sgld": sgld}
    return kind(method.label.lower(), **chain, n_jobs=1, random_state=seed)


def _fit_estimator(estimator: Estimator, x: Array, y: Array) -> float:
    """Fit an estimator and return the processor time in seconds, without that of compiling its kernels."""
    kind = type(estimator)
    method = "sgld" if estimator.method.startswith("sgld") else estimator.method
    if (kind, method) not in _compiled:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            kind(method, n_chains=1, n_iter=20, burn_in=10, n_jobs=1, random_state=0).fit(x, y)
        _compiled.add((kind, method))
    return _time_fit(lambda: estimator.fit(x, y))[1]


def _time_fit(fit: Callable[[], Any]) -> tuple[Any, float]:
    """Return the result of ``fit`` and its processor time in seconds, which a busy machine does not change."""
    with warnings.catch_warnings():
        # One chain of the paper's methods often fails R-hat, and the lasso its tolerance; the scores tell.
        warnings.simplefilter("ignore", ConvergenceWarning)
        begin = time.process_time()
        result = fit()
        return result, time.process_time() - begin


def score_selection(selected: NDArray[np.bool_], truth: NDArray[np.bool_]) -> Record:
    """Compute precision (1 if nothing is selected), recall, exact recovery and size of a selection."""
    right = int((selected & truth).sum())
    size = int(selected.sum())
    return {
        "precision": right / size if size else 1.0,
        "recall": right / int(truth.sum()),
        "exact": int((selected == truth).all()),
        "selected": size,
    }


def record_latents(x: Array, y: Array, n_classes: int, preset: SelectionPreset, steps: int, seed: int) -> Record:
    """Run SGLD-SA and return its steps, with sigma, delta, the rho of each signal and the largest other rho at each.

    ``n_classes`` is 0 for regression.
    """
    columns, _ = standardise(x)
    rows = np.ascontiguousarray(columns.T).astype(x.dtype)
    target = (y if n_classes else y - y.mean()).astype(x.dtype)
    settings = SGLDOptions(v0=preset.v0, sigma=preset.sigma)
    (rng,) = np.random.default_rng(seed).spawn(1)
    chain = SGLDChain(rows, target, n_classes, "sgld-sa", settings, 0, steps, rng)
    curves: list[tuple[Any, ...]] = []
    done = 0
    # The latent variables move fast at first and slowly later.
    for step in np.unique(np.geomspace(1, steps, POINTS).round().astype(int)).tolist():
        sgld_steps(chain.rows, chain.y, chain.state, chain.rule, done + 1, step - done, rng)
        done = step
        rho = chain.state.rho[0]
        latents = *chain.state.latent, rho[:SIGNALS], rho[SIGNALS:].max()
        curves.append((step, *map(round_digits, latents)))
    names = ("step", "sigma", "delta", "rho", "largest_other_rho")
    return dict(zip(names, map(list, zip(*curves, strict=True)), strict=True))
