"""Attack on ``spikeslab select``: 500 tables that nobody would call clean, of which each is read or refused."""

from __future__ import annotations

import contextlib
import gzip
import io
from pathlib import Path
from random import Random

import pytest

from spikeslab.cli.app import run

pytestmark = pytest.mark.slow

ROWS = 24
SEPARATORS, ENDS = (",", ";", "\t", "|"), ("\n", "\r\n", "\r")
ENCODINGS = ("utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-32", "latin-1")
CELLS = {
    "integers": lambda i: str(i), "huge": lambda i: str(2**63 + i), "digits400": lambda i: "7" * 400,
    "digits5000": lambda i: "7" * 5000, "inf": lambda i: "inf" if i == 3 else str(i), "nan": lambda i: "nan",
    "some nan": lambda i: "" if i % 5 == 0 else str(i), "1e400": lambda i: "1e400", "1e308": lambda i: f"{i}e307",
    "tiny": lambda i: f"{i}e-320", "dates": lambda i: f"2024-01-{i % 28 + 1:02d}", "constant": lambda i: "3",
    "one odd": lambda i: "x" if i == 7 else str(i), "text": lambda i: "abc"[i % 3], "labels": lambda i: f"w{i}",
    "two": lambda i: "ab"[i % 2], "flags": lambda i: ("true", "false")[i % 2], "blank": lambda i: "",
    "spaces": lambda i: f"  {i} ", "decimal comma": lambda i: f'"{i},5"', "thousands": lambda i: f'"{i},000"',
    "hex": lambda i: hex(i), "complex": lambda i: f"{i}j", "underscores": lambda i: f"1_{i}",
    "percent": lambda i: f"{i}%",
    "quotes": lambda i: f'"a ""{i}"""', "open quote": lambda i: f'"{i}' if i == 5 else str(i),
    "lines": lambda i: f'"{i}\n{i}"', "nul": lambda i: "\0" if i == 2 else str(i), "markup": lambda i: f"[red]{i}[/]",
    "html": lambda i: "<script>" if i % 2 else "</td>", "braces": lambda i: f"{{lr={i % 2}}}",
    "accents": lambda i: "éü"[i % 2],
    "emoji": lambda i: "😀" if i % 2 else "x", "long": lambda i: "z" * 50_000 + str(i % 2),
    "negative zero": lambda i: "-0",
    "words": lambda i: ("NA", "null", "None", "-", "?")[i % 5], "zero one": lambda i: str(i % 2),
    "three": lambda i: str(i % 3),
}  # fmt: skip
"""Columns: the text of a cell from the number of its row."""
PLAIN = ("integers", "two", "three")
"""Columns that can be a target."""
NAMES = (
    "v", "y", "", " ", "é", "{lr}", "a b", "[red]", "Intercept", "0", "1e5", "__class__", '"a,b"', '"a\nb"', "v" * 999,
)  # fmt: skip
SHAPES = (
    "whole",
    "no rows",
    "one row",
    "two rows",
    "short row",
    "long row",
    "empty lines",
    "no header",
    "nothing",
    "noise",
)


def write_table(folder: Path, random: Random) -> Path:
    """Write a table of random columns, in a random shape and a random encoding."""
    separator, end = random.choice(SEPARATORS), random.choice(ENDS)
    target = random.choice((*PLAIN, *PLAIN, random.choice(list(CELLS))))
    kinds = ["integers", *random.choices(list(CELLS), k=random.randint(0, 3)), target]
    names = ["x", *random.sample(NAMES, k=len(kinds) - 2), "y" if random.random() < 0.95 else "z"]
    shape = random.choice((*SHAPES, *["whole"] * 20))
    count = {"no rows": 0, "one row": 1, "two rows": 2, "nothing": 0}.get(shape, ROWS)
    rows = [[CELLS[kind](i * 7 % ROWS) for kind in kinds] for i in range(count)]
    if shape == "short row":
        rows[4] = rows[4][:-1]
    elif shape == "long row":
        rows[4] = [*rows[4], "1"]
    elif shape == "empty lines":
        rows = [part for row in rows for part in (row, [])]
    lines = [] if shape == "nothing" else rows if shape == "no header" else [names, *rows]
    text = end.join(separator.join(line) for line in lines)
    content = text.encode(random.choice((*["utf-8"] * 9, *ENCODINGS)), errors="replace")
    if shape == "noise":
        content = bytes(
            random.choice((byte, random.randrange(256))) if random.random() < 0.02 else byte for byte in content
        )
    name = random.choice((*["t.csv"] * 9, "t.tsv", "t.csv.gz", "t.parquet"))
    if name.endswith(".gz"):
        content = gzip.compress(content)[: None if random.random() < 0.8 else 40]
    (folder / name).write_bytes(content)
    return folder / name


def select(table: Path, *options: str) -> tuple[int, str]:
    """Run ``spikeslab select``, and return its exit code and what it wrote to standard error."""
    out = str(table.parent / "out")
    arguments = ["select", str(table), "--target", "y", "--iterations", "10", "--no-compare", "--out", out, *options]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as errors:
        code = run(arguments)
    return code, errors.getvalue()


def check(code: int, errors: str) -> bool:
    """Return True if a table was accepted, or refused in one sentence."""
    lines = [line for line in errors.splitlines() if not line.startswith("Warning: ")]
    return (code == 0 and not lines) or (code == 2 and len(lines) == 1 and lines[0].startswith("Error: "))


@pytest.fixture(autouse=True)
def _no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures take longer than the fits."""
    monkeypatch.setattr("spikeslab.tabular.page.draw_figures", lambda _: (b"figure", b"figure"))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("part", range(5))
def test_odd_tables_are_read_or_refused_in_one_sentence(part: int, tmp_path: Path) -> None:
    random, accepted = Random(part), 0
    for number in range(100):
        folder = tmp_path / str(number)
        folder.mkdir()
        table = write_table(folder, random)
        options = random.choice(([], *[["--one-hot"]] * 3, ["--family", "multinomial"], ["--family", "gaussian"]))
        code, errors = select(table, *options)
        assert check(code, errors), (table, options, code, errors)
        accepted += code == 0
        assert (folder / "out").exists() == (code == 0), (table, options, errors)
    assert 15 < accepted < 85


def test_a_hundred_thousand_columns(tmp_path: Path) -> None:
    names = ",".join([*(f"v{j}" for j in range(100_000)), "y"])
    lines = [",".join([*(str((i * j) % 7) for j in range(100_000)), str(i)]) for i in range(6)]
    (tmp_path / "t.csv").write_text("\n".join([names, *lines]))
    assert check(*select(tmp_path / "t.csv"))
