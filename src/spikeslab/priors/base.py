"""Interface between a sampler and a prior."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Self

from torch import Tensor

from spikeslab.errors import ArgumentValueError, Phrase, quote
from spikeslab.functional.tensors import FULL_PRECISION
from spikeslab.schedules import ScheduleLike
from spikeslab.shards import Reduction, local
from spikeslab.weights import WeightHolder, Weights, name_weights


class Prior(WeightHolder, ABC):
    """Prior over some of a model's weights.

    A sampler that takes the prior calls :meth:`attach` once. At each step it calls :meth:`check_ready` and
    :meth:`observe` before it moves, :meth:`add_gradient_` for the gradient at the old weights, and :meth:`update` with
    the new ones. A new prior implements the gradient, the penalty and, if it has a state, ``update`` and the state
    dict. One whose gradient is an elastic net may also take part in the fused update: see
    :class:`~spikeslab.kernels.protocol.FusedPrior`.

    Attributes:
        weights: The weights by name, in the order of all per-weight state.
    """

    def __init__(self, weights: Weights) -> None:
        self.weights: dict[str, Tensor] = name_weights(weights)
        self._index = {id(weight): index for index, weight in enumerate(self.weights.values())}
        self._ranks = Reduction(self.weights.values())

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return a copy; made together with the model, it is over the weights of the model's copy."""
        twin = super().__deepcopy__(memo)
        twin._index = {id(weight): index for index, weight in enumerate(twin.weights.values())}
        return twin

    def __contains__(self, weight: object) -> bool:
        return id(weight) in self._index

    def add_gradient_(self, params: list[Tensor], outs: list[Tensor], num_data: int) -> None:
        """Add the gradient of the negative log prior, divided by ``num_data``, at ``params`` to ``outs``.

        ``params`` are some of the prior's weights. Half-precision weights are handled in float32.
        """
        indices, params = [self._index[id(param)] for param in params], [local(param) for param in params]
        if all(param.dtype in FULL_PRECISION for param in params):
            self._add_gradient_(indices, [param.detach() for param in params], outs, num_data)
            return
        wide = [out.float() for out in outs]
        self._add_gradient_(indices, [param.detach().float() for param in params], wide, num_data)
        for out, value in zip(outs, wide, strict=True):
            out.copy_(value)

    @abstractmethod
    def _add_gradient_(self, indices: list[int], betas: list[Tensor], outs: list[Tensor], num_data: int) -> None:
        """Add the gradient for the weights at ``indices``, given in full precision as ``betas``."""

    @abstractmethod
    def penalty(self, num_data: int = 1) -> float:
        """Return the prior's part of the mean loss, up to a constant; its gradient is :meth:`add_gradient_`."""

    def effective_penalty(self, num_data: int) -> tuple[float, float]:
        """Return the mean factors of ``|w|`` and of ``w**2 / 2`` in the mean loss, over the non-zero weights.

        They are NaN for a prior that is not of that kind.
        """
        return math.nan, math.nan

    def latents(self) -> dict[str, Any]:
        """Return the learned numbers for a line of the log, in JSON's types."""
        return {}

    def attach(self, num_data: int, lr: float | ScheduleLike, weight_decay: float) -> None:
        """Take N, lr and weight decay of the sampler that takes the prior, which may choose its scales by them."""

    def check_ready(self) -> None:
        """Raise if :meth:`update` cannot run, before anything has moved."""

    def allocate(self) -> None:
        """Make the tensors of the state as they are before the first step, unless they are there."""

    def observe(self, step: int, num_data: int) -> None:
        """Read the gradients of the mean loss, in ``weight.grad``, at the weights before ``step``."""

    def update(self, step: int, num_data: int) -> None:
        """Adapt to the weights that the sampler reached at ``step``."""

    def settings_dict(self) -> dict[str, Any]:
        """Return the arguments that the prior was made with, but for the weights, as JSON values, and its type."""
        return {"type": type(self).__name__}

    def load_settings(self, settings: Mapping[str, Any]) -> None:
        """Set some of the settings, as if the prior had been made with them; the latents stay.

        It does so by making a prior with the arguments of :meth:`settings_dict`.
        """
        arguments = {name: value for name, value in {**self.settings_dict(), **settings}.items() if name != "type"}
        state, twin = self.state_dict(), self._make_twin(arguments)
        self.__dict__.update(twin.__dict__)
        self.load_state_dict(state)

    def _make_twin(self, arguments: Mapping[str, Any]) -> Self:
        """Return a prior on the same weights with other arguments."""
        return type(self)(self.weights, **arguments)

    def state_dict(self) -> dict[str, Any]:
        """Return the state: tensors, numbers and strings."""
        return {"kind": type(self).__name__, "names": list(self.weights)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state; one of another prior or of other weights is refused and changes nothing."""
        self.check_state(state)

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Raise if ``state`` is of another prior or of other weights."""
        if state.get("kind") != type(self).__name__:
            expectation = f"must hold the state of a {type(self).__name__} prior"
            raise ArgumentValueError("state_dict", expectation, state.get("kind"))
        if list(state["names"]) != list(self.weights):
            got = Phrase(f"got {quote(state['names'])}")
            raise ArgumentValueError("state_dict", f"must be for the weights {quote(self.weights)}", got)

    def _betas(self) -> list[Tensor]:
        """Return this rank's parts of the weights, detached, in full precision."""
        parts = [local(weight).detach() for weight in self.weights.values()]
        return [part if part.dtype in FULL_PRECISION else part.float() for part in parts]
