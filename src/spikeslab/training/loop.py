"""Training loop: batches, loss, gradient, a step of the sampler, callbacks.

A run in a folder can be killed and resumed bit for bit, stops at the first NaN, and ends in a report.
"""

from __future__ import annotations

import copy
import inspect
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.loss import _Loss
from torch.optim import Optimizer

from spikeslab.errors import (
    ArgumentTypeError,
    ArgumentValueError,
    Interrupted,
    NonFiniteError,
    Phrase,
    StateError,
    check_choice,
    check_count,
    mark,
    pluralize,
    quote,
    warn,
)
from spikeslab.forward_pass import read_output, run, split_batch, to_device_of
from spikeslab.parallel.distributed import Ranks
from spikeslab.posterior import Posterior
from spikeslab.samplers.base import Sampler, change_groups, describe_groups
from spikeslab.shards import is_sharded
from spikeslab.states import Configured, State, Stateful, describe
from spikeslab.training.batches import DataOrder, TensorBatches
from spikeslab.training.callbacks import Callback, Collect, Prune
from spikeslab.training.changes import ERROR, GIVEN_LAST, MODEL, Changes, OnChange, find_changes
from spikeslab.training.checkpoints import CheckpointError
from spikeslab.training.interruption import record_signals
from spikeslab.training.randomness import get_randomness, restore_randomness
from spikeslab.training.run_folder import RunFolder
from spikeslab.weights import unwrap

Loss: TypeAlias = Callable[[nn.Module, Any], Tensor]

FUNCTION_OF_BATCH = "must be a function of (model, batch)"
FLOAT32, BFLOAT16 = "float32", "bfloat16"
PRECISIONS = (FLOAT32, BFLOAT16)
CALLBACKS, PARTS = "callbacks", "parts"
DATA, PRECISION, SEED = "data", "precision", "sampler.seed"
REORDERING = {f"{DATA}.{name}" for name in ("rows", "batches", "batch_size", "seed", "drop_last", "sampler", "ranks")}
"""Settings of the data that decide their order: with another one the epoch begins anew."""


def autocast(model: nn.Module, precision: str) -> torch.autocast:
    """Return the context in which a model computes its loss in ``precision``.

    ``"bfloat16"`` computes convolutions and matrix products with 8 bits of precision and the range of float32, so the
    loss needs no scaling. It pays where the processor supports it. Weights, gradients, prior and noise stay float32.

    >>> layer = nn.Linear(2, 2)
    >>> with autocast(layer, "bfloat16"):
    ...     print(layer(torch.ones(1, 2)).dtype, layer.weight.dtype)
    torch.bfloat16 torch.float32
    """
    parameter = next(model.parameters(), None)
    device = "cpu" if parameter is None else parameter.device.type
    return torch.autocast(device, dtype=torch.bfloat16, enabled=precision == BFLOAT16)


def cross_entropy(model: nn.Module, batch: Any) -> Tensor:
    """Return the mean cross-entropy of a batch (x, y), moved to the device of the model."""
    x, y = to_device_of(model, split_batch(batch))
    return F.cross_entropy(read_output(run(model, x)), y)


def check_loss(name: str, loss: object) -> None:
    """Raise unless ``loss`` can be a function of (model, batch); torch's are functions of (input, target)."""
    function = loss
    while isinstance(function, partial):
        function = function.func
    if isinstance(function, _Loss):
        kind = f"{type(function).__name__}()"
        raise _refuse_loss(name, kind, f"nn.{kind}")
    if getattr(function, "__module__", None) == F.__name__:
        kind = getattr(function, "__name__", "")
        raise _refuse_loss(name, kind, f"F.{kind}")
    if not callable(function):
        raise ArgumentTypeError(name, FUNCTION_OF_BATCH, loss)
    with suppress(ValueError):  # some functions have no signature
        signature = inspect.signature(loss)  # type: ignore[arg-type]
        try:
            signature.bind(None, None)
        except TypeError as error:
            raise ArgumentTypeError(name, FUNCTION_OF_BATCH, Phrase(f"its arguments are {signature}")) from error


def _explain_loss_error(loss: Loss, model: nn.Module, batch: Any, error: Exception) -> None:
    """Raise in place of an error of a loss that took model and batch for output and target."""
    kinds, text = {type(model).__name__, type(batch).__name__}, str(error)
    missing = re.search(r"'(\w+)' object has no attribute '(\w+)'", text)
    as_tensor = missing is not None and missing[1] in kinds and hasattr(Tensor, missing[2])
    as_tensor |= any(f"must be Tensor, not {kind}" in text for kind in kinds)
    as_tensor |= "unsupported operand" in text and any(f"'{kind}'" in text for kind in kinds)
    if as_tensor and not _calls_module(loss, model, batch):
        name = getattr(loss, "__name__", type(loss).__name__)
        raise _refuse_loss("loss", name, name if name.isidentifier() else "loss") from error


def _calls_module(loss: Loss, model: nn.Module, batch: Any) -> bool:
    """Return True if a loss that fails calls the model, or a part of it, before."""
    called: list[bool] = []
    handles = [part.register_forward_pre_hook(lambda *_: called.append(True)) for part in model.modules()]
    with suppress(Exception):
        loss(model, batch)
    for handle in handles:
        handle.remove()
    return bool(called)


def _refuse_loss(name: str, kind: str, call: str) -> ArgumentTypeError:
    hint = f"give lambda model, batch: {call}(model(batch[0]), batch[1])"
    return ArgumentTypeError(name, FUNCTION_OF_BATCH, Phrase(f"{kind} is one of (input, target)"), hint)


class Training:
    """Training loop for a sampler or a torch optimizer.

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
        sampler: Sampler of the model, or any torch optimizer for a point estimate.
        data: ``TensorBatches``, a ``DataLoader``, or any other iterable of batches that can be iterated repeatedly.
        loss: Function from (model, batch) to the mean loss of the batch; by default the cross-entropy of (x, y).
        callbacks: Callbacks, called in this order.
        parts: Other objects whose state belongs in a checkpoint, by name.
        precision: ``"float32"``, or ``"bfloat16"`` for a forward pass under :func:`autocast`.
        ranks: Ranks that share this chain under torchrun: they stop, save and resume at the same step. Each needs its
            own folder; with a model sharded by ``ranks.fully_shard`` there is none.

    Attributes:
        steps: Number of steps taken.
        total_steps: Number of steps at which the present :meth:`run` ends.
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
        _check_parameters(model, sampler)
        check_loss("loss", loss)
        self.model = model
        self.sampler = sampler
        self.loss = loss
        self.order = DataOrder(data)
        if isinstance(callbacks, Callback):
            raise ArgumentTypeError("callbacks", "must be a list of callbacks", callbacks)
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
        self._settings: dict[str, Any] | None = None
        for callback in self.callbacks:
            if not isinstance(callback, Callback):
                raise ArgumentTypeError("callbacks", "must be callbacks such as Collect(posterior)", callback)
            _check_part(model, callback)
        names = [callback.name for callback in self.callbacks if callback.name]
        if len(set(names)) < len(names):
            raise ArgumentValueError("callbacks", "must have different names", Phrase(f"got {quote(names)}"))

    @property
    def epoch(self) -> int:
        """Number of finished epochs."""
        return self.order.epoch

    @property
    def epoch_ended(self) -> bool:
        """True if the last step ended an epoch."""
        return self.steps > 0 and self.order.position == 0

    @property
    def seconds(self) -> float:
        """Time spent, including that before a resume."""
        return self._seconds + time.monotonic() - self._clock

    def run(
        self,
        *,
        epochs: int | None = None,
        steps: int | None = None,
        folder: RunFolder | str | os.PathLike[str] | None = None,
    ) -> None:
        """Train until the total number of epochs or steps is reached.

        Args:
            epochs: Total number of epochs, including earlier ones.
            steps: Total number of steps, instead of ``epochs``.
            folder: Folder for settings, log, checkpoints and report; a ``RunFolder`` has more options, such as
                ``resume``. ``None`` writes nothing.

        Raises:
            StateError: If ranks that share a chain would take different numbers of steps, on all of them.
            Interrupted: After Ctrl-C or SIGTERM, once the step is finished and, in a folder, saved.
            NonFiniteError: If a loss, gradient or weight is NaN or infinite; the last checkpoint is kept.
        """
        if folder is not None and any(map(is_sharded, self.model.parameters())):
            hint = "save with torch.distributed.checkpoint"
            raise ArgumentValueError("folder", "must be None for a model that is sharded", str(folder), hint)
        target = self._agree_on_target(epochs, steps)
        self._settings = self._settings or self._describe()  # before schedulers and latents move
        place = None if folder is None else folder if isinstance(folder, RunFolder) else RunFolder(folder)
        with ExitStack() as stack:
            self._clock = time.monotonic()
            if place is not None:
                stack.enter_context(place.open_for(self, target))
            callbacks = [*self.callbacks, *([] if place is None else place.callbacks)]
            self.total_steps = target
            for callback in callbacks:
                stack.callback(callback.close)
                callback.begin(self)
            with record_signals() as signals:
                while self.steps < target:
                    self._step()
                    for callback in callbacks:
                        callback.after_step(self)
                    stop = self.ranks.highest(signals[0] if signals else 0)
                    if stop:
                        where = "" if place is None else f" {place.stop(self)}"
                        raise Interrupted(f"Stopped after step {self.steps:,} of {target:,}.{where}", stop)
            for callback in callbacks:
                callback.end(self)
        self._seconds, self._clock = self.seconds, time.monotonic()

    def _agree_on_target(self, epochs: int | None, steps: int | None) -> int:
        """Return the step at which the run ends; a rank that stops early would leave the others waiting for it."""
        target, error = -1, None
        try:
            target = self._count_steps(epochs, steps)
        except (TypeError, ValueError) as reason:  # raised once the other ranks know
            error = reason
        low, high = self.ranks.lowest(target), self.ranks.highest(target)
        if error is not None:
            raise error
        if low != high:
            others = (
                f"another rank {high if target == low else low:,}" if low >= 0 else "another rank cannot count its own"
            )
            raise StateError(
                f"The {self.ranks.data_size} ranks of chain {self.ranks.chain} must take the same number of steps, but "
                f"this one would take {target:,} and {others}: give every rank equally many batches, or "
                f"{mark('steps')} instead of {mark('epochs')}."
            )
        return target

    def _count_steps(self, epochs: int | None, steps: int | None) -> int:
        if (epochs is None) == (steps is None):
            got = Phrase(f"got {mark('epochs')} {epochs!r} and {mark('steps')} {steps!r}")
            raise ArgumentValueError("epochs", f"must be given, or {mark('steps')} instead", got)
        if steps is not None:
            return check_count("steps", steps, minimum=0)
        if self.order.length is None:
            raise ArgumentTypeError(
                "data", "must have a length", Phrase("it has none"), f"give {mark('steps')} instead of {mark('epochs')}"
            )
        if not self.order.length:
            raise ArgumentValueError("data", "must hold at least one batch", Phrase("got none"))
        return check_count("epochs", epochs, minimum=0) * self.order.length

    def _step(self) -> None:
        batch = self.order.next()
        self.sampler.zero_grad()
        loss = self._compute(batch)
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            got = Phrase(f"got the shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"got {loss!r}")
            raise ArgumentValueError("loss", "must return one number, the mean of the batch, as a tensor", got)
        value = float(loss.detach())
        if not value - value == 0.0:  # NaN or infinite
            raise NonFiniteError(
                f"The loss must be finite, but got {value} at step {self.steps + 1}: "
                f"{_explain_nonfinite(self.model, lambda: self._compute(batch))}."
            )
        loss.backward()
        self._check_gradients()
        self.sampler.step()
        self.steps += 1
        self.last_loss = value
        self._loss_sum += value
        self._loss_count += 1

    def _compute(self, batch: Any) -> Tensor:
        with autocast(self.model, self.precision):
            try:
                return self.loss(self.model, batch)
            except (AttributeError, TypeError) as error:
                _explain_loss_error(self.loss, self.model, batch, error)
                raise

    def _check_gradients(self) -> None:
        """Check that gradients are finite; samplers do so themselves."""
        if isinstance(self.sampler, Sampler):
            return
        for name, parameter in self.model.named_parameters():
            if _is_nonfinite(parameter.grad):
                raise NonFiniteError(
                    f"The gradient of {name} must be finite, but got NaN or Inf at step {self.steps + 1}: try a lower "
                    f"{mark('lr')}."
                )

    def take_loss(self) -> float | None:
        """Return the mean loss of the steps since the last call."""
        mean = self._loss_sum / self._loss_count if self._loss_count else None
        self._loss_sum, self._loss_count = 0.0, 0
        return mean

    def state_dict(self) -> dict[str, State]:
        """Return everything that the next step depends on."""
        holders: dict[str, dict[str, State]] = {CALLBACKS: {}, PARTS: {}}
        for kind, name, holder in self._holders():
            holders[kind][name] = holder.state_dict()
        return {
            "model": dict(self.model.state_dict()),
            "buffers": dict(_transient_buffers(self.model)),
            "settings": self.settings_dict(),
            "optimizer": type(self.sampler).__name__,
            "sampler": self.sampler.state_dict(),
            **holders,
            "data": self.order.state_dict(),
            "steps": self.steps,
            "seconds": self.seconds,
            "loss": [self._loss_sum, self._loss_count],
            "randomness": get_randomness(),
        }

    def load_state_dict(self, state: Mapping[str, State], on_change: OnChange = ERROR) -> None:
        """Load a state, from which the run continues bit for bit.

        Args:
            state: The state.
            on_change: Values to take of settings that are others than in the state; see
                :class:`~spikeslab.training.RunFolder`.

        Raises:
            CheckpointError: If the state is of another model, of other callbacks or of other settings. Whatever is
                raised, nothing is changed then, and samples on disk are as they were.
        """
        self._check_state(state)
        changes = self._find_changes(state.get("settings"), on_change)
        before = self.state_dict()
        for kind, name, _ in self._holders(posteriors=True):
            del before[kind][name]
        before = copy.deepcopy(before)
        parts = [*self._configured().values(), self.sampler, *(c.part for c in self.callbacks), self.order.data]
        attributes = [(part, dict(vars(part))) for part in parts if hasattr(part, "__dict__")]
        precision = self.precision
        try:
            self._change(changes.old)  # before the state, which knows how far the values of the beginning have come
            self._load(state, restart=bool(changes.new.keys() & REORDERING))
            self._change(changes.new)
            for kind, name, posterior in self._holders(posteriors=True):  # last: files on the disk are not put back
                posterior.load_state_dict(state[kind][name])
        except Exception:  # a part refused its state after others had loaded theirs
            self.precision = precision
            for part, of_part in attributes:
                vars(part).update(of_part)
            self._load(before)
            raise
        self._settings = {**self.settings_dict(), **changes.old}

    def settings_dict(self) -> dict[str, Any]:
        """Return everything that decides the result, by dotted name, as JSON values.

        These are the settings with which the run began, whatever has moved since.
        """
        self._settings = self._settings or self._describe()
        return {**self._settings, **{f"{DATA}.{name}": value for name, value in self.order.settings_dict().items()}}

    def _describe(self) -> dict[str, Any]:
        """Return the settings of all but the data."""
        model = unwrap(self.model)
        found = {
            MODEL: type(model).__name__,
            **{f"{MODEL}.{n}": f"{type(m).__name__}({m.extra_repr()})" for n, m in model.named_modules() if n},
            f"{MODEL}.dtype": sorted({str(parameter.dtype) for parameter in model.parameters()}),
            f"{MODEL}.frozen": [name for name, p in model.named_parameters() if not p.requires_grad],
            "loss": describe(self.loss),
            PRECISION: self.precision,
            f"{DATA}.ranks": self.ranks.data_size,
        }
        for prefix, part in self._configured().items():
            if prefix != DATA:
                found |= {f"{prefix}.{name}": value for name, value in part.settings_dict().items()}
        return found

    def _configured(self) -> dict[str, Configured]:
        """Return the objects that have settings, by the first part of their names."""
        found: dict[str, Any] = {name: part for _, name, part in self._holders() if hasattr(part, "settings_dict")}
        sampler = self.sampler if isinstance(self.sampler, Sampler) else _PlainOptimizer(self.sampler)
        prior = getattr(self.sampler, "prior", None)
        return found | {"sampler": sampler} | ({} if prior is None else {"prior": prior}) | {DATA: self.order}

    def _find_changes(self, before: Mapping[str, Any] | None, on_change: OnChange) -> Changes:
        if before is None:
            warn("The checkpoint holds no settings, as those of earlier versions: changes of the code go unnoticed.")
            return Changes({}, {})
        now = self.settings_dict()
        if isinstance(self.sampler, Sampler) and self.sampler.drew_seed and SEED in before:
            now[SEED] = before[SEED]
            self._settings = {**now}
        return find_changes(before, now, on_change)

    def _change(self, settings: Mapping[str, Any]) -> None:
        """Set settings by their dotted names; those of the user's code are as they are."""
        self.precision = settings.get(PRECISION, self.precision)
        for prefix, part in self._configured().items():
            own = {n.removeprefix(f"{prefix}."): value for n, value in settings.items() if n.startswith(f"{prefix}.")}
            own = {name: value for name, value in own.items() if name.split(".")[-1] not in GIVEN_LAST}
            if own:
                part.load_settings(own)

    def _load(self, state: Mapping[str, State], restart: bool = False) -> None:
        """Load all but the samples of posteriors."""
        self.order.load_state_dict(state["data"], restart)
        self.sampler.load_state_dict(state["sampler"])
        self.model.load_state_dict(state["model"])
        with torch.no_grad():
            for name, tensor in _transient_buffers(self.model):
                tensor.copy_(state["buffers"][name])
        for kind, name, holder in self._holders(posteriors=False):
            holder.load_state_dict(state[kind][name])
        self.steps = int(state["steps"])
        self._seconds, self._clock = float(state["seconds"]), time.monotonic()
        self._loss_sum, self._loss_count = state["loss"]
        restore_randomness(state["randomness"])

    def _holders(self, posteriors: bool | None = None) -> list[tuple[str, str, Stateful]]:
        """Return kind, name and object of all callbacks and parts with a state, or of those with or without samples."""
        holders: list[tuple[str, str, Stateful]] = [(CALLBACKS, c.name, c) for c in self.callbacks if c.name]
        holders += [(PARTS, name, part) for name, part in self.parts.items()]
        return [holder for holder in holders if posteriors in (None, _find_posterior(holder[2]) is not None)]

    def _check_state(self, state: Mapping[str, State]) -> None:
        own = {name: tuple(t.shape) for name, t in self.model.state_dict().items() if isinstance(t, Tensor)}
        saved = {name: tuple(t.shape) for name, t in state["model"].items() if isinstance(t, Tensor)}
        odd = [name for name in {**own, **saved} if own.get(name) != saved.get(name)]
        if odd:
            raise CheckpointError(f"the state is of another model: it differs in {quote(odd)}.")
        if state["optimizer"] != type(self.sampler).__name__:
            raise CheckpointError(
                f"the state is of {state['optimizer']}, but the run uses {type(self.sampler).__name__}."
            )
        callbacks = [callback.name for callback in self.callbacks if callback.name]
        for what, names in ((CALLBACKS, sorted(callbacks)), (PARTS, sorted(self.parts))):
            if sorted(state[what]) != names:
                raise CheckpointError(
                    f"the {what} of the state are {quote(sorted(state[what])) or 'none'}, but those of the run "
                    f"{quote(names) or 'none'}."
                )
        for kind, name, holder in self._holders():
            if (posterior := _find_posterior(holder)) is not None:
                posterior.check_state(state[kind][name])


class _PlainOptimizer:
    """Settings of an optimizer of torch."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.settings_dict = partial(describe_groups, optimizer)
        self.load_settings = partial(change_groups, optimizer)


def _find_posterior(holder: Stateful) -> Posterior | None:
    """Return the posterior that an object is or, as a callback, collects."""
    part = holder.part if isinstance(holder, Callback) else holder
    return part if isinstance(part, Posterior) else None


def _check_parameters(model: nn.Module, sampler: Optimizer) -> None:
    """Raise if the sampler moves parameters that the model does not have."""
    if not isinstance(model, nn.Module):
        raise ArgumentTypeError("model", "must be a torch.nn.Module", Phrase(f"got {type(model).__name__}"))
    if not hasattr(sampler, "param_groups"):
        got = Phrase(f"got {type(sampler).__name__}")
        raise ArgumentTypeError("sampler", "must be a sampler or a torch optimizer", got)
    own = {id(parameter) for parameter in model.parameters()}
    moved = [id(parameter) for group in sampler.param_groups for parameter in group["params"]]
    foreign = sum(parameter not in own for parameter in moved)
    if foreign:
        got = Phrase(f"{foreign} of its {pluralize(len(moved), 'parameter')} {'is' if foreign == 1 else 'are'} not")
        hint = "create it from the parameters of this model, once they are final"
        raise ArgumentValueError("sampler", "must move parameters of the model alone", got, hint)


def _check_part(model: nn.Module, callback: Callback) -> None:
    """Raise if a callback prunes or collects weights of another model, where nothing would move."""
    weights: Iterable[Tensor] = ()
    if isinstance(callback, Prune):
        weights = callback.pruner.weights.values()
    elif isinstance(callback, Collect):
        weights = callback.posterior.model.parameters()
    own = {id(parameter) for parameter in model.parameters()}
    known = [id(weight) in own for weight in weights]
    if known and not any(known):
        got = Phrase(f"the {callback.name} is over those of another")
        raise ArgumentValueError("callbacks", "must prune and collect weights of the model", got)


def _transient_buffers(model: nn.Module) -> Iterable[tuple[str, Tensor]]:
    """Return the buffers that are not in the model's ``state_dict``."""
    saved = model.state_dict()
    return [(name, buffer) for name, buffer in model.named_buffers() if name not in saved]


@torch.no_grad()
def _explain_nonfinite(model: nn.Module, forward: Callable[[], object]) -> str:
    """Describe the first tensor that is not finite: a weight, the input, a buffer or the output of a module."""
    for name, parameter in model.named_parameters():
        if _is_nonfinite(parameter):
            return f"the weight {name} is not finite; try a lower {mark('lr')}"
    buffers = [name for name, buffer in model.named_buffers() if _is_nonfinite(buffer)]
    names = {module: name for name, module in model.named_modules()}
    found: list[str] = []
    bad_inputs: list[Tensor] = []

    def watch(module: nn.Module, inputs: Any, output: Any) -> None:
        if not found and _is_nonfinite(output):
            found.append(f"{type(module).__name__} {names[module]}".strip())
        if module is model:
            bad_inputs.extend(filter(_is_nonfinite, inputs))

    handles = [module.register_forward_hook(watch) for module in names]
    try:
        forward()
    finally:
        for handle in handles:
            handle.remove()
    if bad_inputs:
        return "the input of the model is not finite, so check the data"
    if buffers:
        return f"the buffer {buffers[0]} is not finite; try a lower {mark('lr')}"
    if found:
        return f"all weights are finite, but the output of {found[0]} is not; try a lower {mark('lr')}"
    return "all weights and all outputs are finite, so check the loss and the targets"


def _is_nonfinite(value: object) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and not bool(value.isfinite().all())
