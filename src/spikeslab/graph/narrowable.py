"""The layers that can be made narrower, and what their weights say about a channel."""

from __future__ import annotations

from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

Conv: TypeAlias = nn.Conv1d | nn.Conv2d | nn.Conv3d
CONVS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def batched(module: Conv | nn.Linear, output: tuple[int, ...]) -> bool:
    """Whether the output has its channels in dimension 1, behind the batch."""
    return len(output) == module.weight.dim()


def pads_with_zeros(module: Conv | nn.Linear) -> bool:
    """Whether a constant channel is no longer constant at the border of what this layer sees."""
    if isinstance(module, nn.Linear) or module.padding_mode != "zeros" or module.padding == "valid":
        return False
    return any(size > 1 for size in module.kernel_size) if module.padding == "same" else any(map(bool, module.padding))


def scale_and_shift(norm: _BatchNorm) -> tuple[Tensor, Tensor]:
    """The affine function a·x + b of each channel that batch normalisation is in evaluation mode, in double precision.

    >>> norm = nn.BatchNorm1d(1, eps=0.0)
    >>> _ = norm.running_mean.fill_(3.0), norm.running_var.fill_(4.0)
    >>> [float(part) for part in scale_and_shift(norm)]
    [0.5, -1.5]
    """
    assert norm.running_mean is not None
    assert norm.running_var is not None
    scale = (norm.running_var.double() + norm.eps).rsqrt()
    shift = -norm.running_mean.double() * scale
    if norm.affine:
        scale, shift = norm.weight.double() * scale, norm.weight.double() * shift + norm.bias.double()
    return scale.detach(), shift.detach()


def kernel_sums(weight: Tensor) -> Tensor:
    """Sum of each kernel: what a constant input adds to an output, of shape (outputs, inputs), in double precision."""
    return weight.detach().double().flatten(2).sum(2) if weight.dim() > 2 else weight.detach().double()


def kernel_nonzero(weight: Tensor) -> Tensor:
    """Whether an output depends on an input at all, of shape (outputs, inputs)."""
    return (weight.detach() != 0).flatten(2).any(2) if weight.dim() > 2 else weight.detach() != 0


def bias_of(module: Conv | nn.Linear) -> Tensor:
    """The bias in double precision, zeros where there is none."""
    if module.bias is None:
        return module.weight.new_zeros(module.weight.shape[0], dtype=torch.float64)
    return module.bias.detach().double()


def _in_the_format_of(old: Tensor, weight: Tensor) -> Tensor:
    """A copy whose strides are those of ``old``'s memory format.

    Strides decide, since a weight with one input channel is contiguous in both formats, and the format of the first
    layer is that of all that follows.
    """
    last = old.dim() == 4 and old.stride() == torch.empty_like(old, memory_format=torch.channels_last).stride()
    memory = torch.channels_last if last else torch.contiguous_format
    return torch.empty_like(weight, memory_format=memory).copy_(weight)


def set_weights(module: Conv | nn.Linear, weight: Tensor, bias: Tensor) -> None:
    """Give a layer another weight and bias, in its own precision and memory format; the sizes follow.

    A layer without bias gets one only where it is not zero.
    """
    old = module.weight
    module.weight = nn.Parameter(_in_the_format_of(old, weight.to(old.dtype)), old.requires_grad)
    if module.bias is not None or bool(bias.any()):
        module.bias = nn.Parameter(
            bias.to(old.dtype), old.requires_grad if module.bias is None else module.bias.requires_grad
        )
    outputs, inputs = weight.shape[:2]
    if isinstance(module, nn.Linear):
        module.in_features, module.out_features = inputs, outputs
    else:
        module.in_channels, module.out_channels = inputs * module.groups, outputs
