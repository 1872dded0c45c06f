"""Fitted estimators as files: safetensors for the arrays, JSON for the rest, no pickle.

A loaded estimator predicts the same numbers to the bit. The sums that `partial_fit` adds to are not saved: it starts
afresh, as after `fit`.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save
from scipy import sparse
from sklearn.utils.validation import check_is_fitted

from spikeslab.errors import ArgumentTypeError, SpikeSlabError, first_line, mark
from spikeslab.files import check_tensors, encode_record, finish_writing, read_record, read_regular, write_together
from spikeslab.sklearn._posterior import LinearPosterior
from spikeslab.sklearn._sgld import SGLDOptions
from spikeslab.sklearn.classifier import SpikeSlabClassifier
from spikeslab.sklearn.regressor import SpikeSlabRegressor

if TYPE_CHECKING:
    from numpy.typing import NDArray

Estimator: TypeAlias = SpikeSlabRegressor | SpikeSlabClassifier

ARRAYS, RECORD = "model.safetensors", "model.json"
FORMAT, VERSION = "spikeslab-model", 2  # with a checksum since version 2
ESTIMATORS: dict[str, type[Estimator]] = {cls.__name__: cls for cls in (SpikeSlabRegressor, SpikeSlabClassifier)}
SCALAR = "scalar."  # in front of the names of monitored scalars


class ModelError(SpikeSlabError, ValueError):
    """The files of a model are missing, damaged, or of another kind."""


def save_model(
    estimator: Estimator,
    folder: str | os.PathLike[str],
    metadata: Mapping[str, Any] | None = None,
    files: Mapping[str, bytes] | None = None,
) -> list[Path]:
    """Write a fitted estimator to ``model.safetensors`` and ``model.json``, both or none.

    Args:
        estimator: A fitted `SpikeSlabRegressor` or `SpikeSlabClassifier`.
        folder: Folder for the two files, which are replaced if they exist; it is made if there is none.
        metadata: Anything in JSON's types to keep with the model; `read_metadata` gives it back.
        files: Contents of further files by name, to be written with the two.

    Returns:
        The two paths.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> from spikeslab.sklearn import SpikeSlabRegressor, load_model, save_model
        >>> X = np.random.default_rng(0).standard_normal((50, 20))
        >>> model = SpikeSlabRegressor(n_iter=50, random_state=0).fit(X, 3.0 * X[:, 7])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     files = save_model(model, folder)
        ...     again = load_model(folder)
        >>> bool((again.predict(X) == model.predict(X)).all())
        True
    """
    check_is_fitted(estimator)
    content = save(_collect_arrays(estimator))
    record = {
        "format": FORMAT,
        "version": VERSION,
        "spikeslab": version("spikeslab"),
        "estimator": type(estimator).__name__,
        "params": _collect_params(estimator),
        "method": estimator.method_,
        "kept": estimator.n_iter_,
        "n_features": estimator.n_features_in_,
        "feature_names": list(map(str, estimator._names())) if hasattr(estimator, "feature_names_in_") else None,
        "classes": _encode_classes(estimator),
        "sha256": hashlib.sha256(content).hexdigest(),
        "metadata": dict(metadata or {}),
    }
    folder = Path(folder)
    # The record comes first: it says that the other files may be replaced, and its checksum that they belong to it.
    write_together(folder, {RECORD: encode_record(record), ARRAYS: content, **(files or {})})
    return [folder / ARRAYS, folder / RECORD]


def load_model(folder: str | os.PathLike[str]) -> Estimator:
    """Read an estimator that `save_model` wrote.

    Args:
        folder: Folder of the two files.

    Returns:
        A fitted estimator that predicts the same numbers as the one that was saved.

    Raises:
        ModelError: If the files are missing, damaged, or not of this format.
    """
    folder = Path(folder)
    record = _read_record(folder)
    try:
        content = read_regular(folder / ARRAYS)
    except OSError as error:
        raise ModelError(f"{folder / ARRAYS} cannot be read: {error.strerror or first_line(error)}.") from error
    if hashlib.sha256(content).hexdigest() != record.get("sha256"):
        raise ModelError(f"{folder / ARRAYS} is damaged, or does not belong to the {RECORD} beside it.")
    try:
        check_tensors(content)
        return _rebuild_estimator(record, (folder / RECORD).stat().st_size, load(content))
    except (SafetensorError, KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
        raise ModelError(f"{folder} does not hold a model of spikeslab: {RECORD} or {ARRAYS} is damaged.") from error


def read_metadata(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the metadata that was given to `save_model`.

    Raises:
        ModelError: If the folder has no model of spikeslab.
    """
    metadata = _read_record(Path(folder)).get("metadata")
    return metadata if isinstance(metadata, dict) else {}


def _read_record(folder: Path) -> dict[str, Any]:
    path = folder / RECORD
    finish_writing(folder)
    if not path.exists():
        raise ModelError(f"{mark('folder')} must be a folder with {RECORD} and {ARRAYS}, but {folder} has no {RECORD}.")
    return read_record(path, ModelError, (1, VERSION), kind=FORMAT, sealed_since=VERSION)


def _collect_arrays(estimator: Estimator) -> dict[str, NDArray[Any]]:
    posterior = estimator._posterior
    arrays = {
        "coef.data": posterior.coef.data,
        "coef.indices": posterior.coef.indices,
        "coef.indptr": posterior.coef.indptr,
        "intercept": posterior.intercept,
        "pip": posterior.pip,
        "mean": posterior.mean,
        "std": posterior.std,
        "intercept_": np.asarray(estimator.intercept_, dtype=np.float64),
        **{f"{SCALAR}{name}": draws for name, draws in posterior.scalars.items()},
    }
    # A view would be saved with the memory of what it is a view of.
    return {name: np.array(array, order="C") for name, array in arrays.items()}


def _collect_params(estimator: Estimator) -> dict[str, Any]:
    params = estimator.get_params(deep=False)
    if params["sgld"] is not None:
        params["sgld"] = asdict(params["sgld"])
    if not isinstance(params["random_state"], int | np.integer):
        params["random_state"] = None  # the state of a generator says nothing about the fit
    for name in ("always", "prior_weights"):
        value = params.get(name)
        if isinstance(value, Mapping):  # JSON has texts as keys only
            params[name] = list(map(float, np.exp(estimator._log_odds())))
        elif value is not None:
            params[name] = np.asarray(value, dtype=object).tolist()
    return {name: value.item() if isinstance(value, np.generic) else value for name, value in params.items()}


def _encode_classes(estimator: Estimator) -> dict[str, Any] | None:
    if isinstance(estimator, SpikeSlabRegressor):
        return None
    values = estimator.classes_.tolist()
    if not all(isinstance(value, str | int | float) for value in values):
        raise ArgumentTypeError("classes_", "must be texts, numbers or booleans to be saved", values)
    kind = np.array(values).dtype if estimator.classes_.dtype.kind == "U" else estimator.classes_.dtype
    return {"dtype": kind.str, "values": values}


def _decode_classes(encoded: Mapping[str, Any], size: int) -> NDArray[Any]:
    """Return the classes; texts get the width that they need, and one beyond the file's size is refused."""
    kind, values = np.dtype(encoded["dtype"]), encoded["values"]
    _require(kind.kind in "OUbiuf" and kind.itemsize <= 4 * size)
    classes = np.array(values, dtype=np.str_ if kind.kind == "U" else kind)
    _require(classes.ndim == 1 and classes.tolist() == values and np.unique(classes).size == classes.size >= 2)
    return classes


def _rebuild_estimator(record: Mapping[str, Any], size: int, arrays: Mapping[str, NDArray[Any]]) -> Estimator:
    params = dict(record["params"])
    if "warmup" in params:  # the name of burn_in in files of an early version
        params["burn_in"] = params.pop("warmup")
    if params["inclusion_prior"] is not None:
        params["inclusion_prior"] = tuple(params["inclusion_prior"])
    if params["sgld"] is not None:
        options: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in params["sgld"].items()}
        params["sgld"] = SGLDOptions(**options)
    estimator = ESTIMATORS[record["estimator"]](**params)
    estimator._check_params()
    posterior = _rebuild_posterior(arrays, record["n_features"])
    vectors, intercept = posterior.mean.shape[0], arrays["intercept_"]
    estimator.n_features_in_ = int(record["n_features"])
    if record["feature_names"] is not None:
        estimator.feature_names_in_ = np.array(record["feature_names"], dtype=object)
        _require(all(isinstance(name, str) for name in record["feature_names"]))
        _require(estimator.feature_names_in_.shape == (estimator.n_features_in_,))
    if isinstance(estimator, SpikeSlabRegressor):
        _require(vectors == 1 and "sigma" in posterior.scalars and intercept.shape == ())
    else:
        estimator._stream, estimator.classes_ = None, _decode_classes(record["classes"], size)
        _require(vectors == (1 if estimator.classes_.size == 2 else estimator.classes_.size))
        _require(intercept.shape == (vectors,))
    _require(record["method"] in estimator._methods)
    kept = record["kept"] if "kept" in record else _count_kept(record, posterior, params["burn_in"])
    estimator._store(posterior, record["method"], int(kept), intercept)
    return estimator


def _count_kept(record: Mapping[str, Any], posterior: LinearPosterior, burn_in: int | None) -> int:
    """Return the steps kept per chain from the record of an early version, which has the number with the burn-in."""
    if record["method"].startswith("sgld"):
        return int(record["n_iter"]) - (12_000 if burn_in is None else burn_in)
    return int(next(iter(posterior.scalars.values())).shape[1])


def _rebuild_posterior(arrays: Mapping[str, NDArray[Any]], n_features: int) -> LinearPosterior:
    for name, array in arrays.items():
        integers = name in ("coef.indices", "coef.indptr")
        _require(array.dtype.kind == "i" if integers else array.dtype == np.float64 and np.isfinite(array).all())
    intercept, mean, pip = arrays["intercept"], arrays["mean"], arrays["pip"]
    draws, classes = intercept.shape
    _require(draws > 0 and pip.shape == (n_features,) and bool(((pip >= 0.0) & (pip <= 1.0)).all()))
    _require(mean.shape == arrays["std"].shape == (classes, n_features) and bool((arrays["std"] >= 0.0).all()))
    parts = arrays["coef.data"], arrays["coef.indices"], arrays["coef.indptr"]
    coef = sparse.csr_array(parts, shape=(draws, classes * n_features))
    coef.check_format(full_check=True)
    scalars = {name.removeprefix(SCALAR): array for name, array in arrays.items() if name.startswith(SCALAR)}
    _require(bool(scalars) and all(array.ndim == 2 and array.size == draws for array in scalars.values()))
    return LinearPosterior(coef, intercept, scalars, pip, mean, arrays["std"])


def _require(holds: bool) -> None:
    if not holds:
        raise ValueError("The arrays do not fit together.")
