"""``spikeslab reproduce`` through the command line."""

import json
from dataclasses import replace
from functools import partial

import pytest

from spikeslab.cli.app import run
from spikeslab.paper.linear import simulate_linear
from spikeslab.paper.linear import study as linear_study


def test_theory_writes_tables_and_figures(tmp_path, capsys):
    assert run(["reproduce", "theory", "--out", str(tmp_path), "--chains", "100", "--steps", "100"]) == 0
    written = {path.name for path in tmp_path.iterdir()}
    assert written == {f"{name}.{kind}" for name in ("theorem1", "corollary1") for kind in ("md", "json", "png")}
    record = json.loads((tmp_path / "theorem1.json").read_text())
    assert [row["alpha"] for row in record["rows"]] == [0.6, 0.75, 0.9]
    assert record["run"]["command"] == "spikeslab reproduce theory --seed 0 --chains 100 --steps 100"
    assert "Files written:" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("option", "value", "minimum"), [("--chains", 99, 100), ("--steps", 0, 100), ("--seed", -1, 0)]
)
def test_bad_counts_are_refused_before_any_work(tmp_path, capsys, option, value, minimum):
    out = tmp_path / "new"
    assert run(["reproduce", "theory", "--out", str(out), option, str(value)]) == 2
    assert capsys.readouterr().err == f"Error: {option} must be an integer >= {minimum}, but got {value}.\n"
    assert not out.exists()


def test_linear_and_logistic_have_examples(capsys):
    for name in ("linear", "logistic"):
        assert run(["reproduce", name, "--help"]) == 0
        assert f"spikeslab reproduce {name} --seeds 1 --steps 500000" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("name", ["linear", "logistic"])
@pytest.mark.parametrize(
    ("option", "value", "minimum"),
    [("--seeds", 0, 1), ("--sgld-seeds", 0, 1), ("--steps", 999, 1000), ("--seed", -1, 0), ("--workers", 0, 1)],
)
def test_bad_sizes_of_a_study_are_refused_before_any_work(tmp_path, capsys, name, option, value, minimum):
    out = tmp_path / "new"
    assert run(["reproduce", name, "--out", str(out), option, str(value)]) == 2
    assert capsys.readouterr().err == f"Error: {option} must be an integer >= {minimum}, but got {value}.\n"
    assert not out.exists()


def test_linear_writes_tables_and_figures_and_refuses_other_settings(tmp_path, capsys, monkeypatch):
    small = partial(simulate_linear, rows=60, variables=20)
    monkeypatch.setattr(linear_study, "LINEAR", replace(linear_study.LINEAR, simulate=small))
    arguments = ["reproduce", "linear", "--out", str(tmp_path), "--seeds", "1", "--workers", "1"]
    assert run([*arguments, "--steps", "1000"]) == 0
    assert "Files written:" in capsys.readouterr().out
    record = json.loads((tmp_path / "methods.json").read_text())
    assert record["run"]["command"] == "spikeslab reproduce linear --seed 0 --seeds 1 --sgld-seeds 1 --steps 1000"
    assert set(record["rows"][0]["population_mse"]) == {"mean", "error"}
    assert run([*arguments, "--steps", "2000"]) == 2
    assert capsys.readouterr().err == (
        f"Error: Cannot continue: {tmp_path / 'cells.jsonl'} was made with --steps 1000 instead of --steps 2000. Use "
        "those settings or another --out.\n"
    )
