"""Samples through the model: as many at once as the memory allows, one at a time where the model cannot do it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from spikeslab.errors import check_count
from spikeslab.posterior.batched import BatchedForward
from spikeslab.posterior.modes import predicting
from spikeslab.posterior.prediction import check_classes, identity, probabilities
from spikeslab.posterior.samples import Tensors


class Passes:
    """Forward passes of a model with the tensors of samples in place of its own.

    Args:
        model: The model.
        link: From its outputs to what is averaged.
    """

    def __init__(self, model: nn.Module, link: Callable[[Tensor], Tensor]) -> None:
        self.link = link
        self.batched = BatchedForward(model)
        self._model = model

    def forget(self) -> None:
        """Forget what was kept of samples, which are no longer the same."""
        self.batched.forget()

    def chunks(
        self, steps: Sequence[int], read: Callable[[int], Tensors], inputs: tuple[Any, ...], batch_size: int | None
    ) -> Iterator[Tensor]:
        """What the samples predict after the link, (samples, batch, ...), some at a time.

        Args:
            steps: The steps of the samples.
            read: Gives the tensors of the sample of a step.
            inputs: Arguments of the model.
            batch_size: Where given, tensors among them are split into batches of this size.
        """
        batches = list(_batches(inputs, batch_size))
        start = 0
        while start < len(steps):
            with torch.no_grad(), predicting(self._model) as modules:
                count = self.batched.together(len(steps), batches[0])
                values = self._together(steps[start : start + count], read, batches, modules)
                if values is None:
                    sample = read(steps[start])
                    outputs = [self.batched.run_one(sample, batch) for batch in batches]
                    values = self.link(torch.cat(outputs)).unsqueeze(0)
                    self.batched.possible &= min(count, len(steps) - start) == 1  # one sample proves nothing
            yield values
            start += len(values)

    def _together(
        self,
        steps: Sequence[int],
        read: Callable[[int], Tensors],
        batches: list[tuple[Any, ...]],
        modules: list[nn.Module],
    ) -> Tensor | None:
        """The samples of some steps in one pass, or ``None`` where there is one or the model cannot do it."""
        if len(steps) == 1:
            return None
        stack = self.batched.stack(steps, read, modules)
        try:
            outputs = [self.batched.run(stack, batch) for batch in batches]
            return self._link_each(outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1))
        # What vmap raises where it cannot, and a stacked_forward whose layers were changed.
        except (RuntimeError, ValueError, TypeError, AttributeError, IndexError):
            return None

    def _link_each(self, outputs: Tensor) -> Tensor:
        """The link of every sample, (samples, batch, ...); vmap takes longer than the links that are known."""
        if self.link is identity:
            return outputs
        if self.link is probabilities:
            check_classes(outputs.shape[1:])
            return outputs.softmax(dim=2)
        return torch.vmap(self.link)(outputs)


def _batches(inputs: tuple[Any, ...], size: int | None) -> Iterator[tuple[Any, ...]]:
    if size is None:
        yield inputs
        return
    rows = next(len(item) for item in inputs if isinstance(item, Tensor))
    for start in range(0, rows, check_count("batch_size", size)):
        yield tuple(item[start : start + size] if isinstance(item, Tensor) else item for item in inputs)
