"""Table 3 of the paper: its numbers for ResNet20 on CIFAR-10, and ours in the same layout.

The numbers are those of table 3, of rows in comments of the paper's source, of the logs that its authors published, and
of the methods that it cites. Its accuracies are the highest over the epochs from about 520 on, of one run each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from spikeslab.paper.cifar10.presets import PAPER_EPOCHS, split_method
from spikeslab.paper.cifar10.runs import AVERAGE, SINGLE
from spikeslab.report.tables import Cell, Column, Table

if TYPE_CHECKING:
    from spikeslab.paper.cifar10.tables import CifarRow

SPARSITIES = (0.3, 0.5, 0.7, 0.9)
DENSE, DENSE_LOG = 93.90, 94.12
TABLE3 = {
    "a-sghmc": (94.07, 94.16, 93.16, 90.59),
    "a-sghmc-em": (94.18, 94.19, 93.41, 91.26),
    "sghmc-sa": (94.13, 94.11, 93.52, 91.45),
    "a-sghmc-sa": (94.23, 94.27, 93.74, 91.68),
}
LOGS = {
    # at 90 %: best epoch, last epoch
    "a-sghmc": (89.20, 89.10),
    "a-sghmc-em": (89.88, 89.69),
    "sghmc-sa": (91.26, 91.10),
    "a-sghmc-sa": (91.56, 91.43),
}
L1 = {
    1e-4: (94.09, 93.74, 92.98, 89.47),
    3e-4: (94.03, 93.68, 93.01, 89.62),
    1e-3: (92.88, 92.75, 92.62, 89.95),
    3e-3: (92.48, 92.49, 92.10, 91.12),
    1e-2: (89.50, 89.79, 90.07, 89.83),
    3e-2: (83.02, 82.36, 82.88, 83.50),
}
L2 = {
    1e-4: (94.15, 93.78, 93.12, 89.37),
    1e-3: (94.03, 93.64, 93.06, 89.29),
    1e-2: (94.17, 93.82, 93.17, 90.11),
    3e-2: (94.20, 93.99, 93.37, 91.15),
    0.1: (94.02, 93.96, 93.50, 91.20),
    0.3: (93.72, 93.57, 93.37, 91.27),
    0.6: (93.30, 93.09, 93.00, 91.40),
    1.0: (92.94, 92.90, 92.56, 91.16),
}
SSG = (94.27, 93.94, 93.63, 91.51)
POSTER_EM = 91.12
CITED = {
    "targeted dropout (cited)": (91.48, "ResNet32, 47K weights, 90 %"),
    "BC-GHS (cited)": (91.0, "VGG, 8M weights, 94.5 %"),
}
COMMENT = "in a comment of the source"
REMARKS = {"a-sghmc-em": f"90 %: {POSTER_EM} on the poster"}
BEST = "best test epoch"
NAMES = {
    "a-sghmc-sa": "A-SGHMC-SA",
    "sghmc-sa": "SGHMC-SA",
    "a-sghmc-em": "A-SGHMC-EM",
    "a-sghmc": "A-SGHMC",
    "prior-annealing": "prior annealing",
    "gmp": "GMP",
    "dpf": "DPF",
}


def method_title(method: str) -> str:
    """Return the name of a method in tables and figures.

    >>> method_title("a-sghmc-sa"), method_title("l2:0.6")
    ('A-SGHMC-SA', 'L2 = 0.6')
    """
    name, strength = split_method(method)
    if strength is not None:
        return f"{name.upper()} = {strength:g}"
    return NAMES.get(name, name.upper() if name in ("l1", "l2") else name)


def paper_accuracy(method: str, sparsity: float) -> float | None:
    """Return the paper's accuracy of a method at a sparsity, if it has one.

    >>> paper_accuracy("a-sghmc-sa", 0.9), paper_accuracy("l2:0.6", 0.9), paper_accuracy("gmp", 0.9)
    (91.68, 91.4, None)
    """
    name, strength = split_method(method)
    fixed: Mapping[float, tuple[float, ...]] = {"l1": L1, "l2": L2}.get(name, {})
    row = TABLE3.get(method) if strength is None else fixed.get(strength)
    return row[SPARSITIES.index(sparsity)] if row is not None and sparsity in SPARSITIES else None


def paper_table() -> Table:
    """Return all of the paper's numbers."""
    columns = [
        Column("method", "Method"),
        *(Column(_key(sparsity), f"{sparsity:.0%}", ".2f") for sparsity in SPARSITIES),
        Column("log_best", "90 %, log, best", ".2f"),
        Column("log_final", "90 %, log, last", ".2f"),
        Column("remark", "Remark"),
    ]

    def row(
        name: str, values: Sequence[float | None], remark: str = "", logs: Sequence[float | None] = (None, None)
    ) -> dict[str, Cell]:
        return dict(zip((column.key for column in columns), (name, *values, *logs, remark), strict=True))

    rows = [row(method_title(name), found, REMARKS.get(name, ""), LOGS[name]) for name, found in TABLE3.items()]
    for name, fixed in (("l1", L1), ("l2", L2)):
        rows += [row(method_title(f"{name}:{strength}"), found, COMMENT) for strength, found in fixed.items()]
    rows.append(row("SGHMC-SSG", SSG, f"{COMMENT}: two Gaussians"))
    rows += [row(name, (None, None, None, value), remark) for name, (value, remark) in CITED.items()]
    return Table(
        "CIFAR-10: what the paper reports",
        columns,
        rows,
        notes=[
            "Accuracy in per cent. The paper's numbers are those of the best epoch on the test images, of one run of "
            "1000 epochs, and a point estimate; the logs are of its authors' published code, with the best and the "
            f"last epoch. Its dense network has {DENSE:.2f} % in the paper and {DENSE_LOG:.2f} % in the logs."
        ],
    )


def select_table3(rows: Sequence[CifarRow]) -> list[CifarRow]:
    """Return the rows of the paper's four methods at its four sparsities."""
    return [row for row in rows if row.of_weights and row.method in TABLE3 and row.sparsity in SPARSITIES]


def table3(rows: Sequence[CifarRow]) -> Table:
    """Return table 3 with our rows below the paper's, a line for each kind of number.

    Where several lengths were run at one sparsity, the longest counts.
    """
    lines: list[dict[str, Cell]] = []
    for method in TABLE3:
        paper: dict[float, Cell] = {sparsity: paper_accuracy(method, sparsity) for sparsity in SPARSITIES}
        lines.append(_line(method_title(method), "the paper", f"{PAPER_EPOCHS}", BEST, paper))
        own = [row for row in rows if row.method == method]
        for label in dict.fromkeys(row.label for row in own):
            lines += _lines(method_title(method), label, [row for row in own if row.label == label])
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


def _lines(method: str, label: str, rows: Sequence[CifarRow]) -> list[dict[str, Cell]]:
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
