"""What is known of a run: the numbers that the doctor and the report are made from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from spikeslab.posterior.convergence import Convergence
from spikeslab.posterior.samples import Tensors

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Series:
    """Numbers along the steps of a run."""

    steps: Floats
    values: Floats

    def __len__(self) -> int:
        return len(self.values)

    def last_third(self) -> Series:
        """The end of the run, where a chain should no longer change its law."""
        if not len(self):
            return self
        end = self.steps >= self.steps[0] + 2.0 * (self.steps[-1] - self.steps[0]) / 3.0
        return Series(self.steps[end], self.values[end])


@dataclass(frozen=True)
class SampleFacts:
    """The samples of a run.

    Attributes:
        chains: Number of samples of each chain.
        first_step: Step of the first one.
        zeros_each: The smallest number of zeros that a sample has.
        zeros_common: Weights that are zero in all samples of a chain; of several chains, the fewest.
        total: Weights of the network.
    """

    chains: list[int]
    first_step: int
    zeros_each: int
    zeros_common: int
    total: int


@dataclass(frozen=True)
class Snapshot:
    """The network at the end.

    Attributes:
        weights: All that is learnt, by name.
        rho: Probability of the slab of every sparse weight; empty without an adaptive prior.
        sparse: Names of the layers that a prior or a pruner covers.
        origin: Where it was read.
    """

    weights: Tensors
    rho: Tensors
    sparse: list[str]
    origin: str


@dataclass(frozen=True)
class RunFacts:
    """All that is known of a run; what is missing is empty or ``None``."""

    run: dict[str, Any]
    metrics: list[dict[str, Any]] = field(default_factory=list)
    evaluation: dict[str, Any] = field(default_factory=dict)
    samples: SampleFacts | None = None
    snapshot: Snapshot | None = None
    convergence: list[Convergence] = field(default_factory=list)

    def series(self, *keys: str) -> Series:
        """Numbers under ``keys``, such as ``"evaluation", "accuracy"``, with those that are not finite."""
        found = [(record["step"], value) for record in self.metrics if (value := _number(record, keys)) is not None]
        return Series(np.array([s for s, _ in found], dtype=float), np.array([v for _, v in found], dtype=float))

    def layers(self, key: str) -> dict[str, Series]:
        """Numbers of each layer under ``key``, such as ``"delta"``."""
        names = {name: None for record in self.metrics for name in mapping(record.get(key))}
        return {name: self.series(key, name) for name in names}

    def setting(self, *names: str) -> Any:
        """The first of the settings that is there and not ``None``."""
        settings = self.run["settings"]
        return next((settings[name] for name in names if settings.get(name) is not None), None)


def mapping(value: object) -> Mapping[str, Any]:
    """``value`` where it is a mapping, otherwise an empty one."""
    return value if isinstance(value, Mapping) else {}


def _number(record: Mapping[str, Any], keys: Iterable[str]) -> float | None:
    value: Any = record
    for key in keys:
        value = mapping(value).get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value)
