r"""Task of a network, found from its batches: the loss to train with and how to evaluate predictions.

Batches (x, y) with integer y are a classification, with the cross-entropy of ``model(x)``; with floating-point y a
regression, with the Gaussian likelihood, the squared error over :math:`2\sigma^2`. Mappings with ``"labels"`` are read
alike, and a model that returns its own loss is trained with it, as those of Hugging Face. Anything else needs
``loss(model, batch)``, which is then the metric too.

Labels within a row, such as pixels or tokens, have their classes in dimension 1, as in ``F.cross_entropy``, or in the
last one, as in transformers. Where no shape tells, the loss does: an own loss whose value on a batch is a cross-entropy
of the outputs is one; any other is taken as the number that it is.

The dense network may teach (distillation). With :math:`\alpha` the share of the teacher, s the softening, and
:math:`q_s, p_s` the probabilities of the dense and of the sparse network from logits divided by s, the loss of a
classification is

.. math::

    (1 - \alpha)\,\operatorname{CE}(y, p_1) + \alpha\, s^2 \operatorname{KL}(q_s \,\|\, p_s) ,

where :math:`s^2` keeps the gradient's size as s grows. That of a regression has the squared errors from y and from the
dense network's output, in the same shares. N times this loss replaces the negative log-likelihood, so the samples
are from the posterior given the labels and the teacher's predictions, not given the labels alone.

References:
    G. Hinton, O. Vinyals and J. Dean. Distilling the knowledge in a neural network. arXiv:1503.02531, 2015.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import SubsetRandomSampler

from spikeslab.errors import ArgumentTypeError, ArgumentValueError, NonFiniteError, Phrase, first_line, mark, quote
from spikeslab.forward_pass import (
    FIRST,
    LAYOUTS,
    PLAIN,
    Forward,
    Layout,
    find_layout,
    iterate_tensors,
    read_loss,
    run,
    split_batch,
    split_rows,
    to_device_of,
)
from spikeslab.metrics import mean_absolute_error, root_mean_squared_error
from spikeslab.posterior import Posterior
from spikeslab.posterior.eval_mode import eval_mode
from spikeslab.posterior.prediction import identity, probabilities, token_probabilities
from spikeslab.training import describe_classifier
from spikeslab.training.batches import TensorBatches
from spikeslab.training.loop import Loss

CLASSIFICATION, REGRESSION, OTHER = "classification", "regression", "other"
NOISE_BATCHES, SMALLEST_NOISE = 20, 1e-6
"""Batches from which the noise of a regression is estimated, and the least estimate."""
UNLABELLED = -100
"""Label of what has none, the default of ``F.cross_entropy``."""
LOSS, METRIC = "loss", "metric"
"""Names of numbers that functions of the user's compute."""

Metric: TypeAlias = Callable[[nn.Module, Any], Any]
"""Function from (model, batch) to a number, the mean over the batch; lower is better."""


class BatchError(ArgumentValueError):
    """The model or the loss does not take a batch, or the loss is no number."""


class UnfitError(ValueError):
    """A batch does not match the task; the message ends a sentence about the batch."""


@contextmanager
def explain_batch_errors(name: str, batch: Any) -> Iterator[None]:
    """Turn whatever a model or a loss raises on a batch of the loader ``name`` into a :class:`BatchError`."""
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
    """Loss of a network and the meaning of its outputs.

    Attributes:
        kind: ``"classification"``, ``"regression"`` or ``"other"``, of which only the loss is known.
        loss: Function from (model, batch) to the mean loss.
        own_loss: True if the loss is the user's or the model's, and the metric.
        forward: Forward pass from inputs to outputs.
        layout: Place of the classes in the outputs.
        metric: Function from (model, batch) to the number that networks are compared by, if the user gave one.
    """

    kind: str
    loss: Loss
    own_loss: bool = False
    forward: Forward = PLAIN
    layout: Layout = FIRST
    metric: Metric | None = None

    @property
    def has_own_score(self) -> bool:
        """True if networks are compared by a loss or a metric of the user's, False if by their predictions."""
        return self.own_loss or self.metric is not None

    def loss_on(self, name: str) -> Loss:
        """Return the loss on batches of the loader ``name``, which raises a :class:`BatchError` for bad ones."""

        def loss(model: nn.Module, batch: Any) -> Tensor:
            with explain_batch_errors(name, batch):
                value: Any = self.loss(model, batch)
            if not isinstance(value, Tensor) or value.numel() != 1:
                expectation = "must return the mean loss of a batch, a tensor of one number"
                raise BatchError(LOSS, expectation, Phrase(f"got {_describe(value)}"))
            return value

        return loss

    def metric_on(self, name: str) -> Metric | None:
        """Return the metric on batches of the loader ``name``, as :meth:`loss_on` does, or ``None``."""
        metric = self.metric
        if metric is None:
            return None

        def compute(model: nn.Module, batch: Any) -> float:
            with explain_batch_errors(name, batch):
                value = metric(model, batch)
            try:
                return float(value)
            except (TypeError, ValueError, RuntimeError) as error:
                expectation = "must return a number, the mean over a batch"
                raise BatchError(METRIC, expectation, Phrase(f"got {_describe(value)}")) from error

        return compute

    def count_labels(self, batch: Any) -> float:
        """Return the labels of a row of a batch, of which the mean loss of a classifier is the mean; otherwise 1."""
        if self.kind != CLASSIFICATION:
            return 1.0
        _, y = split_batch(batch)
        return 1.0 if y.is_floating_point() else float((y != UNLABELLED).sum()) / len(y)

    @property
    def link(self) -> Callable[[Tensor], Tensor]:
        """Function from outputs to the predictions that a posterior averages."""
        if self.kind != CLASSIFICATION:
            return identity
        return token_probabilities if self.layout.last else probabilities


def classify(model: nn.Module, batch: Any, forward: Forward = PLAIN, layout: Layout = FIRST) -> Tensor:
    """Return the mean cross-entropy of a batch (x, y)."""
    x, y = pair(model, batch)
    return _cross_entropy(layout, forward(model, x), y)


def regress(model: nn.Module, batch: Any, forward: Forward = PLAIN) -> Tensor:
    """Return the squared error of a batch (x, y); targets of shape (rows,) match outputs of shape (rows, 1)."""
    x, y = pair(model, batch)
    return _compute_squared_error(forward(model, x), y)


def _squared_error(output: Tensor, target: Tensor) -> Tensor:
    """Return the mean over rows of the squared error, summed over outputs as in a likelihood."""
    return F.mse_loss(output, target) * (output.numel() / len(output))


def _reshape_targets(y: Tensor, output: Tensor) -> Tensor:
    """Return targets in the shape of the outputs: torch would broadcast (rows,) against (rows, 1)."""
    if y.numel() != output.numel():
        raise UnfitError(f"targets must have the shape of the outputs, {tuple(output.shape)}")
    return y.reshape(output.shape)


def pair(model: nn.Module, batch: Any) -> tuple[Any, Tensor]:
    """Return inputs and targets on the device of the model."""
    x, y = split_batch(batch)
    if not isinstance(y, Tensor):
        raise UnfitError("it must be a pair (x, y) or a mapping with 'labels'")
    return to_device_of(model, x), to_device_of(model, y)


def find_task(
    model: nn.Module,
    batch: Any,
    loss: Loss | None,
    forward: Forward = PLAIN,
    metric: Metric | None = None,
) -> Task:
    """Return the task that a batch and an optional loss of the user's imply."""
    y = split_batch(batch)[1]
    if loss is not None:
        return replace(_read_own_loss(model, batch, loss, forward), metric=metric)
    if not isinstance(y, Tensor):
        expectation = f"must yield pairs (x, y) or mappings with 'labels' where no {mark('loss')} is given"
        raise ArgumentTypeError("train_loader", expectation, Phrase(f"got {_describe(batch)}"))
    if forward.forward is None and isinstance(batch, Mapping) and _has_own_loss(model, batch):
        task = _read_own_loss(model, batch, compute_own_loss, forward)
    elif y.is_floating_point():
        task = _make_regression(forward)
    else:
        layout = _find_layout(model, batch, forward)
        plain = forward.is_default and layout == FIRST
        own = classify if plain else partial(classify, forward=forward, layout=layout)
        task = Task(CLASSIFICATION, own, forward=forward, layout=layout)
    return replace(task, metric=metric)


def _make_regression(forward: Forward) -> Task:
    return Task(REGRESSION, regress if forward.is_default else partial(regress, forward=forward), forward=forward)


def compute_own_loss(model: nn.Module, batch: Any) -> Tensor:
    """Return the loss that a model computes itself from a mapping with labels."""
    loss = read_loss(run(model, to_device_of(model, batch)))
    if loss is None:
        raise UnfitError("the model must return a loss for it, as for the first batch")
    return loss


@torch.no_grad()
def _has_own_loss(model: nn.Module, batch: Any) -> bool:
    """Return True if the model takes the labels, and returns a loss."""
    try:
        with eval_mode(model):
            return read_loss(run(model, to_device_of(model, batch))) is not None
    except Exception:  # whatever it is: the model is then called without labels
        return False


@torch.no_grad()
def _read_own_loss(model: nn.Module, batch: Any, loss: Loss, forward: Forward) -> Task:
    """Return the task of a loss of the user's or the model's: what its values tell, or the loss alone.

    An untrained network has nearly the same cross-entropy over any dimension, so the values on the batch and on both
    halves of it must agree.
    """
    given, task = loss is not compute_own_loss, Task(OTHER, loss, own_loss=True, forward=forward)
    parts = []
    try:
        with eval_mode(model):
            for part in (batch, *split_rows(batch, -(-(batch_rows(batch) or 1) // 2))):
                x, y = pair(model, part)
                output = forward(model, x)
                if given and y.ndim == 1 and FIRST.fits(output, y) and not y.is_floating_point():
                    return replace(task, kind=CLASSIFICATION)  # whatever the loss adds to the cross-entropy
                parts.append((output, y, loss(model, part)))
    except Exception:  # whatever it is: with a loss of the user's the model may want other arguments
        return task
    output, y, _ = parts[0]
    if y.is_floating_point():
        fits = not given and y.numel() == output.numel()
        return _make_regression(forward) if fits and _are_values(_compute_squared_error, parts) else task
    layouts = [each for each in LAYOUTS if each.fits(output, y) and _are_values(partial(_cross_entropy, each), parts)]
    return replace(task, kind=CLASSIFICATION, layout=layouts[0], own_loss=given) if layouts else task


def _are_values(formula: Callable[[Tensor, Tensor], Tensor], parts: list[tuple[Tensor, Tensor, Tensor]]) -> bool:
    """Return True if losses, the last of each triple, are the values of a formula of outputs and targets."""
    try:
        return all(torch.allclose(value, formula(output, y), rtol=1e-5, atol=1e-7) for output, y, value in parts)
    except (RuntimeError, IndexError, TypeError):  # labels beyond the classes, a loss that is no number
        return False


def _compute_squared_error(output: Tensor, y: Tensor) -> Tensor:
    return _squared_error(output, _reshape_targets(y, output))


def _cross_entropy(layout: Layout, output: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(*layout.align(output, y))


@torch.no_grad()
def _find_layout(model: nn.Module, batch: Any, forward: Forward) -> Layout:
    """Return the place of the classes in the outputs, by the shape of the labels."""
    try:
        with eval_mode(model):
            x, y = pair(model, batch)
            output = forward(model, x)
    except Exception:  # it is reported where the loss is tried
        return FIRST
    return find_layout(output, y)


def with_distillation(task: Task, dense: nn.Module, share: float, softening: float) -> Task:
    """Return the task with a copy of the dense network as a teacher, or the task itself if the share is 0."""
    if share == 0.0:
        return task
    if task.own_loss or task.kind == OTHER:  # only the user knows how a teacher would enter it
        expectation = f"must be 0 where a {mark('loss')} is given, which decides what is learned"
        raise ArgumentValueError("distillation", expectation, share)
    teacher = copy.deepcopy(dense).eval().requires_grad_(False)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        x, y = pair(model, batch)
        output = task.forward(model, x)
        with torch.no_grad():
            target = task.forward(teacher, x)
        if task.kind == CLASSIFICATION:
            target, _ = task.layout.align(target, y)
            output, y = task.layout.align(output, y)
            labelled = y != UNLABELLED
            divergence = (softened_divergences(output, target, softening) * labelled).sum() / labelled.sum()
            return (1.0 - share) * F.cross_entropy(output, y) + share * divergence
        own = _squared_error(output, _reshape_targets(y, output))
        return (1.0 - share) * own + share * _squared_error(output, target)

    return replace(task, loss=loss)


def with_noise(task: Task, sigma: float) -> Task:
    """Return the task of a regression with the loss of the Gaussian likelihood, the squared error over 2 sigma^2."""
    return replace(task, loss=lambda model, batch: task.loss(model, batch) / (2.0 * sigma**2))


@torch.no_grad()
def estimate_noise(model: nn.Module, data: Iterable[Any], forward: Forward = PLAIN) -> float:
    """Return the root mean squared error of a network on the first training batches, rounded to two digits.

    Residuals far below the spread of the targets, as those of a network that interpolates, count as a thousandth of it.
    """
    with eval_mode(model):
        pairs = [pair(model, batch) for batch in itertools.islice(data, NOISE_BATCHES)]
        outputs = [forward(model, x).double() for x, _ in pairs]
    targets = torch.cat([_reshape_targets(y, output).double() for (_, y), output in zip(pairs, outputs, strict=True)])
    error = float((torch.cat(outputs) - targets).square().mean().sqrt())
    spread = float((targets - targets.mean()).square().mean().sqrt())
    sigma = max(error, 1e-3 * spread, SMALLEST_NOISE)
    return float(f"{sigma:.1e}") if math.isfinite(sigma) else 1.0


def softened_divergences(logits: Tensor, target: Tensor, softening: float) -> Tensor:
    """Return s^2 KL(softmax(target / s) || softmax(logits / s)) of each row, and of each label within a row.

    >>> softened_divergences(torch.tensor([[0.0, 0.0]]), torch.tensor([[0.0, 0.0]]), 4.0)
    tensor([0.])
    """
    wide = torch.promote_types(logits.dtype, torch.float32)  # under autocast log_softmax would keep half precision
    own, target = (F.log_softmax(each.to(wide) / softening, dim=1) for each in (logits, target))
    return softening**2 * F.kl_div(own, target, reduction="none", log_target=True).sum(dim=1)


def _describe(batch: Any) -> str:
    if isinstance(batch, Tensor):
        return f"a single tensor of shape {tuple(batch.shape)}"
    if isinstance(batch, (tuple, list)) and len(batch) == 2 and all(isinstance(item, Tensor) for item in batch):
        return f"a pair of shapes {tuple(batch[0].shape)} and {tuple(batch[1].shape)}"
    if isinstance(batch, Mapping):
        return f"a {type(batch).__name__} of {quote(map(str, batch))}"
    if isinstance(batch, (tuple, list)):
        kinds = ", ".join(type(item).__name__ for item in batch)
        return f"a {type(batch).__name__} of {len(batch)} ({kinds})"
    return f"{type(batch).__name__}" if batch is None else f"a {type(batch).__name__}"


def first_batch(name: str, data: object) -> Any:
    """Return the first batch of the loader ``name``; data that cannot be iterated twice are refused."""
    if isinstance(data, Tensor) or not isinstance(data, Iterable) or iter(data) is data:
        kind = "a single tensor" if isinstance(data, Tensor) else f"a {type(data).__name__}"
        expectation = "must be a loader or a list of batches that can be run through again"
        raise ArgumentTypeError(name, expectation, Phrase(f"got {kind}"))
    for batch in data:
        return batch
    raise ArgumentValueError(name, "must hold at least one batch", Phrase("got none"))


def batch_rows(batch: Any) -> int | None:
    """Return the rows of the first tensor in a batch, or ``None`` if there is no tensor.

    >>> batch_rows({"name": "a", "x": torch.ones(3, 2)}), batch_rows("abc")
    (3, None)
    """
    return next((len(item) for item in iterate_tensors(batch) if item.ndim), None)


def count_batches(data: Iterable[Any], batch: Any, num_data: int) -> int:
    """Return the batches in an epoch; without a length, ``num_data`` divided by the rows of a batch, rounded up.

    >>> count_batches(iter([]), torch.ones(64, 3), num_data=1000)
    16
    """
    try:
        return len(data)  # type: ignore[arg-type]
    except TypeError as error:
        rows = batch_rows(batch)
        if not rows:
            expectation = "must have a length, or batches with tensors whose rows can be counted"
            raise ArgumentTypeError("train_loader", expectation, Phrase(f"got {_describe(batch)}")) from error
        return math.ceil(num_data / rows)


def count_rows(data: object, given: int | None) -> int:
    """Return N, the number of training examples: as given, or as the data tell."""
    if given is not None:
        return given
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
    if isinstance(data, (list, tuple)) and None not in (rows := [batch_rows(batch) for batch in data]):
        return sum(filter(None, rows))
    raise ArgumentValueError(
        "num_data",
        f"must be the number of training examples, since {mark('train_loader')} has no dataset with a length",
    )


@dataclass(frozen=True)
class Evaluation:
    """Evaluation of networks and posteriors on one data set.

    A classification has accuracy, NLL, Brier score and ECE; a regression RMSE and MAE. A loss or a metric of the user's
    is there as well, of a posterior as the mean over its samples, since nothing else can be averaged. Both methods
    raise a :class:`BatchError` that names the data if the model or the loss does not take a batch.
    """

    task: Task
    data: Iterable[Any]
    name: str = "data"

    @torch.no_grad()
    def of_model(self, model: nn.Module) -> dict[str, Any]:
        """Evaluate a network in evaluation mode."""
        with eval_mode(model):
            found = {} if self.task.kind == OTHER else self._evaluate(model, self._predict_with(model))
            return found | self._own_numbers(model)

    @torch.no_grad()
    def of_posterior(self, posterior: Posterior) -> dict[str, Any]:
        """Evaluate the average of the samples."""
        found = {} if self.task.kind == OTHER else self._evaluate(posterior.model, posterior.predict)
        if not self._own_functions():
            return found
        each = [self._own_numbers(posterior.sample(index)) for index in range(len(posterior))]
        shares = posterior.sample_weights.tolist()
        means = {
            name: sum(share * numbers[name] for share, numbers in zip(shares, each, strict=True)) for name in each[0]
        }
        return found | means

    def _own_functions(self) -> dict[str, Metric]:
        """Return the loss and the metric of the user's, by name."""
        loss, metric = self.task.loss_on(self.name) if self.task.own_loss else None, self.task.metric_on(self.name)
        return {name: function for name, function in ((LOSS, loss), (METRIC, metric)) if function is not None}

    def _own_numbers(self, model: nn.Module) -> dict[str, float]:
        return {name: self._mean(model, function) for name, function in self._own_functions().items()}

    def _predict_with(self, model: nn.Module) -> Callable[[Any], Tensor]:
        return lambda x: self.task.link(self.task.forward(model, x))

    @torch.no_grad()
    def predict(self, network: nn.Module | Posterior) -> tuple[Tensor, Tensor]:
        """Return the predictions of a network, or of the average of a posterior, and the targets, on the CPU.

        Those of a classification are probabilities, one row for each label.
        """
        if isinstance(network, Posterior):
            return self._predict(network.model, network.predict)
        with eval_mode(network):
            return self._predict(network, self._predict_with(network))

    def batch_scores(self, model: nn.Module) -> list[tuple[float, int]]:
        """Return the metric of each batch, or its loss if none was given, and its rows, or 1 if none can be counted."""
        return self._batch_values(model, self.task.metric_on(self.name) or self.task.loss_on(self.name))

    @torch.no_grad()
    def _batch_values(self, model: nn.Module, function: Metric) -> list[tuple[float, int]]:
        with eval_mode(model):
            found = [(float(function(model, batch)), batch_rows(batch)) for batch in self.data]
        counted = all(rows is not None for _, rows in found)
        return [(value, int(rows or 0) if counted else 1) for value, rows in found]

    def _evaluate(self, model: nn.Module, predict: Callable[[Any], Tensor]) -> dict[str, Any]:
        mean, target = self._predict(model, predict)
        if self.task.kind == CLASSIFICATION:
            return describe_classifier(mean, target)
        return {
            "rmse": root_mean_squared_error(mean, target),
            "mae": mean_absolute_error(mean, target),
            "rows": len(target),
        }

    def _predict(self, model: nn.Module, predict: Callable[[Any], Tensor]) -> tuple[Tensor, Tensor]:
        predictions, targets = [], []
        classes = self.task.kind == CLASSIFICATION
        for batch in self.data:
            with explain_batch_errors(self.name, batch):
                x, y = pair(model, batch)
                prediction = predict(x)
                if classes:
                    prediction, y = _flatten(prediction, y, self.task.layout)
                else:
                    y = _reshape_targets(y, prediction)
            predictions.append(prediction.cpu())
            targets.append(y.cpu())
        return torch.cat(predictions), torch.cat(targets)

    def _mean(self, model: nn.Module, function: Metric) -> float:
        """Return the mean over the rows, or over the batches if these have no tensors to count."""
        found = self._batch_values(model, function)
        return sum(rows * value for value, rows in found) / sum(rows for _, rows in found)


def _flatten(prediction: Tensor, y: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
    """Return one row of probabilities for each label."""
    rows, labels = layout.flatten(prediction, y)
    classes = rows.shape[1]
    if len(labels) and int(labels.max()) >= classes:
        raise UnfitError(f"labels must be below {classes}, the number of outputs, and one is {int(labels.max())}")
    return rows, labels


def keep_numbers(found: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of an evaluation, without curves."""
    return {name: value for name, value in found.items() if isinstance(value, (int, float))}
