"""Scripts on several ranks, and what they wrote compared."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from torch import Tensor

import spikeslab as ss

WORKERS = Path(__file__).parents[1] / "parallel" / "workers"
SOURCE = Path(ss.__file__).parents[1]


def torchrun(ranks: int, script: Path, *arguments: str) -> str:
    """Run a script on several ranks; what they print."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(SOURCE)}
    done = subprocess.run(
        [*command, str(script), *arguments], env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def difference(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """Largest difference, relative to the largest number of its tensor."""
    assert set(one) == set(other)
    return max(float((one[k] - other[k]).abs().max() / other[k].abs().max()) for k in other)
