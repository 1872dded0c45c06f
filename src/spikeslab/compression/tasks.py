"""What a model is for, as its batches tell: the loss to train it with and what its outputs mean.

Batches (x, y) with integer y are a classification, with the cross-entropy of ``model(x)``; with floating-point y a
regression, with the mean squared error. For anything else, say ``loss(model, batch)``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import SubsetRandomSampler

from spikeslab.errors import ArgumentTypeError, ArgumentValueError, NonFiniteError, Phrase, check_count, first_line
from spikeslab.posterior.eval_mode import eval_mode
from spikeslab.posterior.prediction import identity, probabilities
from spikeslab.training.batches import TensorBatches
from spikeslab.training.loop import Loss
from spikeslab.weights import to_device_of

CLASSIFICATION, REGRESSION, OTHER = "classification", "regression", "other"


class BatchError(ArgumentValueError):
    """The model or the loss does not take a batch, or the loss is no number."""


class UnfitError(ValueError):
    """What a batch must be, as the end of a sentence about it."""


@contextmanager
def taken(name: str, batch: Any) -> Iterator[None]:
    """Whatever a model or a loss raises on a batch of a loader of this name, as a sentence."""
    try:
        yield
    except (BatchError, NonFiniteError):
        raise
    except Exception as error:
        reason = first_line(error) if isinstance(error, UnfitError) else f"{type(error).__name__}: {first_line(error)}"
        raise BatchError(
            name, "must yield batches that the model and the loss take", Phrase(f"got {_describe(batch)}"), reason
        ) from error


@dataclass(frozen=True)
class Task:
    """How to train on a batch, and how to judge.

    Attributes:
        kind: ``"classification"``, ``"regression"`` or ``"other"``, of which only the loss is known.
        loss: From (model, batch) to the mean loss.
        own_loss: Whether the user gave the loss.
    """

    kind: str
    loss: Loss
    own_loss: bool = False

    def loss_on(self, name: str) -> Loss:
        """The loss on the batches of a loader of this name: whatever goes wrong is said in a sentence.

        Raises:
            BatchError: From the loss, if the model or the loss does not take a batch, or the loss is no number.
        """

        def loss(model: nn.Module, batch: Any) -> Tensor:
            with taken(name, batch):
                value: Any = self.loss(model, batch)
            if not isinstance(value, Tensor) or value.numel() != 1:
                raise BatchError(
                    "loss",
                    "must return the mean loss of a batch, a tensor of one number",
                    Phrase(f"got {_describe(value)}"),
                )
            return value

        return loss

    @property
    def link(self) -> Callable[[Tensor], Tensor]:
        """From outputs to what a posterior averages."""
        return probabilities if self.kind == CLASSIFICATION else identity


def classify(model: nn.Module, batch: Any) -> Tensor:
    """Mean cross-entropy of a batch (x, y)."""
    x, y = pair(model, batch)
    return F.cross_entropy(model(x), y)


def regress(model: nn.Module, batch: Any) -> Tensor:
    """Mean squared error of a batch (x, y); targets take the shape of the outputs, (rows,) that of (rows, 1)."""
    x, y = pair(model, batch)
    output = model(x)
    return F.mse_loss(output, shaped(y, output))


def shaped(y: Tensor, output: Tensor) -> Tensor:
    """Targets in the shape of the outputs: torch would broadcast (rows,) against (rows, 1) and mean something else."""
    if y.numel() != output.numel():
        raise UnfitError(f"targets must have the shape of the outputs, {tuple(output.shape)}")
    return y.reshape(output.shape)


def pair(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
    """Inputs and targets, where the model is."""
    if not _is_pair(batch):
        raise UnfitError("it must be a pair (x, y) of tensors")
    x, y = batch
    return to_device_of(model, x), to_device_of(model, y)


def find_task(model: nn.Module, batch: Any, loss: Loss | None) -> Task:
    """What a batch says about the task.

    Raises:
        TypeError: If the batch is no pair (x, y) and there is no loss.
    """
    is_pair = _is_pair(batch)
    if loss is not None:
        labels = is_pair and not batch[1].is_floating_point() and _gives_logits(model, batch)
        return Task(CLASSIFICATION if labels else OTHER, loss, own_loss=True)
    if not is_pair:
        raise ArgumentTypeError(
            "train_loader",
            "must yield pairs (x, y) of tensors where no loss is given",
            Phrase(f"got {_describe(batch)}"),
        )
    return Task(REGRESSION, regress) if batch[1].is_floating_point() else Task(CLASSIFICATION, classify)


def _is_pair(batch: Any) -> bool:
    return isinstance(batch, (tuple, list)) and len(batch) == 2 and all(isinstance(item, Tensor) for item in batch)


@torch.no_grad()
def _gives_logits(model: nn.Module, batch: Any) -> bool:
    """Whether ``model(x)`` are logits of y; with a loss of the user's, the model may want other arguments."""
    try:
        with eval_mode(model):
            x, y = pair(model, batch)
            output = model(x)
    except Exception:  # whatever it is: the loss will then be all that is known of such a model
        return False
    # One output for each label is a logit of a loss of its own, such as the binary cross-entropy.
    return (
        isinstance(output, Tensor)
        and output.ndim == y.ndim + 1
        and output.shape[:1] == y.shape[:1]
        and output.shape[1] > 1
    )


def _describe(batch: Any) -> str:
    if isinstance(batch, Tensor):
        return f"a single tensor of shape {tuple(batch.shape)}"
    if _is_pair(batch):
        return f"a pair of shapes {tuple(batch[0].shape)} and {tuple(batch[1].shape)}"
    if isinstance(batch, (tuple, list)):
        kinds = ", ".join(type(item).__name__ for item in batch)
        return f"a {type(batch).__name__} of {len(batch)} ({kinds})"
    return f"{type(batch).__name__}" if batch is None else f"a {type(batch).__name__}"


def first_batch(name: str, data: object) -> Any:
    """The first batch of data that can be run through again.

    Raises:
        TypeError: If they cannot.
        ValueError: If they are empty.
    """
    if isinstance(data, Tensor) or not isinstance(data, Iterable) or iter(data) is data:
        kind = "a single tensor" if isinstance(data, Tensor) else f"a {type(data).__name__}"
        raise ArgumentTypeError(
            name, "must be a loader or a list of batches that can be run through again", Phrase(f"got {kind}")
        )
    for batch in data:
        return batch
    raise ArgumentValueError(name, "must hold at least one batch", Phrase("got none"))


def batch_rows(batch: Any) -> int | None:
    """Rows of a batch: those of the first tensor in it; ``None`` where there is none.

    >>> batch_rows({"name": "a", "x": torch.ones(3, 2)}), batch_rows("abc")
    (3, None)
    """
    items = (
        list(batch.values()) if isinstance(batch, Mapping) else batch if isinstance(batch, (tuple, list)) else [batch]
    )
    return next((len(item) for item in items if isinstance(item, Tensor) and item.ndim), None)


def count_batches(data: Iterable[Any]) -> int:
    """Batches in an epoch; data without a length are run through once."""
    try:
        return len(data)  # type: ignore[arg-type]
    except TypeError:
        return sum(1 for _ in data)


def count_rows(data: object, given: int | None) -> int:
    """N, the number of training examples.

    Raises:
        ValueError: If it is not given and the data do not say.
    """
    if given is not None:
        return check_count("num_data", given)
    if isinstance(data, TensorBatches):
        return data.rows
    sampler = getattr(data, "sampler", None)
    if isinstance(sampler, SubsetRandomSampler):
        return len(sampler)  # the rest of the dataset is not trained on
    batches = getattr(data, "batch_sampler", None)
    if isinstance(batches, (list, tuple)):
        return len({index for batch in batches for index in batch})
    try:
        return len(data.dataset)  # type: ignore[attr-defined]
    except (AttributeError, TypeError):
        pass
    if isinstance(data, (list, tuple)) and all(isinstance(b, (list, tuple)) and isinstance(b[0], Tensor) for b in data):
        return sum(len(batch[0]) for batch in data)
    raise ArgumentValueError(
        "num_data", "must be the number of training examples, since {train_loader} has no dataset with a length"
    )
