"""Suites of ``spikeslab bench`` by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from spikeslab.errors import pluralize
from spikeslab.report.tables import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

QUICK_REPEATS = 2


@dataclass(frozen=True)
class StudyOptions:
    """Options of a suite that is a study: a grid of cells, kept in a folder as they finish.

    Attributes:
        folder: Folder of the cells.
        data_dir: Folder of data sets.
        networks: Networks; empty takes the standard ones.
        methods: Methods, likewise.
        sparsities: Shares of zeros, likewise.
        command: Command that runs the cells, for their record.
    """

    folder: Path = Path("out/compression")
    data_dir: Path | None = None
    networks: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    sparsities: tuple[float, ...] = ()
    command: str = ""


@dataclass(frozen=True)
class BenchPlan:
    """Settings of a benchmark.

    Attributes:
        repeats: Rounds, in each of which every candidate has a turn; some suites count data sets, epochs or steps.
        threads: Threads of torch; processes in the suites that fit many models.
        seed: Seed of data, weights and noise.
        quick: If True, sizes are small: the suite shows that it runs.
        study: Options of a study.
        tick: Called with the number of rounds that were done.
    """

    repeats: int
    threads: int = 1
    seed: int = 0
    quick: bool = False
    study: StudyOptions = StudyOptions()
    tick: Callable[[int], None] = field(default=lambda _: None, compare=False)

    @property
    def words(self) -> str:
        """Number of threads, and a note if the run is quick, for the title of a table."""
        return pluralize(self.threads, "thread") + (", a quick look" if self.quick else "")


@dataclass(frozen=True)
class Findings:
    """Tables and figures by the names of their files.

    Attributes:
        tables: Tables.
        figures: Figures.
        commands: Commands that made the numbers, a line each, where there were several.
    """

    tables: dict[str, Table]
    figures: dict[str, Figure] = field(default_factory=dict)
    commands: str | None = None


class Suite(NamedTuple):
    """Benchmark with tables and figures of its own.

    To add one, write a function from a plan to findings in a module of this package and name it in :data:`SUITES`.

    Attributes:
        description: What it measures, in one line.
        function: The function, as ``"module:function"`` in this package; it is imported when the suite runs.
        repeats: Default of ``--repeats``.
        tables: Names of its tables, which are also those of their files.
        figures: Names of its figures.
        blocks: Number of measurements; each ticks ``plan.repeats`` times.
        unit: Singular of what ``repeats`` counts.
        standard: If True, the suite is part of ``spikeslab bench`` without ``--suite``, and the names of its files end
            with the number of threads.
        counter: Function from a plan to the number of ticks, named like ``function``, where ``blocks`` cannot say it.
    """

    description: str
    function: str
    repeats: int
    tables: tuple[str, ...]
    figures: tuple[str, ...] = ()
    blocks: int = 1
    unit: str = "round"
    standard: bool = False
    counter: str | None = None

    def run(self, plan: BenchPlan) -> Findings:
        """Measure, and return the tables and figures."""
        findings: Findings = _import_function(self.function)(plan)
        return findings

    def count_ticks(self, plan: BenchPlan) -> int:
        """Return the number of rounds that the suite will tick."""
        if self.counter is None:
            return self.blocks * plan.repeats
        ticks: int = _import_function(self.counter)(plan)
        return ticks

    def file_suffix(self, plan: BenchPlan) -> str:
        """Return the end of the names of its files, such as ``"-1-quick"``."""
        return (f"-{plan.threads}" if self.standard else "") + ("-quick" if plan.quick else "")


def _import_function(name: str) -> Callable[[BenchPlan], Any]:
    module, _, attribute = name.partition(":")
    function: Callable[[BenchPlan], Any] = getattr(import_module(f"spikeslab.bench.{module}"), attribute)
    return function


SUITES = {
    "update": Suite("the update alone", "optimizers:run_update", 100, ("update",), blocks=2, standard=True),
    "step": Suite("a whole training step", "optimizers:run_step", 15, ("step",), blocks=3, standard=True),
    "selection": Suite(
        "a step and a fit of variable selection, against peers",
        "selection:run",
        5,
        ("selection-step", "selection-fit"),
        blocks=2,
        standard=True,
    ),
    "chains": Suite("20 stacked chains against one", "ensembles:run_chains", 30, ("chains",), standard=True),
    "predict": Suite(
        "20 samples against one forward pass", "ensembles:run_predict", 100, ("predict",), blocks=4, standard=True
    ),
    "scaling": Suite(
        "an update against parameters and threads, and its memory",
        "scaling:run",
        10,
        ("scaling", "threads", "memory"),
        ("scaling",),
        blocks=7,
        standard=True,
    ),
    "scale": Suite(
        "a step, an update and files against parameters, tensors, ranks, samples and lines of a log (ten minutes)",
        "scale.suite:run",
        10,
        ("parameters", "operations", "tensors", "ranks", "samples", "log"),
        counter="scale.suite:count_ticks",
    ),
    "selection-scaling": Suite(
        "a step and a sweep of variable selection against the number of variables",
        "selection_scaling:run_variables",
        5,
        ("scaling",),
        ("scaling",),
        blocks=7,
    ),
    "selection-classes": Suite(
        "a sweep of variable selection against classes", "selection_scaling:run_classes", 5, ("classes",), blocks=6
    ),
    "selection-ess": Suite(
        "a fit of variable selection to a given effective sample size, against LassoCV (minutes)",
        "selection_ess:run",
        5,
        ("ess",),
        blocks=4,
    ),
    "selection-calibration": Suite(
        "frequencies of inclusion and coverage of intervals, on data from the prior (long)",
        "calibration:run_coverage",
        1000,
        ("calibration", "inclusion"),
        ("calibration",),
        blocks=6,
        unit="data set",
    ),
    "selection-sbc": Suite(
        "simulation-based calibration of the Gibbs samplers (long)",
        "calibration:run_sbc",
        2000,
        ("sbc",),
        ("sbc",),
        blocks=6,
        unit="data set",
    ),
    "selection-reassurance": Suite(
        "inclusion probabilities of fits that have converged, against runs ten times as long (half an hour)",
        "reassurance:run",
        40,
        ("reassurance",),
        blocks=5,
        unit="fit",
    ),
    "cost": Suite(
        "time of pruning, predictions, `compress` and the start of a command, and memory of training (minutes)",
        "cost:run",
        5,
        ("cost", "start"),
        blocks=6,
    ),
    "compression": Suite(
        "`compress` at its defaults against GMP, torch.nn.utils.prune, one L2 and torchao on four networks (hours)",
        "compression.study:run",
        5,
        ("compression", "compression-differences", "compression-wins", "compression-tuning"),
        ("compression",),
        unit="seed",
        counter="compression.grid:count_cells",
    ),
    "own-loop": Suite(
        "the loop of the README on other networks, against a pruner alone and the dense network (minutes)",
        "own_loop:run",
        5,
        ("own-loop",),
        unit="seed",
    ),
    "one-shot": Suite(
        "pruning without training against magnitudes, Wanda, SparseGPT and ExactOBS (an hour)",
        "one_shot:run",
        3,
        ("one-shot",),
        unit="draw",
        counter="one_shot:count_ticks",
    ),
    "one-shot-cost": Suite(
        "time of pruning a layer without training, against SparseGPT (half an hour)",
        "one_shot_cost:run",
        3,
        ("one-shot-cost",),
        counter="one_shot_cost:count_ticks",
    ),
    "compression-methods": Suite(
        "the methods of `compress` (minutes)", "_networks:run_methods", 30, ("digits",), blocks=14, unit="epoch"
    ),
    "sparsity": Suite(
        "the sparsity that `compress` chooses, and the sparsity curve, against a grid of runs (half an hour)",
        "sparsity:run",
        3,
        ("auto", "curve"),
        unit="seed",
    ),
    "evidence": Suite(
        "pruning by size, smoothed rho, saliency and odds of inclusion, with and without regrowth (half an hour)",
        "evidence:run",
        3,
        ("evidence",),
        unit="seed",
    ),
    "replica-exchange": Suite(
        "replica exchange on two modes", "replica_exchange:run", 40_000, ("two-modes",), blocks=5, unit="step"
    ),
    "epoch": Suite("a step of an epoch of MNIST against a bare loop", "_networks:run_epoch", 60, ("epoch",)),
    "precision": Suite(
        "a training step of ResNet20 in bfloat16 and with distillation", "_networks:run_precision", 30, ("precision",)
    ),
    "compact": Suite(
        "a forward pass with half of the channels dead, compacted", "_networks:run_compact", 20, ("compact",), blocks=5
    ),
    "files": Suite("sizes of the files of a ResNet20 with 90 % zeros", "_networks:run_files", 1, ("files",)),
}
