"""Heads of ``nn.MultiheadAttention``: their weights, and the module with some of them left."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from spikeslab.errors import ArgumentValueError

PROJECTIONS = ("q_proj_weight", "k_proj_weight", "v_proj_weight")


class HeadAttention(nn.MultiheadAttention):
    """Attention with fewer heads than its width has room for, as :func:`cut_heads` makes it.

    It computes what ``nn.MultiheadAttention`` does in evaluation mode and in training. The weights that it returns are
    averages over the heads that are left.
    """

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the attention of the heads, and its weights if they are asked for.

        Raises:
            ArgumentValueError: If ``attn_mask`` has an entry for each head.
        """
        if attn_mask is not None and attn_mask.dim() > 2:
            expectation = "must have the shape (targets, sources): some of the heads are gone"
            raise ArgumentValueError("attn_mask", expectation, tuple(attn_mask.shape))
        batched = query.dim() == 3
        tensors = [query, key, value] if batched else [part.unsqueeze(1 - self._batch) for part in (query, key, value)]
        if not self._batch:
            tensors = [part.transpose(0, 1) for part in tensors]
        biases = [None] * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        q, k, v = (
            F.linear(part, weight, bias).unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)
            for part, weight, bias in zip(tensors, projections(self), biases, strict=True)
        )
        mask = _join_masks(attn_mask, key_padding_mask if batched else _unsqueeze(key_padding_mask), q)
        dropout = self.dropout if self.training else 0.0
        weights = None
        if need_weights:
            scores = q @ k.transpose(-2, -1) * self.head_dim**-0.5
            weights = (scores if mask is None else scores + mask).softmax(-1)
            heads = F.dropout(weights, dropout) @ v
            weights = weights.mean(1) if average_attn_weights else weights
            weights = weights if batched else weights.squeeze(0)
        else:
            heads = F.scaled_dot_product_attention(q, k, v, mask, dropout)
        result = self.out_proj(heads.transpose(1, 2).flatten(2))
        if not self._batch:
            result = result.transpose(0, 1)
        return result if batched else result.squeeze(1 - self._batch), weights

    @property
    def _batch(self) -> int:
        """1 if the batch is the first dimension, else 0."""
        return int(self.batch_first)


def _unsqueeze(mask: Tensor | None) -> Tensor | None:
    return None if mask is None else mask.unsqueeze(0)


def _join_masks(attention: Tensor | None, padding: Tensor | None, like: Tensor) -> Tensor | None:
    """Return the sum of a mask (targets, sources) and one (batch, sources), of numbers that are added to the scores."""
    masks = [_as_numbers(mask, like) for mask in (attention, None if padding is None else padding[:, None, None, :])]
    given = [mask for mask in masks if mask is not None]
    return None if not given else sum(given[1:], given[0])


def _as_numbers(mask: Tensor | None, like: Tensor) -> Tensor | None:
    if mask is None or mask.is_floating_point():
        return mask
    return torch.zeros_like(mask, dtype=like.dtype).masked_fill_(mask, -torch.inf)


def can_lose_heads(module: nn.MultiheadAttention) -> bool:
    """Return True for an attention of torch's own class without extra keys."""
    return type(module) in (nn.MultiheadAttention, HeadAttention) and module.bias_k is None and not module.add_zero_attn


def projections(module: nn.MultiheadAttention) -> list[Tensor]:
    """Return the matrices of queries, keys and values."""
    joint: Tensor | None = module.in_proj_weight
    if joint is not None:
        return list(joint.chunk(3))
    return [getattr(module, name) for name in PROJECTIONS]


def head_values(module: nn.MultiheadAttention) -> Tensor:
    """Return the weights and biases of the values, one row for each head: a head of zeros adds nothing."""
    weight = projections(module)[2].detach().cpu()
    parts = [weight.reshape(module.num_heads, -1)]
    if module.in_proj_bias is not None:
        parts.append(module.in_proj_bias.detach().cpu().chunk(3)[2].reshape(module.num_heads, -1))
    return torch.cat(parts, dim=1)


def cut_heads(module: nn.MultiheadAttention, stays: Tensor) -> None:
    """Remove heads from the projections, in place; the columns of ``out_proj`` are those of a layer of its own."""
    rows = stays.repeat_interleave(module.head_dim)
    parameters: dict[str, Any] = {name: getattr(module, name) for name in ("in_proj_weight", "in_proj_bias")}
    kept = {name: old.detach()[rows.repeat(3).to(old.device)] for name, old in parameters.items() if old is not None}
    for name in PROJECTIONS:
        if (old := getattr(module, name)) is not None:
            parameters[name], kept[name] = old, old.detach()[rows.to(old.device)]
    for name, value in kept.items():
        setattr(module, name, nn.Parameter(value.clone(), parameters[name].requires_grad))
    if not bool(stays.all()):
        module.num_heads = int(stays.sum())
        # The fused kernels of torch's transformer layers take the number of heads for the width.
        module._qkv_same_embed_dim = False
        module.__class__ = HeadAttention
