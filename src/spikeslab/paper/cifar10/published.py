"""What the paper reports for ResNet20 on CIFAR-10, in per cent of the test images.

Table 3, the rows that its source has in comments, the logs that its authors published, and the competitors it cites.
Its accuracies are the highest over the epochs from about 520 on, of one run each.
"""

from __future__ import annotations

from collections.abc import Mapping

from spikeslab.paper.cifar10.presets import split_method
from spikeslab.report.tables import Cell, Column, Table

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
NAMES = {
    "a-sghmc-sa": "A-SGHMC-SA",
    "sghmc-sa": "SGHMC-SA",
    "a-sghmc-em": "A-SGHMC-EM",
    "a-sghmc": "A-SGHMC",
    "prior-annealing": "prior annealing",
    "gmp": "GMP",
    "dpf": "DPF",
}


def title(method: str) -> str:
    """The name of a row.

    >>> title("a-sghmc-sa"), title("l2:0.6")
    ('A-SGHMC-SA', 'L2 = 0.6')
    """
    name, strength = split_method(method)
    if strength is not None:
        return f"{name.upper()} = {strength:g}"
    return NAMES.get(name, name.upper() if name in ("l1", "l2") else name)


def paper_accuracy(method: str, sparsity: float) -> float | None:
    """The paper's accuracy of a method at a sparsity, where it has one.

    >>> paper_accuracy("a-sghmc-sa", 0.9), paper_accuracy("l2:0.6", 0.9), paper_accuracy("gmp", 0.9)
    (91.68, 91.4, None)
    """
    name, strength = split_method(method)
    fixed: Mapping[float, tuple[float, ...]] = {"l1": L1, "l2": L2}.get(name, {})
    row = TABLE3.get(method) if strength is None else fixed.get(strength)
    return row[SPARSITIES.index(sparsity)] if row is not None and sparsity in SPARSITIES else None


def paper_table() -> Table:
    """All of these numbers."""
    rows = [_row(title(name), row, *LOGS[name], remark=REMARKS.get(name, "")) for name, row in TABLE3.items()]
    rows += [_row(title(f"l1:{strength}"), row, remark=COMMENT) for strength, row in L1.items()]
    rows += [_row(title(f"l2:{strength}"), row, remark=COMMENT) for strength, row in L2.items()]
    rows.append(_row("SGHMC-SSG", SSG, remark=f"{COMMENT}: two Gaussians"))
    rows += [_row(name, (None, None, None, value), remark=remark) for name, (value, remark) in CITED.items()]
    return Table(
        "CIFAR-10: what the paper reports",
        [
            Column("method", "Method"),
            *(Column(f"s{round(100 * s)}", f"{s:.0%}", ".2f") for s in SPARSITIES),
            Column("log_best", "90 %, log, best", ".2f"),
            Column("log_final", "90 %, log, last", ".2f"),
            Column("remark", "Remark"),
        ],
        rows,
        notes=[
            "Accuracy in per cent. The paper's numbers are those of the best epoch on the test images, of one run of "
            "1000 epochs, and a point estimate; the logs are of its authors' published code, with the best and the "
            f"last epoch. Its dense network has {DENSE:.2f} % in the paper and {DENSE_LOG:.2f} % in the logs."
        ],
    )


COMMENT = "in a comment of the source"
REMARKS = {"a-sghmc-em": f"90 %: {POSTER_EM} on the poster"}


def _row(
    name: str,
    row: tuple[float | None, ...],
    best: float | None = None,
    final: float | None = None,
    *,
    remark: str = "",
) -> dict[str, Cell]:
    cells: dict[str, Cell] = {f"s{round(100 * s)}": value for s, value in zip(SPARSITIES, row, strict=True)}
    return {"method": name, **cells, "log_best": best, "log_final": final, "remark": remark}
