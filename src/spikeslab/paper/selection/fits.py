"""The fits of a simulation study: estimators with the paper's settings, scores of a selection, latents on the way."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning

from spikeslab.paper.cells import Record
from spikeslab.paper.selection.study import Method, Setting
from spikeslab.sklearn import SGLDSettings, SpikeSlabClassifier, SpikeSlabRegressor
from spikeslab.sklearn._moments import standardise
from spikeslab.sklearn._sgld import SGLDChain
from spikeslab.sklearn._sgld_kernel import sgld_steps

E = TypeVar("E", SpikeSlabRegressor, SpikeSlabClassifier)
Array = NDArray[np.floating]
Predict = Callable[[Any, Array], NDArray[np.float64]]

DRAWS = 400  # about as many are kept of a chain: more say nothing new, and predictions take as long as the chain
POINTS = 300  # of a curve


def estimator(kind: type[E], method: Method, steps: int, seed: int) -> E:
    """The estimator as it comes, or one of the paper's methods with its settings: one chain, a fifth of it burn-in."""
    setting = method.setting
    if setting is None:
        return kind(n_jobs=1, random_state=seed)
    burn_in = steps // 5
    return kind(
        method.label.lower(),
        n_chains=1,
        n_iter=steps - burn_in,
        warmup=burn_in,
        sgld=SGLDSettings(v0=setting.v0, sigma=setting.sigma, thin=max(100, (steps - burn_in) // DRAWS)),
        n_jobs=1,
        random_state=seed,
    )


def timed(fit: Callable[[], Any]) -> tuple[Any, float]:
    """What ``fit`` returns and the processor time it took, in seconds, which a busy machine does not change."""
    with warnings.catch_warnings():
        # One chain of the paper's methods often fails R-hat, and the lasso its tolerance; the scores tell.
        warnings.simplefilter("ignore", ConvergenceWarning)
        begin = time.process_time()
        result = fit()
        return result, time.process_time() - begin


def compiled(estimator: E, x: Array, y: Array) -> E:
    """The estimator, its kernels compiled, so that their compilation is not in the time of its fit."""
    kind = type(estimator)
    method = "sgld" if estimator.method.startswith("sgld") else estimator.method
    if (kind, method) not in _compiled:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            kind(method, n_chains=1, n_iter=20, warmup=10, n_jobs=1, random_state=0).fit(x, y)
        _compiled.add((kind, method))
    return estimator


_compiled: set[tuple[type, str]] = set()


def selection_scores(selected: NDArray[np.bool_], truth: NDArray[np.bool_]) -> Record:
    """Precision (1 if nothing is selected: no discovery is false), recall, exact recovery and size of a selection."""
    right = int((selected & truth).sum())
    size = int(selected.sum())
    return {
        "precision": right / size if size else 1.0,
        "recall": right / int(truth.sum()),
        "exact": int((selected == truth).all()),
        "selected": size,
    }


def picture(
    model: SpikeSlabRegressor | SpikeSlabClassifier, x: Array, y: Array, x_test: Array, signals: int, predict: Predict
) -> Record:
    """What the figures show of a fit: draws of the first coefficients, all means, and predictions.

    Args:
        model: The estimator to fit.
        x: Training inputs.
        y: Training targets, or labels.
        x_test: Inputs to predict.
        signals: The first so many variables are real.
        predict: From a fitted model and inputs to one number for each row.
    """
    fitted, _ = timed(lambda: model.fit(x, y))
    return {
        "draws": brief(fitted._posterior.coef[:, :signals].toarray().T),
        "coef": brief(np.ravel(fitted.coef_)),
        "fitted": brief(predict(fitted, x)),
        "predicted": brief(predict(fitted, x_test)),
    }


def latents_along(x: Array, y: Array, n_classes: int, setting: Setting, steps: int, seed: int, signals: int) -> Record:
    """Sigma, delta and rho of SGLD-SA from the first step on.

    Args:
        x: Training inputs.
        y: Training targets, or labels 0 and 1.
        n_classes: 0 for regression, 2 for classification.
        setting: The paper's setting.
        steps: Steps of the chain.
        seed: Seed of the chain.
        signals: The first so many variables are real; the largest rho of all others is kept as one curve.

    Returns:
        The steps, and a list for each of the latent variables.
    """
    columns, _ = standardise(x)
    rows = np.ascontiguousarray(columns.T).astype(x.dtype)
    target = (y if n_classes else y - y.mean()).astype(x.dtype)
    settings = SGLDSettings(v0=setting.v0, sigma=setting.sigma)
    (rng,) = np.random.default_rng(seed).spawn(1)
    chain = SGLDChain(rows, target, n_classes, "sgld-sa", settings, 0, steps, rng)
    record: Record = {"step": [], "sigma": [], "delta": [], "rho": [], "largest_other_rho": []}
    done = 0
    # The latent variables move fast at first and slowly later.
    for step in np.unique(np.geomspace(1, steps, POINTS).round().astype(int)).tolist():
        sgld_steps(chain.rows, chain.y, chain.state, chain.rule, done + 1, step - done, rng)
        done = step
        sigma, delta = chain.state.latent
        rho = chain.state.rho[0]
        record["step"].append(step)
        record["sigma"].append(brief(sigma))
        record["delta"].append(brief(delta))
        record["rho"].append(brief(rho[:signals]))
        record["largest_other_rho"].append(brief(rho[signals:].max()))
    return record


def brief(numbers: Any) -> Any:
    """Numbers with five significant digits, as lists, for a file that people may read."""
    if np.ndim(numbers):
        return [brief(number) for number in numbers]
    return float(f"{float(numbers):.5g}")
