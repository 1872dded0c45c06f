"""Put the tables under ``results/`` into the pages, between their markers.

    python docs/make_tables.py

``<!-- result: selection/sbc -->`` begins a table and ``<!-- end -->`` ends it; ``rows=4`` behind the name shows the
first four rows. ``<!-- headline -->`` is the small table of the README. A test compares every page with the results.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results"
LENET = "LeNet-5, Fashion-MNIST"
MARKED = re.compile(r"<!-- (result: (\S+)(?: rows=(\d+))?|headline) -->\n.*?<!-- end -->", re.DOTALL)


def pages() -> list[Path]:
    """Return the pages that may hold tables."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def with_tables(page: Path) -> str:
    """Return the text of a page with the present results."""

    def replace(found: re.Match[str]) -> str:
        table = headline() if found[2] is None else show(found[2], int(found[3] or 999), page.parent)
        return f"<!-- {found[1]} -->\n\n{table}\n\n<!-- end -->"

    return MARKED.sub(replace, page.read_text(encoding="utf-8"))


def show(name: str, rows: int, folder: Path) -> str:
    """Return a table without its heading, with a link from ``folder`` to its raw numbers."""
    text = (RESULTS / f"{name}.md").read_text(encoding="utf-8")
    body = text.partition("\n")[2].rpartition("Made by")[0].strip()
    for line in [line for line in body.splitlines() if line.startswith("|")][2 + rows :]:
        body = body.replace(f"{line}\n", "")
    commands = load(name)["run"]["command"].splitlines()
    link = Path(os.path.relpath(RESULTS / name, folder)).as_posix()
    made = f"`{commands[0]}`" if len(commands) == 1 else f"{len(commands)} [commands]({link}.md)"
    return f"{body}\n\nMade by {made}: [raw numbers]({link}.json)."


def load(name: str) -> dict[str, Any]:
    """Return a table with the run that made it."""
    table: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return table


def row(name: str, **wanted: object) -> dict[str, Any]:
    """Return the only row of a table in which the named columns have these values."""
    (found,) = [row for row in load(name)["rows"] if all(row[key] == value for key, value in wanted.items())]
    return found


def headline() -> str:
    """Return the table of the README: each claim beside what one would use instead."""

    def cifar10(method: str, label: str) -> str:
        found = row("cifar10/accuracy", method=method, label=label, sparsity=0.9)
        return f"{found['single']['mean']:.1f} %"

    def fashion(method: str) -> str:
        found = row("fashion/accuracy", method=method)
        return f"{found['accuracy']['mean']:.1f} %, {found['nll']['mean']:.2f}"

    def exact(method: str) -> str:
        return f"{row('linear/methods', method=method)['exact']['mean']:.0%}".replace("%", " %")

    def one_shot(solver: str, level: str = "2:4") -> str:
        found = row("one-shot/transformer/one-shot", solver=solver, level=level)
        return f"{found['perplexity']['mean']:.2f}"

    def lenet(method: str, sparsity: float = 90.0) -> str:
        found = row("compression/compression", network=LENET, sparsity=sparsity, method=method)
        return f"{found['accuracy']['mean']:.1f} %, {found['nll']['mean']:.2f}"

    sound = "sound, scope=global"
    taught = f"{sound}, precision=bfloat16, distillation=0.2"
    paper = row("cifar10/accuracy", method="A-SGHMC-SA", label="taught, precision=bfloat16", sparsity=0.9)
    dense = f"{paper['dense']:.1f} %"
    covered = row("selection/calibration", method="SpikeSlabRegressor()")["prediction"]["mean"]
    step = row("bench/step-1", network="ResNet20, batch 128", what="SGHMC-SA")["best"]
    rows = [
        (
            "LeNet, Fashion-MNIST, 90 % zeros: accuracy, NLL",
            lenet("spikeslab, average"),
            f"magnitude pruning {lenet('gmp')}; torch's {lenet('torch-prune')}; dense {lenet('dense', 0.0)}",
        ),
        (
            f"ResNet20, CIFAR-10, 90 % zeros, dense network ({dense}) as teacher",
            f"{paper['single']['mean']:.1f} %",
            f"same teacher: magnitude pruning {cifar10('GMP', taught)}, L2 {cifar10('L2 = 0.002', taught)}",
        ),
        (
            "Fashion-MNIST: accuracy, NLL of the average",
            fashion("SGHMC-SA, average"),
            f"dropout {fashion('Dropout')}; no adaptive prior {fashion('SGHMC, average')}",
        ),
        (
            "Transformer, 2:4 zeros without training: perplexity",
            one_shot("spikeslab"),
            f"SparseGPT {one_shot('SparseGPT')}, Wanda {one_shot('Wanda')}; dense {one_shot('dense', '0 %')}",
        ),
        (
            "100 rows, 1000 columns: exactly the right ones found",
            exact("SpikeSlabRegressor()"),
            f"lasso {exact('LassoCV')}, lasso with refit {exact('LassoCV, 1 s.e., OLS refit')}, abess {exact('abess')}",
        ),
        ("90 % prediction intervals cover", f"{covered:.1f} %", "–"),
        ("ResNet20, time of a training step", f"{step:.2f}", "`torch.optim.SGD` 1"),
    ]
    head = "| measured | spikeslab | instead |\n|:--|--:|:--|\n"
    return head + "\n".join(f"| {' | '.join(cells)} |" for cells in rows)


if __name__ == "__main__":
    for path in pages():
        path.write_text(with_tables(path), encoding="utf-8")
