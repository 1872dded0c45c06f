"""Results of the study: finished cells, the choice of tuned settings, paired differences and counts of wins."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import torch
from torch import Tensor

from spikeslab.bench.compression.grid import (
    BASE_METHODS,
    DENSE,
    METHODS,
    NETWORKS,
    OURS,
    RESNET20,
    TUNED,
    CellKey,
    split_method,
)
from spikeslab.bench.compression.networks import STUDY_NETWORKS
from spikeslab.bench.compression.scores import CORRECT, LOG_PROB, SQUARE
from spikeslab.paper.data_files import DataError
from spikeslab.paper.grid import CellFile, Record
from spikeslab.report.tables import Estimate
from spikeslab.states import read_tensors_file

REFUSED, SINGLE, AVERAGE = "refused", "single", "average"
ROWS = "rows"
"""Folder with the scores of each cell on every test row."""
KINDS = {SINGLE: "last network", AVERAGE: "posterior average"}
BETTER = {"accuracy": 1.0, "rmse": -1.0, "nll": -1.0}
"""Sign of a difference that is an improvement."""
SURE = 2.0
"""Standard errors by which a difference counts."""
EVERY_DEFAULT, EVERY_TUNED = "every one at its defaults", "every tuned one"
ALTERNATIVES = tuple(method for method in METHODS if split_method(method)[0] != OURS)


class MethodSeries(NamedTuple):
    """Runs of one method at one place over all seeds: the last network or the posterior average."""

    method: str
    key: CellKey
    kind: str = SINGLE

    @property
    def label(self) -> str:
        """Name in tables."""
        return self.method if self.kind == SINGLE else f"{self.method}, average"


def rows_file(folder: Path, key: CellKey, seed: int) -> Path:
    """Return the file with the scores of a cell on every test row."""
    return folder / ROWS / f"{key.text.replace(' ', '-')}-seed{seed}.safetensors"


@dataclass(frozen=True)
class StudyResults:
    """Finished cells of a study, by key and seed."""

    records: Mapping[CellKey, Mapping[int, Record]]
    folder: Path

    @classmethod
    def of(cls, file: CellFile, folder: Path) -> StudyResults:
        """Return the results of a file of cells."""
        records: dict[CellKey, dict[int, Record]] = {}
        for cell, record in sorted(file.records.items()):
            records.setdefault(CellKey.parse(cell.method), {})[cell.seed] = record
        return cls(records, folder)

    def finished(self, key: CellKey) -> dict[int, Record]:
        """Return the records of a key by seed, without those that were refused."""
        return {seed: each for seed, each in self.records.get(key, {}).items() if REFUSED not in each}

    def commands(self) -> str:
        """Return the commands that ran the cells, a line each."""
        found = (record["command"] for of_key in self.records.values() for record in of_key.values())
        return "\n".join(command for command in dict.fromkeys(found) if command)

    def places(self) -> Iterator[tuple[str, float]]:
        """Yield every network with each sparsity that has cells."""
        for network in NETWORKS:
            shares = {key.sparsity for key in self.records if key.network == network and key.method != DENSE}
            yield from ((network, sparsity) for sparsity in sorted(shares))

    def trials(self, place: CellKey) -> dict[CellKey, Record]:
        """Return the finished trials of a method with its first seed; none if only the defaults were run."""
        own = [key for key in self.records if key[:3] == place[:3]]
        first = min((seed for key in own for seed in self.records[key]), default=None)
        found = {key: self.finished(key)[first] for key in own if first is not None and first in self.finished(key)}
        return found if any(key.setting for key in found) else {}

    def tuned(self, place: CellKey) -> CellKey | None:
        """Return the trial that is best on held-out data, by the score of the network and then by NLL."""
        name = STUDY_NETWORKS[place.network].score

        def rank(item: tuple[CellKey, Record]) -> tuple[float, float]:
            numbers = item[1][SINGLE]
            return BETTER[name] * numbers[f"held_out_{name}"], -numbers["held_out_nll"]

        trials = self.trials(place)
        return max(trials.items(), key=rank)[0] if trials else None

    def series(self, network: str, sparsity: float) -> list[MethodSeries]:
        """Return the rows of a place, in the order of the methods."""
        found: list[MethodSeries] = []
        for name in METHODS:
            method, tuned = split_method(name)
            place = CellKey(network, sparsity, method)
            key = self.tuned(place) if tuned else place
            if key is None or key not in self.records:
                continue
            found.append(MethodSeries(name, key))
            if any(AVERAGE in record for record in self.finished(key).values()):
                found.append(MethodSeries(name, key, AVERAGE))
        return found

    def values(self, series: MethodSeries, name: str) -> list[float]:
        """Return a number of every seed, where it exists."""
        found = (record.get(series.kind, {}).get(name) for record in self.finished(series.key).values())
        return [value for value in found if value is not None]

    def difference(self, ours: MethodSeries, other: MethodSeries, name: str) -> Estimate | None:
        """Return ours minus the other, with its paired standard error; accuracies in points.

        It is over seeds. For ResNet20, and where only one seed is common, it is over the test rows.
        """
        first, second = self.finished(ours.key), self.finished(other.key)
        seeds = [seed for seed in first if seed in second]
        if not seeds or name not in first[seeds[0]].get(ours.kind, {}):
            return None
        scale = 100.0 if name == "accuracy" else 1.0
        pairs = [(first[seed][ours.kind][name], second[seed][other.kind][name]) for seed in seeds]
        if len(seeds) > 1 and ours.key.network != RESNET20:
            return Estimate.of([scale * (a - b) for a, b in pairs])
        rows = [[self._rows(each, name, seed) for seed in seeds] for each in (ours, other)]
        found = paired_difference(*rows)
        if name == "rmse":  # a difference of squares is a difference of roots times their sum
            total = fmean(a + b for a, b in pairs)
            return Estimate(found.mean / total, None if found.error is None else found.error / total)
        return Estimate(scale * found.mean, None if found.error is None else scale * found.error)

    def _rows(self, series: MethodSeries, name: str, seed: int) -> Tensor:
        tensors = read_tensors_file(rows_file(self.folder, series.key, seed), DataError)
        key, sign = {"accuracy": (CORRECT, 1.0), "nll": (LOG_PROB, -1.0), "rmse": (SQUARE, 1.0)}[name]
        return sign * tensors[f"{series.kind}.{key}"].double()


def paired_difference(ours: Sequence[Tensor], others: Sequence[Tensor]) -> Estimate:
    """Return the mean over rows of the difference, itself a mean over seeds, and its standard error over rows.

    >>> paired_difference([torch.tensor([1.0, 1.0, 0.0, 1.0])], [torch.tensor([0.0, 1.0, 0.0, 1.0])])
    Estimate(mean=0.25, error=0.25)
    """
    differences = torch.stack([a - b for a, b in zip(ours, others, strict=True)]).mean(dim=0)
    rows = len(differences)
    return Estimate(float(differences.mean()), float(differences.std()) / math.sqrt(rows) if rows > 1 else None)


def judge(difference: Estimate | None, name: str) -> int:
    """Return 1 if a difference is an improvement by more than two standard errors, -1 if the opposite, else 0.

    >>> judge(Estimate(0.3, 0.1), "accuracy"), judge(Estimate(0.3, 0.1), "nll"), judge(Estimate(0.1, 0.1), "nll")
    (1, -1, 0)
    """
    if difference is None or difference.error is None or abs(difference.mean) <= SURE * difference.error:
        return 0
    return 1 if difference.mean * BETTER[name] > 0.0 else -1


class Comparison(NamedTuple):
    """Ours against an alternative at one place: paired differences by kind (last network, average) and number."""

    network: str
    sparsity: float
    alternative: str
    seeds: int
    differences: dict[tuple[str, str], Estimate | None]
    lost: bool
    """True if ours could not be run there."""

    def verdict(self, kind: str, name: str) -> int:
        """Return 1 if ours is ahead, -1 if it is behind, 0 if the difference is within two standard errors."""
        return -1 if self.lost else judge(self.differences[kind, name], name)


def compare(results: StudyResults) -> list[Comparison]:
    """Return the comparison of ours at its defaults with every alternative at every place."""
    found = []
    for network, sparsity in results.places():
        score = STUDY_NETWORKS[network].score
        key = CellKey(network, sparsity, OURS)
        if key not in results.records:
            continue
        own = results.finished(key)
        for other in results.series(network, sparsity):
            rival = results.finished(other.key)
            if other.method not in ALTERNATIVES or not rival:
                continue
            differences = {
                (kind, name): results.difference(MethodSeries(OURS, key, kind), other, name)
                for kind in KINDS
                for name in {score: None, "nll": None}
            }
            common = sum(seed in rival for seed in own)
            found.append(Comparison(network, sparsity, other.method, common, differences, lost=not own))
    return found


class Wins(NamedTuple):
    """Numbers of cells in which ours is ahead or behind."""

    networks: str
    kind: str
    alternative: str
    cells: int
    ahead: int
    behind: int
    nll_ahead: int
    nll_behind: int
    either: int


def count_wins(comparisons: Sequence[Comparison]) -> list[Wins]:
    """Count cells for each alternative, and cells in which ours is ahead of all of them, behind one of them."""
    found = []
    for title, large in (("small networks", False), ("ResNet20", True)):
        own = [each for each in comparisons if (each.network == RESNET20) is large]
        groups = {EVERY_DEFAULT: BASE_METHODS, EVERY_TUNED: tuple(name for name in METHODS if name.endswith(TUNED))}
        groups |= {method: (method,) for method in ALTERNATIVES}
        for kind in KINDS:
            for alternative, methods in groups.items():
                cells: dict[tuple[str, float], list[Comparison]] = {}
                for each in own:
                    if each.alternative in methods:
                        cells.setdefault((each.network, each.sparsity), []).append(each)
                if cells:
                    found.append(_count(title, kind, alternative, list(cells.values())))
    return found


def _count(title: str, kind: str, alternative: str, cells: Sequence[Sequence[Comparison]]) -> Wins:
    def verdicts(name: str | None) -> list[int]:
        """Return the worst verdict of each cell."""
        return [min(each.verdict(kind, name or STUDY_NETWORKS[each.network].score) for each in cell) for cell in cells]

    scores, nlls = verdicts(None), verdicts("nll")
    return Wins(
        title,
        KINDS[kind],
        alternative,
        cells=len(cells),
        ahead=scores.count(1),
        behind=scores.count(-1),
        nll_ahead=nlls.count(1),
        nll_behind=nlls.count(-1),
        either=sum(1 in pair for pair in zip(scores, nlls, strict=True)),
    )
