"""The methods of ``compress`` on the digits CNN, at one budget: accuracy, NLL and zeros of each.

    python benchmarks/compression.py --sparsity 0.9 --epochs 30

The settings are the defaults, tuned for none of them: the table shows that the harness works, not which method wins.
The last rows vary the width of the spike at the fixed point of the latents, where it matters most.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from spikeslab.compression import METHODS, Settings, compress
from spikeslab.paper.demo import load_digits
from spikeslab.paper.demo.digits import Settings as Digits
from spikeslab.paper.demo.digits import train_dense
from spikeslab.report.tables import Column, Provenance, Table
from spikeslab.training import Callback, TensorBatches

CASES: list[tuple[str, dict[str, float]]] = [
    *((method, {}) for method in METHODS),
    *(("a-sghmc-sa", {"omega_sum": 5.0, "v0": v0}) for v0 in (0.007, 0.013, 0.05)),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sparsity", type=float, default=0.9)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("results/compression"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    digits = load_digits()
    dense = train_dense(digits, Digits(), arguments.seed, Callback())
    train = TensorBatches(digits.x_train, digits.y_train, batch_size=64, seed=arguments.seed)
    unseen = [(torch.cat([digits.x_validation, digits.x_test]), torch.cat([digits.y_validation, digits.y_test]))]
    rows = []
    for method, changes in CASES:
        result = compress(
            dense,
            train,
            unseen,
            sparsity=arguments.sparsity,
            epochs=arguments.epochs,
            method=method,
            seed=arguments.seed,
            settings=Settings(**changes),
            progress=False,
        )
        found = result.evaluation
        if not rows:
            rows.append(row("dense", found["dense"], None, result.report["network"]["weights"]))
        label = ", ".join([method, *(f"{name}={value:g}" for name, value in changes.items())])
        rows.append(row(label, found["sparse"], found["average"], result.report["network"]["nonzeros"]))
        print(rows[-1], flush=True)
    table = Table(
        f"Methods of compress on the digits CNN, {arguments.sparsity:.0%} of the network zero",
        [
            Column("method", "Method"),
            Column("accuracy", "accuracy %", ".2f"),
            Column("nll", "NLL", ".3f"),
            Column("average_accuracy", "average: accuracy %", ".2f"),
            Column("average_nll", "average: NLL", ".3f"),
            Column("nonzeros", "non-zeros", ","),
        ],
        rows,
        notes=[
            f"{arguments.epochs} epochs from one dense network, one seed, default settings where none are named. "
            f"{len(unseen[0][1])} images that are not trained on, one of which is {100 / len(unseen[0][1]):.2f} points."
        ],
    )
    arguments.out.mkdir(parents=True, exist_ok=True)
    command = f"python benchmarks/compression.py --sparsity {arguments.sparsity} --epochs {arguments.epochs}"
    table.write(arguments.out / "digits", Provenance(f"{command} --seed {arguments.seed}", arguments.seed))
    print(table.markdown())


def row(method: str, sparse: dict, average: dict | None, nonzeros: int) -> dict:
    return {
        "method": method,
        "accuracy": 100.0 * sparse["accuracy"],
        "nll": sparse["nll"],
        "average_accuracy": None if average is None else 100.0 * average["accuracy"],
        "average_nll": None if average is None else average["nll"],
        "nonzeros": nonzeros,
    }


if __name__ == "__main__":
    main()
