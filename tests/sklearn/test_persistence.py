"""Models as files: the same numbers to the bit, and one sentence for whatever is not a model."""

import hashlib
import json
import pickle
import re

import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import load_file, save_file

from spikeslab.files import write_record
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
    with pytest.raises(ModelError, match=f"^{re.escape(message)}"):
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
    del record["checksum"], record["sealed"]
    record["params"]["warmup"] = record["params"].pop("burn_in")
    early = {"version": 1, "n_iter": 60, "rhat": {"sigma": None}, "ess": {"sigma": 3.0}}
    (tmp_path / "model.json").write_text(json.dumps(record | early))
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


def test_a_model_whose_writer_was_killed_between_two_renames_is_whole(X, saved, tmp_path):
    newer = SpikeSlabRegressor(n_iter=20, random_state=1).fit(X, X["b"] - X["d"])
    save_model(newer, tmp_path / "newer", {"target": "newer"})
    (saved / "model.json").write_bytes((tmp_path / "newer" / "model.json").read_bytes())
    (saved / "model.safetensors.123.tmp").write_bytes((tmp_path / "newer" / "model.safetensors").read_bytes())
    write_record(saved / ".pending-123.json", {"names": ["model.json", "model.safetensors"]})
    same(load_model(saved).predict(X), newer.predict(X))
    assert read_metadata(saved) == {"target": "newer"}
    assert not [*saved.glob(".pending*"), *saved.glob("*.tmp")]


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
        (b"{", "is damaged: it is not JSON"),
        (b"\xff\xfe", "is damaged: it is not JSON"),
        (b"[" * 100_000, "is damaged: it is nested too deeply."),
        (pickle.dumps({"format": "spikeslab-model"}), "is damaged: it is not JSON"),
        (b"[]", "is damaged: it holds no JSON object."),
        (b'{"format": "other"}', "is not a file of the format 'spikeslab-model'."),
        (b'{"format": "spikeslab-model", "version": 3}', "has version 3, but this spikeslab reads 1 and 2."),
        (b'{"format": "spikeslab-model", "version": NaN}', "has version nan, but this spikeslab reads 1 and 2."),
        (b'{"format": "spikeslab-model", "version": 2}', "has changed since it was written: its checksum does not"),
    ],
)
def test_foreign_records(saved, content, message):
    (saved / "model.json").write_bytes(content)
    refused(saved, f"{saved / 'model.json'} {message}")


def test_deeply_nested_records_are_one_sentence(saved):
    text = (saved / "model.json").read_text().replace('"y"', "[" * 20_000 + "]" * 20_000)
    (saved / "model.json").write_text(text)
    refused(saved, f"{saved / 'model.json'} is damaged: it is nested too deeply.")
    with pytest.raises(ModelError, match="nested too deeply"):
        read_metadata(saved)


def test_no_changed_byte_of_a_record_passes_unseen(X, saved, rng):
    path = saved / "model.json"
    content = path.read_bytes()
    loaded = pickle.dumps((load_model(saved), read_metadata(saved)))
    seen = 0
    for at in rng.integers(0, len(content), 400):
        changed = bytearray(content)
        changed[at] ^= 1 << int(rng.integers(0, 8))
        path.write_bytes(changed)
        try:
            assert pickle.dumps((load_model(saved), read_metadata(saved))) == loaded, "white space alone may change"
        except ModelError:
            seen += 1
    assert seen > 300


def test_damaged_arrays(saved):
    path = saved / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    refused(saved, f"{path} is damaged, or does not belong to the model.json beside it.")


def rewrite(folder, arrays, **changes):
    """Write a model of version 1, which has no checksum of its record, with the right checksum of its arrays."""
    record = json.loads((folder / "model.json").read_text())
    save_file(arrays, folder / "model.safetensors")
    changes |= {"version": 1, "sha256": hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()}
    record = {name: value for name, value in record.items() if name not in ("checksum", "sealed")}
    (folder / "model.json").write_text(json.dumps(record | changes))


def damaged(folder):
    return f"{folder} does not hold a model of spikeslab: model.json or model.safetensors is damaged."


def test_a_model_without_arrays_of_its_own(saved):
    """The checksum is right, but the arrays are not those of a model."""
    arrays = load_file(saved / "model.safetensors")
    for name in arrays:
        rewrite(saved, {other: array for other, array in arrays.items() if other != name})
        if name.startswith("scalar.") and name != "scalar.sigma":
            continue  # a monitored scalar fewer is no damage that can be seen
        refused(saved, damaged(saved))
    for name, array in arrays.items():
        for other in (array.astype(np.float32), np.where(array == array.flat[0], np.nan, array), array[..., None]):
            rewrite(saved, arrays | {name: np.ascontiguousarray(other)})
            refused(saved, damaged(saved))
    for name, change in (("coef.indices", 5), ("pip", 1), ("std", -9)):
        rewrite(saved, arrays | {name: arrays[name] + change})
        refused(saved, damaged(saved))
    rewrite(saved, arrays)
    load_model(saved)


@pytest.mark.parametrize(
    "changes",
    [
        {"n_features": 6},
        {"n_features": 10**400},
        {"feature_names": ["a"]},
        {"feature_names": [1, 2, 3, 4, 5]},
        {"estimator": "Other"},
        {"estimator": "SpikeSlabClassifier"},
        {"method": "other"},
        {"kept": None},
        {"params": {"method": "gibbs"}},
        {"params": {"other": 1}},
        {"params": {"slab_df": 10**400}},
        {"params": {"n_chains": "4"}},
    ],
    ids=str,
)
def test_records_that_are_refused(saved, changes):
    if set(changes.get("params", ())) - {"method"}:
        changes = {"params": json.loads((saved / "model.json").read_text())["params"] | changes["params"]}
    rewrite(saved, load_file(saved / "model.safetensors"), **changes)
    refused(saved, damaged(saved))


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(
    ("dtype", "values"),
    [
        ("<M8[s]", [0, 1]),
        ("<c16", [0, 1]),
        ("<V4", ["no", "yes"]),
        ("<i8", [0.5, 1.5]),
        ("<i1", [0, 300]),
        ("<i8", [0, 10**400]),
        ("<U3", ["no", "no"]),
        ("<U3", ["no"]),
        ("<U3", [["no"], ["yes"]]),
        ("|O", [{}, {}]),
        ("<U500000000", ["no", "yes"]),
    ],
)
def test_classes_that_are_refused(X, tmp_path, dtype, values):
    save_model(SpikeSlabClassifier(**QUICK).fit(X, X["a"] > 0), tmp_path)
    arrays = load_file(tmp_path / "model.safetensors")
    rewrite(tmp_path, arrays, classes={"dtype": dtype, "values": values})
    refused(tmp_path, damaged(tmp_path))
    rewrite(tmp_path, arrays, classes={"dtype": "<U500", "values": ["no", "yes"]})
    assert load_model(tmp_path).classes_.dtype == "<U3"


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_nothing_is_written_if_classes_cannot_be_saved(X, tmp_path):
    model = SpikeSlabClassifier(**QUICK).fit(X, X["a"] > 0)
    model.classes_ = np.array([(1, 2), (3, 4)], dtype="i,i")
    with pytest.raises(TypeError, match="classes_ must be texts, numbers or booleans to be saved"):
        save_model(model, tmp_path / "new")
    assert not (tmp_path / "new").exists()
