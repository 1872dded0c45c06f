"""Compress a network of one's own: prune it while it is sampled, freeze the zeros, collect the posterior."""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn
from torch.nn.parameter import is_lazy

from spikeslab.compression.distillation import taught
from spikeslab.compression.evaluation import Evaluation
from spikeslab.compression.history import History
from spikeslab.compression.layers import Chosen, channel_followers, weight_names
from spikeslab.compression.methods import METHODS, WEIGHTS_ONLY
from spikeslab.compression.problem import ChannelProblem, Problem
from spikeslab.compression.result import (
    Compressed,
    check_finite,
    describe_channels,
    describe_metrics,
    describe_zeros,
    unbounded_buffers,
)
from spikeslab.compression.settings import Settings, Timeline
from spikeslab.compression.tasks import OTHER, BatchError, count_batches, count_rows, find_task, first_batch, pair
from spikeslab.diagnostics import write_report
from spikeslab.diagnostics.run_reader import POSTERIOR
from spikeslab.errors import (
    ArgumentError,
    ArgumentTypeError,
    ArgumentValueError,
    Phrase,
    check_choice,
    check_count,
    check_number,
    first_line,
    quote,
)
from spikeslab.files import check_free
from spikeslab.posterior import Posterior
from spikeslab.training import Callback, Collect, Evaluate, Every, RunFolder, ShowProgress, TensorBatches, Training
from spikeslab.training.folder import CHECKPOINTS, RECORD
from spikeslab.training.lock import NAME as LOCK
from spikeslab.training.loop import Loss
from spikeslab.training.precision import computing
from spikeslab.training.randomness import preserved_randomness, seed_everything
from spikeslab.weights import unwrapped

TRAIN, VALIDATION = "train_loader", "val_loader"
COUNTS = ("network", "layers")
STRUCTURES = WEIGHTS, CHANNELS = ("weights", "channels")
BEFORE_RECORD = {LOCK, CHECKPOINTS, POSTERIOR}
"""What a run that was killed at once leaves, before its record is written."""


def compress(
    model: nn.Module,
    train_loader: TensorBatches | Iterable[Any],
    val_loader: Iterable[Any] | None = None,
    *,
    sparsity: float = 0.9,
    epochs: int = 30,
    loss: Loss | None = None,
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
        sparsity: Share of zeros, in (0, 1).
        epochs: Epochs in all; the parts of the run scale with it.
        loss: From (model, batch) to the mean loss; by default the cross-entropy of batches (x, y), or their mean
            squared error where y are floating-point numbers.
        method: One of ``METHODS``.
        weights: Which weights become sparse: globs over parameter names, or parameters; by default those of all
            convolutions and linear layers but the first and the last, in the order in which the model registers them;
            with ``structure="channels"`` those of all layers with free channels, and a mapping to the normalisation
            behind each, as :func:`~spikeslab.pruning.free_channel_layers` returns it, is taken as it is.
        count: Whether ``sparsity`` is a share of all parameters, ``"network"``, or of the sparse ``"layers"``.
        structure: What becomes zero: single ``"weights"``, or whole ``"channels"``, which :func:`compact` can remove;
            ``sparsity`` is then the share of the channels of the chosen layers, whatever ``count`` says.
        lr: Highest learning rate, in place of that of ``settings``.
        temperature: Temperature, likewise.
        samples: Samples of the posterior, likewise.
        settings: The recipe.
        num_data: Number of training examples, where the loader's dataset does not say.
        seed: Seed of the noise, and of all global generators while this runs: they are afterwards as they were.
        folder: Where given, the run lives in this folder, with checkpoints, log, report and results.
        resume: Whether to continue the run that is in the folder.
        progress: Whether to show a bar or, without a terminal, lines.
        report: Whether a run in a folder ends in ``report.html``; it needs the extra ``report`` and a few seconds.
        callbacks: What else happens after each step.

    Raises:
        ValueError, TypeError: If an argument is wrong, before anything is done.
        FileExistsError: If the folder holds something and ``resume`` is False.
        NonFiniteError: If a loss, gradient or weight is NaN or infinite.
    """
    return Compression(
        model,
        train_loader,
        val_loader,
        sparsity=sparsity,
        epochs=epochs,
        loss=loss,
        method=method,
        weights=weights,
        count=count,
        structure=structure,
        settings=_checked(settings).changed(lr=lr, temperature=temperature, samples=samples),
        num_data=num_data,
        seed=seed,
        folder=folder,
        resume=resume,
        progress=progress,
        report=report,
        callbacks=callbacks,
    ).run()


class Compression:
    """A compression that has been checked and not yet begun; arguments as for :func:`compress`.

    Args:
        model: As for :func:`compress`.
        train_loader: As for :func:`compress`.
        val_loader: As for :func:`compress`.
        sparsity: As for :func:`compress`.
        epochs: As for :func:`compress`.
        loss: As for :func:`compress`.
        method: As for :func:`compress`.
        weights: As for :func:`compress`.
        count: As for :func:`compress`.
        structure: As for :func:`compress`.
        settings: The recipe.
        num_data: As for :func:`compress`.
        seed: As for :func:`compress`.
        folder: As for :func:`compress`.
        resume: As for :func:`compress`.
        progress: As for :func:`compress`.
        report: As for :func:`compress`.
        callbacks: As for :func:`compress`.
        checkpoint_every: How often the state is saved; every five minutes by default.
        command: Command that makes the run, for the record.
        facts: What else decides the result, by name: a run is continued only with the same.
    """

    def __init__(
        self,
        model: nn.Module,
        train_loader: TensorBatches | Iterable[Any],
        val_loader: Iterable[Any] | None = None,
        *,
        sparsity: float = 0.9,
        epochs: int = 30,
        loss: Loss | None = None,
        method: str = "a-sghmc-sa",
        weights: Chosen = None,
        count: str = "network",
        structure: str = "weights",
        settings: Settings | None = None,
        num_data: int | None = None,
        seed: int = 0,
        folder: str | os.PathLike[str] | None = None,
        resume: bool = False,
        progress: bool = True,
        report: bool = True,
        callbacks: Sequence[Callback] = (),
        checkpoint_every: Every | None = None,
        command: str | None = None,
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise ArgumentTypeError("model", "must be a torch.nn.Module", Phrase(f"got {type(model).__name__}"))
        model = unwrapped(model)
        self.method = check_choice("method", method, METHODS)
        self.sparsity = check_number("sparsity", sparsity, "(0, 1)")
        self.count = check_choice("count", count, COUNTS)
        self.epochs = check_count("epochs", epochs)
        self.seed = check_count("seed", seed, minimum=0)
        self.settings = _checked(settings)
        self.structure = check_choice("structure", structure, STRUCTURES)
        if self.structure == CHANNELS and self.method in WEIGHTS_ONLY:
            raise ArgumentValueError(
                "method", f"must be one that prunes channels with {{structure={CHANNELS!r}}}", self.method
            )
        followers = channel_followers(model, weights) if self.structure == CHANNELS else None
        names = weight_names(model, weights) if followers is None else list(followers)
        self.folder = None if folder is None else Path(folder)
        if self.folder is not None and not (self.folder / RECORD).exists():
            _check_free(self.folder, resume)
        self._model = _copied(model)
        _check_finite(self._model)
        self._unbounded = unbounded_buffers(self._model)
        self._data, self._validation = train_loader, val_loader
        self._progress, self._callbacks = progress, callbacks
        with preserved_randomness():
            batch = first_batch(TRAIN, train_loader)
            validation = None if val_loader is None else [first_batch(VALIDATION, val_loader)]
            self.task = find_task(self._model, batch, loss)
            lesson = taught(self.task, self._model, self.settings.distillation, self.settings.softening)
            self._loss = lesson.loss_on(TRAIN)
            steps = self.epochs * count_batches(train_loader)
        self._problem = self._pose(self._model, names, followers, steps, count_rows(train_loader, num_data))
        self._check_reachable()
        trial = copy.deepcopy(self._model)
        self._try(self._pose(trial, names, followers, steps, self._problem.num_data), batch, validation)
        self._place: RunFolder | None = None
        if self.folder is not None:
            self._place = RunFolder(
                self.folder,
                resume=resume,
                settings=self._record() | self.settings.record() | dict(facts or {}),
                defaults=Settings().record(),
                seed=self.seed,
                command=command,
                checkpoint_every=checkpoint_every,
                report=write_report if report else None,
            )
            self._place.check()

    def _pose(
        self, model: nn.Module, names: Sequence[str], followers: Mapping[str, str | None] | None, steps: int, rows: int
    ) -> Problem:
        """The problem that a method solves, in a model."""
        parameters = dict(model.named_parameters())
        given: dict[str, Any] = {
            "model": model,
            "weights": {name: parameters[name] for name in names},
            "sparsity": self.sparsity,
            "network": model if self.count == "network" and followers is None else None,
            "settings": self.settings,
            "timeline": Timeline(self.settings, steps),
            "num_data": rows,
            "seed": self.seed,
        }
        return Problem(**given) if followers is None else ChannelProblem(**given, followers=followers)

    def _try(self, problem: Problem, batch: Any, validation: list[Any] | None) -> None:
        """Make the chain and judge a batch, in a copy: what is impossible shall be so before anything is written."""
        with preserved_randomness(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the run will say it
            METHODS[self.method](problem)
            with computing(problem.model, self.settings.precision):
                loss = self._loss(problem.model.train(), batch)
            if not loss.requires_grad:
                raise BatchError("loss", "must return a tensor that has a gradient", Phrase("got one without"))
            if validation is not None:
                Evaluation(self.task, validation, VALIDATION).of_model(problem.model)

    def _check_reachable(self) -> None:
        try:
            self._problem.pruner(self.sparsity)
        except ArgumentError as error:
            if not self._is_reachable_in_layers():
                raise
            raise error.changed(hint="choose more weights, or {count='layers'}") from error

    def _is_reachable_in_layers(self) -> bool:
        if self._problem.network is None:
            return False
        try:
            replace(self._problem, network=None).pruner(self.sparsity)
        except ValueError:
            return False
        return True

    def run(self) -> Compressed:
        """Do it, once."""
        with preserved_randomness():
            seed_everything(self.seed)
            return self._run()

    def _run(self) -> Compressed:
        model, timeline = self._model, self._problem.timeline
        validation = None if self._validation is None else Evaluation(self.task, self._validation, VALIDATION)
        dense = None if validation is None else validation.of_model(model)
        chain = METHODS[self.method](self._problem)
        posterior = Posterior(
            model,
            timeline.burn_in,
            timeline.thin,
            link=self.task.link,
            sampler=chain.sampler,
            directory=None if self.folder is None else self.folder / POSTERIOR,
            exist_ok=True,
        )
        history = History()
        evaluate = None if validation is None else Evaluate(partial(validation.of_model, model))
        callbacks = [chain.prune, Collect(posterior), evaluate, history, *self._callbacks]
        callbacks += [ShowProgress("Compressing")] if self._progress else []
        model.train()
        training = Training(
            model,
            chain.sampler,
            self._data,
            self._loss,
            callbacks=[callback for callback in callbacks if callback is not None],
            precision=self.settings.precision,
        )
        training.run(steps=timeline.total, folder=self._place)
        model.eval()
        check_finite(model, posterior, self._unbounded)
        evaluation: dict[str, dict[str, Any]] = {}
        if validation is not None and dense is not None and evaluate is not None:
            evaluation = {"dense": dense, "sparse": evaluate.last, "average": validation.of_posterior(posterior)}
        report = {
            **self._record(),
            "structure": self.structure,
            "settings": self.settings.record(),
            **describe_zeros(model, self._problem.weights),
            **(self._describe_channels() if self.structure == CHANNELS else {}),
            "samples": len(posterior),
            "metrics": describe_metrics(evaluation),
        }
        result = Compressed(model, posterior, history.records, evaluation, report, self.task)
        if self.folder is not None:
            result.write(self.folder)
        return result

    def _describe_channels(self) -> dict[str, Any]:
        batch = first_batch(TRAIN, self._data)
        example = None if self.task.kind == OTHER else pair(self._model, batch)[0]
        return describe_channels(self._model, self._problem.weights, example)

    def _record(self) -> dict[str, Any]:
        return {
            "method": self.method,
            "target": self.sparsity,
            "count": self.count if self.structure == WEIGHTS else CHANNELS,
            "epochs": self.epochs,
            "seed": self.seed,
            "task": self.task.kind,
            "weights": list(self._problem.weights),
        }


def _checked(settings: Settings | None) -> Settings:
    if settings is not None and not isinstance(settings, Settings):
        raise ArgumentTypeError("settings", "must be a spikeslab.compression.Settings or None", settings)
    return settings or Settings()


def _copied(model: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(model)
    except Exception as error:  # what a module does in its own __deepcopy__, or torch for tensors that are computed
        raise ArgumentValueError(
            "model",
            "must be a module that copy.deepcopy can copy",
            Phrase(f"it failed with {first_line(error).partition('. ')[0]!r}"),
            "spikeslab.compression.finalize(model) removes torch's masks and parametrizations",
        ) from error


def _check_finite(model: nn.Module) -> None:
    """Raise if training has nothing to start from; a buffer may hold infinities, as masks of attention do."""
    lazy = [name for name, parameter in model.named_parameters() if is_lazy(parameter)]
    if lazy:
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


def _check_free(folder: Path, resume: bool) -> None:
    """Raise unless a folder is new or empty, or was left by a run that was killed before it had a record."""
    if resume and folder.is_dir() and {path.name for path in folder.iterdir()} <= BEFORE_RECORD:
        return
    check_free(folder, "folder")
