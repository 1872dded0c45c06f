"""``spikeslab select`` as a user sees it: what is printed, what is written, and what is refused."""

from __future__ import annotations

import csv
import json
import os
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from spikeslab import files
from spikeslab.cli.app import run
from spikeslab.cli.select import FILES
from spikeslab.sklearn import SpikeSlabClassifier, load_model, read_metadata
from spikeslab.tabular.table import TableError, read_table

QUICK = ["--iterations", "60", "--no-compare"]


def table(rows=60, seed=0):
    """Numbers a (which matters), b, c, and d = a + noise; texts colour (red matters) and sex."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(rng.standard_normal((rows, 3)), columns=["a", "b", "c"])
    frame["colour"] = rng.choice(["red", "green, dark", "blue"], rows)
    frame["sex"] = rng.choice(["f", "m"], rows)
    frame["y"] = 2.0 * frame["a"] + 3.0 * (frame["colour"] == "red") + 0.2 * rng.standard_normal(rows)
    return frame


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "data.csv"
    table().to_csv(path, index=False)
    return path


def select(*arguments):
    return run(["select", *map(str, arguments)])


def test_regression_with_groups(data, tmp_path, capsys):
    out = tmp_path / "out"
    table().assign(one=1, name=[f"n{i}" for i in range(60)]).to_csv(data, index=False)
    assert select(data, "--target", "y", "--one-hot", "--out", out, *QUICK) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(
        "data.csv: 60 rows, 5 variables in 7 columns; target y.\n"
        "Family gaussian, guessed from the target: it holds numbers. Set --family to choose another.\n"
        "Left out (constant): one.\n"
        "Left out (a different text in every row): name.\n"
    )
    assert "2 variables selected" in printed
    assert re.search(r"^  colour +red +1\.000 +0\.\d{3} +[01]\.\d{3}( +\S+){3} *$", printed, re.MULTILINE)
    assert "Files written:" in printed
    assert {path.name for path in out.iterdir()} == set(FILES)
    summary = pd.read_csv(out / "summary.csv")
    assert list(summary.columns) == [
        "variable", "level", "level_pip", "pip", "pip_error", "selected",
        "mean", "std", "lower", "upper", "rhat", "ess",
    ]  # fmt: skip
    assert len(summary) == 7
    assert sorted(summary["variable"][summary["selected"]]) == ["a", "colour", "colour", "colour"]
    colour = summary[summary["variable"] == "colour"]
    assert colour["level"].tolist() == ["blue", "green, dark", "red"]
    assert colour["pip"].nunique() == 1
    assert (colour["pip"] >= colour["level_pip"]).all()


def test_the_probability_of_a_group_comes_from_the_draws(data, tmp_path):
    """With noise alone, at least one of three levels is in more often than each, and less than their sum."""
    table().assign(y=np.random.default_rng(5).standard_normal(60)).to_csv(data, index=False)
    assert (
        select(data, "--target", "y", "--one-hot", "--out", tmp_path / "out", "--iterations", 400, "--no-compare") == 0
    )
    model = load_model(tmp_path / "out")
    names = list(model.feature_names_in_)
    levels = [names.index(f"colour={level}") for level in ("blue", "green, dark", "red")]
    share = (model._posterior.coef.toarray()[:, levels] != 0).any(axis=1).mean()
    summary = pd.read_csv(tmp_path / "out" / "summary.csv").query("variable == 'colour'")
    assert summary["pip"].iloc[0] == pytest.approx(max(share, model.pip_[levels].max()), abs=1e-12)
    assert summary["level_pip"].max() < summary["pip"].iloc[0] < summary["level_pip"].sum() + 0.02


def test_the_report(data, tmp_path, capsys):
    out = tmp_path / "out"
    words = [
        "select",
        str(data),
        "--target",
        "y",
        "--drop",
        "colour",
        "--drop",
        "sex",
        "--seed",
        "3",
        "--out",
        str(out),
    ]
    assert run([*words, *QUICK]) == 0
    html = (out / "report.html").read_text(encoding="utf-8")
    for text in (
        "Variable selection: y in data.csv",
        "1 of 3 variables selected for y: a.",
        "Fit to the same rows (in-sample)",
        "Effective sample size",
        "gaussian, guessed from the target: it holds numbers. Set --family to choose another.",
        "<dt>Seed</dt><dd>3</dd>",
        "<dt>numba</dt>",
        f"spikeslab select {data} --target y --out {out} --level 0.9 --seed 3 --method auto "
        "--iterations 60 --no-compare --drop colour --drop sex",
    ):
        assert text in html
    assert html.count('src="data:image/png;base64,') == 2
    assert "http" not in re.sub(r"data:image/png;base64,[^\"]*", "", html)
    sentence = re.search(r"<p>(The chains [^<]*)</p>", html)[1]
    assert sentence in capsys.readouterr().out


def test_held_out_rows_are_scored_beside_a_lasso_a_ridge_and_the_mean(data, tmp_path, capsys):
    frame = table(40).drop(columns=["colour", "sex"])
    frame.to_csv(data, index=False)
    assert select(data, "--target", "y", "--out", tmp_path / "out", "--iterations", 60) == 0
    printed = capsys.readouterr().out
    for name in ("spike and slab", "lasso", "ridge", "mean"):
        assert re.search(rf"^  {name} +\d\.\d+", printed, re.MULTILINE)
    html = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "On 40 rows of 40, each by models fitted to others." in html
    assert "On 40 rows of 40, each by models fitted to others." in printed


def test_columns_may_always_be_in(data, tmp_path, capsys):
    out = tmp_path / "out"
    options = ("--one-hot", "--out", out, "--always", "b", "--always", "colour", *QUICK)
    assert select(data, "--target", "y", *options) == 0
    summary = pd.read_csv(out / "summary.csv")
    assert (summary.query("variable in ['b', 'colour']")["pip"] == 1.0).all()
    assert "--always b --always colour" in read_metadata(out)["command"]
    assert select(data, "--target", "y", "--one-hot", "--out", out, "--always", "y", *QUICK) == 2
    assert "--always must name columns of the design, but got 'y'." in capsys.readouterr().err
    assert select(data, "--target", "sex", "--one-hot", "--out", out, "--always", "b", *QUICK) == 2
    assert "--always must go with the family gaussian, but the family is binomial." in capsys.readouterr().err


@pytest.mark.parametrize(("count", "family"), [(2, "binomial"), (4, "multinomial")])
def test_classes(data, tmp_path, capsys, count, family):
    frame = table(100).drop(columns=["colour", "sex"])
    rank = (frame["y"] + np.random.default_rng(1).standard_normal(100)).rank(pct=True)
    frame["y"] = np.array(list("wxyz"))[np.minimum((rank * count).astype(int), count - 1)]
    frame.to_csv(data, index=False)
    assert select(data, "--target", "y", "--out", tmp_path / "out", *QUICK) == 0
    assert f"Family {family}, guessed" in capsys.readouterr().out
    summary = pd.read_csv(tmp_path / "out" / "summary.csv")
    assert summary["variable"].iloc[0] == "a"
    assert ("class" in summary) == (count > 2)
    assert len(summary) == (3 if count == 2 else 12)
    html = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "Log loss of predicting the shares of the classes" in html
    model = load_model(tmp_path / "out")
    assert isinstance(model, SpikeSlabClassifier)
    assert model.classes_.tolist() == list("wxyz")[:count]


def test_two_classes_may_be_called_multinomial(data, tmp_path):
    table().assign(y=table()["y"] > 1).to_csv(data, index=False)
    assert select(data, "--target", "y", "--family", "multinomial", "--one-hot", "--out", tmp_path / "o", *QUICK) == 0


def test_look_alikes_are_named(data, tmp_path, capsys):
    frame = table(200).drop(columns=["colour", "sex"])
    frame["d"] = frame["a"] + 0.01 * np.random.default_rng(2).standard_normal(200)
    frame["y"] = frame["a"] + np.random.default_rng(3).standard_normal(200)
    frame.to_csv(data, index=False)
    assert select(data, "--target", "y", "--out", tmp_path / "out", "--iterations", 300, "--no-compare") == 0
    expected = r"At least one of (a, d|d, a) is in the model with probability 1\.00, but they are too correlated"
    assert re.search(expected, capsys.readouterr().out)


def test_no_variable(data, tmp_path, capsys):
    table().assign(y=np.random.default_rng(9).standard_normal(60)).to_csv(data, index=False)
    assert select(data, "--target", "y", "--one-hot", "--threshold", 0.99, "--out", tmp_path / "out", *QUICK) == 0
    assert "No variable selected; the most probable are" in capsys.readouterr().out
    assert "None of 5 variables is selected for y." in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")


def test_the_same_seed_gives_the_same_files(data, tmp_path):
    for name in ("one", "two"):
        assert select(data, "--target", "y", "--one-hot", "--out", tmp_path / name, *QUICK) == 0
    for name in ("summary.csv", "inclusion.png", "traces.png", "model.safetensors"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_out_keeps_foreign_files_and_replaces_its_own(data, tmp_path, capsys):
    out = tmp_path / "out"
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    assert select(data, "--target", "y", "--one-hot", "--out", out, *QUICK) == 0
    before = (out / "report.html").read_text(encoding="utf-8")
    assert select(data, "--target", "y", "--one-hot", "--seed", 1, "--out", out, *QUICK) == 0
    assert (out / "report.html").read_text(encoding="utf-8") != before
    assert (out / "notes.txt").read_text() == "mine"
    assert {path.name for path in out.iterdir()} == {*FILES, "notes.txt"}


def test_names_that_are_no_text(data, tmp_path):
    odd = data.rename(Path(os.fsdecode(os.fsencode(tmp_path) + b"/odd\xff.csv")))
    assert select(odd, "--target", "y", "--one-hot", "--out", tmp_path / "out\udcff", *QUICK) == 0
    assert "odd\\udcff.csv" in (tmp_path / "out\udcff" / "report.html").read_text()


def test_files_of_others_are_not_replaced(data, tmp_path, capsys):
    out = tmp_path / "out"
    out.mkdir()
    (out / "summary.csv").write_text("mine")
    assert select(data, "--target", "y", "--one-hot", "--out", out) == 2
    assert capsys.readouterr().err == (
        f"Error: --out must be another folder, because {out / 'summary.csv'} is not of an earlier select.\n"
    )
    assert [path.name for path in out.iterdir()] == ["summary.csv"]
    mine = data.rename(out / "summary.csv")
    assert select(mine, "--target", "y", "--one-hot", "--out", out) == 2
    assert capsys.readouterr().err == f"Error: --out must be another folder, because {mine} would be replaced.\n"


@pytest.mark.parametrize("calls", [0, 1, 3, 6, 7, 8, 10])
def test_a_select_stopped_while_writing_does_not_block_the_next(data, tmp_path, monkeypatch, calls):
    """After ``calls`` file operations, of seven writes and seven renames, the process is killed: no clean-up runs."""
    out = tmp_path / "out"
    words = [data, "--target", "y", "--one-hot", "--out", out, *QUICK]
    count = iter(range(99))

    def kill(real):
        def operate(*arguments):
            if next(count) == calls:
                raise Killed
            return real(*arguments)

        return operate

    class Killed(BaseException):
        pass

    with monkeypatch.context() as patch:
        patch.setattr(files, "_create", kill(files._create))
        patch.setattr(Path, "replace", kill(Path.replace))
        patch.setattr(Path, "unlink", lambda *_, **__: None)
        patch.setattr("os.getpid", lambda: 2**22 + 1)
        with pytest.raises(Killed):
            select(*words)
    assert len([*out.iterdir()]) == min(calls, 7)
    assert select(*words) == 0
    assert {path.name for path in out.iterdir()} == set(FILES)


def test_a_full_disk_leaves_the_files_of_the_earlier_select(data, tmp_path, capsys, monkeypatch):
    out = tmp_path / "out"
    words = [data, "--target", "y", "--one-hot", "--out", out, *QUICK]
    assert select(*words) == 0
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    real, count = files._create, iter(range(99))

    def write(path, content):
        if next(count) == 4:
            real(path, content[:10])
            raise OSError(28, "No space left on device")
        return real(path, content)

    monkeypatch.setattr(files, "_create", write)
    assert select(*words, "--seed", 1) == 2
    assert "No space left on device" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def test_a_folder_that_cannot_be_written_to_is_found_before_the_fit(data, tmp_path, capsys, monkeypatch):
    def refuse(**_):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("spikeslab.cli._options.TemporaryFile", refuse)
    monkeypatch.setattr("spikeslab.sklearn.SpikeSlabRegressor.fit", lambda *_: 1 / 0)
    assert select(data, "--target", "y", "--one-hot", "--out", tmp_path / "new") == 2
    assert "must be writable" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_out_that_is_a_file(data, capsys):
    assert select(data, "--target", "y", "--out", data) == 2
    assert capsys.readouterr().err == f"Error: --out must be a folder, but {data} is a file.\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("--target", "z"),
            "--target must be a column of data.csv, but got 'z': its columns are 'a', 'b', 'c', 'colour', 'sex', 'y'.",
        ),
        (("--target", "Y"), "--target must be a column of data.csv, but got 'Y': its columns include 'y'."),
        (
            ("--target", "y"),
            "data.csv has text in the columns 'colour' (such as 'WORD'), 'sex' (such as 'WORD'): "
            "encode it by 0/1 columns with --one-hot, or leave it out with --drop.",
        ),
        (("--target", "y", "--level", "1"), "--level must be a number in (0, 1), but got 1.0."),
        (("--target", "y", "--level", "0"), "--level must be a number in (0, 1), but got 0.0."),
        (("--target", "y", "--threshold", "2"), "--threshold must be a number in [0, 1], but got 2.0."),
        (("--target", "y", "--fdr", "0"), "--fdr must be a number in (0, 1), but got 0.0."),
        (
            ("--target", "y", "--fdr", "0.1", "--threshold", "0.5"),
            "--fdr replaces --threshold, but got both: leave one of them out.",
        ),
        (("--target", "y", "--seed", "-1"), "--seed must be an integer >= 0, but got -1."),
        (("--target", "y", "--iterations", "9"), "--iterations must be an integer >= 10, but got 9."),
        (
            ("--target", "y", "--iterations", "1000000000"),
            "--iterations must be an integer up to 1,000,000, but got 1000000000.",
        ),
        (
            ("--target", "y", "--family", "poisson"),
            "--family must be one of 'gaussian', 'binomial', 'multinomial', but got 'poisson'.",
        ),
        (
            ("--target", "y", "--one-hot", "--method", "minibatch"),
            "--method must be one of 'auto', 'gibbs', 'sgld-sa', 'sgld-em', 'sgld' for the family gaussian, "
            "but got 'minibatch'.",
        ),
        (
            ("--target", "colour", "--family", "gaussian"),
            "--family gaussian needs numbers, but the target 'colour' holds text: 'blue'.",
        ),
        (
            ("--target", "colour", "--family", "binomial"),
            "--family binomial needs 2 classes, but the target 'colour' has 3: 'blue', 'green, dark', 'red'.",
        ),
    ],
)
def test_bad_input_is_one_sentence_and_writes_nothing(data, tmp_path, capsys, arguments, message):
    out = tmp_path / "new"
    assert select(data, *arguments, "--out", out) == 2
    captured = capsys.readouterr()
    assert re.sub(r"such as '[^']*'\)", "such as 'WORD')", captured.err) == f"Error: {message}\n"
    assert captured.out == ""
    assert not out.exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "data.csv is empty."),
        (b"a,y\n1,2\n", "data.csv has only 1 row: at least 2 are needed."),
        (b"y\n1\n2\n", "data.csv has no usable column besides the target 'y'."),
        (b"a,y\n1,2\n2,2\n", "The target 'y' is 2 in every row of data.csv."),
        (b"{target},{target},y\n1,2,3\n", "data.csv has several columns of the same name: '{target}'."),
    ],
)
def test_bad_files_are_one_sentence_and_write_nothing(data, tmp_path, capsys, content, message):
    data.write_bytes(content)
    assert select(data, "--target", "y", "--out", tmp_path / "new") == 2
    assert capsys.readouterr().err == f"Error: {message}\n"
    assert not (tmp_path / "new").exists()


def test_a_missing_file_with_braces_in_its_path(tmp_path, capsys):
    missing = tmp_path / "{out}" / "no.csv"
    assert select(missing, "--target", "y") == 2
    assert capsys.readouterr().err == f"Error: TABLE must be a table, but there is no file {missing}.\n"
    with pytest.raises(TableError, match=re.escape(str(missing))):
        read_table(missing)


def test_an_interrupted_fit_writes_nothing(data, tmp_path, capsys, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("spikeslab.sklearn.SpikeSlabRegressor.fit", interrupt)
    assert select(data, "--target", "y", "--one-hot", "--out", tmp_path / "new") == 130
    assert capsys.readouterr().err == "Interrupted.\n"
    assert not (tmp_path / "new").exists()


def test_a_chain_that_diverges(data, tmp_path, capsys, monkeypatch):
    def diverge(*_, **__):
        raise FloatingPointError

    monkeypatch.setattr("spikeslab.sklearn.SpikeSlabRegressor.fit", diverge)
    assert select(data, "--target", "y", "--one-hot", "--method", "sgld", "--out", tmp_path / "new") == 2
    assert capsys.readouterr().err == (
        "Error: --method sgld diverged, because its steps are too large for these data: use --method auto.\n"
    )


def test_names_are_not_markup(data, tmp_path, capsys):
    table().rename(columns={"a": "[red]a[/red] :smile:"}).to_csv(data, index=False, quoting=csv.QUOTE_ALL)
    assert select(data, "--target", "y", "--one-hot", "--out", tmp_path / "[bold]", *QUICK) == 0
    printed = capsys.readouterr().out
    assert "  [red]a[/red] :smile: " in printed
    assert str(tmp_path / "[bold]" / "summary.csv") in printed


def test_the_record_is_strict_json(data, tmp_path):
    assert select(data, "--target", "y", "--one-hot", "--out", tmp_path / "out", *QUICK) == 0

    def refuse(text):
        raise AssertionError(text)

    json.loads((tmp_path / "out" / "model.json").read_text(encoding="utf-8"), parse_constant=refuse)
    metadata = read_metadata(tmp_path / "out")
    assert metadata["target"] == "y"
    assert metadata["variables"][3] == {"name": "colour", "levels": ["blue", "green, dark", "red"], "baseline": None}
    assert metadata["variables"][4] == {"name": "sex", "levels": ["m"], "baseline": "f"}


def test_help_has_examples(capsys):
    assert select("--help") == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "spikeslab select genes.csv --target response" in printed
