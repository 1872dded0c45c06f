"""Many chains of a small network as one batched computation.

A network of a thousand weights leaves a core idle: Python takes longer to start an operation than the operation takes.
Stacked along a new first dimension, K networks cost little more than one, because every operation is started once.

The law: nothing mixes chains. The loss is the *sum* over chains of the mean loss of each, so the gradient that chain k
sees is its own; the noise of a sampler has the shape of the parameters and is independent between chains; and with
:class:`~spikeslab.priors.StackedSpikeSlab` and :class:`~spikeslab.likelihoods.StackedGaussianLikelihood` so are the
latents. Given the same noise, chain k is the chain that would run alone.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from spikeslab.errors import ArgumentValueError, NonFiniteError, Phrase, check_count, pluralize
from spikeslab.posterior.forward import stacked_forward
from spikeslab.posterior.samples import named_tensors


class StackedModel(nn.Module):
    """K models of one architecture with stacked parameters and buffers of shape (K, ...).

    >>> model = StackedModel([nn.Linear(3, 1) for _ in range(5)])
    >>> model(model.spread(torch.ones(10, 3))).shape
    torch.Size([5, 10, 1])
    >>> [(name, tuple(parameter.shape)) for name, parameter in model.named_parameters()]
    [('network.weight', (5, 1, 3)), ('network.bias', (5, 1))]

    ``torch.vmap`` runs the network, unless the network has a faster method ``stacked_forward``, which is called if no
    subclass overrides ``forward`` and no layer has hooks. Any sampler takes the parameters. They are copies: the models
    stay as they are, and :meth:`chain` returns one of the chains as an ordinary model.

    Args:
        models: At least one model, all of the same structure. Attributes that are not tensors, such as a dropout rate,
            are taken from the first one.

    Raises:
        ValueError: If the models differ in the names, shapes or dtypes of their tensors.
    """

    def __init__(self, models: Sequence[nn.Module]) -> None:
        super().__init__()
        check_count("the number of models", len(models))
        named = [dict(named_tensors(model, all_names=True)) for model in models]
        kinds = [{name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()} for tensors in named]
        odd = [index for index, of_model in enumerate(kinds) if of_model != kinds[0]]
        if odd:
            expectation = "must all have tensors of the same names, shapes and dtypes"
            raise ArgumentValueError("models", expectation, Phrase(f"model {odd[0]} differs"))
        self.chains = len(models)
        self.network = copy.deepcopy(models[0])
        _replace_tensors(self.network, lambda name, _: torch.stack([tensors[name].detach() for tensors in named]))

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return outputs (K, batch, ...) for inputs (K, batch, ...): each chain has its own batch."""
        for tensor in inputs:
            if not tensor.ndim or len(tensor) != self.chains:
                raise ArgumentValueError(
                    "inputs",
                    f"must have a batch for each of {pluralize(self.chains, 'chain')} along their first dimension",
                    Phrase(f"got the shape {tuple(tensor.shape)}"),
                    "model.spread(batch) gives all the same",
                )
        quick = stacked_forward(self.network, self.network.modules())
        if quick is not None:
            return quick(*inputs)
        run = torch.vmap(partial(torch.func.functional_call, self.network), randomness="different")
        outputs: Tensor = run(dict(named_tensors(self.network)), inputs)
        return outputs

    def spread(self, batch: Tensor) -> Tensor:
        """Return the same batch for every chain, without a copy."""
        return batch.expand(self.chains, *batch.shape)

    def chain(self, index: int) -> nn.Module:
        """Return chain ``index`` as an ordinary model with the original parameter names."""
        if not -self.chains <= index < self.chains:
            raise IndexError(f"index must be that of one of {pluralize(self.chains, 'chain')}, but got {index}.")
        model = copy.deepcopy(self.network)
        _replace_tensors(model, lambda _, tensor: tensor[index].clone())
        return model

    @torch.no_grad()
    def find_diverged(self) -> list[int]:
        """Return the chains with a parameter or gradient that is NaN or infinite."""
        tensors = [t for p in self.parameters() for t in (p, p.grad) if t is not None]
        finite = torch.stack([tensor.reshape(self.chains, -1).isfinite().all(1) for tensor in tensors]).all(0)
        return [chain for chain, fine in enumerate(finite.tolist()) if not fine]

    def check_finite(self) -> None:
        """Raise :class:`~spikeslab.NonFiniteError` if a chain has diverged; the message names it.

        A sampler also checks, and stops all chains if one has diverged. With ``check_finite=False`` it does not, and
        the other chains go on.
        """
        gone = self.find_diverged()
        if gone:
            raise NonFiniteError(
                f"the weights and gradients of all {pluralize(self.chains, 'chain')} must be finite, but got NaN or "
                f"Inf in {'chain' if len(gone) == 1 else 'chains'} {', '.join(map(str, gone))}: try a lower lr."
            )


def _replace_tensors(model: nn.Module, new: Callable[[str, Tensor], Tensor]) -> None:
    """Replace every parameter and buffer by ``new(name, tensor)``; shared tensors stay shared."""
    done: dict[int, tuple[Tensor, Tensor]] = {}  # keeps the old tensors alive, so that ids stay unique
    for prefix, module in model.named_modules():
        for tensors in (cast(dict[str, Any], module._parameters), cast(dict[str, Any], module._buffers)):
            for leaf, old in tensors.items():
                if old is None:
                    continue
                if id(old) not in done:
                    value = new(f"{prefix}.{leaf}" if prefix else leaf, old.detach())
                    parameter = isinstance(old, nn.Parameter)
                    done[id(old)] = old, nn.Parameter(value, old.requires_grad) if parameter else value
                tensors[leaf] = done[id(old)][1]
