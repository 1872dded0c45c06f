"""Reads the folder of a run.

``run.json`` says how the run came about and how it ended, ``metrics.jsonl`` has a line for each report of the loop,
``checkpoints/`` the last states, ``posterior/`` the samples (in ``chain-0``, ``chain-1`` and so on if there are several
chains; samples in memory are in the checkpoint), and ``evaluation.json`` the final predictions. All but the first may
be missing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import NoneType
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import load_file

from spikeslab.diagnostics.run_facts import RunFacts, SampleFacts, Snapshot, mapping
from spikeslab.errors import quote
from spikeslab.functional.convergence import NEEDED_DRAWS
from spikeslab.posterior.chains import chain_folders
from spikeslab.posterior.convergence import (
    PREDICTIONS,
    Convergence,
    assess,
    assess_all,
    learned_tensors,
    weight_draws,
)
from spikeslab.posterior.samples import INDEX, DiskSamples, Tensors
from spikeslab.training.checkpoints import Checkpoint, Checkpoints
from spikeslab.training.log import MetricsLog
from spikeslab.training.run_folder import CHECKPOINTS, EVALUATION_FILE, METRICS_FILE, RECORD_FILE, VERSION

POSTERIOR = "posterior"
STATUSES = ("running", "finished", "interrupted", "failed")
LOSS = "training loss"
FIELDS: dict[str, type | tuple[type, ...]] = {
    "command": (str, NoneType),
    "seed": (int, NoneType),
    "versions": dict,
    "settings": dict,
    "num_data": (int, NoneType),
    "status": str,
    "steps": int,
    "epochs": (int, float),
    "total_steps": int,
    "seconds": (int, float),
}


class RunError(ValueError):
    """What is wrong with the folder of a run, in one sentence."""


def read_run(folder: Path) -> RunFacts:
    """Read the folder of a run.

    Raises:
        RunError, ValueError: If it is not one, or a file in it is damaged; the message is one sentence for people.
    """
    if not (folder / RECORD_FILE).is_file():
        raise RunError(f"RUN must be the folder of a run, with {RECORD_FILE} in it, but got {folder}.")
    run = _read_object(folder / RECORD_FILE)
    _check_run(run, folder / RECORD_FILE)
    metrics = _read_metrics(folder / METRICS_FILE)
    evaluation = _read_object(folder / EVALUATION_FILE) if (folder / EVALUATION_FILE).is_file() else {}
    checkpoint = Checkpoints(folder / CHECKPOINTS).latest()
    samples, convergence = _describe_samples(_chains(folder / POSTERIOR, checkpoint))
    facts = RunFacts(run, metrics, evaluation, samples, _snapshot(checkpoint))
    return replace(facts, convergence=[*_predictions(evaluation), *convergence, *_loss(facts)])


def _read_object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(f"{path} must be readable JSON, but got: {error}.") from error
    if not isinstance(value, dict):
        raise RunError(f"{path} must hold a JSON object, but got {type(value).__name__}.")
    return value


def _check_run(run: Mapping[str, Any], path: Path) -> None:
    if run.get("version") != VERSION:
        raise RunError(f"{path} must be of version {VERSION}, but got {run.get('version')!r}.")
    for name, kind in FIELDS.items():
        if not isinstance(run.get(name), kind) or isinstance(run.get(name), bool):
            raise RunError(f"{path} must have a valid {name!r}, but got {run.get(name)!r}.")
    if run["status"] not in STATUSES:
        raise RunError(f"{path} must have a status among {quote(STATUSES)}, but got {run['status']!r}.")


def _read_metrics(path: Path) -> list[dict[str, Any]]:
    """The records in the order of their steps; steps that were taken again replace those taken first."""
    try:
        lines = MetricsLog(path).read()
    except UnicodeDecodeError as error:
        raise RunError(f"{path} must be text, but got: {error}.") from error
    records: list[dict[str, Any]] = []
    for number, record in enumerate(lines, start=1):
        if not isinstance(record.get("step"), int):
            raise RunError(f"{path} must have an integer step in line {number}, but got {record.get('step')!r}.")
        while records and records[-1]["step"] >= record["step"]:
            records.pop()
        records.append(record)
    return records


class _Chain(NamedTuple):
    """Samples of a chain: their steps, and how to read the one of a step."""

    steps: list[int]
    read: Callable[[int], Tensors]


def _chains(folder: Path, checkpoint: Checkpoint | None) -> list[_Chain]:
    """The chains on disk, or else the one whose samples a checkpoint holds."""
    try:
        stores = [DiskSamples(path) for path in chain_folders(folder)]
    except FileNotFoundError:
        state = {} if checkpoint is None else mapping(mapping(checkpoint.state.get("callbacks")).get("posterior"))
        steps = [int(record["step"]) for record in state.get("records", [])]
        samples = dict(zip(steps, state.get("samples", []), strict=True))
        return [_Chain(steps, lambda step: _tensors(samples[step]))] if state else []
    return [_Chain(_sample_steps(store), store.read) for store in stores]


def _tensors(sample: Tensors | Path) -> Tensors:
    return load_file(sample) if isinstance(sample, Path) else sample


def _sample_steps(store: DiskSamples) -> list[int]:
    try:
        return [int(record["step"]) for record in store.read_index()["samples"]]
    except (KeyError, TypeError) as error:
        raise RunError(f"{store.directory / INDEX} must list samples, but it does not.") from error


def _describe_samples(chains: Sequence[_Chain]) -> tuple[SampleFacts | None, list[Convergence]]:
    if not chains:
        return None, []
    counts = [len(chain.steps) for chain in chains]
    if not all(counts):
        return SampleFacts(counts, 0, 0, 0, 0), []
    zeros = [_Zeros() for _ in chains]
    draws = weight_draws([z.watch(chain, min(counts)) for z, chain in zip(zeros, chains, strict=True)])
    facts = SampleFacts(
        chains=counts,
        first_step=min(chain.steps[0] for chain in chains),
        zeros_each=min(min(z.each) for z in zeros),
        zeros_common=min(z.common() for z in zeros),
        total=zeros[0].total,
    )
    return facts, assess_all(draws)


class _Zeros:
    """Counts zeros of the samples of a chain as they pass."""

    def __init__(self) -> None:
        self.each: list[int] = []
        self.total = 0
        self._alive: dict[str, torch.Tensor] = {}

    def watch(self, chain: _Chain, length: int) -> Iterator[Tensors]:
        """The last ``length`` samples, one at a time."""
        for step in chain.steps[-length:]:
            tensors = chain.read(step)
            weights = learned_tensors(tensors)
            alive = {name: weight != 0 for name, weight in weights.items()}
            self.total = sum(weight.numel() for weight in weights.values())
            self.each.append(self.total - sum(int(mask.sum()) for mask in alive.values()))
            self._alive = {name: mask | self._alive.get(name, mask) for name, mask in alive.items()}
            yield tensors

    def common(self) -> int:
        """Weights that were zero in all of them."""
        return self.total - sum(int(mask.sum()) for mask in self._alive.values())


def _predictions(evaluation: Mapping[str, Any]) -> list[Convergence]:
    """Convergence in function space, which needs the model and is therefore kept by the run itself."""
    try:
        found = [Convergence(**_numbers(item)) for item in evaluation.get("convergence", [])]
    except (TypeError, AttributeError) as error:
        raise RunError(f"{EVALUATION_FILE} must hold a valid 'convergence', but got: {error}.") from error
    return [item for item in found if item.name == PREDICTIONS]


def _numbers(item: Mapping[str, Any]) -> dict[str, Any]:
    """``item`` with NaN for null, which JSON has instead."""
    return {name: math.nan if value is None else value for name, value in item.items()}


def _loss(facts: RunFacts) -> list[Convergence]:
    if facts.samples is None or not any(facts.samples.chains):
        return []
    loss = facts.series("loss")
    values = loss.values[loss.steps >= facts.samples.first_step]
    if len(values) < 2 * NEEDED_DRAWS or not np.isfinite(values).all():
        return []
    return [assess(LOSS, values.reshape(1, -1))]


def _snapshot(checkpoint: Checkpoint | None) -> Snapshot | None:
    if checkpoint is None or not isinstance(checkpoint.state.get("model"), dict):
        return None
    state = checkpoint.state
    weights = learned_tensors(state["model"])
    prior = mapping(mapping(state.get("sampler")).get("prior"))
    names = list(prior.get("names") or [])
    found = prior.get("rho")
    # Stacked chains have the latents of all layers in one tensor, which no layer's histogram can show.
    rho = dict(zip(names, found, strict=False)) if isinstance(found, list) else {}
    pruned = mapping(mapping(state.get("callbacks")).get("pruner")).get("names") or []
    sparse = [name for name in weights if name in {*names, *pruned}]
    return Snapshot(weights, rho, sparse, checkpoint.path.name)
