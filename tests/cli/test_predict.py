"""``spikeslab predict`` as a user sees it."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from spikeslab.cli.app import run
from spikeslab.sklearn import SpikeSlabRegressor, load_model, save_model


def table(rows, seed):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(rng.standard_normal((rows, 2)), columns=["a", "b"])
    frame["colour"] = rng.choice(["01", "x", "z"], rows)
    frame["y"] = 2.0 * frame["a"] + 3.0 * (frame["colour"] == "x") + 0.2 * rng.standard_normal(rows)
    frame["kind"] = np.where(frame["y"] + rng.standard_normal(rows) > 1.0, "high", "low")
    return frame


def fitted(folder, target, drop):
    table(60, 0).to_csv(folder / "data.csv", index=False)
    model = folder / target
    words = ["select", folder / "data.csv", "--target", target, "--drop", drop, "--one-hot", "--out", model]
    assert run([*map(str, words), "--iterations", "50", "--no-compare"]) == 0
    return model


@pytest.fixture(scope="module")
def regression(tmp_path_factory):
    return fitted(tmp_path_factory.mktemp("regression"), "y", "kind")


@pytest.fixture(scope="module")
def classification(tmp_path_factory):
    return fitted(tmp_path_factory.mktemp("classification"), "kind", "y")


@pytest.fixture
def new(tmp_path):
    path = tmp_path / "new.csv"
    table(20, 1).to_csv(path, index=False)
    return path


def predict(*arguments):
    return run(["predict", *map(str, arguments)])


def refused(capsys, message, *arguments):
    capsys.readouterr()
    assert predict(*arguments) == 2
    captured = capsys.readouterr()
    assert captured.err == f"Error: {message}\n"
    assert captured.out == ""


def test_regression(regression, new, tmp_path, capsys):
    capsys.readouterr()
    assert predict(regression, new, "--out", tmp_path / "p.csv", "--level", 0.8) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[:4] == [
        "Ignored, because the model does not use them: kind.",
        f"Predicted 20 rows: {tmp_path / 'p.csv'}",
        "Scores on the target y:",
        "  Rows: 20",
    ]
    assert printed[4].startswith("  R²: 0.9")
    predictions = pd.read_csv(tmp_path / "p.csv", dtype=str)
    assert list(predictions.columns) == ["row", "mean", "std", "lower", "upper"]
    predictions = predictions.map(float)  # exact, which the parser of pandas is not in all versions
    assert predictions["row"].tolist() == list(range(1, 21))
    model, frame = load_model(regression), pd.read_csv(new, dtype={"colour": str})  # the digits that the command read
    levels = {f"colour={level}": (frame["colour"] == level).astype(float) for level in ("01", "x", "z")}
    X = frame[["a", "b"]].assign(**levels)
    mean, std = model.predict(X, return_std=True)
    assert predictions["mean"].tolist() == mean.tolist()
    assert predictions["std"].tolist() == std.tolist()
    assert predictions[["lower", "upper"]].to_numpy().tolist() == model.predict_interval(X, 0.8).tolist()


def test_the_order_of_columns_and_the_target_do_not_matter(regression, new, tmp_path, capsys):
    assert predict(regression, new, "--out", tmp_path / "one.csv") == 0
    capsys.readouterr()
    table(20, 1)[["colour", "b", "a"]].to_csv(new, index=False)
    assert predict(regression, new, "--out", tmp_path / "two.csv") == 0
    assert capsys.readouterr().out == f"Predicted 20 rows: {tmp_path / 'two.csv'}\n"
    assert (tmp_path / "one.csv").read_bytes() == (tmp_path / "two.csv").read_bytes()


def test_texts_that_look_like_numbers_stay_texts(regression, new, tmp_path):
    frame = table(20, 1)
    frame[frame["colour"] == "01"].to_csv(new, index=False)
    assert predict(regression, new, "--out", tmp_path / "p.csv") == 0


def test_classification(classification, new, tmp_path, capsys):
    capsys.readouterr()
    assert predict(classification, new, "--out", tmp_path / "p.csv") == 0
    assert "  Accuracy: " in capsys.readouterr().out
    predictions = pd.read_csv(tmp_path / "p.csv")
    assert list(predictions.columns) == ["row", "class", "p_high", "p_low"]
    assert predictions[["p_high", "p_low"]].sum(axis=1).to_numpy() == pytest.approx(1.0)
    assert (predictions["class"] == np.where(predictions["p_high"] > predictions["p_low"], "high", "low")).all()


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (["other"] * 20, "No score: the target kind has classes that the model does not know: 'other'."),
        ([None] * 20, "No score: the target kind has no values."),
        (["high"] * 15 + [None] * 5, "Scores on the target kind, without 5 rows that lack it:"),
    ],
)
def test_targets_that_cannot_be_scored(classification, new, tmp_path, capsys, values, sentence):
    table(20, 1).assign(kind=values).to_csv(new, index=False)
    assert predict(classification, new, "--out", tmp_path / "p.csv") == 0
    assert sentence in capsys.readouterr().out.splitlines()


def test_existing_files_are_replaced_only_if_they_hold_predictions(regression, new, tmp_path, capsys):
    out = tmp_path / "p.csv"
    for _ in range(2):
        assert predict(regression, new, "--out", out) == 0
    for path in (new, regression / "model.json", regression / "summary.csv"):
        before = path.read_bytes()
        message = f"--out must be a new file or one with predictions, but {path} holds something else."
        refused(capsys, message, regression, new, "--out", path)
        assert path.read_bytes() == before
    refused(capsys, f"--out must be a file, but {tmp_path} is a folder.", regression, new, "--out", tmp_path)
    refused(capsys, f"--out must be in a folder, but {new} is a file.", regression, new, "--out", new / "p.csv")


def test_new_tables_that_do_not_fit(regression, new, tmp_path, capsys):
    out = ("--out", tmp_path / "p.csv")
    frame = table(20, 1)
    frame.drop(columns=["a", "colour"]).to_csv(new, index=False)
    refused(capsys, "new.csv lacks the columns 'a', 'colour', which the model uses.", regression, new, *out)
    frame.assign(colour=["01"] * 19 + ["purple"]).to_csv(new, index=False)
    refused(
        capsys,
        "new.csv has 'purple' in column 'colour', but the model knows only '01', 'x', 'z'.",
        regression,
        new,
        *out,
    )
    frame.assign(a=[None] * 3 + [1.0] * 17).to_csv(new, index=False)
    refused(
        capsys,
        "new.csv has missing values in 'a' (3) of 20 rows: fill them in, or leave out those rows or columns. "
        "Empty cells and words such as NA, NaN, None and null are missing values.",
        regression,
        new,
        *out,
    )
    refused(
        capsys,
        f"TABLE must be a table, but there is no file {tmp_path / 'no.csv'}.",
        regression,
        tmp_path / "no.csv",
        *out,
    )
    refused(capsys, "--level must be a number in (0, 1), but got 1.5.", regression, new, *out, "--level", 1.5)
    assert not (tmp_path / "p.csv").exists()


def test_folders_without_a_model_of_select(new, tmp_path, capsys):
    out = ("--out", tmp_path / "p.csv")
    missing = f"MODEL must be a folder with model.json and model.safetensors, but {tmp_path / 'no'} has no model.json."
    refused(capsys, missing, tmp_path / "no", new, *out)
    X = np.random.default_rng(0).standard_normal((20, 2))
    save_model(SpikeSlabRegressor(n_iter=20, random_state=0).fit(X, X[:, 0]), tmp_path / "plain")
    message = f"MODEL must come from spikeslab select, but {tmp_path / 'plain'} does not."
    refused(capsys, message, tmp_path / "plain", new, *out)
    save_model(
        SpikeSlabRegressor(n_iter=20, random_state=0).fit(X, X[:, 0]),
        tmp_path / "other",
        {"variables": [{"name": "a"}], "target": "y"},
    )
    message = f"{tmp_path / 'other' / 'model.json'} is damaged: its parts do not fit together."
    refused(capsys, message, tmp_path / "other", new, *out)
