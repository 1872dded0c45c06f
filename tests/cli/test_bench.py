"""``spikeslab bench`` as a user sees it."""

from __future__ import annotations

import json

import pytest

from spikeslab.bench import SUITES
from spikeslab.cli._errors import CORES
from spikeslab.cli.app import run


def test_tables_numbers_and_files(tmp_path, capsys):
    out, numbers = tmp_path / "out", tmp_path / "bench.json"
    assert run(["bench", "--suite", "chains", "--quick", "--out", str(out), "--json", str(numbers)]) == 0
    shown, progress = capsys.readouterr()
    assert "chains: 2 of 2 rounds" in progress
    assert "20 stacked chains, torch.vmap" in shown
    assert sorted(path.name for path in out.iterdir()) == ["chains-1-quick.json", "chains-1-quick.md"]
    record = json.loads(numbers.read_text())
    assert record["benchmark"] == ["chains"]
    table = record["suites"]["chains"]["chains"]
    assert table == json.loads((out / "chains-1-quick.json").read_text())
    assert table["run"]["command"] == "spikeslab bench --suite chains --threads 1 --quick"
    assert table["rows"][0] == {"what": "one chain", "ratio": 1.0, "median": 1.0}
    assert table["raw"]["microseconds"]["one chain"] > 0.0
    # The file of an earlier run may be replaced.
    assert run(["bench", "--suite", "chains", "--repeats", "1", "--json", str(numbers)]) == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--suite", "speed"],
            f"--suite must be one of {', '.join(map(repr, SUITES))}, but got 'speed'.",
        ),
        (["--repeats", "0"], "--repeats must be an integer >= 1, but got 0."),
        (["--repeats", "100000"], "--repeats must be an integer up to 10,000, but got 100000."),
        (["--threads", "0"], "--threads must be an integer >= 1, but got 0."),
        (["--seed", "-1"], "--seed must be an integer >= 0, but got -1."),
        (["--seed", f"{2**32}"], "--seed must be an integer up to 4294967295, but got 4294967296."),
        (
            ["--suite", "compression", "--networks", "lenet,vgg"],
            "--networks must be one of 'lenet', 'mlp', 'transformer', 'resnet20', but got 'vgg'.",
        ),
        (
            ["--suite", "one-shot", "--networks", "lenet"],
            "--networks must be one of 'resnet20', 'transformer', 'encoder', 'lstm', but got 'lenet'.",
        ),
        (
            ["--suite", "compression", "--methods", "snip"],
            "--methods must be one of 'spikeslab', 'gmp', 'torch-prune', 'l2', 'pat', 'gmp-tuned', "
            "'torch-prune-tuned', 'pat-tuned', 'spikeslab-tuned', but got 'snip'.",
        ),
        (
            ["--suite", "compression", "--sparsities", "0.9,90"],
            "--sparsities must be numbers in (0, 1), separated by commas, but got '90'.",
        ),
        (["--suite", "compression", "--seeds", "0"], "--repeats must be an integer >= 1, but got 0."),
        (
            ["--suite", "chains", "--networks", "lenet"],
            "--networks must go with --suite compression or one-shot, but got --suite chains.",
        ),
        (
            ["--suite", "chains", "--resume"],
            "--resume must go with --suite compression, but got --suite chains.",
        ),
        (["--json", "/dev/null"], "--json must be a file, but /dev/null is a device or a pipe."),
    ],
)
def test_bad_options(options, message, capsys):
    assert run(["bench", *options]) == 2
    assert capsys.readouterr().err == f"Error: {message}\n"


def test_more_threads_than_cores(capsys):
    assert run(["bench", "--threads", str(CORES + 1)]) == 2
    assert "--threads must be an integer up to the number of cores" in capsys.readouterr().err


def test_files_of_others_are_not_replaced(tmp_path, capsys):
    file = tmp_path / "notes.json"
    file.write_text("mine")
    assert run(["bench", "--suite", "chains", "--quick", "--json", str(file)]) == 2
    expected = f"--json must be a new file or one with results of a benchmark, but {file} holds something else."
    assert capsys.readouterr().err == f"Error: {expected}\n"
    assert file.read_text() == "mine"
    for name, what in (("scaling-1.md", "a table"), ("scaling-1.json", "a table"), ("scaling-1.png", "a figure")):
        own = tmp_path / name
        own.write_text("## Time of mine")
        assert run(["bench", "--suite", "scaling", "--repeats", "1", "--out", str(tmp_path)]) == 2
        expected = f"--out must be a new file or one with {what}, but {own} holds something else."
        assert capsys.readouterr().err == f"Error: {expected}\n"
        assert own.read_text() == "## Time of mine"
        own.unlink()
    assert run(["bench", "--suite", "chains", "--quick", "--out", str(file)]) == 2
    assert capsys.readouterr().err == f"Error: --out must be a folder, but {file} is a file.\n"


@pytest.mark.parametrize("option", ["--json", "--out"])
def test_a_folder_that_cannot_be_written_to_is_found_before_anything_is_measured(option, monkeypatch, tmp_path, capsys):
    def refuse(**_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("spikeslab.cli._options.TemporaryFile", refuse)
    place = tmp_path / "new" / "numbers.json"
    assert run(["bench", "--suite", "chains", option, str(place)]) == 2
    expected = f"{option} must be writable, but {tmp_path}: Permission denied."
    assert capsys.readouterr() == ("", f"Error: {expected}\n")


def test_a_study_resumes_only_if_it_is_told_to(tmp_path, capsys):
    options = [
        "--suite",
        "compression",
        "--quick",
        "--networks",
        "mlp",
        "--methods",
        "torch-prune,l2",
        "--sparsities",
        "0.5",
        "--seeds",
        "1",
    ]
    out = tmp_path / "study"
    assert run(["bench", *options, "--out", str(out)]) == 0
    progress = capsys.readouterr().err
    assert "compression: 3 of 3 rounds" in progress
    table = out / "compression-quick.json"
    record = json.loads(table.read_text())
    assert record["run"]["command"] == (
        "spikeslab bench --suite compression --threads 1 --repeats 1 --quick --networks mlp --methods torch-prune,l2 "
        "--sparsities 0.5"
    )
    assert [row["method"] for row in record["rows"]] == ["dense", "torch-prune", "l2"]
    before = table.read_text()
    assert run(["bench", *options, "--out", str(out)]) == 2
    assert "--out must not hold these results yet" in capsys.readouterr().err
    assert run(["bench", *options, "--out", str(out), "--resume"]) == 0
    assert table.read_text() == before
    assert (out / "compression-quick.png").exists()


def test_a_study_without_any_data(tmp_path, capsys):
    empty = tmp_path / "data"
    empty.mkdir()
    options = ["--suite", "compression", "--networks", "mlp", "--data-dir", str(empty), "--out", str(tmp_path / "out")]
    assert run(["bench", *options]) == 2
    expected = f"Error: {empty} must be a folder with bikesharing_hour.csv, but there is none.\n"
    assert capsys.readouterr().err == expected
