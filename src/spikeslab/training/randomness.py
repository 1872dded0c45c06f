"""All global sources of randomness, as a state: torch's on every device, numpy's and Python's.

The samplers' noise is a pure function of seed and step and needs none of this; dropout, the shuffles of a
``DataLoader`` and users' own code draw from these.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


def randomness() -> dict[str, Any]:
    """The state of every global generator."""
    kind, keys, position, has_gauss, gauss = np.random.get_state()  # noqa: NPY002 - the global generator users draw from
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "mps": torch.mps.get_rng_state() if torch.backends.mps.is_available() else None,
        "numpy": [kind, torch.from_numpy(np.asarray(keys, dtype=np.int64)), position, has_gauss, gauss],
        "python": random.getstate(),
    }


def restore_randomness(state: dict[str, Any]) -> None:
    """Set every global generator to a state; devices that this machine does not have are passed over."""
    torch.set_rng_state(state["torch"])
    if state["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"][: torch.cuda.device_count()])
    if state["mps"] is not None and torch.backends.mps.is_available():
        torch.mps.set_rng_state(state["mps"])
    kind, keys, position, has_gauss, gauss = state["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), position, has_gauss, gauss))  # noqa: NPY002
    random.setstate(state["python"])


@contextmanager
def preserved_randomness() -> Iterator[None]:
    """Whatever is drawn meanwhile, all global generators are afterwards as they were."""
    before = randomness()
    try:
        yield
    finally:
        restore_randomness(before)


def seed_everything(seed: int) -> None:
    """Set every global generator by one seed."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 - the global generator users draw from
