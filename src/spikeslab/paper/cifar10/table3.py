"""The paper's table 3 as it is printed, a column for each sparsity: its numbers, and ours below them."""

from __future__ import annotations

from collections.abc import Sequence

from spikeslab.paper.cifar10.presets import PAPER_EPOCHS
from spikeslab.paper.cifar10.published import SPARSITIES, TABLE3, paper_accuracy, title
from spikeslab.paper.cifar10.tables import AVERAGE, SINGLE, Row
from spikeslab.report.tables import Cell, Column, Table

BEST = "best test epoch"


def rows_of_table3(rows: Sequence[Row]) -> list[Row]:
    """The rows of the paper's four methods at its four sparsities."""
    return [row for row in rows if row.of_weights and row.method in TABLE3 and row.sparsity in SPARSITIES]


def table3(rows: Sequence[Row]) -> Table:
    """All of table 3, with these rows of it run by us.

    A recipe has one line for each kind of number. Where it ran for several lengths at one sparsity, the longest counts.
    """
    lines: list[dict[str, Cell]] = []
    for method in TABLE3:
        paper: dict[float, Cell] = {sparsity: paper_accuracy(method, sparsity) for sparsity in SPARSITIES}
        lines.append(_line(title(method), "the paper", f"{PAPER_EPOCHS}", BEST, paper))
        own = [row for row in rows if row.method == method]
        for label in dict.fromkeys(row.label for row in own):
            lines += _recipe(title(method), label, [row for row in own if row.label == label])
    return Table(
        "CIFAR-10, ResNet20: table 3 of the paper",
        [
            Column("method", "Method"),
            Column("label", "Settings"),
            Column("epochs", "epochs"),
            Column("number", "accuracy % of"),
            *(Column(_key(sparsity), f"{sparsity:.0%} zeros", ".2f") for sparsity in SPARSITIES),
        ],
        lines,
        notes=[
            "Zeros are counted in the whole network. The paper's numbers are the highest over epochs on the test "
            "images, of one run each; beside them belongs our best test epoch, which is no estimate of anything. The "
            "last epoch and the average of the last samples, which share one mask, are. ± is the standard error over "
            "seeds, where there are several. Epochs that differ between sparsities stand in the order of the columns."
        ],
    )


def _recipe(method: str, label: str, rows: Sequence[Row]) -> list[dict[str, Cell]]:
    longest = {row.sparsity: row for row in sorted(rows, key=lambda row: row.epochs)}
    counts = [longest[sparsity].epochs for sparsity in SPARSITIES if sparsity in longest]
    epochs = ", ".join(map(str, counts if len(set(counts)) > 1 else counts[:1]))
    numbers: dict[str, dict[float, Cell]] = {
        BEST: {sparsity: row.best_epoch for sparsity, row in longest.items()},
        "last epoch": {sparsity: row.percent(SINGLE) for sparsity, row in longest.items()},
        "average": {sparsity: row.percent(AVERAGE) for sparsity, row in longest.items()},
    }
    return [_line(method, label, epochs, name, cells) for name, cells in numbers.items() if any(cells.values())]


def _line(method: str, label: str, epochs: str, number: str, cells: dict[float, Cell]) -> dict[str, Cell]:
    head: dict[str, Cell] = {"method": method, "label": label, "epochs": epochs, "number": number}
    return head | {_key(sparsity): cells.get(sparsity) for sparsity in SPARSITIES}


def _key(sparsity: float) -> str:
    return f"s{round(100 * sparsity)}"
