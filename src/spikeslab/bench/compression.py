"""Methods of ``compress`` on the digits CNN at one budget: accuracy, NLL and zeros of each.

The settings are the defaults, tuned for none of the methods: the table shows that all of them run on one harness, not
which one wins. The last rows vary the width of the spike with ``omega_sum=5``, where it matters most.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from spikeslab.bench.timing import BenchPlan, Findings
from spikeslab.compression import METHODS, Settings, compress
from spikeslab.paper.demo import load_digits
from spikeslab.paper.demo.digits import DigitsPreset, train_dense
from spikeslab.report.tables import Column, Table
from spikeslab.training import Callback, TensorBatches

SPARSITY = 0.9
CASES: list[tuple[str, dict[str, Any]]] = [
    *((method, {}) for method in METHODS),
    *(("a-sghmc-sa", {"omega_sum": 5.0, "v0": v0}) for v0 in (0.007, 0.013, 0.05)),
]


def run(plan: BenchPlan) -> Findings:
    """Compress one dense network by every method, in ``plan.repeats`` epochs each."""
    digits = load_digits()
    dense = train_dense(digits, DigitsPreset(), plan.seed, Callback())
    train = TensorBatches(digits.x_train, digits.y_train, batch_size=64, seed=plan.seed)
    unseen = [(torch.cat([digits.x_validation, digits.x_test]), torch.cat([digits.y_validation, digits.y_test]))]
    found: list[tuple[str, Mapping[str, float], Mapping[str, float] | None, int]] = []
    for method, changes in CASES:
        result = compress(
            dense,
            train,
            unseen,
            sparsity=SPARSITY,
            epochs=plan.repeats,
            method=method,
            seed=plan.seed,
            settings=Settings(**changes),
            progress=False,
        )
        scores, network = result.evaluation, result.report["network"]
        if not found:
            found.append(("dense", scores["dense"], None, network["weights"]))
        label = ", ".join([method, *(f"{name}={value:g}" for name, value in changes.items())])
        found.append((label, scores["sparse"], scores["average"], network["nonzeros"]))
        plan.tick(plan.repeats)
    images = len(unseen[0][1])
    notes = [
        f"{plan.repeats} epochs from one dense network, one seed, default settings where none are named. "
        f"{images} images that are not trained on, one of which is {100 / images:.2f} points."
    ]
    title = f"Methods of compress on the digits CNN, {SPARSITY:.0%} of the network zero"
    table = Table.build(
        title,
        found,
        {
            Column("method", "Method"): lambda row: row[0],
            Column("accuracy", "accuracy %", ".2f"): lambda row: 100.0 * row[1]["accuracy"],
            Column("nll", "NLL", ".3f"): lambda row: row[1]["nll"],
            Column("average_accuracy", "average: accuracy %", ".2f"): lambda row: (
                100.0 * row[2]["accuracy"] if row[2] else None
            ),
            Column("average_nll", "average: NLL", ".3f"): lambda row: row[2]["nll"] if row[2] else None,
            Column("nonzeros", "non-zeros", ","): lambda row: row[3],
        },
        notes,
    )
    return Findings({"digits": table})
