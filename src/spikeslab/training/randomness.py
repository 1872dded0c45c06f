"""Global random generators: torch's on every device, numpy's and Python's.

Dropout, the shuffles of a ``DataLoader`` and users' own code draw from them. The noise of the samplers does not: it is
a pure function of seed and step.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


def get_randomness() -> dict[str, Any]:
    """Return the state of every global generator."""
    kind, keys, position, has_gauss, gauss = np.random.get_state()  # noqa: NPY002 - the global generator users draw from
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "mps": torch.mps.get_rng_state() if torch.backends.mps.is_available() else None,
        "numpy": [kind, torch.from_numpy(np.asarray(keys, dtype=np.int64)), position, has_gauss, gauss],
        "python": random.getstate(),
    }


def restore_randomness(state: dict[str, Any]) -> None:
    """Restore the state of every global generator; devices that this machine lacks are skipped."""
    torch.set_rng_state(state["torch"])
    if state["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"][: torch.cuda.device_count()])
    if state["mps"] is not None and torch.backends.mps.is_available():
        torch.mps.set_rng_state(state["mps"])
    kind, keys, position, has_gauss, gauss = state["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), position, has_gauss, gauss))  # noqa: NPY002
    random.setstate(state["python"])


@contextmanager
def preserve_randomness() -> Iterator[None]:
    """Restore every global generator at the end of the ``with`` block."""
    before = get_randomness()
    try:
        yield
    finally:
        restore_randomness(before)


def seed_everything(seed: int) -> None:
    """Seed every global generator."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 - the global generator users draw from
