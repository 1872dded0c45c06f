"""Weights to prune, and the number of their zeros."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def zeros(tensor: Tensor) -> int:
    return int((tensor == 0).sum())


def distinct(*shapes: tuple[int, ...]) -> list[nn.Parameter]:
    """Weights without zeros and without ties."""
    total = sum(torch.Size(shape).numel() for shape in shapes)
    values = (torch.randperm(total) + 1.0) * torch.where(torch.rand(total) < 0.5, -1.0, 1.0)
    parts = values.split([torch.Size(shape).numel() for shape in shapes])
    return [nn.Parameter(part.view(shape).clone()) for part, shape in zip(parts, shapes, strict=True)]
