"""Reads the folder of a run.

``run.json`` says how the run came about and how it ended, ``metrics.jsonl`` has a line for each report of the loop,
``checkpoints/`` the last states, ``posterior/`` the samples (in ``chain-0``, ``chain-1`` and so on if there are several
chains), and ``evaluation.json`` the final predictions. All but the first may be missing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from spikeslab.errors import quoted
from spikeslab.posterior.chains import chain_folders
from spikeslab.posterior.convergence import (
    NEEDED_DRAWS,
    PREDICTIONS,
    Convergence,
    assess,
    assess_all,
    learnt,
    weight_draws,
)
from spikeslab.posterior.samples import INDEX, DiskSamples, Tensors
from spikeslab.training.checkpoints import Checkpoints
from spikeslab.training.run_facts import RunFacts, SampleFacts, Snapshot, mapping

RUN, METRICS, EVALUATION = "run.json", "metrics.jsonl", "evaluation.json"
CHECKPOINTS, POSTERIOR = "checkpoints", "posterior"
VERSION = 1
STATUSES = ("running", "finished", "interrupted", "failed")
LOSS = "training loss"
FIELDS: dict[str, type | tuple[type, ...]] = {
    "command": str,
    "seed": int,
    "versions": dict,
    "settings": dict,
    "num_data": int,
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
    if not (folder / RUN).is_file():
        raise RunError(f"RUN must be the folder of a run, with {RUN} in it, but got {folder}.")
    run = _read_object(folder / RUN)
    _check_run(run, folder / RUN)
    notes: list[str] = []
    metrics = _read_metrics(folder / METRICS, notes)
    evaluation = _read_object(folder / EVALUATION) if (folder / EVALUATION).is_file() else {}
    samples, convergence = _read_samples(folder / POSTERIOR, notes)
    facts = RunFacts(run, metrics, evaluation, samples, _read_snapshot(folder), notes=notes)
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
        raise RunError(f"{path} must have a status among {quoted(STATUSES)}, but got {run['status']!r}.")


def _read_metrics(path: Path, notes: list[str]) -> list[dict[str, Any]]:
    """The lines in the order of their steps; after a resume, the steps taken again replace those taken first."""
    if not path.is_file():
        return []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise RunError(f"{path} must be readable text, but got: {error}.") from error
    records: list[dict[str, Any]] = []
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
            step = float(record["step"])
        except (ValueError, TypeError, KeyError) as error:
            if number == len(lines):  # a process that was killed while it wrote
                notes.append(f"The last line of {path.name} is incomplete and was left out.")
                break
            raise RunError(f"{path} must hold a JSON object with a step in line {number}, but it does not.") from error
        while records and records[-1]["step"] >= step:
            records.pop()
        records.append(record)
    return records


def _read_samples(folder: Path, notes: list[str]) -> tuple[SampleFacts | None, list[Convergence]]:
    if not folder.is_dir():
        return None, []
    try:
        stores = [DiskSamples(path) for path in chain_folders(folder)]
    except FileNotFoundError:
        return None, []
    steps = [_sample_steps(store) for store in stores]
    if not all(steps):
        return SampleFacts([len(keys) for keys in steps], 0, 0, 0, 0), []
    zeros = [_Zeros() for _ in stores]
    length = min(map(len, steps))
    draws = weight_draws([z.watch(s, keys[-length:]) for z, s, keys in zip(zeros, stores, steps, strict=True)])
    facts = SampleFacts(
        chains=[len(keys) for keys in steps],
        first_step=min(keys[0] for keys in steps),
        zeros_each=min(min(z.each) for z in zeros),
        zeros_common=min(z.common() for z in zeros),
        total=zeros[0].total,
    )
    try:
        return facts, assess_all(draws)
    except ImportError as error:
        notes.append(str(error))
        return facts, []


def _sample_steps(store: DiskSamples) -> list[int]:
    try:
        return [int(record["step"]) for record in store.read_index()["samples"]]
    except (KeyError, TypeError) as error:
        raise RunError(f"{store.directory / INDEX} must list samples, but it does not.") from error


class _Zeros:
    """Counts zeros of the samples of a chain as they pass."""

    def __init__(self) -> None:
        self.each: list[int] = []
        self.total = 0
        self._alive: dict[str, torch.Tensor] = {}

    def watch(self, store: DiskSamples, steps: Iterable[int]) -> Iterator[Tensors]:
        for step in steps:
            tensors = store.read(step)
            weights = learnt(tensors)
            alive = {name: weight != 0 for name, weight in weights.items()}
            self.total = sum(weight.numel() for weight in weights.values())
            self.each.append(self.total - sum(int(mask.sum()) for mask in alive.values()))
            self._alive = {name: mask | self._alive.get(name, mask) for name, mask in alive.items()}
            yield tensors

    def common(self) -> int:
        return self.total - sum(int(mask.sum()) for mask in self._alive.values())


def _predictions(evaluation: Mapping[str, Any]) -> list[Convergence]:
    """Convergence in function space, which needs the model and is therefore kept by the run itself."""
    try:
        found = [Convergence(**item) for item in evaluation.get("convergence", [])]
    except TypeError as error:
        raise RunError(f"{EVALUATION} must hold a valid 'convergence', but got: {error}.") from error
    return [item for item in found if item.name == PREDICTIONS]


def _loss(facts: RunFacts) -> list[Convergence]:
    if facts.samples is None or not any(facts.samples.chains):
        return []
    loss = facts.series("loss")
    values = loss.values[loss.steps >= facts.samples.first_step]
    if len(values) < 2 * NEEDED_DRAWS or not np.isfinite(values).all():
        return []
    try:
        return [assess(LOSS, values.reshape(1, -1))]
    except ImportError:
        return []


def _read_snapshot(folder: Path) -> Snapshot | None:
    checkpoint = Checkpoints(folder / CHECKPOINTS).latest()
    if checkpoint is None or not isinstance(checkpoint.state.get("model"), dict):
        return None
    weights = learnt(checkpoint.state["model"])
    prior = mapping(mapping(checkpoint.state.get("sampler")).get("prior"))
    names = list(prior.get("names") or [])
    rho = dict(zip(names, prior.get("rho") or [], strict=False))
    pruned = mapping(checkpoint.state.get("pruner")).get("names") or []
    sparse = [name for name in weights if name in {*names, *pruned}]
    return Snapshot(weights, rho, sparse, checkpoint.path.name)
