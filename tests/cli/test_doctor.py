"""``spikeslab doctor`` and ``spikeslab report`` as a user sees them."""

from __future__ import annotations

import json

import pytest
from synthetic_runs import EVALUATION, write_run

from spikeslab.cli.app import run


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_run(
        tmp_path_factory.mktemp("runs") / "run",
        chains=1,
        evaluation=EVALUATION,
        change=lambda record: record.update(omega_sum=0.75),
    )


def words(text: str) -> str:
    return " ".join(text.split())


def test_the_doctor_says_it_in_words_and_exits_with_0(folder, capsys):
    assert run(["doctor", str(folder)]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("1 problem (latents), and 1 note.\n")
    assert "problem latents The latents have gone 53% of the way" in words(captured.out)
    assert captured.err == ""


def test_the_findings_as_json(folder, tmp_path, capsys):
    path = tmp_path / "new" / "findings.json"
    assert run(["doctor", str(folder), "--json", str(path)]) == 0
    assert f"Files written:\n  {path}\n" in capsys.readouterr().out
    record = json.loads(path.read_text())
    assert record["verdict"] == "1 problem (latents), and 1 note."
    assert record["findings"][0]["level"] == "problem"
    assert [item["name"] for item in record["convergence"]] == ["norms of layers", "some weights"]
    assert run(["doctor", str(folder), "--json", str(path)]) == 0, "an earlier diagnosis is replaced"


def test_the_report_goes_into_the_folder_or_where_it_is_told(folder, tmp_path, capsys):
    assert run(["report", str(folder)]) == 0
    assert capsys.readouterr().out == f"Files written:\n  {folder / 'report.html'}\n"
    path = tmp_path / "page.html"
    assert run(["report", str(folder), "--out", str(path)]) == 0
    assert path.read_text() == (folder / "report.html").read_text()
    assert path.read_text().startswith("<!doctype html>")
    assert run(["report", str(folder), "--out", str(path)]) == 0, "an earlier report is replaced"


@pytest.mark.parametrize("command", ["doctor", "report"])
def test_what_is_not_a_run_is_refused(command, tmp_path, capsys):
    assert run([command, str(tmp_path)]) == 2
    message = f"Error: RUN must be the folder of a run, with run.json in it, but got {tmp_path}.\n"
    assert capsys.readouterr().err == message
    (tmp_path / "run.json").write_text("{")
    assert run([command, str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith(f"Error: {tmp_path / 'run.json'} is damaged: it is not JSON")


@pytest.mark.parametrize(
    ("command", "option", "what"), [("doctor", "--json", "a diagnosis"), ("report", "--out", "a report")]
)
def test_files_of_others_are_not_replaced(command, option, what, folder, tmp_path, capsys):
    mine = tmp_path / "mine"
    mine.write_text("<!doctype html>\nmine")
    assert run([command, str(folder), option, str(mine)]) == 2
    assert capsys.readouterr().err == (
        f"Error: {option} must be a new file or one with {what}, but {mine} holds something else.\n"
    )
    assert mine.read_text() == "<!doctype html>\nmine"
    assert run([command, str(folder), option, str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"Error: {option} must be a file, but {tmp_path} is a folder.\n"
    assert run([command, str(folder), option, str(mine / "deeper")]) == 2
    assert capsys.readouterr().err == f"Error: {option} must be in a folder, but {mine} is a file.\n"
