"""How good a network or a posterior is on a loader."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from spikeslab.compression.tasks import CLASSIFICATION, OTHER, Task, UnfitError, batch_rows, pair, shaped, taken
from spikeslab.metrics import mean_absolute_error, root_mean_squared_error
from spikeslab.posterior import Posterior
from spikeslab.posterior.eval_mode import eval_mode
from spikeslab.training import describe_classifier


class Evaluation:
    """Evaluates networks and posteriors on the same data.

    A classification has accuracy, NLL, Brier score and ECE; a regression RMSE and MAE; a task of which only the loss
    is known, its loss: that of a posterior is then the mean over the samples, since nothing else can be averaged.

    Args:
        task: What the outputs mean.
        data: Batches.
        name: What messages call the data.

    Raises:
        BatchError: From both methods, if the model or the loss does not take a batch.
    """

    def __init__(self, task: Task, data: Iterable[Any], name: str = "data") -> None:
        self.task = task
        self.data = data
        self.name = name

    @torch.no_grad()
    def of_model(self, model: nn.Module) -> dict[str, Any]:
        """A network, in evaluation mode."""
        with eval_mode(model):
            found = {} if self.task.kind == OTHER else self._judge(model, lambda x: self.task.link(model(x)))
            return found | ({"loss": self._loss(model)} if self.task.own_loss else {})

    @torch.no_grad()
    def of_posterior(self, posterior: Posterior) -> dict[str, Any]:
        """The average of the samples."""
        if self.task.kind != OTHER:
            return self._judge(posterior.model, posterior.predict)
        losses = [self.of_model(posterior.sample(index))["loss"] for index in range(len(posterior))]
        return {"loss": sum(weight * loss for weight, loss in zip(posterior.weights.tolist(), losses, strict=True))}

    def _judge(self, model: nn.Module, predict: Callable[[Tensor], Tensor]) -> dict[str, Any]:
        predictions, targets = [], []
        classes = self.task.kind == CLASSIFICATION
        for batch in self.data:
            with taken(self.name, batch):
                x, y = pair(model, batch)
                prediction = predict(x)
                prediction, y = _labelled(prediction, y) if classes else (prediction, shaped(y, prediction))
            predictions.append(prediction.cpu())
            targets.append(y.cpu())
        if classes:
            return describe_classifier(torch.cat(predictions), torch.cat(targets))
        mean, target = torch.cat(predictions), torch.cat(targets)
        return {
            "rmse": root_mean_squared_error(mean, target),
            "mae": mean_absolute_error(mean, target),
            "rows": len(target),
        }

    def _loss(self, model: nn.Module) -> float:
        """The mean over the rows; over the batches where these have no tensors that could be counted."""
        loss = self.task.loss_on(self.name)
        found = [(float(loss(model, batch)), batch_rows(batch)) for batch in self.data]
        counted = all(rows is not None for _, rows in found)
        shares = [float(rows or 0) if counted else 1.0 for _, rows in found]
        return sum(share * value for share, (value, _) in zip(shares, found, strict=True)) / sum(shares)


def _labelled(prediction: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """A row of probabilities for each label.

    Classes are dimension 1, with pixels or tokens behind it; labels below 0 are left out, as by torch.
    """
    classes = prediction.shape[1]
    rows, labels = prediction.movedim(1, -1).reshape(-1, classes), y.reshape(-1)
    if len(labels) and int(labels.max()) >= classes:
        raise UnfitError(f"labels must be below {classes}, the number of outputs, and one is {int(labels.max())}")
    return rows[labels >= 0], labels[labels >= 0]


def numbers(found: dict[str, Any]) -> dict[str, float]:
    """The numbers of an evaluation, without curves."""
    return {name: value for name, value in found.items() if isinstance(value, (int, float))}
