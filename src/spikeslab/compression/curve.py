r"""Sparsity curve: accuracy, NLL and bytes of a network against its sparsity, from one run.

The network goes from level to level. At each one the sparsity rises, the lr falls along half a cosine (a mild refit),
and at its end the network is evaluated and kept::

    level      0.5 ________ 0.8 ________ 0.9 ________
    sparsity   / ----------  / ---------  / ---------
    lr         \._           \._          \._

Each level starts from the one before, so that a few epochs do what a separate run does in all of its own.
"""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from spikeslab.compression.auto import AUTO, glide, level_of, sparsity_of
from spikeslab.compression.compress import VALIDATION, Compression, CompressionRun
from spikeslab.compression.differences import (
    RowScores,
    compare,
    score_predictions,
    score_probabilities,
    score_rows,
)
from spikeslab.compression.methods import AT_ONCE, METHODS
from spikeslab.compression.problem import Problem
from spikeslab.compression.settings import LEAST_PRUNINGS, Timeline
from spikeslab.compression.sparse_file import DENSE, file_sizes, load_tensors_into, tensor_dict
from spikeslab.compression.sparse_format import decode, encode
from spikeslab.compression.tasks import CLASSIFICATION, LOSS, METRIC, OTHER, Evaluation, keep_numbers
from spikeslab.errors import (
    ArgumentTypeError,
    ArgumentValueError,
    NonFiniteError,
    Phrase,
    check_number,
    mark,
    quote,
)
from spikeslab.files import check_free, write_atomically
from spikeslab.report.tables import Cell, Column, Provenance, Table
from spikeslab.schedules import Schedule
from spikeslab.states import State
from spikeslab.training import Callback, RunFolder, ShowProgress, TensorBatches, Training
from spikeslab.training.callbacks import EVALUATION
from spikeslab.training.log import nan_to_null
from spikeslab.training.randomness import preserve_randomness, seed_everything

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEVELS = (0.5, 0.7, 0.8, 0.9, 0.93, 0.95, 0.97, 0.98)
"""Levels of a curve; those that the network cannot reach are left out."""
STEM, NETWORKS = "curve", "levels"
"""Stem of the files of a curve, and folder of its networks."""
RISE, WARM = 0.4, 0.1
"""Shares of a level in which its sparsity is reached, and in which the lr rises."""
LEAST_STEPS = 2
"""Fewest steps of a level."""
OTHERS = ("sparsity", "tolerance", "samples", "report")
"""Arguments of ``compress`` that mean nothing for a curve."""
METRICS = {
    "accuracy": ("accuracy, %", 100.0, ".2f"),
    "nll": ("NLL", 1.0, ".4f"),
    "rmse": ("RMSE", 1.0, ".4g"),
    "loss": ("loss", 1.0, ".4g"),
    "metric": ("metric", 1.0, ".4g"),
}
"""Heading, factor and format of the numbers that a curve shows."""


def sparsity_curve(
    model: nn.Module,
    train_loader: TensorBatches | Iterable[Any],
    val_loader: Iterable[Any],
    *,
    levels: Sequence[float] | None = None,
    epochs: int = 30,
    folder: str | os.PathLike[str] | None = None,
    resume: bool = False,
    **arguments: Any,
) -> SparsityCurve:
    """Measure a network at several sparsities in one run; the model that is given stays as it is.

    >>> from spikeslab.training import TensorBatches
    >>> x = torch.randn(64, 4)
    >>> data = TensorBatches(x, (x[:, 0] > 0).long(), batch_size=16)
    >>> model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 2))
    >>> curve = sparsity_curve(model, data, data, levels=(0.3, 0.6), epochs=4, progress=False)
    >>> [level.nonzeros for level in curve.levels]
    [270, 154]

    Args:
        model: The trained network.
        train_loader: Batches to train on.
        val_loader: Batches that are not trained on, the same rows in the same order whenever it is run through.
        levels: Sparsities in (0, 1), rising; by default those of ``LEVELS`` that the network can reach.
        epochs: Epochs in all, shared out equally among the levels: three or more for each.
        folder: Run directory for checkpoints, log and the files of :meth:`SparsityCurve.save`; ``None`` writes nothing.
        resume: If True, continue the run in the folder.
        **arguments: Further arguments of :func:`~spikeslab.compress`: ``loss``, ``metric``, ``forward``, ``output``,
            ``method``, ``weights``, ``count``, ``structure``, ``lr``, ``temperature``, ``settings``, ``num_data``,
            ``seed``, ``on_change``, ``progress`` and ``callbacks``.

    Raises:
        ValueError, TypeError: If an argument is wrong, before anything is done.
        FileExistsError: If the folder holds something and ``resume`` is False.
        NonFiniteError: If a loss, gradient or weight is NaN or infinite.
    """
    allowed = {each.name for each in fields(Compression)} - set(OTHERS)
    if odd := [name for name in arguments if name not in allowed]:
        expectation = f"must not be given to {mark('sparsity_curve')}, which takes {quote(sorted(allowed), 99)}"
        raise ArgumentTypeError(odd[0], expectation, arguments[odd[0]])
    given = {"epochs": epochs, "folder": folder, "resume": resume, **arguments}
    return prepare_curve(levels, model, train_loader, val_loader, **given).run()


def prepare_curve(
    levels: Sequence[float] | None, model: nn.Module, train_loader: Any, val_loader: Any, **arguments: Any
) -> CurveRun:
    """Check the arguments of a curve, those of :class:`Compression`, and try one batch; nothing is written."""
    chosen = LEVELS if levels is None else check_levels(levels)
    if val_loader is None:
        raise ArgumentValueError(VALIDATION, "must be given, since every level is evaluated on it", None)
    if arguments.get("method") in AT_ONCE:
        raise ArgumentValueError("method", "must be one that prunes gradually", arguments["method"])
    data = model, train_loader, val_loader
    alone = {name: value for name, value in arguments.items() if name not in ("folder", "resume", "on_change")}
    pruner = Compression(*data, sparsity=AUTO, **alone).prepare().problem.pruner(0.0)
    if levels is None:
        chosen = tuple(level for level in LEVELS if level <= pruner.highest)
    if not chosen or chosen[-1] > pruner.highest:
        expectation = f"must be at most {pruner.highest:.6g}, what the weights to prune allow"
        raise ArgumentValueError("levels", expectation, (chosen or LEVELS)[-1])
    middle = chosen[len(chosen) // 2]  # for the prior's scales
    arguments["facts"] = {**arguments.get("facts", {}), "levels": list(chosen)}
    first = Compression(*data, sparsity=middle, report=False, **arguments).prepare()
    timeline = CurveTimeline(first.problem.settings, first.problem.timeline.total, chosen)
    if timeline.total < LEAST_STEPS * len(chosen):
        expectation = f"must be so many that each of {len(chosen)} levels has at least {LEAST_STEPS} steps"
        raise ArgumentValueError("epochs", expectation, Phrase(f"got {timeline.total} steps in all"))
    return CurveRun(replace(first, problem=replace(first.problem, timeline=timeline)), timeline)


def check_levels(levels: Sequence[float]) -> tuple[float, ...]:
    """Return the levels if they are sparsities that rise.

    >>> check_levels([0.5, 0.9])
    (0.5, 0.9)
    """
    try:
        found = tuple(check_number("levels", level, "(0, 1)") for level in levels)
    except TypeError as error:
        raise ArgumentTypeError("levels", "must be sparsities in (0, 1)", levels) from error
    if not found or any(low >= high for low, high in pairwise(found)):
        raise ArgumentValueError("levels", "must be sparsities in (0, 1), each larger than the one before", levels)
    return found


@dataclass(frozen=True)
class CurveTimeline(Timeline):
    """Timeline of a curve: equally many steps for each level, with an lr that rises and falls in each of them.

    >>> from spikeslab.compression.settings import Settings
    >>> timeline = CurveTimeline(Settings(), total=100, levels=(0.5, 0.9))
    >>> timeline.ends, timeline.sparsity(0.9)(50), timeline.sparsity(0.9)(100)
    ((50, 100), 0.5, 0.9)
    """

    levels: tuple[float, ...]

    @property
    def ends(self) -> tuple[int, ...]:
        """Last step of each level."""
        count = len(self.levels)
        return tuple(self.total * (index + 1) // count for index in range(count))

    @property
    def prune_every(self) -> int:
        """Steps from one choice of the zeros to the next."""
        return max(1, min(self.settings.prune_every, self.total // len(self.levels) // LEAST_PRUNINGS))

    @property
    def freeze(self) -> int:
        """Step after which zeros stay: the last one, since every level may choose anew."""
        return self.total

    def place(self, step: int) -> tuple[int, float]:
        """Return the index of the level of a step, and the share of it that is over after this step."""
        step = min(step, self.total)
        index = next(number for number, end in enumerate(self.ends) if step <= end)
        begin = self.ends[index - 1] if index else 0
        return index, (step - begin) / (self.ends[index] - begin)

    def lr(self) -> Schedule:
        """Return the lr: in each level a short rise to ``lr`` and half a cosine down to ``final_lr`` of it."""
        settings = self.settings

        def value(step: int) -> float:
            _, done = self.place(step)
            return settings.highest_lr * _refit(done, settings.final_lr)

        return Schedule(
            "refits", (("lr", settings.highest_lr), ("final", settings.final_lr), ("ends", self.ends)), value
        )

    def sparsity(self, target: float) -> Schedule:
        """Return the sparsity: in each level a straight line of log(1 - s) up to it, then the level."""
        before = (0.0, *self.levels)

        def value(step: int) -> float:
            index, done = self.place(step)
            if done >= RISE:
                return self.levels[index]
            return sparsity_of(glide(level_of(before[index]), level_of(self.levels[index]), done, RISE))

        return Schedule("staircase", (("levels", self.levels), ("ends", self.ends)), value)


def _refit(done: float, final: float) -> float:
    """Return the lr of a refit as a share of its highest, ``done`` of the way.

    >>> [round(_refit(done, 0.0), 3) for done in (0.05, 0.1, 0.55, 1.0)]
    [0.5, 1.0, 0.5, 0.0]
    """
    if done < WARM:
        return done / WARM
    return final + (1.0 - final) * 0.5 * (1.0 + math.cos(math.pi * (done - WARM) / (1.0 - WARM)))


@dataclass(frozen=True)
class CurveLevel:
    """Network at one level of a curve.

    Attributes:
        level: The sparsity that was asked for.
        sparsity: Share of zeros among all parameters.
        nonzeros: Parameters that are not zero.
        bytes: Size of the sparse file, without loss.
        metrics: Numbers on the validation data.
        differences: Paired differences from the dense network, by the metric, as
            :meth:`~spikeslab.compression.differences.Difference.record` returns them.
        epoch: Epochs at the end of the level.
    """

    level: float
    sparsity: float
    nonzeros: int
    bytes: int
    metrics: dict[str, float]
    differences: dict[str, dict[str, Any]]
    epoch: float

    def interval(self, metric: str) -> tuple[float, float]:
        """Return the metric plus the interval of 95 % of its difference from the dense network, as a pair.

        If the dense network's value is inside, the two cannot be told apart on these rows.
        """
        value, found = self.metrics[metric], self.differences[metric]
        half = self._unit(metric) * (found["interval"][1] - found["difference"])
        return value - half, value + half

    def _unit(self, metric: str) -> float:
        """Return a unit of the difference in units of the metric."""
        if metric == "accuracy":
            return 0.01
        if metric == "nll":
            return 1.0
        return abs(self.metrics[metric] / (100.0 + float(self.differences[metric]["difference"])))


class RecordLevels(Callback):
    """Callback that evaluates and keeps the network at the end of every level.

    Args:
        run: The run.
        timeline: Its timeline.
        evaluation: Evaluation on the validation data.
    """

    name = "curve"

    def __init__(self, run: CompressionRun, timeline: CurveTimeline, evaluation: Evaluation) -> None:
        self._problem, self._timeline, self._evaluation = run.problem, timeline, evaluation
        self.dense, self._scores = measure(evaluation, run.problem.model)
        self.levels: list[CurveLevel] = []
        self.contents: list[bytes] = []

    def after_step(self, run: Training) -> None:
        """Record the network if this was the last step of a level."""
        if run.steps not in self._timeline.ends:
            return
        model = run.model
        if wrong := [name for name, tensor in model.named_parameters() if not bool(tensor.isfinite().all())]:
            raise NonFiniteError(f"{wrong[0]} must be finite, but got NaN or Inf: try a lower {mark('lr')}.")
        metrics, scores = measure(self._evaluation, model)
        content = encode(tensor_dict(model), "fp32")
        nonzeros = sum(int(parameter.count_nonzero()) for parameter in model.parameters())
        total = sum(parameter.numel() for parameter in model.parameters())
        self.levels.append(
            CurveLevel(
                level=self._timeline.levels[len(self.levels)],
                sparsity=1.0 - nonzeros / total,
                nonzeros=nonzeros,
                bytes=len(content),
                metrics=metrics,
                differences={name: compare(self._scores[name], own).record() for name, own in scores.items()},
                epoch=run.steps * run.epoch / max(run.steps - run.order.position, 1) if run.epoch else 0.0,
            )
        )
        self.contents.append(content)

    def metrics(self) -> dict[str, Any]:
        """Return the numbers of the last level."""
        return {EVALUATION: self.levels[-1].metrics} if self.levels else {}

    def state_dict(self) -> dict[str, State]:
        """Return the levels so far and their networks."""
        contents = [torch.frombuffer(bytearray(content), dtype=torch.uint8) for content in self.contents]
        return {"levels": [asdict(level) for level in self.levels], "contents": contents}

    def load_state_dict(self, state: Mapping[str, State]) -> None:
        """Continue after the levels of a state."""
        self.levels = [CurveLevel(**level) for level in state["levels"]]
        self.contents = [content.numpy().tobytes() for content in state["contents"]]


def measure(evaluation: Evaluation, model: nn.Module) -> tuple[dict[str, float], dict[str, RowScores]]:
    """Return the numbers of a network, and the scores by row of those that a curve shows."""
    kind = evaluation.task.kind
    numbers = keep_numbers(evaluation.of_model(model))
    own = {}
    if evaluation.task.has_own_score:
        own = {LOSS if evaluation.task.metric is None else METRIC: score_rows(evaluation, model)}
    if kind == OTHER:
        return numbers, own
    predictions, targets = evaluation.predict(model)
    scores = {"accuracy" if kind == CLASSIFICATION else "rmse": score_predictions(kind, predictions, targets)}
    if kind == CLASSIFICATION:
        scores["nll"] = score_probabilities(predictions, targets)
    return numbers, scores | own


@dataclass(frozen=True, eq=False)
class CurveRun:
    """A curve that is ready to run; its problem is in a copy of the network, which the run changes."""

    run_parts: CompressionRun
    timeline: CurveTimeline

    @property
    def problem(self) -> Problem:
        """The problem."""
        return self.run_parts.problem

    def run(self) -> SparsityCurve:
        """Go from level to level, once."""
        arguments = self.run_parts.arguments
        with preserve_randomness():
            seed_everything(arguments.seed)
            return self._run(arguments, self.run_parts.run_folder)

    def _run(self, arguments: Compression, folder: RunFolder | None) -> SparsityCurve:
        model = self.problem.model
        assert arguments.val_loader is not None
        evaluation = Evaluation(self.run_parts.task, arguments.val_loader, VALIDATION)
        dense_bytes = file_sizes(tensor_dict(model), tensor_dict(model))[DENSE]
        record = RecordLevels(self.run_parts, self.timeline, evaluation)
        parts = METHODS[arguments.method](self.problem)
        progress = [ShowProgress("Levels")] if arguments.progress else []
        training = Training(
            model.train(),
            parts.sampler,
            arguments.train_loader,
            self.run_parts.loss,
            callbacks=[parts.prune, record, *arguments.callbacks, *progress],
            precision=self.problem.settings.precision,
        )
        training.run(steps=self.timeline.total, folder=folder)
        total = sum(parameter.numel() for parameter in model.parameters())
        dense = CurveLevel(0.0, 0.0, total, dense_bytes, record.dense, {}, 0.0)
        provenance = Provenance(arguments.command or "spikeslab.sparsity_curve(...)", int(arguments.seed))
        curve = SparsityCurve(dense, tuple(record.levels), model.eval(), tuple(record.contents), provenance)
        if self.run_parts.folder is not None:
            curve.write(self.run_parts.folder)
        return curve


@dataclass(frozen=True)
class SparsityCurve:
    """Accuracy, NLL and bytes of a network at several sparsities.

    Attributes:
        dense: The dense network.
        levels: The sparse ones, in the order of their sparsity.
    """

    dense: CurveLevel
    levels: tuple[CurveLevel, ...]
    _model: nn.Module = field(repr=False)
    _contents: tuple[bytes, ...] = field(repr=False)
    _provenance: Provenance = field(repr=False)

    @property
    def metrics(self) -> list[str]:
        """Names of the numbers that the curve shows."""
        return [name for name in METRICS if name in self.dense.metrics]

    @property
    def table(self) -> Table:
        """Table of the levels, with the differences from the dense network and their standard errors."""
        shown = [name for name in METRICS if name in self.levels[0].differences]
        columns = [Column("level", "sparsity", ".1%"), Column("nonzeros", "non-zeros", ",")]
        for name in shown:
            title, _, spec = METRICS[name]
            unit = self.levels[0].differences[name]["unit"]
            columns += [
                Column(name, title, spec),
                Column(f"{name}_difference", f"worse by, {unit}", ".4f" if name == "nll" else ".2f"),
                Column(f"{name}_error", "± SE", ".4f" if name == "nll" else ".2f"),
            ]
        columns += [Column("kilobytes", "file, kB", ".1f")]
        rows = [self._row(level, shown) for level in (self.dense, *self.levels)]
        note = (
            "One run from level to level, with a short refit at each. The standard errors are those of the paired "
            "differences from the dense network over the validation rows. The file of the dense network is an ordinary "
            "safetensors file, the others are written by `save_sparse`, without loss."
        )
        raw = {"levels": [asdict(level) for level in (self.dense, *self.levels)]}
        return Table("Sparsity curve", columns, rows, notes=[note], raw=nan_to_null(raw))

    def _row(self, level: CurveLevel, shown: Sequence[str]) -> dict[str, Cell]:
        row: dict[str, Cell] = {"level": level.level, "nonzeros": level.nonzeros}
        for name in shown:
            found = level.differences.get(name, {})
            row[name] = METRICS[name][1] * level.metrics[name]
            row[f"{name}_difference"], row[f"{name}_error"] = found.get("difference"), found.get("standard_error")
        return nan_to_null({**row, "kilobytes": level.bytes / 1000.0})  # type: ignore[no-any-return]

    def network(self, level: float) -> nn.Module:
        """Return a copy of the network at one of the levels, in evaluation mode."""
        known = [each.level for each in self.levels]
        if level not in known:
            raise ArgumentValueError("level", f"must be one of {quote(map(str, known), 99)}", level)
        model = copy.deepcopy(self._model)
        load_tensors_into(model, decode(self._contents[known.index(level)], "the curve"), "the curve")
        return model.eval()

    def figure(self) -> Figure:
        """Draw the numbers and the size of the file against the sparsity; it needs the extra ``report``."""
        from spikeslab.report.plots import CurvePanel, sparsity_curve_figure

        shown = [name for name in METRICS if name in self.levels[0].differences]
        panels = []
        for name in shown:
            title, factor, _ = METRICS[name]
            intervals = [level.interval(name) for level in self.levels]
            panels.append(
                CurvePanel(
                    title,
                    [factor * level.metrics[name] for level in self.levels],
                    [(factor * low, factor * high) for low, high in intervals],
                    factor * self.dense.metrics[name],
                )
            )
        panels.append(CurvePanel("file, kB", [level.bytes / 1000.0 for level in self.levels], None, None))
        return sparsity_curve_figure([level.level for level in self.levels], panels)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write ``curve.md``, ``curve.json``, ``curve.png`` and the networks, ``levels/0.9.safetensors`` and so on.

        The networks are files of :func:`~spikeslab.save_sparse`. Without the extra ``report`` there is no picture.

        Raises:
            FileExistsError: If the folder holds something.
        """
        path = Path(folder)
        check_free(path, "folder")
        self.write(path)

    def write(self, folder: Path) -> list[Path]:
        """Write the files into a folder, replace earlier ones, and return their paths."""
        (folder / NETWORKS).mkdir(parents=True, exist_ok=True)
        files = self.table.write(folder / STEM, self._provenance)
        try:
            from spikeslab.report.figures import render_png

            write_atomically(folder / f"{STEM}.png", render_png(self.figure()))
            files.append(folder / f"{STEM}.png")
        except ModuleNotFoundError:  # the extra is not installed
            pass
        for level, content in zip(self.levels, self._contents, strict=True):
            files.append(folder / NETWORKS / f"{level.level:g}.safetensors")
            write_atomically(files[-1], content)
        return files
