"""Put the tables under ``results/`` into the README, between its two markers.

    python docs/make_readme.py

The README's numbers are those of the results, always: a test compares them.
"""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MANY = 3
"""Semicolons between commands from which on they stay in the file of the table."""
BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"
# Each table, and how many of its rows stand in the README.
TABLES = {
    "linear/table1": 99,
    "linear/differences": 4,
    "bench/selection-fit-1": 99,
    "selection/calibration": 99,
    "demo/digits": 99,
    "mnist/accuracy": 99,
    "fashion/accuracy": 99,
    "cifar10/accuracy": 99,
    "bench/update-1": 99,
    "bench/step-1": 99,
    "theory/theorem1": 99,
}


def results(root: Path = ROOT) -> str:
    """All tables, each a level below the section they stand in, with a link to its folder."""
    parts = []
    for name, rows in TABLES.items():
        text = (root / "results" / f"{name}.md").read_text(encoding="utf-8")
        body, _, made = text.rpartition("Made by ")
        command = made.rpartition("; the raw numbers")[0]
        table = [line for line in body.splitlines() if line.startswith("|")]
        for line in table[2 + rows :]:
            body = body.replace(f"{line}\n", "")
        if command.count(";") >= MANY:
            command = f"{command.count(';') + 1} [commands](results/{name}.md)"
        parts.append(f"#{body.strip()}\n\nMade by {command}: [raw numbers](results/{name}.json).")
    return "\n\n".join(parts)


def readme(root: Path = ROOT) -> str:
    """The README with the present results."""
    text = (root / "README.md").read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{results(root)}\n\n{END}{after}"


if __name__ == "__main__":
    (ROOT / "README.md").write_text(readme(), encoding="utf-8")
