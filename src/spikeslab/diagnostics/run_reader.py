"""Reader of a run's folder, for the doctor and the report.

It reads ``run.json`` (settings and status), ``metrics.jsonl`` (records of the loop), ``checkpoints/``, ``posterior/``
(samples on disk, with a folder per chain if there are several; samples in memory are in the checkpoint),
``evaluation.json`` and, of a compression, ``report.json``. All but the first may be missing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from spikeslab.diagnostics.traces import Traces
from spikeslab.errors import first_line, mark
from spikeslab.files import allow_bytes, check_links, read_record
from spikeslab.functional.convergence import NEEDED_DRAWS
from spikeslab.posterior.chains import chain_folders
from spikeslab.posterior.convergence import PREDICTIONS, Convergence, assess, learned_tensors, weight_draws
from spikeslab.posterior.samples import DiskSamples, Tensors, ZeroCounts, read_tensors
from spikeslab.samplers.base import read_latent
from spikeslab.training.checkpoints import Checkpoint, Checkpoints
from spikeslab.training.log import MetricsLog, RunError
from spikeslab.training.run_folder import (
    CHECKPOINTS,
    ENTRIES,
    EVALUATION_FILE,
    METRICS_FILE,
    POSTERIOR,
    RECORD_FILE,
    RESULT_FILE,
    read_run_record,
)

LOSS = "training loss"
COMPRESSION = {"method", "target", "collect_from"}
"""Settings by which the run of a compression is recognised."""


@dataclass(frozen=True)
class SampleFacts:
    """Facts about the samples of a run.

    Attributes:
        chains: Number of samples of each chain.
        first_step: Step of the first sample.
        zeros_each: Smallest number of zeros in a sample.
        zeros_common: Number of weights that are zero in all samples of a chain, the fewest over chains.
        total: Number of weights of the network.
    """

    chains: list[int]
    first_step: int
    zeros_each: int
    zeros_common: int
    total: int


@dataclass(frozen=True)
class Snapshot:
    """Network at the last checkpoint.

    Attributes:
        weights: Learned tensors by name.
        rho: Slab probabilities of the sparse weights by layer; empty without an adaptive prior.
        sparse: Names of the layers that a prior or a pruner covers.
        origin: Name of the checkpoint.
    """

    weights: Tensors
    rho: Tensors
    sparse: list[str]
    origin: str


@dataclass(frozen=True)
class RunFacts:
    """Contents of a run's folder; missing parts are empty or ``None``."""

    run: dict[str, Any]
    metrics: Traces = field(default_factory=lambda: Traces.of([]))
    evaluation: dict[str, Any] = field(default_factory=dict)
    samples: SampleFacts | None = None
    snapshot: Snapshot | None = None
    convergence: list[Convergence] = field(default_factory=list)
    result: dict[str, Any] = field(default_factory=dict)

    @property
    def is_compression(self) -> bool:
        """True if the run made a network sparse: its samples are then a means, not the end."""
        settings: dict[str, Any] = self.run["settings"]
        return settings.keys() >= COMPRESSION

    def setting(self, *names: str) -> Any:
        """Return the first of the settings that is not ``None``."""
        settings = self.run["settings"]
        return next((settings[name] for name in names if settings.get(name) is not None), None)


def mapping(value: object) -> Mapping[str, Any]:
    """Return ``value`` if it is a mapping, otherwise an empty one."""
    return value if isinstance(value, Mapping) else {}


def read_run(folder: Path) -> RunFacts:
    """Read the folder of a run.

    Raises:
        RunError: If it is not the folder of a run, or a record in it is damaged.
        SpikeSlabError: If a checkpoint or a sample is damaged.
    """
    if not (folder / RECORD_FILE).is_file():
        raise RunError(f"{mark('run')} must be the folder of a run, with {RECORD_FILE} in it, but got {folder}.")
    check_links(*(folder / name for name in (*ENTRIES, RESULT_FILE)))
    run = read_run_record(folder / RECORD_FILE, RunError)
    evaluation = read_record(folder / EVALUATION_FILE, RunError) if (folder / EVALUATION_FILE).exists() else {}
    checkpoint = Checkpoints(folder / CHECKPOINTS).latest()
    metrics = _read_metrics(folder / METRICS_FILE, checkpoint)
    result = read_record(folder / RESULT_FILE, RunError) if (folder / RESULT_FILE).exists() else {}
    samples, convergence = _describe_samples(_chains(folder / POSTERIOR, checkpoint))
    facts = RunFacts(run, metrics, evaluation, samples, _snapshot(checkpoint), result=result)
    return replace(facts, convergence=[*_predictions(evaluation), *convergence, *_loss(facts)])


def _read_metrics(path: Path, checkpoint: Checkpoint | None) -> Traces:
    """Read the numbers of a log.

    Raises:
        RunError: If a line is damaged, or one that the checkpoint knows is missing.
    """
    mark = None if checkpoint is None else checkpoint.state.get("log")
    try:
        return Traces.of(MetricsLog(path).records(mark), allow_bytes(path))
    except MemoryError:
        raise RunError(f"{path} cannot be read: it has too many parts for its length.") from None


class _Chain(NamedTuple):
    """Steps of a chain's samples, and the function that reads the sample of a step."""

    steps: list[int]
    read: Callable[[int], Tensors]


def _chains(folder: Path, checkpoint: Checkpoint | None) -> list[_Chain]:
    """Return the chains on disk, or else the one whose samples the checkpoint holds."""
    try:
        stores = [DiskSamples(path) for path in chain_folders(folder)]
    except FileNotFoundError:
        state = {} if checkpoint is None else mapping(mapping(checkpoint.state.get("callbacks")).get("posterior"))
        steps = [int(record["step"]) for record in state.get("records", [])]
        samples = dict(zip(steps, state.get("samples", []), strict=True))
        return [_Chain(steps, lambda step: read_tensors(samples[step]))] if state else []
    return [_Chain([record["step"] for record in store.read_index()["samples"]], store.read) for store in stores]


def _describe_samples(chains: Sequence[_Chain]) -> tuple[SampleFacts | None, list[Convergence]]:
    if not chains:
        return None, []
    counts = [len(chain.steps) for chain in chains]
    if not all(counts):
        return SampleFacts(counts, 0, 0, 0, 0), []
    zeros = [ZeroCounts() for _ in chains]
    draws = weight_draws([_count_zeros(chain, min(counts), z) for chain, z in zip(chains, zeros, strict=True)])
    facts = SampleFacts(
        chains=counts,
        first_step=min(chain.steps[0] for chain in chains),
        zeros_each=min(z.fewest for z in zeros),
        zeros_common=min(z.common for z in zeros),
        total=zeros[0].total,
    )
    return facts, [assess(name, values) for name, values in draws.items()]


def _count_zeros(chain: _Chain, length: int, zeros: ZeroCounts) -> Iterator[Tensors]:
    """Yield the last ``length`` samples of a chain, and count the zeros of their weights."""
    for tensors in map(chain.read, chain.steps[-length:]):
        zeros.add(learned_tensors(tensors))
        yield tensors


def _predictions(evaluation: Mapping[str, Any]) -> list[Convergence]:
    """Return the convergence of the predictions, which the run itself computed, since that needs the model."""
    try:
        # JSON has null for NaN.
        entries: list[dict[str, Any]] = [
            {k: math.nan if v is None else v for k, v in e.items()} for e in evaluation.get("convergence", [])
        ]
        found = [Convergence(**entry) for entry in entries]
    except (TypeError, AttributeError) as error:
        raise RunError(f"{EVALUATION_FILE} has a damaged entry 'convergence': {first_line(error)}.") from error
    return [item for item in found if item.name == PREDICTIONS]


def _loss(facts: RunFacts) -> list[Convergence]:
    if facts.samples is None or not any(facts.samples.chains):
        return []
    loss = facts.metrics.series("loss")
    values = loss.values[loss.steps >= facts.samples.first_step]
    if len(values) < 2 * NEEDED_DRAWS or not np.isfinite(values).all():
        return []
    return [assess(LOSS, values.reshape(1, -1))]


def _snapshot(checkpoint: Checkpoint | None) -> Snapshot | None:
    if checkpoint is None or not isinstance(checkpoint.state.get("model"), dict):
        return None
    state = checkpoint.state
    weights = learned_tensors(state["model"])
    sampler = mapping(state.get("sampler"))
    names = list(mapping(sampler.get("prior")).get("names") or [])
    # Stacked chains keep the latents of all layers in one tensor, which has no histogram per layer.
    rho = dict(zip(names, read_latent(sampler, "rho"), strict=False))
    pruned = mapping(mapping(state.get("callbacks")).get("pruner")).get("names") or []
    sparse = [name for name in weights if name in {*names, *pruned}]
    return Snapshot(weights, rho, sparse, checkpoint.path.name)
