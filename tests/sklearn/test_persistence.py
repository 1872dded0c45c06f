"""Models as files: the same numbers to the bit, and one sentence for whatever is not a model."""

import json
import pickle
import re

import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import load_file, save_file

from spikeslab.sklearn import (
    ModelError,
    SGLDOptions,
    SpikeSlabClassifier,
    SpikeSlabRegressor,
    load_model,
    read_metadata,
    save_model,
)

QUICK = {"n_chains": 2, "n_iter": 40, "burn_in": 20, "random_state": 3}
LABELS = {
    "text": np.array(["no", "yes"], dtype=object),
    "fixed-width text": np.array(["no", "yes"]),
    "integers": np.array([-1, 7]),
    "booleans": np.array([False, True]),
    "three": np.array(["a", "b", "c"], dtype=object),
}


@pytest.fixture(name="X")
def table(rng):
    return pd.DataFrame(rng.standard_normal((40, 5)), columns=["a", "b", "α β", "d", "e"])


def same(left, right):
    left, right = np.asarray(left), np.asarray(right)
    assert left.dtype == right.dtype
    assert left.shape == right.shape
    assert left.tobytes() == right.tobytes() if left.dtype.kind != "O" else left.tolist() == right.tolist()


def refused(folder, message):
    with pytest.raises(ModelError, match=f"^{re.escape(message)}$"):
        load_model(folder)


@pytest.fixture
def saved(X, tmp_path):
    model = SpikeSlabRegressor(**QUICK).fit(X, 2.0 * X["a"] - 1.0)
    save_model(model, tmp_path, {"target": "y"})
    return tmp_path


def test_a_regressor_predicts_the_same_numbers(X, rng, tmp_path):
    model = SpikeSlabRegressor(sgld=SGLDOptions(v0=0.2), inclusion_prior=(2.0, 3.0), **QUICK).fit(
        X, 2.0 * X["a"] + rng.standard_normal(40)
    )
    paths = save_model(model, tmp_path / "new" / "folder")
    assert [path.name for path in paths] == ["model.safetensors", "model.json"]
    again = load_model(tmp_path / "new" / "folder")
    assert isinstance(again, SpikeSlabRegressor)
    assert again.get_params() == model.get_params()
    for one, other in zip(model.predict(X, return_std=True), again.predict(X, return_std=True), strict=True):
        same(one, other)
    same(model.predict_interval(X, 0.8), again.predict_interval(X, 0.8))
    same(model.coef_interval(0.8), again.coef_interval(0.8))
    pd.testing.assert_frame_equal(model.summary(), again.summary(), check_exact=True)
    assert (again.rhat_, again.ess_) == (model.rhat_, model.ess_)
    for name in ("coef_", "coef_std_", "pip_", "intercept_", "sigma_", "n_iter_", "method_", "feature_names_in_"):
        same(getattr(model, name), getattr(again, name))


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("labels", LABELS.values(), ids=LABELS)
def test_a_classifier_predicts_the_same_numbers(X, tmp_path, labels):
    y = labels[np.digitize(X["a"], np.linspace(-0.4, 0.4, labels.size - 1))]
    model = SpikeSlabClassifier(**QUICK).fit(X.to_numpy(), y)
    save_model(model, tmp_path)
    again = load_model(tmp_path)
    assert isinstance(again, SpikeSlabClassifier)
    assert not hasattr(again, "feature_names_in_")
    same(model.predict_proba(X.to_numpy()), again.predict_proba(X.to_numpy()))
    for name in ("classes_", "coef_", "intercept_"):
        same(getattr(model, name), getattr(again, name))
    same(model.predict(X.to_numpy()), again.predict(X.to_numpy()))


def test_a_loaded_model_can_be_saved_cloned_and_fitted_again(X, saved, tmp_path):
    again = load_model(saved)
    save_model(again, tmp_path / "copy", {"target": "y"})
    for name in ("model.json", "model.safetensors"):
        assert (tmp_path / "copy" / name).read_bytes() == (saved / name).read_bytes()
    again.partial_fit(X, X["b"])
    assert again.get_support(indices=True).tolist() == [1]


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("method", ["gibbs", "sgld"])
def test_early_records_call_it_warmup_and_count_it_among_the_steps(X, tmp_path, method):
    model = SpikeSlabRegressor(method, sgld=SGLDOptions(thin=5), **QUICK).fit(X, X["a"])
    save_model(model, tmp_path)
    record = json.loads((tmp_path / "model.json").read_text())
    assert record.pop("kept") == 40
    record["params"]["warmup"] = record["params"].pop("burn_in")
    (tmp_path / "model.json").write_text(json.dumps(record | {"n_iter": 60}))
    again = load_model(tmp_path)
    assert (again.n_iter_, again.burn_in) == (40, 20)


def test_metadata(saved):
    assert read_metadata(saved) == {"target": "y"}


def test_random_states_that_are_no_integer_are_not_saved(X, tmp_path):
    options = QUICK | {"random_state": np.random.default_rng(0)}
    save_model(SpikeSlabRegressor(**options).fit(X, X["a"]), tmp_path)
    assert load_model(tmp_path).random_state is None


def test_other_files_stay(X, saved):
    (saved / "mine.txt").write_text("mine")
    save_model(load_model(saved), saved)
    assert sorted(path.name for path in saved.iterdir()) == ["mine.txt", "model.json", "model.safetensors"]
    assert (saved / "mine.txt").read_text() == "mine"


def test_missing_files(tmp_path, saved):
    refused(
        tmp_path / "no",
        f"folder must be a folder with model.json and model.safetensors, but {tmp_path / 'no'} has no model.json.",
    )
    (saved / "model.safetensors").unlink()
    refused(saved, f"{saved / 'model.safetensors'} cannot be read: No such file or directory.")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "is damaged: it is not JSON."),
        (b"\xff\xfe", "is damaged: it is not JSON."),
        (b"[" * 100_000, "is damaged: it is not JSON."),
        (pickle.dumps({"format": "spikeslab-model"}), "is damaged: it is not JSON."),
        (b"[]", "is not a model of spikeslab."),
        (b'{"format": "other"}', "is not a model of spikeslab."),
        (
            b'{"format": "spikeslab-model", "version": 2}',
            "has version 2 of the format, but this spikeslab reads version 1.",
        ),
    ],
)
def test_foreign_records(saved, content, message):
    (saved / "model.json").write_bytes(content)
    refused(saved, f"{saved / 'model.json'} {message}")


def test_damaged_arrays(saved):
    path = saved / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    refused(saved, f"{path} is damaged, or does not belong to the model.json beside it.")


def test_a_model_without_arrays_of_its_own(saved):
    """The checksum is right, but the arrays are not those of a model."""
    import hashlib

    path = saved / "model.safetensors"
    arrays = load_file(path)
    record = json.loads((saved / "model.json").read_text())

    def rewrite(arrays, **changes):
        save_file(arrays, path)
        changes["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
        (saved / "model.json").write_text(json.dumps(record | changes))

    message = f"{saved} does not hold a model of spikeslab: model.json or model.safetensors is damaged."
    for name in arrays:
        rewrite({other: array for other, array in arrays.items() if other != name})
        if name.startswith("scalar.") and name != "scalar.sigma":
            continue  # a monitored scalar fewer is no damage that can be seen
        refused(saved, message)
    for changes in (
        {"n_features": 6},
        {"feature_names": ["a"]},
        {"estimator": "Other"},
        {"estimator": "SpikeSlabClassifier"},
        {"params": {"method": "gibbs"}},
        {"params": record["params"] | {"other": 1}},
    ):
        rewrite(arrays, **changes)
        refused(saved, message)
    rewrite(arrays | {"coef.indices": arrays["coef.indices"] + 5})
    refused(saved, message)
    rewrite(arrays)
    load_model(saved)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_nothing_is_written_if_classes_cannot_be_saved(X, tmp_path):
    model = SpikeSlabClassifier(**QUICK).fit(X, X["a"] > 0)
    model.classes_ = np.array([(1, 2), (3, 4)], dtype="i,i")
    with pytest.raises(TypeError, match="classes_ must be texts, numbers or booleans to be saved"):
        save_model(model, tmp_path / "new")
    assert not (tmp_path / "new").exists()
