r"""Which output channels of a network may go: found by following each layer's output through the graph.

Channel o of a convolution or linear layer is the filter ``weight[o]``. If the filter, its bias and the scale and shift
of a batch normalisation behind it are zero, the channel's output is zero, and it stays zero through rectifiers,
poolings and dropout. A layer's channels are *free* if all that reads them is such operations and then other layers'
weights: no sum with another branch ties them, as in the stream of a residual network, and they are not the network's
output.
"""

from __future__ import annotations

from collections import Counter
from typing import cast

from torch import Tensor, fx, nn

LAYERS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)
NORMALISATIONS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)

# Each maps zero to zero and a channel to the same channel, or flattens channels into features.
MODULES = (
    nn.Identity, nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Tanh,
    nn.Hardtanh, nn.Hardswish, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.MaxPool1d, nn.MaxPool2d,
    nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d,
    nn.AdaptiveAvgPool3d, nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d, nn.Flatten,
)  # fmt: skip
NAMES = {
    "relu", "relu_", "relu6", "leaky_relu", "elu", "selu", "gelu", "silu", "mish", "tanh", "hardtanh", "hardswish",
    "dropout", "dropout1d", "dropout2d", "dropout3d", "max_pool1d", "max_pool2d", "max_pool3d", "avg_pool1d",
    "avg_pool2d", "avg_pool3d", "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d",
    "adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d", "flatten", "contiguous",
}  # fmt: skip
SIZES = {"size", "dim"}  # these read a size, not the channels


def free_channel_layers(model: nn.Module) -> dict[str, str | None]:
    """The layers whose output channels are free, by the name of their weight, and the normalisation that follows.

    >>> model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10))
    >>> free_channel_layers(model)
    {'0.weight': '1'}

    Grouped and transposed convolutions, layers that are called twice or share their weight, and normalisations without
    scale and shift are left out, and so is what leads into an operation that is not known to keep channels apart.

    Raises:
        ValueError: If ``torch.fx`` cannot follow the model.
    """
    graph, modules = _trace(model), dict(model.named_modules())
    calls = Counter(str(node.target) for node in graph.nodes if node.op == "call_module")
    uses = Counter(id(parameter) for _, parameter in model.named_parameters(remove_duplicate=False))
    found: dict[str, str | None] = {}
    for node in graph.nodes:
        layer = _module(node, modules)
        if layer is None or not _is_plain(layer) or calls[node.target] > 1 or uses[id(layer.weight)] > 1:
            continue
        norms: list[str] = []
        if not _ends_in_layers(node, modules, norms, _rank(layer)) or len(norms) > 1:
            continue
        if all(calls[norm] == 1 and is_normalised_by(cast(Tensor, layer.weight), modules[norm]) for norm in norms):
            found[f"{node.target}.weight"] = norms[0] if norms else None
    return found


def is_normalised_by(weight: Tensor, module: nn.Module | None) -> bool:
    """Whether ``module`` is a batch normalisation with a scale and a shift for each channel of the filters."""
    return isinstance(module, NORMALISATIONS) and module.affine and len(module.weight) == len(weight)


def _trace(model: nn.Module) -> fx.Graph:
    try:
        return fx.symbolic_trace(model).graph
    except Exception as error:
        reason = (str(error) or type(error).__name__).splitlines()[0].rstrip(".")
        raise ValueError(
            "model must be one that torch.fx can trace, or followers must name the layers, as in "
            f"{{'conv1.weight': 'bn1'}}, but tracing stopped with {reason!r}."
        ) from error


def _module(node: fx.Node, modules: dict[str, nn.Module]) -> nn.Module | None:
    return modules.get(str(node.target)) if node.op == "call_module" else None


def _is_plain(module: nn.Module | None) -> bool:
    return isinstance(module, LAYERS) and getattr(module, "groups", 1) == 1


def _rank(layer: nn.Module) -> int | None:
    """Dimensions of a layer's output; a linear layer takes inputs of any number."""
    return None if isinstance(layer, nn.Linear) else cast(Tensor, layer.weight).ndim


def _ends_in_layers(node: fx.Node, modules: dict[str, nn.Module], norms: list[str], rank: int | None) -> bool:
    """Whether all paths from ``node`` lead through known operations into weights; notes normalisations on the way.

    ``rank`` is the number of dimensions where channels are dimension 1, as behind a convolution, and ``None`` where
    they need not be, as behind a linear layer.
    """
    if not node.users:
        return False
    for user in node.users:
        module = _module(user, modules)
        if module is not None and _is_plain(module):
            if rank not in (None, 2 if isinstance(module, nn.Linear) else _rank(module)):
                return False  # a linear layer over an image's width, or an image that is taken for a batch
            continue
        if _reads_a_size(user):
            continue
        if isinstance(module, NORMALISATIONS):
            norms.append(str(user.target))
        elif not (isinstance(module, MODULES) or _keeps_channels(user, rank is not None)):
            return False
        if rank is None and _mixes_features(user, module):
            return False
        if not _ends_in_layers(user, modules, norms, None if rank is None else _rank_behind(user, module, rank)):
            return False
    return True


def _mixes_features(node: fx.Node, module: nn.Module | None) -> bool:
    """Whether an operation that keeps the channels of an image flattens or pools the features of tokens."""
    name = type(module).__name__.lower() if module is not None else _name(node)
    return name in ("flatten", "view", "reshape") or "pool" in name


def _rank_behind(node: fx.Node, module: nn.Module | None, rank: int) -> int:
    """Dimensions of what an operation makes of a tensor of this rank."""
    if isinstance(module, nn.Flatten):
        return module.start_dim + 1
    name = "" if module is not None else _name(node)
    if name == "flatten":
        start = node.args[1] if len(node.args) > 1 else node.kwargs.get("start_dim", 0)
        return start + 1 if isinstance(start, int) else 0
    if name in ("view", "reshape"):
        return 2
    if name == "squeeze" or (name == "mean" and not (node.kwargs.get("keepdim") or True in node.args[2:])):
        return rank - len(_dims(node))
    if name == "getitem":
        where = cast(tuple[object, ...], node.args[1])
        return rank - sum(isinstance(index, int) for index in where)
    return rank


def _reads_a_size(node: fx.Node) -> bool:
    if node.op == "call_function" and node.target is getattr:
        return node.args[1] in ("shape", "ndim")
    return node.op == "call_method" and node.target in SIZES


def _keeps_channels(node: fx.Node, convolved: bool) -> bool:
    if node.op not in ("call_function", "call_method"):
        return False
    name = _name(node)
    if name in ("view", "reshape"):
        # To rows of features; the rows stay, since without them no batch would have its labels.
        shape = node.args[1] if isinstance(node.args[1], list | tuple) else node.args[1:]
        return len(shape) == 2 and isinstance(shape[1], int)
    if name == "mean":
        return _dims(node) in ({2, 3}, {-1, -2}) or (convolved and _dims(node) in ({2}, {3}))
    if name == "squeeze":
        return convolved and _dims(node) in ({2}, {3}, {-1}, {2, 3}, {-1, -2})
    if name == "getitem":
        where = node.args[1]
        return convolved and isinstance(where, tuple) and len(where) > 2 and where[:2] == (slice(None), slice(None))
    return name in NAMES


def _name(node: fx.Node) -> str:
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")


def _dims(node: fx.Node) -> set[object]:
    """The dimensions that an operation is told to work on."""
    given = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
    return set(given) if isinstance(given, list | tuple) else {given}
