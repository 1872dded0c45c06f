"""What can happen between the steps of a loop; each callback also serves in a loop of one's own.

Outside of :class:`~spikeslab.training.Training`, call the object that a callback holds: ``pruner.step()``,
``posterior.collect()``, ``Evaluate(function)()``, ``MetricsLog.write(...)``, ``Checkpoints.save(...)``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from spikeslab.errors import check_count, check_number
from spikeslab.posterior import Posterior
from spikeslab.pruning import ChannelPruner, Pruner, RhoPruner
from spikeslab.report.progress import Progress
from spikeslab.states import State

if TYPE_CHECKING:
    from spikeslab.training.loop import Training


EVALUATED = "evaluation"


@dataclass(frozen=True)
class Every:
    """How often something happens: every so many steps, epochs or seconds; one of the three.

    >>> Every(epochs=1)
    Every(steps=None, epochs=1, seconds=None)
    """

    steps: int | None = None
    epochs: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        given = {name: value for name, value in vars(self).items() if value is not None}
        if len(given) != 1:
            raise ValueError(f"Every must have one of steps, epochs and seconds, but got {given or 'none'}.")
        for name, value in given.items():
            if name == "seconds":
                check_number(name, value, ">= 0")
            else:
                check_count(name, value)

    def due(self, run: Training, since: float) -> bool:
        """Whether the time has come, ``since`` seconds after the last time."""
        if self.steps is not None:
            return run.steps % self.steps == 0
        if self.epochs is not None:
            return run.epoch_ended and run.epoch % self.epochs == 0
        return self.seconds is not None and since >= self.seconds


class Callback:
    """Base of all callbacks: does nothing, and has no state.

    Attributes:
        name: Its key in a checkpoint; callbacks without a state have none.
    """

    name: str = ""

    def begin(self, run: Training) -> None:
        """Called before the first step, after a checkpoint was loaded."""

    def after_step(self, run: Training) -> None:
        """Called after every step."""

    def end(self, run: Training) -> None:
        """Called after the last step."""

    def close(self) -> None:
        """Called when the run is over, however it ended."""

    def metrics(self) -> dict[str, Any]:
        """What it adds to a line of the log."""
        return {}

    def state_dict(self) -> dict[str, State]:
        """What it needs to continue."""
        return {}

    def load_state_dict(self, state: Mapping[str, State]) -> None:
        """Continue from a state."""


class ScheduleLR(Callback):
    """Steps one of torch's lr schedulers, whose state becomes part of the checkpoints.

    Args:
        scheduler: The scheduler, of the run's sampler or optimizer.
        every: How often it steps, in steps or epochs; after every step by default.

    Raises:
        TypeError: If the scheduler waits for a metric.
        ValueError: If it would step every so many seconds, which no run could repeat.
    """

    name = "scheduler"

    def __init__(self, scheduler: LRScheduler, every: Every | None = None) -> None:
        if not isinstance(scheduler, LRScheduler) or isinstance(scheduler, ReduceLROnPlateau):
            raise TypeError(
                "scheduler must be an lr scheduler of torch that needs no metric, such as CosineAnnealingLR, but got "
                f"{type(scheduler).__name__}."
            )
        self.scheduler = scheduler
        self.every = every or Every(steps=1)
        if self.every.seconds is not None:
            raise ValueError(f"every must be in steps or epochs, but got {self.every.seconds} seconds.")

    def after_step(self, run: Training) -> None:
        """Step it when the time has come."""
        if self.every.due(run, since=0.0):
            self.scheduler.step()

    def state_dict(self) -> dict[str, State]:
        """The scheduler's state."""
        return dict(self.scheduler.state_dict())

    def load_state_dict(self, state: Mapping[str, State]) -> None:
        """Continue from a state."""
        self.scheduler.load_state_dict(dict(state))


class Prune(Callback):
    """Prunes after every step, and logs the share of zeros.

    Args:
        pruner: The pruner.
        freeze_at: Where given, the step after which weights that are zero stay zero, so that samples share their zeros.
    """

    name = "pruner"

    def __init__(self, pruner: Pruner | RhoPruner | ChannelPruner, freeze_at: int | None = None) -> None:
        self.pruner = pruner
        self.freeze_at = None if freeze_at is None else check_count("freeze_at", freeze_at)

    def after_step(self, run: Training) -> None:
        """Prune, and freeze when the time has come."""
        self.pruner.step()
        if run.steps == self.freeze_at:
            self.pruner.freeze()

    def metrics(self) -> dict[str, Any]:
        """Shares of zeros, over the sparse layers and over the network, and of dead channels where these go."""
        sparsity = self.pruner.sparsity()
        found = {"sparsity_sparse": sparsity.sparse, "sparsity": sparsity.network}
        if isinstance(self.pruner, ChannelPruner):
            living, channels = (
                sum(self.pruner.count_live_channels().values()),
                sum(map(len, self.pruner.weights.values())),
            )
            found["dead_channels"] = 1.0 - living / channels
        return {name: value for name, value in found.items() if value is not None}

    def state_dict(self) -> dict[str, State]:
        """The pruner's."""
        return self.pruner.state_dict()

    def load_state_dict(self, state: Mapping[str, State]) -> None:
        """Hand it to the pruner."""
        self.pruner.load_state_dict(state)


class Collect(Callback):
    """Collects samples of the posterior after every step."""

    name = "posterior"

    def __init__(self, posterior: Posterior) -> None:
        self.posterior = posterior

    def after_step(self, run: Training) -> None:
        """Collect, if it is this step's turn."""
        self.posterior.collect()

    def metrics(self) -> dict[str, Any]:
        """How many samples there are."""
        return {"samples": len(self.posterior)}

    def state_dict(self) -> dict[str, State]:
        """The posterior's, samples included."""
        return self.posterior.state_dict()

    def load_state_dict(self, state: Mapping[str, State]) -> None:
        """Hand it to the posterior."""
        self.posterior.load_state_dict(state)


class Evaluate(Callback):
    """Calls a function now and then, and keeps what it returned last.

    Args:
        function: Returns names and numbers, such as :class:`~spikeslab.training.ClassifierEvaluation`.
        every: How often; the last step is always followed by one.
        name: Its key in the log and in a checkpoint; a second evaluation of a run needs another.
    """

    def __init__(
        self, function: Callable[[], Mapping[str, Any]], every: Every | None = None, *, name: str = EVALUATED
    ) -> None:
        self.name = name
        self.function = function
        self.every = every or Every(epochs=1)
        self.last: dict[str, Any] = {}
        self._evaluated = -1
        self._time = 0.0

    def __call__(self) -> dict[str, Any]:
        """Evaluate now."""
        self.last = dict(self.function())
        return self.last

    def begin(self, run: Training) -> None:
        """Count the time from here."""
        self._time = run.seconds

    def after_step(self, run: Training) -> None:
        """Evaluate, if it is this step's turn."""
        if self.every.due(run, run.seconds - self._time):
            self._evaluate(run)

    def end(self, run: Training) -> None:
        """Evaluate, unless the last step already has."""
        if self._evaluated != run.steps:
            self._evaluate(run)

    def _evaluate(self, run: Training) -> None:
        self()
        self._evaluated, self._time = run.steps, run.seconds

    def metrics(self) -> dict[str, Any]:
        """The numbers among what the last evaluation found."""
        numbers = {name: value for name, value in self.last.items() if isinstance(value, (int, float))}
        return {self.name: numbers} if numbers else {}

    def state_dict(self) -> dict[str, State]:
        """What was found last, and when."""
        return {"last": self.last, "evaluated": self._evaluated}

    def load_state_dict(self, state: Mapping[str, State]) -> None:
        """Take over what was found last."""
        self.last, self._evaluated = dict(state["last"]), int(state["evaluated"])


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
