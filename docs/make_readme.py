"""Put the tables under ``results/`` into the README, between its two markers.

    python docs/make_readme.py

The README's numbers are those of the results, always: a test compares them.
"""

from __future__ import annotations

import json
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
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
        stem = root / "results" / name
        body = stem.with_suffix(".md").read_text(encoding="utf-8").rpartition("Made by")[0]
        commands = json.loads(stem.with_suffix(".json").read_text(encoding="utf-8"))["run"]["command"].splitlines()
        table = [line for line in body.splitlines() if line.startswith("|")]
        for line in table[2 + rows :]:
            body = body.replace(f"{line}\n", "")
        made = f"`{commands[0]}`" if len(commands) == 1 else f"{len(commands)} [commands](results/{name}.md)"
        parts.append(f"#{body.strip()}\n\nMade by {made}: [raw numbers](results/{name}.json).")
    return "\n\n".join(parts)


def readme(root: Path = ROOT) -> str:
    """The README with the present results."""
    text = (root / "README.md").read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{results(root)}\n\n{END}{after}"


if __name__ == "__main__":
    (ROOT / "README.md").write_text(readme(), encoding="utf-8")
