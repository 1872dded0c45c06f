"""Operations that keep channels apart: their names, and what they make of a channel that is constant.

A constant is a number in double precision, NaN where the channel depends on the input.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

ELEMENTWISE = frozenset({
    "relu", "relu_", "relu6", "leaky_relu", "leaky_relu_", "elu", "elu_", "selu", "celu", "gelu", "silu", "mish",
    "sigmoid", "tanh", "softplus", "softsign", "hardtanh", "hardtanh_", "hardswish", "hardsigmoid", "logsigmoid",
    "tanhshrink", "abs", "exp", "neg", "sqrt", "square", "pow", "clamp", "clamp_", "clip", "clone", "contiguous",
    "detach", "add", "add_", "sub", "sub_", "mul", "mul_", "div", "div_", "truediv", "maximum", "minimum",
})  # fmt: skip
ELEMENTWISE_MODULES = (
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Sigmoid, nn.Tanh,
    nn.Softplus, nn.Softsign, nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid, nn.LogSigmoid, nn.Tanhshrink,
)  # fmt: skip
PRODUCTS = frozenset({"mul", "mul_"})
IDENTITIES = (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)
# Whatever the size of the image, a window or a mean over a constant is that constant.
POOLS = frozenset(
    f"{kind}{dims}d" for kind in ("max_pool", "adaptive_avg_pool", "adaptive_max_pool") for dims in (1, 2, 3)
)
POOL_MODULES = (
    nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d,
    nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d, nn.Upsample,
)  # fmt: skip
AVERAGE_POOLS = (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)
AVERAGE_ARGUMENTS = ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override")


def operation_name(node: fx.Node) -> str:
    """Name of a function or method of torch or of Python's operators; nothing for any other."""
    if node.op == "call_method":
        return str(node.target)
    origin = getattr(node.target, "__module__", None) or "torch"
    return getattr(node.target, "__name__", "") if origin.partition(".")[0] in ("torch", "_operator") else ""


def map_constants(function: Callable[..., Tensor], *constants: Tensor) -> Tensor:
    """The constants that a function makes of constants; unknown where an argument is, whatever the function does."""
    unknown = torch.stack([values.isnan() for values in constants]).any(0)
    with torch.no_grad():
        results = function(*(values.nan_to_num(0.0) for values in constants))
    return finite_or_unknown(results.masked_fill(unknown, math.nan))


def product_constants(results: Tensor, factors: Sequence[Tensor]) -> Tensor:
    """Constants of a product, which is zero where a factor is, whatever the others are."""
    return results.masked_fill(torch.stack([values == 0 for values in factors]).any(0), 0.0)


def finite_or_unknown(constants: Tensor) -> Tensor:
    """The constants, unknown where they overflow."""
    return constants.masked_fill(~constants.isfinite(), math.nan)


def average_constants(constants: Tensor, settings: Mapping[str, Any]) -> Tensor:
    """What average pooling makes of constants: where it counts its padding, only zeros stay constant at the border."""
    padding = settings.get("padding") or 0
    padded = any(padding) if isinstance(padding, (tuple, list)) else bool(padding)
    counted = settings.get("count_include_pad")
    if settings.get("divisor_override") is None and (not padded or counted is False):
        return constants
    return constants.masked_fill(constants != 0, math.nan)


def pools_behind_channels(name: str, rank: int) -> bool:
    """Whether a pooling such as ``max_pool2d`` or ``MaxPool2d`` leaves batch and channels of such a tensor alone.

    One dimension less is no batch for it: the first dimension are the channels then, and the second is pooled.

    >>> pools_behind_channels("MaxPool1d", 3), pools_behind_channels("MaxPool1d", 2)
    (True, False)
    """
    return not name[-2].isdigit() or rank == int(name[-2]) + 2


def behind_channels(dims: object, rank: int) -> bool:
    """Whether an operation over these dimensions leaves batch and channels alone."""
    entries = dims if isinstance(dims, (tuple, list)) else [dims]
    return bool(entries) and all(isinstance(dim, int) and (dim if dim >= 0 else dim + rank) >= 2 for dim in entries)


def reads_other_sizes(node: fx.Node, rank: int) -> bool:
    """Whether a node reads the shape of a tensor of this rank, but not its number of channels."""
    if node.target == "size" and len(node.args) > 1:
        return _skips_channels(node.args[1], rank)
    if node.target == "size" or (node.target is getattr and node.args[1] == "shape"):
        return all(
            operation_name(user) == "getitem" and (_skips_channels(user.args[1], rank) or not user.users)
            for user in node.users
        )
    return node.target == "dim" or (node.target is getattr and node.args[1] in ("dtype", "device", "ndim"))


def _skips_channels(index: object, rank: int) -> bool:
    """Whether this part of a shape has no entry 1.

    >>> [_skips_channels(index, 4) for index in (0, 1, -1, -3, slice(2, None), slice(-2, None), slice(1, 3))]
    [True, False, True, False, True, True, False]
    """
    return isinstance(index, (int, slice)) and 1 not in torch.arange(rank)[index].flatten().tolist()
