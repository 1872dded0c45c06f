"""Layers that can be made narrower: convolutions, linear layers, batch normalisation and channel biases.

Weights are handled with outputs first. The ``Conv1D`` of transformers is a linear layer whose weight has inputs first.
"""

from __future__ import annotations

from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear as OutputProjection

Conv: TypeAlias = nn.Conv1d | nn.Conv2d | nn.Conv3d
CONVS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
LAYERS = (*CONVS, nn.Linear)
TRANSPOSED = ("transformers.pytorch_utils", "Conv1D")
"""Module and name of a class that is a linear layer with a transposed weight."""
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


class ChannelBias(nn.Module):
    """Module that adds one number to each channel, in dimension 1; with ``dims=2`` in the last of any number.

    >>> bias = ChannelBias(torch.tensor([1.0, 2.0]), dims=4)
    >>> bias(torch.zeros(1, 2, 1, 1)).flatten().tolist()
    [1.0, 2.0]

    Args:
        values: One number for each channel.
        dims: Number of dimensions of the input.
        requires_grad: If True, the numbers are trained.
    """

    def __init__(self, values: Tensor, dims: int, requires_grad: bool = True) -> None:
        super().__init__()
        self.bias = nn.Parameter(values, requires_grad)
        self.from_end = dims - 1
        self._shape = (-1, *[1] * (dims - 2))

    def forward(self, x: Tensor) -> Tensor:
        """Add the numbers to ``x``."""
        return x + self.bias.view(self._shape)

    def extra_repr(self) -> str:
        """Return the number of channels, for ``print``."""
        return str(len(self.bias))


def is_batched(module: Conv | nn.Linear, output: tuple[int, ...]) -> bool:
    """Return True if an output of this shape has its channels in dimension 1, behind the batch."""
    return len(output) == module.weight.dim()


def is_transposed(module: nn.Module | None) -> bool:
    """Return True if ``module`` is a linear layer whose weight has inputs first."""
    return (type(module).__module__, type(module).__name__) == TRANSPOSED


def mixes_channels(module: nn.Module | None) -> bool:
    """Return True if ``module`` is a convolution or linear layer, of no class of the user's own."""
    return type(module) in LAYERS or type(module) is OutputProjection or is_transposed(module)


def find_channel_axis(module: nn.Module, shape: tuple[int, ...]) -> int | None:
    """Return the dimension of an output of this shape that holds the channels; ``None`` if there is no batch.

    >>> find_channel_axis(nn.Linear(4, 8), (2, 5, 8)), find_channel_axis(nn.Conv1d(4, 8, 1), (2, 8, 5))
    (2, 1)
    """
    if isinstance(module, CONVS):
        return 1 if len(shape) == module.weight.dim() else None
    return len(shape) - 1 if len(shape) >= 2 else None


def weight_by_outputs(module: Conv | nn.Linear) -> Tensor:
    """Return the weight with outputs first, without its graph."""
    weight = module.weight.detach()
    return weight.T if is_transposed(module) else weight


def pads_with_zeros(module: Conv | nn.Linear) -> bool:
    """Return True if a constant input channel is not constant at the border, where the layer pads with zeros."""
    if not isinstance(module, CONVS) or module.padding_mode != "zeros" or module.padding == "valid":
        return False
    return any(size > 1 for size in module.kernel_size) if module.padding == "same" else any(map(bool, module.padding))


def scale_and_shift(norm: _BatchNorm) -> tuple[Tensor, Tensor]:
    """Return a and b, in double precision, such that batch normalisation in evaluation mode computes a x + b.

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
    """Return the sum of each kernel, of shape (outputs, inputs), in double precision: the response to a constant 1."""
    return weight.detach().double().flatten(2).sum(2) if weight.dim() > 2 else weight.detach().double()


def kernel_nonzero(weight: Tensor) -> Tensor:
    """Return a mask of the kernels that are not all zero, of shape (outputs, inputs)."""
    return (weight.detach() != 0).flatten(2).any(2) if weight.dim() > 2 else weight.detach() != 0


def get_bias(module: Conv | nn.Linear) -> Tensor:
    """Return the bias in double precision, zeros if the layer has none."""
    if module.bias is None:
        return module.weight.new_zeros(len(weight_by_outputs(module)), dtype=torch.float64)
    return module.bias.detach().double()


def _copy_in_format_of(old: Tensor, weight: Tensor) -> Tensor:
    """Return a copy of ``weight`` in the memory format of ``old``."""
    # By its strides: a weight with one input channel is contiguous in both formats, and later layers follow the first.
    last = old.dim() == 4 and old.stride() == torch.empty_like(old, memory_format=torch.channels_last).stride()
    memory = torch.channels_last if last else torch.contiguous_format
    return torch.empty_like(weight, memory_format=memory).copy_(weight)


def set_weights(module: Conv | nn.Linear, weight: Tensor, bias: Tensor) -> None:
    """Replace weight, given with outputs first, bias and sizes of a layer; precision and memory format stay.

    A layer without a bias gets one only if it is not zero.
    """
    old = module.weight
    stored = weight.T if is_transposed(module) else weight
    module.weight = nn.Parameter(_copy_in_format_of(old, stored.to(old.dtype)), old.requires_grad)
    if module.bias is not None or bool(bias.any()):
        module.bias = nn.Parameter(
            bias.to(old.dtype), old.requires_grad if module.bias is None else module.bias.requires_grad
        )
    outputs, inputs = weight.shape[:2]
    if is_transposed(module):
        module.nx, module.nf = inputs, outputs  # type: ignore[assignment]
    elif isinstance(module, nn.Linear):
        module.in_features, module.out_features = inputs, outputs
    else:
        module.in_channels, module.out_channels = inputs * module.groups, outputs
