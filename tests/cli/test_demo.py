"""The real command, with a tiny budget."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

FILES = ["digits.json", "digits.md", "digits.png", "linear.json", "linear.md", "linear.png"]


def spikeslab(*arguments: str) -> subprocess.CompletedProcess[str]:
    code = "import sys; from spikeslab.cli import main; sys.exit(main())"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False, timeout=300
    )


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    out = tmp_path_factory.mktemp("demo")
    (out / "mine.txt").write_text("keep")
    (out / "linear.md").write_text("of an earlier demo")
    (out / "linear.json").write_text('{\n  "title": "Linear regression"\n}')
    return out, spikeslab("demo", "--out", str(out), "--steps", "20", "--seed", "2")


def test_files(demo: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    out, _ = demo
    assert sorted(path.name for path in out.iterdir()) == [*FILES, "mine.txt"]
    assert (out / "mine.txt").read_text() == "keep"
    assert (out / "linear.md").read_text().startswith("## Linear regression, n = 100, p = 1000")
    for name in ("linear.png", "digits.png"):
        assert (out / name).read_bytes().startswith(b"\x89PNG")


def test_tables(demo: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    out, _ = demo
    linear, digits = (json.loads((out / name).read_text()) for name in ("linear.json", "digits.json"))
    assert [row["method"] for row in linear["rows"]] == ["SGLD-SA", "SGLD-EM", "SGLD"]
    assert linear["run"]["command"] == "spikeslab demo --seed 2 --steps 20"
    assert digits["rows"][1]["nonzeros"] == 5_300


def test_terminal_output_is_plain_where_there_is_no_terminal(
    demo: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    _, result = demo
    assert result.returncode == 0, result.stderr
    assert [line for line in result.stderr.splitlines() if "20 of 20" in line or "60 of 60" in line] == [
        "Linear regression, SGLD-SA: 20 of 20 steps",
        "Linear regression, SGLD-EM: 20 of 20 steps",
        "Linear regression, SGLD: 20 of 20 steps",
        "Digits, SGHMC-SA: 60 of 60 steps",
    ]
    assert "\x1b" not in result.stdout + result.stderr
    lines = result.stdout.splitlines()
    written = lines[lines.index("Files written:") + 1 :]
    assert sorted(Path(line.strip()).name for line in written) == FILES
