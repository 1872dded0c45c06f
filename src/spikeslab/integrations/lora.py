r"""LoRA: the rank of each adapter of PEFT, chosen by a spike-and-slab prior on its rank-one components.

An adapter adds :math:`s\,B A = s \sum_r b_r a_r^\top` to a matrix. The prior is on the rows :math:`a_r`, one indicator
for each; weight decay on B keeps a component from hiding in the scale of :math:`b_r`. Where :math:`\rho_r` is below a
half at the end, the component goes.

.. code-block:: python

    model = peft.get_peft_model(network, peft.LoraConfig(r=8, target_modules=["query", "value"]))
    prior = GroupSpikeSlab(adapter_rows(model), steps=steps, v0=0.01, v1=0.05, delta=1e-3)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    sampler = ss.SGHMC(trained, lr=0.01, num_data=len(train), weight_decay=0.1, prior=prior)
    ...  # train, with a temperature that falls
    print(choose_ranks(model, prior))  # {'encoder.layer.0.attention.self.query': 3, ...}
    model.save_pretrained("adapter")
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from spikeslab.errors import ArgumentValueError, MissingExtraError, Phrase, check_number, quote
from spikeslab.priors import GroupSpikeSlab

try:
    from peft import PeftModel
    from peft.tuners.lora import LoraLayer
except ImportError as error:
    raise MissingExtraError("spikeslab.integrations.lora needs peft: pip install 'spikeslab[huggingface]'.") from error

ROOT = "base_model.model."


def adapter_rows(model: PeftModel, adapter: str = "default") -> dict[str, nn.Parameter]:
    """Return the matrices A of an adapter by name, whose rows are its rank-one components.

    Args:
        model: A model of PEFT with LoRA adapters.
        adapter: Name of the adapter.

    Raises:
        ArgumentValueError: If no linear layer has such an adapter.
    """
    layers = _find_layers(model, adapter)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {names[id(layer.lora_A[adapter].weight)]: layer.lora_A[adapter].weight for layer in layers.values()}


@torch.no_grad()
def choose_ranks(
    model: PeftModel, prior: GroupSpikeSlab, threshold: float = 0.5, adapter: str = "default"
) -> dict[str, int]:
    """Remove the components of an adapter that are in the spike, and return the ranks by the names of the layers.

    The matrices become smaller, and the configuration of the adapter says so: ``save_pretrained`` and
    ``from_pretrained`` keep the ranks. A layer without any component keeps one that is zero, since PEFT knows no rank
    0, and counts as 0. The prior and its sampler are of the old matrices: make new ones to train on.

    Args:
        model: A model of PEFT with LoRA adapters.
        prior: Prior on :func:`adapter_rows`, after training.
        threshold: Probability of the slab from which a component stays.
        adapter: Name of the adapter.

    Raises:
        ArgumentValueError: If the prior is not on the rows of the adapter.
    """
    check_number("threshold", threshold, "[0, 1]")
    layers, rows = _find_layers(model, adapter), adapter_rows(model, adapter)
    own = {id(weight) for weight in prior.weights.values()}
    if missing := [name for name, weight in rows.items() if id(weight) not in own]:
        raise ArgumentValueError("prior", "must be on adapter_rows(model)", Phrase(f"it lacks {quote(missing)}"))
    rho = {id(weight): prior.rho[name] for name, weight in prior.weights.items()}
    ranks = {}
    for name, layer in layers.items():
        kept = (rho[id(layer.lora_A[adapter].weight)] >= threshold).nonzero().flatten()
        ranks[name] = len(kept)
        _keep(layer, adapter, kept)
    config: Any = model.peft_config[adapter]
    config.rank_pattern = _merge(config.rank_pattern, {name: max(rank, 1) for name, rank in ranks.items()})
    alphas = {name: _alpha(layer, adapter, config.use_rslora) for name, layer in layers.items()}
    config.alpha_pattern = _merge(config.alpha_pattern, alphas)
    return ranks


def _find_layers(model: PeftModel, adapter: str) -> dict[str, Any]:
    found = {
        name.removeprefix(ROOT): module
        for name, module in model.named_modules()
        if isinstance(module, LoraLayer) and adapter in module.lora_A
    }
    if not found:
        expectation = f"must have LoRA adapters of linear layers, called {adapter!r}"
        raise ArgumentValueError("model", expectation, Phrase("it has none"))
    return found


def _keep(layer: Any, adapter: str, kept: torch.Tensor) -> None:
    """Keep some components of a layer, or a single one of zeros."""
    down, up = layer.lora_A[adapter], layer.lora_B[adapter]
    empty = len(kept) == 0
    kept = kept.new_zeros(1) if empty else kept
    down.weight = nn.Parameter(down.weight[kept] * (not empty), requires_grad=down.weight.requires_grad)
    up.weight = nn.Parameter(up.weight[:, kept] * (not empty), requires_grad=up.weight.requires_grad)
    down.out_features = up.in_features = layer.r[adapter] = len(kept)


def _alpha(layer: Any, adapter: str, root: bool) -> float:
    """Return the alpha with which PEFT computes the scaling that the layer has, alpha over the rank or its root."""
    rank = float(layer.r[adapter])
    alpha = float(layer.scaling[adapter]) * (math.sqrt(rank) if root else rank)
    layer.lora_alpha[adapter] = alpha
    return alpha


def _merge(pattern: Mapping[str, Any] | None, own: Mapping[str, Any]) -> dict[str, Any]:
    return {**own, **{name: value for name, value in (pattern or {}).items() if name not in own}}
