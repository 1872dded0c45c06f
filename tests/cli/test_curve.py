"""``spikeslab curve`` as a user sees it."""

from __future__ import annotations

import json

import pytest
from recipes import read_files

from spikeslab.cli.app import run


def test_a_curve_is_printed_written_and_continued(folder, capsys):
    options = ["--levels", "0.3,0.6", "--epochs", "4", "--seed", "3", "--lr", "0.02", "--scope", "global"]
    assert run(["curve", "recipe.py", "--out", "run", *options]) == 0
    out = capsys.readouterr().out
    assert out.endswith(
        "Files written:\n  run/curve.png\n  run/curve.md\n  run/curve.json\n  run/levels\n  run/recipe.py\n"
    )
    for word in ("30.0%", "60.0%", "worse by", "accuracy, %", "NLL", "file, kB"):
        assert word in out
    record = json.loads((folder / "run" / "curve.json").read_text())
    assert [row["nonzeros"] for row in record["rows"]] == [386, 386 - round(0.3 * 386), 386 - round(0.6 * 386)]
    assert record["run"]["command"] == (
        "spikeslab curve recipe.py --epochs 4 --method a-sghmc-sa --seed 3 --lr 0.02 --scope global "
        "--levels 0.3,0.6 --out run"
    )
    assert record["run"]["seed"] == 3
    before = read_files(folder / "run" / "levels")
    assert sorted(path.name for path in (folder / "run" / "levels").iterdir()) == ["0.3.safetensors", "0.6.safetensors"]
    assert run(["curve", "recipe.py", "--out", "run", *options]) == 2
    assert capsys.readouterr().err.startswith(
        "Error: --out must not hold a run yet, but run does: continue it with --res"
    )
    assert run(["curve", "recipe.py", "--out", "run", *options, "--resume"]) == 0
    assert read_files(folder / "run" / "levels") == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--levels", "0.5,x"],
            "--levels must be shares of zeros with commas between, such as 0.8,0.9, but got 0.5,x.",
        ),
        (["--levels", "0.5,0.99"], "--levels must be at most 0.904145, what the weights to prune allow, but got 0.99."),
        (
            ["--levels", "0.9,0.5"],
            "--levels must be sparsities in (0, 1), each larger than the one before, but got (0.9, 0.5).",
        ),
        (["--method", "magnitude"], "--method must be one that prunes gradually, but got 'magnitude'."),
        (["--set", "lr=0.1"], "--set must not be used for lr, which has an option of its own: --lr."),
        (
            ["--structure", "channels", "--count", "layers"],
            "--count must not go with --structure channels: --levels are shares of channels, but got 'layers'.",
        ),
    ],
)
def test_bad_options_are_one_sentence_and_write_nothing(options, message, folder, capsys):
    assert run(["curve", "recipe.py", "--out", "run", *options]) == 2
    assert capsys.readouterr().err == f"Error: {message}\n"
    assert not (folder / "run").exists()


def test_the_help_has_examples(capsys):
    assert run(["curve", "--help"]) == 0
    assert "spikeslab curve recipe.py --levels 0.8,0.9,0.95 --epochs 12" in " ".join(capsys.readouterr().out.split())
