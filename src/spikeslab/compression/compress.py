"""Compression of a network: prune it while it is sampled, freeze the zeros, collect the posterior."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from spikeslab.compression.auto import AUTO, SearchPlan, SearchSparsity, SparsitySearch
from spikeslab.compression.differences import RowScores, check_order, compare, score_rows
from spikeslab.compression.layers import Chosen, choose_units, fitting_names, weight_names
from spikeslab.compression.lr_search import find_lr
from spikeslab.compression.methods import AT_ONCE, METHODS, WEIGHTS_ONLY, MethodParts
from spikeslab.compression.problem import ChannelProblem, Problem
from spikeslab.compression.result import Compressed, check_finite, describe_channels, describe_zeros, find_unbounded
from spikeslab.compression.settings import Settings, Timeline
from spikeslab.compression.tasks import (
    CLASSIFICATION,
    OTHER,
    REGRESSION,
    BatchError,
    Evaluation,
    Metric,
    Task,
    batch_rows,
    count_batches,
    count_rows,
    estimate_noise,
    find_task,
    first_batch,
    keep_numbers,
    pair,
    with_distillation,
    with_noise,
)
from spikeslab.diagnostics import write_report
from spikeslab.errors import (
    ArgumentError,
    ArgumentTypeError,
    ArgumentValueError,
    Phrase,
    check_choice,
    check_count,
    check_number,
    mark,
    quote,
)
from spikeslab.files import TEMPORARY, check_free
from spikeslab.forward_pass import Forward, ReadOutput, RunForward, map_tensors, split_batch, to_device_of
from spikeslab.functional.patterns import parse_pattern
from spikeslab.graph.tracing import ExampleInput, check_module, copy_model
from spikeslab.posterior import Posterior
from spikeslab.pruning import UnitFamily
from spikeslab.pruning.base import ScheduledPruner
from spikeslab.states import State
from spikeslab.training import (
    Callback,
    CheckpointError,
    Collect,
    Evaluate,
    Every,
    RunFolder,
    ShowProgress,
    TensorBatches,
    Training,
)
from spikeslab.training.changes import ERROR, OnChange
from spikeslab.training.loop import Loss, autocast, check_loss
from spikeslab.training.randomness import preserve_randomness, seed_everything
from spikeslab.training.run_folder import CHECKPOINTS, LOCK_FILE, POSTERIOR, RECORD_FILE, read_run_record
from spikeslab.weights import unwrap

TRAIN, VALIDATION = "train_loader", "val_loader"
COUNTS = ("network", "layers")
SEARCH = "search"
"""Key of the search of the sparsity in a report."""
STRUCTURES = WEIGHTS, CHANNELS = ("weights", "channels")
ROWS = 2
"""Rows of a batch on which the network is traced."""
DEFAULT_SPARSITY = 0.9
PROVISIONAL = 0.9
"""Sparsity that the prior's scales are for where the run chooses its own."""
BEFORE_RECORD = {LOCK_FILE, CHECKPOINTS, POSTERIOR}
"""Files of a run that was killed before its record was written."""


def compress(
    model: nn.Module,
    train_loader: TensorBatches | Iterable[Any],
    val_loader: Iterable[Any] | None = None,
    *,
    sparsity: float | str = DEFAULT_SPARSITY,
    tolerance: float = 0.5,
    epochs: int = 30,
    loss: Loss | None = None,
    metric: Metric | None = None,
    forward: RunForward | None = None,
    output: ReadOutput | None = None,
    method: str = "a-sghmc-sa",
    weights: Chosen = None,
    count: str = "network",
    structure: str = "weights",
    lr: float | None = None,
    temperature: float | None = None,
    samples: int | None = None,
    settings: Settings | None = None,
    num_data: int | None = None,
    seed: int = 0,
    folder: str | os.PathLike[str] | None = None,
    resume: bool = False,
    on_change: OnChange = ERROR,
    progress: bool = True,
    report: bool = True,
    callbacks: Sequence[Callback] = (),
) -> Compressed:
    """Make a trained network sparse, and sample it; the model that is given stays as it is.

    >>> import torch
    >>> from spikeslab.training import TensorBatches
    >>> x = torch.randn(64, 4)
    >>> data = TensorBatches(x, (x[:, 0] > 0).long(), batch_size=16)
    >>> model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 2))
    >>> result = compress(model, data, sparsity=0.5, epochs=5, progress=False)
    >>> result.report["network"]["nonzeros"], sum(p.numel() for p in model.parameters())
    (193, 386)

    Args:
        model: The trained network; any module. The wrappers of ``torch.compile`` and of data parallelism are taken off.
        train_loader: Batches that can be run through again: a ``DataLoader``, ``TensorBatches``, a list.
        val_loader: Batches that were not trained on, for the evaluation of dense, sparse and averaged.
        sparsity: Share of zeros, in (0, 1), or ``"auto"``: as many as possible within ``tolerance`` of the dense
            network on ``val_loader``, found in this one run (:mod:`spikeslab.compression.auto`).
        tolerance: With ``sparsity="auto"``, how much worse than the dense network the sparse one may be: points of
            accuracy, or per cent of the RMSE of a regression or of a loss of your own.
        epochs: Epochs in all; warm-up, pruning and sampling take fixed shares of them. A loader without a length has
            ``num_data`` divided by the rows of its first batch as the length of an epoch.
        loss: Function from (model, batch) to the mean loss; by default the cross-entropy of batches (x, y), or the
            Gaussian likelihood where y are floating-point numbers. Of a mapping with ``"labels"`` it is the loss that
            the model returns, if it does. A loss of your own is also the metric.
        metric: Function from (model, batch) to a number, the mean over the batch, lower being better; networks are then
            compared by it.
        forward: Function from (model, inputs) to what the model returns, for inputs that it does not take as they are:
            the first entries of a tuple, or a mapping without its labels.
        output: Function from what the model returns to the tensor of its outputs; by default the result itself, its
            ``logits``, or the first tensor of a tuple.
        method: One of ``METHODS``.
        weights: Weights to prune: globs over parameter names, or parameters. By default the matrices of all layers but
            embeddings. With ``structure="channels"`` by default all units that :func:`compact` can remove, and
            globs choose among them; a mapping to the normalisation behind each layer, as
            :func:`~spikeslab.pruning.free_channel_layers` returns it, is taken as it is.
        count: ``"network"`` if ``sparsity`` is a share of all parameters, ``"layers"`` if of the weights to prune.
        structure: ``"weights"`` to zero single weights, ``"channels"`` to zero whole channels, heads and other units,
            which :func:`compact` can remove; ``sparsity`` is then their share, whatever ``count`` says.
        lr: Highest learning rate, in place of that of ``settings``; by default short trials on the training data find
            it (:mod:`spikeslab.compression.lr_search`).
        temperature: Temperature, likewise.
        samples: Samples of the posterior, likewise.
        settings: All other hyper-parameters; the defaults suit most networks.
        num_data: Number of training examples, where the loader's dataset does not say. N of the posterior is this times
            the labels of an example: the positions of a sequence are data too.
        seed: Seed of the noise, and of all global generators while this runs: they are afterwards as they were.
        folder: Run directory for checkpoints, log, report and results; ``None`` writes nothing.
        resume: If True, continue the run in the folder.
        on_change: What to do if a run that is continued has other arguments, code or data than its checkpoint:
            ``"error"``, ``"old"`` or ``"new"``; see :class:`~spikeslab.training.RunFolder`.
        progress: If True, show a progress bar or, without a terminal, lines.
        report: If True, a run in a folder ends in ``report.html``; it needs the extra ``report`` and a few seconds.
        callbacks: Callbacks of the training loop, called after each step.

    Raises:
        ValueError, TypeError: If an argument is wrong, before anything is done.
        FileExistsError: If the folder holds something and ``resume`` is False.
        NonFiniteError: If a loss, gradient or weight is NaN or infinite.
    """
    return Compression(**locals()).run()


@dataclass(frozen=True, eq=False)
class Compression:
    """Checked arguments of a compression: those of :func:`compress`, and three more for studies and commands.

    Attributes:
        checkpoint_every: Interval between two checkpoints; five minutes by default.
        command: Command that makes the run, for its record.
        facts: Further facts that decide the result, by name: a run is continued only with the same.
    """

    model: nn.Module
    train_loader: TensorBatches | Iterable[Any]
    val_loader: Iterable[Any] | None = None
    _: KW_ONLY
    sparsity: float | str = DEFAULT_SPARSITY
    tolerance: float = 0.5
    epochs: int = 30
    loss: Loss | None = None
    metric: Metric | None = None
    forward: RunForward | None = None
    output: ReadOutput | None = None
    method: str = "a-sghmc-sa"
    weights: Chosen = None
    count: str = "network"
    structure: str = "weights"
    lr: float | None = None
    temperature: float | None = None
    samples: int | None = None
    settings: Settings | None = None
    num_data: int | None = None
    seed: int = 0
    folder: str | os.PathLike[str] | None = None
    resume: bool = False
    on_change: OnChange = ERROR
    progress: bool = True
    report: bool = True
    callbacks: Sequence[Callback] = ()
    checkpoint_every: Every | None = None
    command: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_module(self.model)
        if self.settings is not None and not isinstance(self.settings, Settings):
            raise ArgumentTypeError("settings", "must be a spikeslab.compression.Settings or None", self.settings)
        check_choice("method", self.method, METHODS)
        if self.sparsity == AUTO:
            self._check_auto()
        else:
            _check_sparsity(self.sparsity)
        check_choice("count", self.count, COUNTS)
        check_count("epochs", self.epochs)
        check_count("seed", self.seed, minimum=0, bits=64)
        if self.num_data is not None:
            check_count("num_data", self.num_data)
        for name in ("loss", "metric", "forward", "output"):
            if (function := getattr(self, name)) is not None and not callable(function):
                raise ArgumentTypeError(name, "must be a function or None", function)
        for name in ("loss", "metric"):
            if getattr(self, name) is not None:
                check_loss(name, getattr(self, name))
        if self.metric is not None and self.val_loader is None:
            expectation = f"must go with a {mark(VALIDATION)}, on which it is computed"
            raise ArgumentValueError("metric", expectation, Phrase("got none"))
        check_choice("structure", self.structure, STRUCTURES)
        if self.structure == CHANNELS and self.method in WEIGHTS_ONLY:
            raise ArgumentValueError(
                "method", f"must be one that prunes channels with {mark('structure', CHANNELS)}", self.method
            )
        if self.structure == WEIGHTS and self.merged_settings.multiple > 1:
            expectation = f"must be 1 with {mark('structure', WEIGHTS)}, which leaves all widths as they are"
            raise ArgumentValueError("multiple", expectation, self.merged_settings.multiple)
        self._check_pattern()

    def _check_pattern(self) -> None:
        """Raise if single weights in a pattern cannot be what is asked for."""
        pattern = self.merged_settings.pattern
        if pattern is None:
            return
        if self.structure == CHANNELS:
            raise ArgumentValueError("pattern", f"must be None with {mark('structure', CHANNELS)}", pattern)
        share = parse_pattern(pattern).sparsity
        if self.sparsity != DEFAULT_SPARSITY and (
            self.sparsity == AUTO or not math.isclose(float(self.sparsity), share)
        ):
            raise ArgumentValueError("sparsity", f"must be {share:g} with {mark('pattern', pattern)}", self.sparsity)

    def _check_auto(self) -> None:
        check_number("tolerance", self.tolerance, ">= 0")
        asked = mark("sparsity", AUTO)
        if self.val_loader is None:
            expectation = f"must be given with {asked}, which is found on data that were not trained on"
            raise ArgumentValueError(VALIDATION, expectation, None)
        if self.method in AT_ONCE:
            raise ArgumentValueError("method", f"must be one that prunes gradually with {asked}", self.method)

    @property
    def merged_settings(self) -> Settings:
        """The settings, with ``lr``, ``temperature`` and ``samples`` in them."""
        return (self.settings or Settings()).change(lr=self.lr, temperature=self.temperature, samples=self.samples)

    def run(self) -> Compressed:
        """Prune and sample the network."""
        return self.prepare().run()

    def prepare(self) -> CompressionRun:
        """Find the task and the weights to prune, and try one batch in a copy; nothing is written.

        An impossible run raises here what :func:`compress` would.
        """
        original = unwrap(self.model)
        units: dict[str, UnitFamily] | None = None
        if self.structure == CHANNELS:
            units = choose_units(original, self.weights, self._find_example(original))
            matrices = dict(original.named_parameters())
            names = list(dict.fromkeys(part.name for unit in units.values() for part in unit.filters(matrices)))
        else:
            names = weight_names(original, self.weights)
        self._check_folder()
        model = copy_model(original)
        if (pattern := self.merged_settings.pattern) is not None and self.weights is None:
            names = fitting_names(model, names, parse_pattern(pattern))
        _check_start(model)
        with preserve_randomness():
            batch = first_batch(TRAIN, self.train_loader)
            val_batch = None if self.val_loader is None else first_batch(VALIDATION, self.val_loader)
            task = find_task(model, batch, self.loss, Forward(self.forward, self.output), self.metric)
        settings = self.merged_settings
        loss = with_distillation(task, model, settings.distillation, settings.softening).loss_on(TRAIN)
        problem = self._pose(model, names, units, batch, task)
        if self.sparsity == AUTO and self.val_loader is not None:
            check_order(self.val_loader)
        run = CompressionRun(self, task, loss, problem)
        run.try_batches(batch, val_batch)
        recorded = self._recorded_settings()
        if task.kind == REGRESSION:
            run = run.with_sigma(settings.sigma or recorded.get("sigma") or run.estimate_noise())
        if settings.lr is None:
            run = run.change_settings(lr=recorded.get("lr") or run.find_lr())
        if (folder := run.run_folder) is not None:
            folder.check()
        return run

    def _find_example(self, model: nn.Module) -> ExampleInput | None:
        """Return two rows of inputs of the model, if they can be told from a batch."""
        with preserve_randomness():
            x = to_device_of(model, split_batch(first_batch(TRAIN, self.train_loader))[0])
        tensors = x.values() if isinstance(x, Mapping) else x if isinstance(x, tuple) else (x,)
        if not all(isinstance(tensor, Tensor) and tensor.ndim for tensor in tensors):
            return None
        example: ExampleInput = map_tensors(lambda tensor: tensor[:ROWS], x)
        return example

    def _recorded_settings(self) -> dict[str, Any]:
        """Return the settings of the run that is continued, if there is one."""
        if not self.resume or self.folder is None or not (record := Path(self.folder) / RECORD_FILE).exists():
            return {}
        return Settings.upgrade(read_run_record(record, CheckpointError)["settings"])

    def _check_folder(self) -> None:
        """Raise unless the folder is new or empty, or is that of a run."""
        if self.folder is None or (Path(self.folder) / RECORD_FILE).exists():
            return
        folder = Path(self.folder)
        names = {path.name for path in folder.iterdir()} if folder.is_dir() else {""}
        if not self.resume or any(name not in BEFORE_RECORD and not TEMPORARY.fullmatch(name) for name in names):
            check_free(folder, "folder")

    def _pose(
        self, model: nn.Module, names: Sequence[str], units: Mapping[str, UnitFamily] | None, batch: Any, task: Task
    ) -> Problem:
        """Return the problem that a method solves; a sparsity that cannot be reached is refused."""
        parameters, settings = dict(model.named_parameters()), self.merged_settings
        num_data, rows, labels = (
            count_rows(self.train_loader, self.num_data),
            batch_rows(batch),
            task.count_labels(batch),
        )
        sparsity, of_network = self.sparsity, self.count == "network" and units is None
        if settings.pattern is not None:
            sparsity, of_network = parse_pattern(settings.pattern).sparsity, False
        arguments: dict[str, Any] = {
            "model": model,
            "weights": {name: parameters[name] for name in names},
            "sparsity": PROVISIONAL if sparsity == AUTO else float(sparsity),
            "network": model if of_network else None,
            "settings": settings,
            "timeline": Timeline(settings, self.epochs * count_batches(self.train_loader, batch, num_data)),
            "num_data": max(1, round(num_data * labels)),
            "seed": self.seed,
            "batch_size": None if rows is None else max(1, round(rows * labels)),
        }
        problem = Problem(**arguments) if units is None else ChannelProblem(**arguments, units=units)
        if self.sparsity == AUTO:
            highest = problem.pruner(0.0).highest
            if highest <= 0.0:
                raise ArgumentValueError("floor", "must leave weights that may become zero", settings.floor)
            return replace(problem, sparsity=min(problem.sparsity, highest))
        try:
            problem.pruner(problem.sparsity)
        except ArgumentError as error:
            hint = None
            with suppress(ArgumentError):  # unless the layers alone cannot reach it either
                replace(problem, network=None).pruner(problem.sparsity)
                layers = mark("count", "layers")
                share = f"with {layers} it is a share of the weights to prune"
                hint = share if self.weights is None else f"choose more weights, or {layers}"
            raise error.change(hint=hint) from error
        return problem


@dataclass(frozen=True, eq=False)
class CompressionRun:
    """A compression that is ready to run; its problem is in a copy of the network, which the run changes."""

    arguments: Compression
    task: Task
    loss: Loss
    problem: Problem

    @property
    def folder(self) -> Path | None:
        """The run directory."""
        return None if self.arguments.folder is None else Path(self.arguments.folder)

    def try_batches(self, batch: Any, val_batch: Any) -> None:
        """Create the sampler and evaluate a batch of each kind in a copy, so that errors come before any work."""
        problem = self.problem.copy()
        with preserve_randomness(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the run repeats them
            METHODS[self.arguments.method](problem)
            with autocast(problem.model, problem.settings.precision):
                loss = self.loss(problem.model.train(), batch)
            if not loss.requires_grad:
                raise BatchError("loss", "must return a tensor that has a gradient", Phrase("got one without"))
            if val_batch is not None:
                Evaluation(self.task, [val_batch], VALIDATION).of_model(problem.model)

    def find_lr(self) -> float:
        """Return the lr that short trials on the training data find.

        With a teacher the network must hold under the loss of the targets too: where it repeats the teacher, short
        trials are kind to an lr that destroys it later.
        """
        problem, settings = self.problem, self.problem.settings
        taught = settings.distillation > 0.0 and self.task.kind == CLASSIFICATION
        losses = [self.loss, self.task.loss_on(TRAIN)] if taught else [self.loss]
        found = []
        for loss in losses:
            with preserve_randomness():
                seed_everything(self.arguments.seed)
                lr = find_lr(
                    problem.model,
                    loss,
                    self.arguments.train_loader,
                    list(problem.weights),
                    momentum=settings.momentum,
                    weight_decay=settings.weight_decay,
                    precision=settings.precision,
                )
                found.append(lr)
        return min(found)

    def estimate_noise(self) -> float:
        """Return the standard deviation of the residuals of the dense network on training batches."""
        data = self.arguments.train_loader
        with preserve_randomness():
            seed_everything(self.arguments.seed)
            data = data.epoch(0) if isinstance(data, TensorBatches) else data
            return estimate_noise(self.problem.model, data, self.task.forward)

    def with_sigma(self, sigma: float) -> CompressionRun:
        """Return the run with the Gaussian likelihood of a regression."""
        loss = with_noise(replace(self.task, loss=self.loss), sigma).loss
        return replace(self.change_settings(sigma=sigma), loss=loss)

    def change_settings(self, **changes: Any) -> CompressionRun:
        """Return the run with other settings."""
        settings = self.problem.settings.change(**changes)
        timeline = replace(self.problem.timeline, settings=settings)
        return replace(self, problem=replace(self.problem, settings=settings, timeline=timeline))

    @property
    def run_folder(self) -> RunFolder | None:
        """The folder with its settings, which decide whether a run in it may be continued."""
        arguments = self.arguments
        if self.folder is None:
            return None
        return CompressionFolder(
            self.folder,
            resume=arguments.resume,
            on_change=arguments.on_change,
            settings=self._record() | asdict(self.problem.settings) | dict(arguments.facts),
            seed=arguments.seed,
            command=arguments.command,
            checkpoint_every=arguments.checkpoint_every,
        )

    def run(self) -> Compressed:
        """Prune and sample the network, once."""
        with preserve_randomness():
            seed_everything(self.arguments.seed)
            return self._run()

    def _run(self) -> Compressed:
        model, timeline, data = self.problem.model, self.problem.timeline, self.arguments.val_loader
        unbounded = find_unbounded(model)
        evaluation = None if data is None else Evaluation(self.task, data, VALIDATION)
        found = {} if evaluation is None else {"dense": evaluation.of_model(model)}
        dense = score_rows(evaluation, model) if evaluation is not None and self.searches else None
        parts = METHODS[self.arguments.method](self.problem)
        search = None if evaluation is None or dense is None else self._search(parts, evaluation, dense)
        posterior = Posterior(
            model,
            timeline.burn_in,
            timeline.thin,
            link=self.task.link,
            sampler=parts.sampler,
            directory=None if self.folder is None else self.folder / POSTERIOR,
            exist_ok=True,
            forward=self.arguments.forward,
            output=self.arguments.output,
        )
        history = History()
        evaluate = None if evaluation is None else Evaluate(partial(evaluation.of_model, model))
        progress = ShowProgress("Compressing") if self.arguments.progress else None
        callbacks = [parts.prune, search, Collect(posterior), evaluate, history, *self.arguments.callbacks, progress]
        training = Training(
            model.train(),
            parts.sampler,
            self.arguments.train_loader,
            self.loss,
            callbacks=[callback for callback in callbacks if callback is not None],
            precision=self.problem.settings.precision,
        )
        folder = self.run_folder
        training.run(steps=timeline.total, folder=folder)
        model.eval()
        check_finite(model, posterior, unbounded)
        if evaluation is not None and evaluate is not None:
            found |= {"sparse": evaluate.last, "average": evaluation.of_posterior(posterior)}
        report = self._report(len(posterior), found)
        if evaluation is not None and dense is not None and search is not None:
            report[SEARCH] = self._describe_search(search, evaluation, dense, posterior)
        result = Compressed(model, posterior, history.records, found, report, self.task)
        if folder is not None:
            result.write(folder.path)
            if self.arguments.report:  # the page begins with the result
                folder.try_to_write_report(write_report)
        return result

    @property
    def searches(self) -> bool:
        """True if the run chooses its own sparsity."""
        return self.arguments.sparsity == AUTO

    def _search(self, parts: MethodParts, evaluation: Evaluation, dense: RowScores) -> SearchSparsity:
        """Return the callback that moves the sparsity, after the pruner was given its schedule."""
        pruner, end = parts.prune.pruner, self.problem.timeline.collect
        assert isinstance(pruner, ScheduledPruner)
        pruner.freeze_at = end
        plan = SearchPlan(float(self.arguments.tolerance), pruner.highest, end)
        search = SparsitySearch(plan)
        pruner.schedule = search.schedule()
        return SearchSparsity(search, self.problem.model, evaluation, dense, self.problem.settings.highest_lr)

    def _describe_search(
        self, search: SearchSparsity, evaluation: Evaluation, dense: RowScores, posterior: Posterior
    ) -> dict[str, Any]:
        """Return the tolerance, the paired differences from the dense network at the end, and the probes."""
        sparse = compare(dense, score_rows(evaluation, self.problem.model))
        average = compare(dense, score_rows(evaluation, posterior))
        tolerance = search.search.plan.tolerance
        return {
            "tolerance": tolerance,
            "within": sparse.value <= tolerance,
            "sparse": sparse.record(),
            "average": average.record(),
            "probes": search.search.probes,
        }

    def _report(self, samples: int, evaluation: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
        model, weights, channels = self.problem.model, self.problem.weights, {}
        if isinstance(self.problem, ChannelProblem):
            batch = first_batch(TRAIN, self.arguments.train_loader)
            example = None if self.task.kind == OTHER else pair(model, batch)[0]
            channels = describe_channels(model, self.problem.units, example)
        return {
            **self._record(),
            "structure": self.arguments.structure,
            "settings": asdict(self.problem.settings),
            **describe_zeros(model, weights),
            **channels,
            "samples": samples,
            "metrics": {name: keep_numbers(values) for name, values in evaluation.items()},
        }

    def _counted(self) -> str:
        """Return what the sparsity is a share of."""
        if self.arguments.structure == CHANNELS:
            return CHANNELS
        return COUNTS[self.problem.network is None]

    def _record(self) -> dict[str, Any]:
        arguments, tolerance = self.arguments, float(self.arguments.tolerance)
        return {
            "method": arguments.method,
            **({"target": AUTO, "tolerance": tolerance} if self.searches else {"target": self.problem.sparsity}),
            "count": self._counted(),
            "epochs": int(arguments.epochs),
            "seed": int(arguments.seed),
            "task": self.task.kind,
            "weights": list(self.problem.weights),
        }


class CompressionFolder(RunFolder):
    """Folder of a compression, which reads the settings of early versions."""

    def upgrade_settings(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Return the settings of an earlier record under their present names."""
        return Settings.upgrade(settings)


def _check_sparsity(sparsity: object) -> None:
    if isinstance(sparsity, str):
        raise ArgumentValueError("sparsity", f"must be a number in (0, 1) or {AUTO!r}", sparsity)
    check_number("sparsity", sparsity, "(0, 1)")


class History(Callback):
    """Records of the epochs: step, mean loss, lr, temperature, and what the callbacks before it measured."""

    name = "history"

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []
        self._losses: list[float] = []

    def after_step(self, run: Training) -> None:
        """Note the loss, and at the end of an epoch make a record."""
        self._losses.append(run.last_loss)
        if run.epoch_ended:
            group = run.sampler.param_groups[0]
            self.records.append(
                {
                    "epoch": run.epoch,
                    "step": run.steps,
                    "loss": sum(self._losses) / len(self._losses),
                    "lr": float(group["lr"]),
                    "temperature": float(group.get("temperature", 0.0)),
                }
            )
            for callback in run.callbacks:
                self.records[-1] |= callback.metrics()
            self._losses = []

    def state_dict(self) -> dict[str, State]:
        """Return the records, and the losses of the present epoch."""
        return {"records": self.records, "losses": self._losses}

    def load_state_dict(self, state: Mapping[str, State]) -> None:
        """Continue from a state."""
        self.records, self._losses = list(state["records"]), list(state["losses"])


def _check_start(model: nn.Module) -> None:
    """Raise if training has nothing to start from; a buffer may hold infinities, as masks of attention do."""
    if lazy := [name for name, parameter in model.named_parameters() if is_lazy(parameter)]:
        raise ArgumentValueError(
            "model",
            "must be a module without lazy parameters",
            Phrase(f"has {quote(lazy)}"),
            "run one batch through it first",
        )
    wrong = [name for name, parameter in model.named_parameters() if not bool(parameter.isfinite().all())]
    wrong += [name for name, buffer in model.named_buffers() if bool(buffer.isnan().any())]
    if wrong:
        raise ArgumentValueError(
            "model", "must start from finite weights", Phrase(f"{quote(wrong)} holds NaN or infinity")
        )
