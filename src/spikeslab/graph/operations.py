"""Operations that keep channels apart, and what they make of a channel that is constant.

This is the one table of operations: :mod:`~spikeslab.graph.dependency` follows channels through it with the shapes of
an example, :mod:`~spikeslab.graph.free_channels` without. The constant of a channel is the number that it holds at
every place for every input, in double precision, or NaN if it depends on the input.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import EllipsisType, NoneType
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn

from spikeslab.graph.tracing import TracedModel, has_hooks

ELEMENTWISE = frozenset({
    "relu", "relu_", "relu6", "leaky_relu", "leaky_relu_", "elu", "elu_", "selu", "celu", "gelu", "silu", "mish",
    "sigmoid", "tanh", "softplus", "softsign", "hardtanh", "hardtanh_", "hardswish", "hardsigmoid", "logsigmoid",
    "tanhshrink", "abs", "exp", "neg", "sqrt", "rsqrt", "square", "pow", "erf", "clamp", "clamp_", "clip", "clone",
    "contiguous", "detach", "to", "float", "add", "add_", "iadd", "sub", "sub_", "isub", "rsub", "mul",
    "mul_", "imul", "div", "div_", "truediv", "maximum", "minimum", "where", "masked_fill", "masked_fill_",
})  # fmt: skip
ELEMENTWISE_MODULES = (
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Sigmoid, nn.Tanh,
    nn.Softplus, nn.Softsign, nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid, nn.LogSigmoid, nn.Tanhshrink,
)  # fmt: skip
SELECTIONS = ("where", "masked_fill", "masked_fill_")
"""Operations that choose entries by a mask, and so give no constants."""
ALIASES = {"radd": "add", "rmul": "mul", "rtruediv": "div", "rpow": "pow"}
POOLS = {
    "MaxPool": "max_pool", "AvgPool": "avg_pool", "AdaptiveAvgPool": "adaptive_avg_pool",
    "AdaptiveMaxPool": "adaptive_max_pool",
}  # fmt: skip
DROPOUTS: dict[type, str] = {
    nn.Dropout: "dropout", nn.Dropout1d: "dropout1d", nn.Dropout2d: "dropout2d", nn.Dropout3d: "dropout3d",
    nn.AlphaDropout: "alpha_dropout",
}  # fmt: skip
IDENTITIES = (nn.Identity, *DROPOUTS)
"""Modules that do nothing in evaluation mode."""
FUNCTIONS_OF_MODULES: dict[type, str] = {
    nn.Identity: "identity", nn.Flatten: "flatten", nn.Upsample: "interpolate", **DROPOUTS,
    **{getattr(nn, f"{pool}{dims}d"): f"{name}{dims}d" for pool, name in POOLS.items() for dims in (1, 2, 3)},
}  # fmt: skip
MEANS = ("mean", "sum", "amax", "amin")
REDUCTIONS = ("mean", "amax", "amin", "squeeze", "unsqueeze")
ARGUMENTS = {
    "avg_pool": ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override"),
    "flatten": ("start_dim", "end_dim"),
    "dropout": ("p", "training"),
    "getitem": ("index",),
    **dict.fromkeys(REDUCTIONS, ("dim", "keepdim")),
}
"""Names of the arguments behind the tensor; functions are listed without their number of dimensions."""


class Effect(NamedTuple):
    """Effect of an operation that keeps channels apart.

    Attributes:
        map_constants: Function from the constants of its tensors to those of its result.
        rank: Number of dimensions of the result; ``None`` if it is not known.
        flattens: True if every place of a channel becomes a feature of its own.
        combines: True if all tensors count, channel by channel, and not the first alone.
        everywhere: True if the channels may lie along any dimension.
    """

    map_constants: Callable[..., Tensor]
    rank: int | None
    flattens: bool = False
    combines: bool = False
    everywhere: bool = False


class ChannelReduction(NamedTuple):
    """Operation over some dimensions of a tensor, such as a mean or a softmax.

    Attributes:
        dims: The dimensions.
        drops: True if the result does not have them.
        keeps_shape: True if the result has the shape of the tensor.
        map_constants: Function from the constants of the channels to those of the result.
    """

    dims: frozenset[int]
    drops: bool
    keeps_shape: bool
    map_constants: Callable[[Tensor], Tensor]


def operation_name(node: fx.Node) -> str:
    """Return the name of a function or method of torch or of Python's operators; "" for any other."""
    if node.op == "call_method":
        return str(node.target)
    if node.target is getattr:
        return str(node.args[1]) if node.args[1] in ("T", "mT") else ""
    origin = getattr(node.target, "__module__", None) or "torch"
    if origin.partition(".")[0] not in ("torch", "_operator"):
        return ""
    name = getattr(node.target, "__name__", "")
    name = name.strip("_") if name.startswith("__") else name
    return ALIASES.get(name, name)


def find_effect(traced: TracedModel, node: fx.Node, tensors: Sequence[fx.Node], rank: int | None) -> Effect | None:
    """Return the effect of an operation on the channels of its inputs; ``None`` if it may not keep them apart.

    ``tensors`` are its inputs that have channels; any other must be a scalar parameter. ``rank`` is the number of
    dimensions of the first, whose dimension 1 has the channels; with ``None`` the last dimension has them and their
    number is not known, as behind a linear layer of tokens.
    """
    module = traced.module(node)
    if module is None:
        name = operation_name(node)
        if name in ELEMENTWISE:
            return _find_elementwise(traced, node, tensors, rank)
        if node.args[:1] != (tensors[0],):
            return None
    else:
        if has_hooks(module) or len(node.all_input_nodes) != 1:
            return None
        if type(module) in ELEMENTWISE_MODULES:
            return Effect(partial(map_constants, copy.deepcopy(module).double()), rank)
        name = FUNCTIONS_OF_MODULES.get(type(module), "")
    settings = _settings(node, module, name)
    if name == "identity":
        return Effect(_keep, rank, everywhere=True)
    if name.startswith("dropout") or (name.endswith("alpha_dropout") and settings.get("training") is False):
        return Effect(_keep if settings.get("training") is False else _keep_zeros, rank, everywhere=True)
    return None if rank is None else _find_spatial(name, settings, rank)


def _settings(node: fx.Node, module: nn.Module | None, name: str) -> dict[str, Any]:
    names = ARGUMENTS.get("dropout" if "dropout" in name else name.rstrip("123d") if "pool" in name else name, ())
    if module is not None:
        return {key: getattr(module, key, None) for key in names}
    return {**dict(zip(names, node.args[1:], strict=False)), **node.kwargs}


def find_reduced_dims(traced: TracedModel, node: fx.Node, rank: int) -> ChannelReduction | None:
    """Return the dimensions that an operation on a tensor of this rank is over; ``None`` if it is no such operation."""
    module, name = traced.module(node), operation_name(node)
    if isinstance(module, nn.LayerNorm) or name == "layer_norm":
        shape: Any = module.normalized_shape if isinstance(module, nn.LayerNorm) else node.args[1]
        return ChannelReduction(frozenset(range(rank - len(shape), rank)), False, True, _forget)
    softmax = isinstance(module, (nn.Softmax, nn.LogSoftmax)) or name in ("softmax", "log_softmax")
    if not softmax and name not in MEANS:
        return None
    if module is not None:
        dim: Any = getattr(module, "dim", None)
    else:
        dim = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
    dims = dim if isinstance(dim, (tuple, list)) else [dim]
    if not dims or not all(isinstance(entry, int) for entry in dims):
        return None
    places = frozenset(entry % rank for entry in dims)
    if softmax:
        return ChannelReduction(places, False, True, _forget)
    keeps = node.args[2] if len(node.args) > 2 else node.kwargs.get("keepdim", False)
    return ChannelReduction(places, not keeps, False, _keep_zeros if name == "sum" else _keep)


def product_letters(node: fx.Node, shapes: Mapping[fx.Node, tuple[int, ...]]) -> tuple[str, str, str] | None:
    """Return the letters of the dimensions of two tensors and of the sum of their products, as ``einsum`` has them."""
    name = operation_name(node)
    if name == "einsum":
        equation = str(node.args[0]).replace(" ", "")
        left, comma, rest = equation.partition(",")
        right, arrow, out = rest.partition("->")
        return (left, right, out) if comma and arrow and "." not in equation and "," not in right else None
    if name not in ("matmul", "bmm") or len(node.all_input_nodes) != 2 or node not in shapes:
        return None
    ranks = [len(shapes[source]) for source in node.all_input_nodes if source in shapes]
    if len(ranks) < 2 or min(ranks) < 2:
        return None
    batch = "abcdefgh"[: max(ranks) - 2]
    first, second = (batch[len(batch) - (rank - 2) :] for rank in ranks)
    return f"{first}mk", f"{second}kn", f"{batch}mn"


def _find_spatial(name: str, settings: Mapping[str, Any], rank: int) -> Effect | None:
    """Return the effect of an operation on the dimensions behind the channels."""
    if name == "interpolate":
        return Effect(_keep, rank)
    if name.rstrip("123d") in POOLS.values():
        # One dimension less is no batch for it: the first dimension are the channels then, and the second is pooled.
        average = name.startswith("avg_pool") and not _averages_exactly(settings)
        return Effect(_keep_zeros if average else _keep, rank) if rank == int(name[-2]) + 2 else None
    if name == "flatten":
        start, end = settings.get("start_dim", 0), settings.get("end_dim", -1)
        whole = end in (-1, rank - 1) and isinstance(start, int) and start >= 1
        return Effect(_keep, start + 1, flattens=start == 1) if whole else None
    if name in REDUCTIONS:
        dims = settings.get("dim")
        dims = dims if isinstance(dims, (tuple, list)) else [dims]
        after = rank + 1 if name == "unsqueeze" else rank if settings.get("keepdim") else rank - len(dims)
        return Effect(_keep, after) if _are_behind_channels(dims, max(rank, after)) else None
    if name == "getitem" and isinstance(index := settings["index"], tuple) and index[:2] == (slice(None),) * 2:
        # Lists and tensors among the indices may move dimensions.
        plain = all(isinstance(entry, (int, slice, NoneType, EllipsisType)) for entry in index)
        after = rank - sum(isinstance(entry, int) for entry in index) + sum(entry is None for entry in index)
        return Effect(_keep, after) if plain else None
    return None


def _find_elementwise(
    traced: TracedModel, node: fx.Node, tensors: Sequence[fx.Node], rank: int | None
) -> Effect | None:
    scalars: dict[fx.Node, Any] = {}
    for source in node.all_input_nodes:
        if source not in tensors:
            # A number that was computed, as from a size, is another for another input.
            computed = type(traced.values.get(source)) in (int, float)
            scalars[source] = math.nan if computed else traced.scalar(source)
    if any(value is None for value in scalars.values()):
        return None

    def call(*constants: Tensor) -> Tensor:
        values: dict[fx.Node, Any] = {**scalars, **dict(zip(tensors, constants, strict=True))}
        args = fx.node.map_arg(node.args, values.__getitem__)
        kwargs = fx.node.map_arg(node.kwargs, values.__getitem__)
        if node.op == "call_method":
            return getattr(args[0], str(node.target))(*args[1:], **kwargs)  # type: ignore[no-any-return]
        assert callable(node.target)
        return node.target(*args, **kwargs)  # type: ignore[no-any-return]

    def multiply(*constants: Tensor) -> Tensor:
        """Return the constants of a product, which is zero where a factor is, whatever the others are."""
        zero = torch.stack([values == 0 for values in constants]).any(0)
        return map_constants(call, *constants).masked_fill(zero, 0.0)

    if operation_name(node) in SELECTIONS:
        return Effect(lambda *constants: _forget(constants[0]), rank, combines=True)
    product = operation_name(node) in ("mul", "mul_", "imul")
    return Effect(multiply if product else partial(map_constants, call), rank, combines=True)


def map_constants(function: Callable[..., Tensor], *constants: Tensor) -> Tensor:
    """Apply a function to constants; the result is NaN where an argument is, whatever the function does with it."""
    unknown = torch.stack([values.isnan() for values in constants]).any(0)
    with torch.no_grad():
        results = function(*(values.nan_to_num(0.0) for values in constants))
    return infinite_to_nan(results.double().masked_fill(unknown, math.nan))


def infinite_to_nan(constants: Tensor) -> Tensor:
    """Replace constants that overflow by NaN."""
    return constants.masked_fill(~constants.isfinite(), math.nan)


def _keep(constants: Tensor) -> Tensor:
    return constants


def _forget(constants: Tensor) -> Tensor:
    return torch.full_like(constants, math.nan)


def _keep_zeros(constants: Tensor) -> Tensor:
    return constants.masked_fill(constants != 0, math.nan)


def _averages_exactly(settings: Mapping[str, Any]) -> bool:
    """Return True if average pooling keeps constants: where it counts its padding, they change at the border."""
    padding = settings.get("padding") or 0
    padded = any(padding) if isinstance(padding, (tuple, list)) else bool(padding)
    return settings.get("divisor_override") is None and (not padded or settings.get("count_include_pad") is False)


def _are_behind_channels(dims: Sequence[object], rank: int) -> bool:
    """Return True if an operation over these dimensions leaves batch and channels alone."""
    return bool(dims) and all(isinstance(dim, int) and (dim if dim >= 0 else dim + rank) >= 2 for dim in dims)


def reads_other_sizes(node: fx.Node, rank: int | None, axes: Sequence[int] = (1,)) -> bool:
    """Return True if a node reads the shape of a tensor of this rank, but not its number of channels."""
    if node.op == "call_module":
        return False
    if node.target == "size" and len(node.args) > 1:
        return _skips_channels(node.args[1], rank, axes)
    if node.target == "size" or (node.target is getattr and node.args[1] == "shape"):
        return all(
            operation_name(user) == "getitem" and (_skips_channels(user.args[1], rank, axes) or not user.users)
            for user in node.users
        )
    return node.target == "dim" or (node.target is getattr and node.args[1] in ("dtype", "device", "ndim"))


def _skips_channels(index: object, rank: int | None, axes: Sequence[int] = (1,)) -> bool:
    """Return True if this part of a shape does not have the number of channels.

    >>> [_skips_channels(index, 4) for index in (0, 1, -1, -3, slice(2, None), slice(-2, None), slice(1, 3))]
    [True, False, True, False, True, True, False]
    """
    if rank is None:
        return index == 0
    return isinstance(index, (int, slice)) and not {*axes} & {*torch.arange(rank)[index].flatten().tolist()}
