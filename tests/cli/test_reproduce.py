"""``spikeslab reproduce theory`` through the command line."""

import json

import pytest

from spikeslab.cli.app import run


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
