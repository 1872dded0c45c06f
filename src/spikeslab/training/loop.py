"""A small loop: batches, the loss, its gradient, a step of the sampler, callbacks.

It is what one would write by hand, plus what one would rather not: a run in a folder survives being killed, continues
to the last bit, stops at the first number that is not finite, and ends in a report.
"""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from spikeslab.errors import NonFiniteError, check_choice, check_count, quote
from spikeslab.parallel.distributed import Ranks
from spikeslab.samplers.base import Sampler
from spikeslab.states import State, Stateful
from spikeslab.training.batches import DataOrder, TensorBatches
from spikeslab.training.callbacks import Callback
from spikeslab.training.folder import RunFolder
from spikeslab.training.interruption import Interrupted, Interruption
from spikeslab.training.nonfinite import first_nonfinite
from spikeslab.training.precision import FLOAT32, PRECISIONS, computing
from spikeslab.training.randomness import randomness, restore_randomness
from spikeslab.weights import to_device_of

Loss: TypeAlias = Callable[[nn.Module, Any], Tensor]


def cross_entropy(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """The mean loss of a classifier on a batch (x, y), which goes to where the model is."""
    x, y = (to_device_of(model, tensor) for tensor in batch)
    return F.cross_entropy(model(x), y)


class Training:
    """A chain on its way through the data.

    >>> import spikeslab as ss
    >>> from spikeslab.training import TensorBatches, Training
    >>> model = nn.Linear(2, 2)
    >>> sampler = ss.SGHMC(model.parameters(), lr=0.1, num_data=8)
    >>> data = TensorBatches(torch.randn(8, 2), torch.tensor([0, 1] * 4), batch_size=4)
    >>> run = Training(model, sampler, data)
    >>> run.run(epochs=3)
    >>> run.steps, run.epoch
    (6, 3)

    Args:
        model: The model.
        sampler: Its sampler, with the prior if there is one; or any torch optimizer, for a point estimate.
        data: Batches: ``TensorBatches``, a ``DataLoader`` or any list or loader that can be run through again.
        loss: From (model, batch) to the mean loss of the batch; by default the cross-entropy of (x, y).
        callbacks: What happens after each step, in this order.
        parts: Other objects with a state, by name, which a checkpoint is to hold.
        precision: ``"float32"``, or ``"bfloat16"`` for a forward pass under autocast
            (:mod:`spikeslab.training.precision`); the state is float32 in both.
        ranks: The ranks that share this chain, under torchrun: they stop, save and continue at the same step. Each has
            a folder of its own.

    Attributes:
        steps: Steps taken.
        total_steps: Steps at which the present :meth:`run` ends.
        last_loss: Loss of the last batch.
    """

    def __init__(
        self,
        model: nn.Module,
        sampler: Optimizer,
        data: TensorBatches | Iterable[Any],
        loss: Loss = cross_entropy,
        *,
        callbacks: Sequence[Callback] = (),
        parts: Mapping[str, Stateful] | None = None,
        precision: str = FLOAT32,
        ranks: Ranks | None = None,
    ) -> None:
        self.model = model
        self.sampler = sampler
        self.loss = loss
        self.order = DataOrder(data)
        self.callbacks = list(callbacks)
        self.parts = dict(parts or {})
        self.precision = check_choice("precision", precision, PRECISIONS)
        self.ranks = ranks or Ranks()
        self.steps = 0
        self.total_steps = 0
        self.last_loss = float("nan")
        self._seconds = 0.0
        self._clock = time.monotonic()
        self._loss_sum, self._loss_count = 0.0, 0
        for callback in self.callbacks:
            if not isinstance(callback, Callback):
                raise TypeError(f"callbacks must be callbacks such as Collect(posterior), but got {callback!r}.")
        names = [callback.name for callback in self.callbacks if callback.name]
        if len(set(names)) < len(names):
            raise ValueError(f"callbacks must have different names, but got {quote(names)}.")

    @property
    def epoch(self) -> int:
        """Epochs finished."""
        return self.order.epoch

    @property
    def epoch_ended(self) -> bool:
        """Whether the last step was the last of an epoch."""
        return self.steps > 0 and self.order.position == 0

    @property
    def seconds(self) -> float:
        """Time spent so far, over all processes that continued this run."""
        return self._seconds + time.monotonic() - self._clock

    def run(
        self,
        *,
        epochs: int | None = None,
        steps: int | None = None,
        folder: RunFolder | str | os.PathLike[str] | None = None,
    ) -> None:
        """Go on until there are so many epochs or steps in all.

        Args:
            epochs: Epochs in all, those before included; or
            steps: steps in all.
            folder: Where given, the run lives in this folder: settings, log, checkpoints, report. A ``RunFolder`` says
                more, such as whether to continue what is there.

        Raises:
            Interrupted: After Ctrl-C or SIGTERM, when the step is finished and, in a folder, saved.
            NonFiniteError: If a loss, gradient or weight is NaN or infinite; the last good checkpoint stays.
        """
        target = self._target(epochs, steps)
        place = None if folder is None else folder if isinstance(folder, RunFolder) else RunFolder(folder)
        with ExitStack() as stack:
            self._clock = time.monotonic()
            if place is not None:
                stack.enter_context(place.used_by(self, target))
            callbacks = [*self.callbacks, *([] if place is None else place.callbacks)]
            self.total_steps = target
            for callback in callbacks:
                stack.callback(callback.close)
                callback.begin(self)
            with Interruption() as interruption:
                while self.steps < target:
                    self._step()
                    for callback in callbacks:
                        callback.after_step(self)
                    stop = self.ranks.highest(interruption.signal or 0)
                    if stop:
                        where = "" if place is None else f" {place.stop(self)}"
                        raise Interrupted(f"Stopped after step {self.steps:,} of {target:,}.{where}", stop)
            for callback in callbacks:
                callback.end(self)
        self._seconds, self._clock = self.seconds, time.monotonic()

    def _target(self, epochs: int | None, steps: int | None) -> int:
        if (epochs is None) == (steps is None):
            raise ValueError(f"run must be given epochs or steps, but got epochs={epochs!r} and steps={steps!r}.")
        if steps is not None:
            return check_count("steps", steps, minimum=0)
        if self.order.length is None:
            raise TypeError("data must have a length where epochs are given, but got a stream: give steps instead.")
        if not self.order.length:
            raise ValueError("data must hold at least one batch, but got none.")
        return check_count("epochs", epochs, minimum=0) * self.order.length

    def _step(self) -> None:
        batch = self.order.next()
        self.sampler.zero_grad()
        loss = self._compute(batch)
        if loss.numel() != 1:
            raise ValueError(f"loss must return one number, the mean of the batch, but got {tuple(loss.shape)}.")
        value = float(loss.detach())
        if not value - value == 0.0:  # NaN or infinite
            raise NonFiniteError(
                f"The loss must be finite, but got {value} at step {self.steps + 1}: "
                f"{first_nonfinite(self.model, lambda: self._compute(batch))}."
            )
        loss.backward()
        self._check_gradients()
        self.sampler.step()
        self.steps += 1
        self.last_loss = value
        self._loss_sum += value
        self._loss_count += 1

    def _compute(self, batch: Any) -> Tensor:
        with computing(self.model, self.precision):
            return self.loss(self.model, batch)

    def _check_gradients(self) -> None:
        """Raise if a gradient is not finite and the optimizer is one that does not look."""
        if isinstance(self.sampler, Sampler):
            return
        for name, parameter in self.model.named_parameters():
            if parameter.grad is not None and not bool(parameter.grad.isfinite().all()):
                raise NonFiniteError(
                    f"The gradient of {name} must be finite, but got NaN or Inf at step {self.steps + 1}: try a lower "
                    "{lr}."
                )

    def take_loss(self) -> float | None:
        """Mean loss of the steps since the last call."""
        mean = self._loss_sum / self._loss_count if self._loss_count else None
        self._loss_sum, self._loss_count = 0.0, 0
        return mean

    def state_dict(self) -> dict[str, State]:
        """Everything that the next step depends on."""
        return {
            "model": dict(self.model.state_dict()),
            "buffers": dict(_transient_buffers(self.model)),
            "optimizer": type(self.sampler).__name__,
            "sampler": self.sampler.state_dict(),
            "callbacks": {c.name: c.state_dict() for c in self.callbacks if c.name},
            "parts": {name: part.state_dict() for name, part in self.parts.items()},
            "data": self.order.state_dict(),
            "steps": self.steps,
            "seconds": self.seconds,
            "loss": [self._loss_sum, self._loss_count],
            "randomness": randomness(),
        }

    def load_state_dict(self, state: Mapping[str, State]) -> None:
        """Continue from a state, bit for bit; one of another model or with other callbacks is refused.

        Raises:
            ValueError: If the state does not fit; all is as it was then.
        """
        self._check_state(state)
        before = copy.deepcopy(self.state_dict())
        try:
            self._load(state)
        except Exception:  # a part that refuses its state, after others have taken theirs
            self._load(before)
            raise

    def _load(self, state: Mapping[str, State]) -> None:
        self.sampler.load_state_dict(state["sampler"])
        self.model.load_state_dict(state["model"])
        with torch.no_grad():
            for name, tensor in _transient_buffers(self.model):
                tensor.copy_(state["buffers"][name])
        for callback in self.callbacks:
            if callback.name:
                callback.load_state_dict(state["callbacks"][callback.name])
        for name, part in self.parts.items():
            part.load_state_dict(state["parts"][name])
        self.order.load_state_dict(state["data"])
        self.steps = int(state["steps"])
        self._seconds, self._clock = float(state["seconds"]), time.monotonic()
        self._loss_sum, self._loss_count = state["loss"]
        restore_randomness(state["randomness"])

    def _check_state(self, state: Mapping[str, State]) -> None:
        own = {name: tuple(t.shape) for name, t in self.model.state_dict().items() if isinstance(t, Tensor)}
        saved = {name: tuple(t.shape) for name, t in state["model"].items() if isinstance(t, Tensor)}
        odd = [name for name in {**own, **saved} if own.get(name) != saved.get(name)]
        if odd:
            raise ValueError(f"the state must be of the same model, but it differs in {quote(odd)}.")
        if state["optimizer"] != type(self.sampler).__name__:
            raise ValueError(
                f"the state must be of a run with {type(self.sampler).__name__}, but got {state['optimizer']}."
            )
        for what, names in (
            ("callbacks", {callback.name for callback in self.callbacks if callback.name}),
            ("parts", set(self.parts)),
        ):
            if set(state[what]) != names:
                raise ValueError(
                    f"the state must be of a run with the {what} {quote(sorted(names))}, "
                    f"but got {quote(sorted(state[what]))}."
                )
        self.order.check_state(state["data"])


def _transient_buffers(model: nn.Module) -> Iterable[tuple[str, Tensor]]:
    """Buffers that a module keeps out of its ``state_dict``."""
    saved = model.state_dict()
    return [(name, buffer) for name, buffer in model.named_buffers() if name not in saved]
