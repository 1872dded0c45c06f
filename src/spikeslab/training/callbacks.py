"""Callbacks of the training loop: prune, collect, evaluate, schedule the learning rate, show progress.

In a loop without :class:`~spikeslab.training.Training`, call the object that a callback wraps: ``pruner.step()``,
``posterior.collect()``, ``Evaluate(function)()``, ``MetricsLog.write(...)``, ``Checkpoints.save(...)``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from spikeslab.errors import ArgumentTypeError, ArgumentValueError, Phrase, check_count, check_number, mark
from spikeslab.posterior import Posterior
from spikeslab.pruning import ChannelPruner, Pruner, RhoPruner
from spikeslab.report.progress import Progress
from spikeslab.schedules import describe_schedule
from spikeslab.states import State, Stateful, describe

if TYPE_CHECKING:
    from spikeslab.training.loop import Training


MOVING = {"optimizer", "last_epoch", "base_lrs", "verbose"}
"""Attributes of torch's LR schedulers that are no settings."""
EVALUATION = "evaluation"
"""Name of the main evaluation of a run."""


@dataclass(frozen=True)
class Every:
    """Interval in steps, epochs or seconds; exactly one is given.

    >>> Every(epochs=1)
    Every(steps=None, epochs=1, seconds=None)
    """

    steps: int | None = None
    epochs: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        given = {name: value for name, value in vars(self).items() if value is not None}
        if len(given) != 1:
            got = Phrase(f"got {given or 'none'}")
            raise ArgumentValueError(
                "Every", f"must have one of {mark('steps')}, {mark('epochs')} and {mark('seconds')}", got
            )
        for name, value in given.items():
            if name == "seconds":
                check_number(name, value, ">= 0")
            else:
                check_count(name, value)

    def is_due(self, run: Training, since: float) -> bool:
        """Return True if the interval has passed, ``since`` seconds after the last time."""
        if self.steps is not None:
            return run.steps % self.steps == 0
        if self.epochs is not None:
            return run.epoch_ended and run.epoch % self.epochs == 0
        return self.seconds is not None and since >= self.seconds


class Callback:
    """Base class of callbacks, whose methods do nothing.

    Attributes:
        name: Key of its state in a checkpoint; empty for callbacks without a state.
        part: Object whose state is that of the callback, such as a pruner.
    """

    name: str = ""
    part: Stateful | None = None

    def begin(self, run: Training) -> None:
        """Prepare for the first step, after a checkpoint was loaded."""

    def after_step(self, run: Training) -> None:
        """Act after every step."""

    def end(self, run: Training) -> None:
        """Act after the last step."""

    def close(self) -> None:
        """Release resources; called however the run ended."""

    def metrics(self) -> dict[str, Any]:
        """Return the entries that it adds to a record of the log."""
        return {}

    def settings_dict(self) -> dict[str, Any]:
        """Return the settings that decide the result of the run, by name, as JSON values."""
        part: Any = self.part
        return dict(part.settings_dict()) if hasattr(part, "settings_dict") else {}

    def load_settings(self, settings: Mapping[str, Any]) -> None:
        """Set some of the settings."""
        part: Any = self.part
        if settings and part is not None:
            part.load_settings(settings)

    def state_dict(self) -> dict[str, State]:
        """Return the state that a checkpoint must hold."""
        return {} if self.part is None else dict(self.part.state_dict())

    def load_state_dict(self, state: Mapping[str, State]) -> None:
        """Load a state."""
        if self.part is not None:
            self.part.load_state_dict(dict(state))


class PeriodicCallback(Callback, ABC):
    """Callback that acts at an interval and after the last step."""

    def __init__(self, every: Every) -> None:
        self.every = every
        self._step = -1
        self._time = 0.0

    @abstractmethod
    def act(self, run: Training) -> None:
        """Do what the callback is for."""

    def act_now(self, run: Training) -> None:
        """Act, and restart the interval."""
        self.act(run)
        self._step, self._time = run.steps, run.seconds

    def is_due(self, run: Training) -> bool:
        """Return True if the interval has passed."""
        return self.every.is_due(run, run.seconds - self._time)

    def begin(self, run: Training) -> None:
        """Start the interval."""
        self._time = run.seconds

    def after_step(self, run: Training) -> None:
        """Act if the interval has passed."""
        if self.is_due(run):
            self.act_now(run)

    def end(self, run: Training) -> None:
        """Act, unless that was done after the last step."""
        if self._step != run.steps:
            self.act_now(run)


class ScheduleLR(Callback):
    """Steps a learning-rate scheduler of torch, and keeps its state in the checkpoints.

    Args:
        scheduler: Scheduler of the run's sampler or optimizer.
        every: Interval in steps or epochs; every step by default.

    Raises:
        TypeError: If the scheduler needs a metric.
        ValueError: If the interval is in seconds, which is not reproducible.
    """

    name = "scheduler"

    def __init__(self, scheduler: LRScheduler, every: Every | None = None) -> None:
        if not isinstance(scheduler, LRScheduler) or isinstance(scheduler, ReduceLROnPlateau):
            raise ArgumentTypeError(
                "scheduler",
                "must be an lr scheduler of torch that needs no metric, such as CosineAnnealingLR",
                Phrase(f"got {type(scheduler).__name__}"),
            )
        self.scheduler = self.part = scheduler
        self.every = every or Every(steps=1)
        if self.every.seconds is not None:
            raise ArgumentValueError("every", "must be in steps or epochs", Phrase(f"got {self.every.seconds} seconds"))

    def settings_dict(self) -> dict[str, Any]:
        """Return the interval, and type and settings of the scheduler and of those that it joins."""
        found: dict[str, Any] = {"every": describe(self.every)}
        for prefix, scheduler in _join_schedulers(self.scheduler):
            found[f"{prefix}type"] = type(scheduler).__name__
            own = {name: value for name, value in vars(scheduler).items() if name not in MOVING and name[0] != "_"}
            functions = own.pop("lr_lambdas", [])
            found |= {f"{prefix}{name}": describe(value) for name, value in own.items()}
            found |= (
                {f"{prefix}lr_lambdas": [describe_schedule(function) for function in functions]} if functions else {}
            )
        return found

    def load_settings(self, settings: Mapping[str, Any]) -> None:
        """Set some of the settings."""
        own, schedulers = self.settings_dict(), dict(_join_schedulers(self.scheduler))
        for name, value in settings.items():
            prefix, dot, attribute = name.rpartition(".")
            if value == own[name]:
                continue
            if name == "every" or attribute == "lr_lambdas":
                expectation = f"must be created with the {name} {value}"
                raise ArgumentValueError("scheduler", expectation, Phrase(f"got {own[name]}"))
            setattr(schedulers[prefix + dot], attribute, value)

    def begin(self, run: Training) -> None:
        """Let the schedulers begin from the lr of the groups, which a resume may have changed."""
        for _, scheduler in _join_schedulers(self.scheduler):
            if hasattr(scheduler, "base_lrs"):
                scheduler.base_lrs = [group["initial_lr"] for group in self.scheduler.optimizer.param_groups]

    def after_step(self, run: Training) -> None:
        """Step the scheduler if the interval has passed."""
        if self.every.is_due(run, since=0.0):
            self.scheduler.step()


def _join_schedulers(scheduler: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield a scheduler and those that it joins, such as a warm-up and what follows, with prefixes of their names."""
    yield prefix, scheduler
    for index, inner in enumerate(getattr(scheduler, "_schedulers", [])):
        yield from _join_schedulers(inner, f"{prefix}{index}.")


class Prune(Callback):
    """Calls the pruner after every step, and logs the sparsity.

    Args:
        pruner: The pruner.
    """

    name = "pruner"

    def __init__(self, pruner: Pruner | RhoPruner | ChannelPruner) -> None:
        self.pruner = self.part = pruner

    def after_step(self, run: Training) -> None:
        """Prune, or hold the zeros."""
        self.pruner.step()

    def metrics(self) -> dict[str, Any]:
        """Return the sparsity of the sparse layers and the network, and the share of dead channels."""
        sparsity = self.pruner.sparsity()
        found = {"sparsity_sparse": sparsity.sparse, "sparsity": sparsity.network}
        if isinstance(self.pruner, ChannelPruner):
            live = self.pruner.count_live_channels()
            found["dead_channels"] = 1.0 - sum(live.values()) / self.pruner.units
        return {name: value for name, value in found.items() if value is not None}


class Collect(Callback):
    """Calls ``posterior.collect()`` after every step."""

    name = "posterior"

    def __init__(self, posterior: Posterior) -> None:
        self.posterior = self.part = posterior

    def after_step(self, run: Training) -> None:
        """Collect a sample if one is due."""
        self.posterior.collect()

    def metrics(self) -> dict[str, Any]:
        """Return the number of samples."""
        return {"samples": len(self.posterior)}


class Evaluate(PeriodicCallback):
    """Calls a function at an interval and after the last step, and keeps its last result.

    Args:
        function: Function that returns numbers by name, such as :class:`~spikeslab.training.ClassifierEvaluation`.
        every: Interval, one epoch by default.
        name: Key in the log and in a checkpoint; a second evaluation of a run needs its own.
    """

    def __init__(
        self, function: Callable[[], Mapping[str, Any]], every: Every | None = None, *, name: str = EVALUATION
    ) -> None:
        super().__init__(every or Every(epochs=1))
        self.name = name
        self.function = function
        self.last: dict[str, Any] = {}

    def __call__(self) -> dict[str, Any]:
        """Evaluate now."""
        self.last = dict(self.function())
        return self.last

    def act(self, run: Training) -> None:
        """Evaluate."""
        self()

    def metrics(self) -> dict[str, Any]:
        """Return the numbers of the last evaluation."""
        numbers = {name: value for name, value in self.last.items() if isinstance(value, (int, float))}
        return {self.name: numbers} if numbers else {}

    def state_dict(self) -> dict[str, State]:
        """Return the last result and its step."""
        return {"last": self.last, "evaluated": self._step}

    def load_state_dict(self, state: Mapping[str, State]) -> None:
        """Load the last result and its step."""
        self.last, self._step = dict(state["last"]), int(state["evaluated"])


class ShowProgress(Callback):
    """Shows the loss, accuracy, sparsity, temperature and the time left while a run goes on.

    Args:
        title: Name of the run.
    """

    def __init__(self, title: str = "Sampling") -> None:
        self.title = title
        self._progress: Progress | None = None
        self._loss: float | None = None

    def begin(self, run: Training) -> None:
        """Show a bar if there is a terminal."""
        self._loss = None
        self._progress = Progress({self.title: run.total_steps})
        self._progress.start()

    def after_step(self, run: Training) -> None:
        """Update the running mean of the loss, and show the numbers now and then."""
        self._loss = run.last_loss if self._loss is None else 0.98 * self._loss + 0.02 * run.last_loss
        if run.steps < run.total_steps:  # the last step is shown by `end`, after the last evaluation
            self._show(run)

    def end(self, run: Training) -> None:
        """Show the final numbers."""
        self._show(run)

    def close(self) -> None:
        """Close the bar."""
        if self._progress is not None:
            self._progress.close()

    def _show(self, run: Training) -> None:
        if self._progress is not None:
            self._progress.update(self.title, run.steps, lambda: self._describe(run))

    def _describe(self, run: Training) -> str:
        found: dict[str, Any] = {}
        for callback in run.callbacks:
            found |= callback.metrics()
        accuracy = found.get("evaluation", {}).get("accuracy")
        sparsity = found.get("sparsity", found.get("sparsity_sparse"))
        dead = found.get("dead_channels")
        numbers = {
            "loss": None if self._loss is None else f"{self._loss:.4f}",
            "accuracy": None if accuracy is None else f"{accuracy:.2%}",
            "dead channels": None if dead is None else f"{dead:.1%}",
            "sparsity": None if sparsity is None or dead is not None else f"{sparsity:.1%}",
            "T": f"{run.sampler.param_groups[0].get('temperature', 0.0):.3g}",
        }
        return ", ".join(f"{name} {value}" for name, value in numbers.items() if value is not None)
