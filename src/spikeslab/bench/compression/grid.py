"""Grid of the study: networks, sparsities, methods with the settings that are tried, and the cells that follow.

A method is run at its own defaults. Its tuned form (``"gmp-tuned"``) tries the defaults and every setting of a list
with the first seed, takes the one that is best on held-out data, and runs that one with the other seeds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

from spikeslab.bench.suites import BenchPlan, StudyOptions
from spikeslab.paper.grid import Cell

Setting: TypeAlias = Mapping[str, float | str]

LENET, MLP, TRANSFORMER, RESNET20 = NETWORKS = ("lenet", "mlp", "transformer", "resnet20")
ENCODER, LSTM = "encoder", "lstm"
ONE_SHOT_NETWORKS = (RESNET20, TRANSFORMER, ENCODER, LSTM)
"""Networks that are pruned without training."""
OURS, GMP, TORCH_PRUNE, L2, PAT = BASE_METHODS = ("spikeslab", "gmp", "torch-prune", "l2", "pat")
DENSE, TUNED = "dense", "-tuned"
TUNABLE = (GMP, TORCH_PRUNE, PAT, OURS)
METHODS = (*BASE_METHODS, *(method + TUNED for method in TUNABLE))
STANDARD_NETWORKS = (LENET, MLP, TRANSFORMER)
"""Networks without ``--networks``: a cell of ResNet20 takes ten minutes and more."""
STANDARD_METHODS = tuple(method for method in METHODS if method != OURS + TUNED)
"""Methods without ``--methods``: ours is judged at its defaults."""
SPARSITIES = dict.fromkeys(NETWORKS, (0.8, 0.9, 0.95, 0.98)) | {TRANSFORMER: (0.5, 0.7, 0.9)}
"""Shares of zeros among all parameters of each network."""
QUICK_SPARSITIES = (0.5,)

LASSO, BUDGET = "lasso", "budget"
"""Proximal maps of torchao: soft thresholds, and a global number of zeros that rises along a cubic."""


def _product(**values: Sequence[float | str]) -> tuple[Setting, ...]:
    rows: list[Setting] = [{}]
    for name, each in values.items():
        rows = [{**row, name: value} for row in rows for value in each]
    return tuple(rows)


SGHMC_TRIALS = _product(lr=(0.02, 0.05, 0.1), weight_decay=(1e-4, 5e-4))
ADAM_SGHMC_TRIALS = _product(lr=(0.05, 0.1, 0.2), weight_decay=(1e-4, 5e-4))
SCHEDULES = ("constant", "cosine")
SMALL_TRIALS: dict[str, tuple[Setting, ...]] = {
    OURS: SGHMC_TRIALS,
    GMP: SGHMC_TRIALS,
    TORCH_PRUNE: _product(lr=(0.01, 0.03, 0.1), schedule=SCHEDULES)[1:],  # the first are the defaults
    PAT: (
        *_product(lr=(0.1, 0.03), reg_lambda=(2e-4, 1e-3), prox=(LASSO,))[1:],
        *_product(lr=(0.1, 0.03), prox=(BUDGET,)),
    ),
}
TRIALS: dict[str, dict[str, tuple[Setting, ...]]] = {
    LENET: SMALL_TRIALS,
    MLP: SMALL_TRIALS,
    TRANSFORMER: {  # the rivals train it by AdamW, as it was trained
        OURS: ADAM_SGHMC_TRIALS,
        GMP: ADAM_SGHMC_TRIALS,
        TORCH_PRUNE: _product(lr=(1e-3, 3e-4, 3e-3), schedule=SCHEDULES)[1:],
        PAT: (
            *_product(lr=(1e-3, 3e-3), reg_lambda=(2e-4, 1e-2), prox=(LASSO,))[1:],
            *_product(lr=(1e-3, 3e-3), prox=(BUDGET,)),
        ),
    },
    RESNET20: {
        OURS: _product(lr=(0.02, 0.1)),
        GMP: _product(lr=(0.02, 0.1)),
        TORCH_PRUNE: _product(lr=(0.01, 0.05), schedule=("cosine",)),
        PAT: _product(lr=(0.1, 0.03), prox=(BUDGET,)),
    },
}
"""Settings that a tuned method tries beside its defaults."""


class CellKey(NamedTuple):
    """Network, share of zeros, method at its defaults or tuned, and setting of the cells of all seeds.

    >>> key = CellKey("lenet", 0.9, "gmp", (("lr", 0.02),))
    >>> key.text, CellKey.parse(key.text) == key
    ('lenet 0.9 gmp lr=0.02', True)
    """

    network: str
    sparsity: float
    method: str
    setting: tuple[tuple[str, float | str], ...] = ()

    @property
    def text(self) -> str:
        """Words that stand for it in the file of cells."""
        return " ".join([self.network, f"{self.sparsity:g}", self.method, *_words(self.setting)])

    @classmethod
    def parse(cls, text: str) -> CellKey:
        """Return the key of a text."""
        network, sparsity, method, *words = text.split(" ")
        pairs = (word.partition("=")[::2] for word in words)
        return cls(network, float(sparsity), method, tuple((name, _value(value)) for name, value in pairs))

    def cell(self, seed: int) -> Cell:
        """Return the cell of a seed."""
        return Cell(self.text, seed)


def _words(setting: Iterable[tuple[str, float | str]]) -> list[str]:
    return [f"{name}={value}" if isinstance(value, str) else f"{name}={value:g}" for name, value in setting]


def _value(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def describe_setting(setting: Iterable[tuple[str, float | str]]) -> str:
    """Return a setting in words.

    >>> describe_setting((("lr", 0.02), ("prox", "lasso"))), describe_setting(())
    ('lr=0.02, prox=lasso', 'defaults')
    """
    return ", ".join(_words(setting)) or "defaults"


def split_method(method: str) -> tuple[str, bool]:
    """Return the method, and True if it is tuned.

    >>> split_method("gmp-tuned"), split_method("torch-prune")
    (('gmp', True), ('torch-prune', False))
    """
    return method.removesuffix(TUNED), method.endswith(TUNED)


@dataclass(frozen=True)
class StudyGrid:
    """Cells that a command asks for.

    Attributes:
        networks: Networks.
        methods: Methods, at their defaults or tuned.
        sparsities: Shares of zeros for every network; empty takes those of :data:`SPARSITIES`.
        seeds: Seeds; the first one tunes.
        quick: If True, one setting is tried, and one share of zeros is the default.
    """

    networks: tuple[str, ...]
    methods: tuple[str, ...]
    sparsities: tuple[float, ...]
    seeds: range
    quick: bool = False

    @classmethod
    def of(cls, plan: BenchPlan) -> StudyGrid:
        """Return the grid of a plan."""
        options: StudyOptions = plan.study
        sparsities = options.sparsities or (QUICK_SPARSITIES if plan.quick else ())
        seeds = range(plan.seed, plan.seed + plan.repeats)
        networks, methods = options.networks or STANDARD_NETWORKS, options.methods or STANDARD_METHODS
        return cls(networks, methods, sparsities, seeds, plan.quick)

    def without(self, networks: Iterable[str]) -> StudyGrid:
        """Return the grid without some networks."""
        left = set(networks)
        return replace(self, networks=tuple(network for network in self.networks if network not in left))

    def trials(self, network: str, method: str) -> tuple[Setting, ...]:
        """Return the settings that a tuned method tries, the defaults first."""
        listed = TRIALS[network][method]
        return ({}, *(listed[:1] if self.quick else listed))

    def places(self) -> Iterator[tuple[str, float]]:
        """Yield every network with each of its sparsities."""
        for network in self.networks:
            for sparsity in self.sparsities or SPARSITIES[network]:
                yield network, sparsity

    def dense_cells(self) -> list[Cell]:
        """Return the cells of the dense networks."""
        return [CellKey(network, 0.0, DENSE).cell(seed) for network in self.networks for seed in self.seeds]

    def first_cells(self) -> list[Cell]:
        """Return the cells that need no choice of settings: methods at their defaults, and trials."""
        cells: dict[Cell, None] = {}
        for network, sparsity in self.places():
            for name in self.methods:
                method, tuned = split_method(name)
                settings = self.trials(network, method) if tuned else ({},)
                for setting in settings:
                    key = CellKey(network, sparsity, method, tuple(setting.items()))
                    cells |= dict.fromkeys(key.cell(seed) for seed in (self.seeds[:1] if tuned else self.seeds))
        return list(cells)

    def tuned_keys(self) -> Iterator[CellKey]:
        """Yield network, sparsity and method of everything that is tuned."""
        for network, sparsity in self.places():
            for method, tuned in map(split_method, self.methods):
                if tuned:
                    yield CellKey(network, sparsity, method)


def count_cells(plan: BenchPlan) -> int:
    """Return the number of cells of a plan; of a tuned method, every seed but the first runs one setting."""
    grid = StudyGrid.of(plan)
    others = len(list(grid.tuned_keys())) * (len(grid.seeds) - 1)
    return len(grid.dense_cells()) + len(grid.first_cells()) + others
