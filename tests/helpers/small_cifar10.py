"""Small images, runs and results of CIFAR-10."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from synthetic_images import bright_pixels

from spikeslab.paper.cifar10.data import Dense
from spikeslab.paper.cifar10.runs import (
    CifarRun,
    run_cifar10,
)

ROWS, TOTAL = 50_000, 272_474
"""Training images of CIFAR-10, and parameters of ResNet20."""


DATA = bright_pixels()


def small_run(method: str = "a-sghmc-sa", **changes: Any) -> CifarRun:
    settings = {"sparsity": 0.9, "preset": "default", "epochs": 2, "batch_size": 8, "erasing": False, **changes}
    return CifarRun(method, **settings)


def run_small(run: CifarRun, out: Path, dense: Dense, **more: Any) -> dict[str, Any]:
    return run_cifar10(run, out, DATA, dense, report=False, **more)


def result(method: str, sparsity: float, seed: int, single: float, average: float, **more: Any) -> dict[str, Any]:
    """A result with given accuracies of 10,000 images, dense at 94.12 %."""
    numbers = {"nll": 0.3, "ece": 0.02, "rows": 10_000}
    return {
        "facts": {
            "row": method,
            "label": "default",
            "held_out": 0,
            "dense": "",
            "best_epoch": "best" in more,
            "structure": more.get("structure", "weights"),
            "seen_all": True,
        },
        "command": more.get("command", "spikeslab"),
        "settings": more.get("settings", {}),
        "target": sparsity,
        "epochs": 30,
        "seed": seed,
        "part": "test",
        "rows": 10_000,
        "samples": 15,
        "seconds": 3600.0,
        "dense": {"accuracy": 0.9412, **numbers},
        "sparse": {"accuracy": single, **numbers},
        "average": {"accuracy": average, **numbers},
        "network": {"nonzeros": 27_247, "sparsity": 0.9, "weights": TOTAL},
        "sparse_layers": {"nonzeros": 22_037, "sparsity": 0.9175, "weights": 267_264},
        "best_epoch": more.get("best"),
        **({"compacted": more["compacted"]} if "compacted" in more else {}),
    }


FOUND = [
    (Path("a"), result("a-sghmc-sa", 0.9, 1, 0.914, 0.918)),
    (Path("b"), result("a-sghmc-sa", 0.9, 0, 0.912, 0.916)),
    (Path("c"), result("gmp", 0.9, 0, 0.905, 0.906)),
    (Path("d"), result("l2:0.6", 0.5, 0, 0.94, 0.941)),
]
