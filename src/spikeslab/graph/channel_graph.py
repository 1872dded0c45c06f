"""Which channels of a network belong together, and which of them are constant.

Every tensor of the graph has its channels in dimension 1. Each channel is in a *slot*: operations that keep channels
apart (activations, pooling, batch normalisation, flattening) pass slots on, a sum of two branches ties the slots of
both, a convolution or linear layer begins new ones. A slot is kept or removed everywhere at once.

Beside its slot each channel has a value: the number that it holds at every place for every input, or NaN where it
depends on the input. A filter of zeros makes its channel constant, and every later operation maps the constant by being
applied to it.

An operation that is not listed here pins the slots that reach it: they stay, and a note says so.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _BatchNorm

from spikeslab.errors import quote
from spikeslab.graph.narrowable import (
    BATCH_NORMS,
    CONVS,
    Conv,
    batched,
    bias_of,
    kernel_nonzero,
    kernel_sums,
    pads_with_zeros,
    scale_and_shift,
)
from spikeslab.graph.operations import (
    AVERAGE_ARGUMENTS,
    AVERAGE_POOLS,
    ELEMENTWISE,
    ELEMENTWISE_MODULES,
    IDENTITIES,
    POOL_MODULES,
    POOLS,
    PRODUCTS,
    average_constants,
    behind_channels,
    finite_or_unknown,
    map_constants,
    operation_name,
    pools_behind_channels,
    product_constants,
    reads_other_sizes,
)
from spikeslab.graph.shift import Shift
from spikeslab.graph.slots import Slots
from spikeslab.graph.tracing import Traced, has_hooks


@dataclass(frozen=True)
class Channels:
    """The channels of one tensor.

    Attributes:
        slots: Slot of each.
        constants: Value of each, NaN where it depends on the input; in double precision.
    """

    slots: Tensor
    constants: Tensor


@dataclass(frozen=True)
class Layer:
    """A convolution or linear layer: every output channel sees every input channel."""

    name: str
    module: Conv | nn.Linear
    inputs: Channels
    outputs: Channels


@dataclass(frozen=True)
class PerChannel:
    """Batch normalisation, a shift or a depthwise convolution: an output channel sees its own input channel only."""

    name: str
    module: Conv | _BatchNorm | Shift
    slots: Tensor


@dataclass
class ChannelGraph:
    """What the graph of a network says about its channels; see the module's text.

    Attributes:
        layers: Layers that begin slots, in the order of execution.
        per_channel: Layers with parameters for each channel.
        channels: Channels of each tensor.
        slots: All slots, and which of them are tied or pinned.
    """

    traced: Traced
    layers: list[Layer] = field(default_factory=list)
    per_channel: list[PerChannel] = field(default_factory=list)
    channels: dict[fx.Node, Channels] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.slots = Slots()
        self._reasons: list[tuple[str, Tensor]] = []
        self._left: list[str] = []
        for node in self.traced.graph.nodes:
            self._visit(node)

    def notes(self) -> list[str]:
        """A sentence for each layer that stays, or whose outputs stay, whatever the weights are."""
        notes = list(dict.fromkeys(self._left))
        for reason, slots in self._reasons:
            roots = self.slots.roots(slots)
            names = [
                layer.name for layer in self.layers if torch.isin(self.slots.roots(layer.outputs.slots), roots).any()
            ]
            if names:
                notes.append(f"The outputs of {quote(names)} stay: {reason}.")
        return notes

    def _pin(self, nodes: Sequence[fx.Node]) -> None:
        for node in nodes:
            if node in self.channels:
                self.slots.pin(self.channels[node].slots)

    def _visit(self, node: fx.Node) -> None:
        shape = self.traced.shapes.get(node)
        if node.op == "output":
            self._pin(node.all_input_nodes)
        elif node.op == "placeholder":
            if shape is not None and len(shape) >= 2:
                self.channels[node] = self._begin(shape[1])
                self._pin([node])
        elif node.op != "get_attr":
            result = self._apply(node, shape) if shape is not None and len(shape) >= 2 else None
            if result is not None and shape is not None and len(result.slots) != shape[1]:
                result = None
            if result is None and not (shape is None and self._reads_other_sizes(node)):
                self._leave(node, shape)
            elif result is not None:
                self.channels[node] = result
        for stale in self.traced.overwritten.get(node, []):
            if stale in self.channels:
                self._pin([stale])
                slots = self.channels[stale].slots
                self._reasons.append((f"the operation '{node.name}' overwrites them and they are read again", slots))
                self.channels[stale] = Channels(slots, torch.full(slots.shape, math.nan, dtype=torch.float64))

    def _reads_other_sizes(self, node: fx.Node) -> bool:
        """Whether a node that gives no tensor reads a size, but not the number of channels."""
        source = next(iter(node.all_input_nodes), None)
        return source in self.channels and reads_other_sizes(node, len(self.traced.shapes[source]))

    def _begin(self, count: int) -> Channels:
        return Channels(self.slots.fresh(count), torch.full((count,), math.nan, dtype=torch.float64))

    def _leave(self, node: fx.Node, shape: tuple[int, ...] | None) -> None:
        sources = [source for source in node.all_input_nodes if source in self.channels]
        module = self.traced.module(node)
        what = f"'{node.target}' ({type(module).__name__})" if module else f"the operation '{node.name}'"
        reads_sizes = node.target in ("size", getattr)
        reason = (
            f"{what} reads how many there are" if reads_sizes else f"they reach {what}, which compact cannot handle"
        )
        self._reasons.extend((reason, self.channels[source].slots) for source in sources)
        self._pin(sources)
        if isinstance(module, (*CONVS, nn.Linear)):
            self._left.append(f"{what} stays: it is shared, grouped, parametrized or not batched, or it has hooks.")
        if shape is not None and len(shape) >= 2:
            self.channels[node] = self._begin(shape[1])
            self._pin([node])

    def _apply(self, node: fx.Node, shape: tuple[int, ...]) -> Channels | None:
        """Channels of the result of a known operation; ``None`` for any other."""
        sources = [self.channels[source] for source in node.all_input_nodes if source in self.channels]
        if not sources:
            return None
        module = self.traced.module(node)
        if module is not None:
            return self._module(node, module, sources[0], shape) if len(node.all_input_nodes) == 1 else None
        return self._function(node, operation_name(node), sources[0], shape)

    def _module(self, node: fx.Node, module: nn.Module, source: Channels, shape: tuple[int, ...]) -> Channels | None:
        kind = type(module)
        if has_hooks(module):
            return None
        if kind in (*CONVS, nn.Linear) and self.traced.owned(node):
            assert isinstance(module, (*CONVS, nn.Linear))
            return self._layer(str(node.target), module, source) if batched(module, shape) else None
        if kind in BATCH_NORMS and self.traced.owned(node):
            assert isinstance(module, _BatchNorm)
            if module.running_mean is None:
                return None
            scale, shift = (part.cpu() for part in scale_and_shift(module))
            self.per_channel.append(PerChannel(str(node.target), module, source.slots))
            constants = torch.where(scale == 0, shift, scale * source.constants + shift)
            return Channels(source.slots, finite_or_unknown(constants))
        if isinstance(module, Shift) and self.traced.owned(node):
            self.per_channel.append(PerChannel(str(node.target), module, source.slots))
            return Channels(source.slots, source.constants + module.bias.detach().cpu().double())
        if kind in ELEMENTWISE_MODULES:
            return Channels(source.slots, map_constants(copy.deepcopy(module).double(), source.constants))
        if kind in IDENTITIES or (kind in POOL_MODULES and pools_behind_channels(kind.__name__, len(shape))):
            return source
        if kind in AVERAGE_POOLS and pools_behind_channels(kind.__name__, len(shape)):
            settings = {key: getattr(module, key, None) for key in AVERAGE_ARGUMENTS}
            return Channels(source.slots, average_constants(source.constants, settings))
        if isinstance(module, nn.Flatten) and module.end_dim in (-1, len(self._shape(node)) - 1):
            return self._flatten(node, source, module.start_dim)
        return None

    def _layer(self, name: str, module: Conv | nn.Linear, source: Channels) -> Channels | None:
        weight = module.weight
        nonzero, sums, bias = (part.cpu() for part in (kernel_nonzero(weight), kernel_sums(weight), bias_of(module)))
        varies = source.constants.isnan() | ((source.constants != 0) & pads_with_zeros(module))
        if isinstance(module, nn.Linear) or module.groups == 1:
            values = bias + sums @ source.constants.nan_to_num(0.0)
            constants = values.masked_fill((nonzero & varies).any(1), math.nan)
            outputs = Channels(self.slots.fresh(len(bias)), finite_or_unknown(constants))
            self.layers.append(Layer(name, module, source, outputs))
            return outputs
        if module.groups != module.in_channels:
            return None
        inputs = Channels(
            *(part.repeat_interleave(len(bias) // module.groups) for part in (source.slots, source.constants))
        )
        values = bias + sums[:, 0] * inputs.constants.nan_to_num(0.0)
        varies = varies.repeat_interleave(len(bias) // module.groups)
        self.per_channel.append(PerChannel(name, module, inputs.slots))
        return Channels(inputs.slots, finite_or_unknown(values.masked_fill(nonzero[:, 0] & varies, math.nan)))

    def _function(self, node: fx.Node, name: str, source: Channels, shape: tuple[int, ...]) -> Channels | None:
        if name in ELEMENTWISE:
            return self._elementwise(node, shape)
        if name in ("cat", "concat"):
            return self._concatenation(node)
        if node.args[:1] != (node.all_input_nodes[0],) or node.all_input_nodes[0] not in self.channels:
            return None
        rest = node.args[1:]
        before = self._shape(node)
        if name == "interpolate" or (name in POOLS and pools_behind_channels(name, len(before))):
            return source
        if name in ("avg_pool1d", "avg_pool2d", "avg_pool3d") and pools_behind_channels(name, len(before)):
            settings = {**dict(zip(AVERAGE_ARGUMENTS, rest, strict=False)), **node.kwargs}
            return Channels(source.slots, average_constants(source.constants, settings))
        if name == "flatten":
            settings = {"start_dim": 0, "end_dim": -1, **dict(zip(("start_dim", "end_dim"), rest, strict=False))}
            start, end = ({**settings, **node.kwargs}[key] for key in ("start_dim", "end_dim"))
            return self._flatten(node, source, start) if end in (-1, len(before) - 1) else None
        if name in ("mean", "amax", "amin", "squeeze"):
            dims = node.kwargs.get("dim", rest[0] if rest else None)
            return source if behind_channels(dims, len(before)) else None
        if name == "unsqueeze":
            return source if behind_channels(node.kwargs.get("dim", rest[0] if rest else None), len(shape)) else None
        if name == "getitem":
            index = rest[0]
            whole = isinstance(index, tuple) and len(index) >= 2 and index[:2] == (slice(None), slice(None))
            return source if whole else None
        if name.startswith(("dropout", "alpha_dropout", "feature_alpha_dropout")):
            training = node.kwargs.get("training", rest[1] if len(rest) > 1 else True)
            return source if training is False else None
        return None

    def _shape(self, node: fx.Node) -> tuple[int, ...]:
        return self.traced.shapes[node.all_input_nodes[0]]

    def _flatten(self, node: fx.Node, source: Channels, start: object) -> Channels | None:
        if start == 1:
            places = math.prod(self._shape(node)[2:])
            return Channels(*(part.repeat_interleave(places) for part in (source.slots, source.constants)))
        return source if isinstance(start, int) and start >= 2 else None

    def _elementwise(self, node: fx.Node, shape: tuple[int, ...]) -> Channels | None:
        """Sums tie the channels of both sides; a side that is not a tensor with channels must be a number."""
        tensors = [source for source in node.all_input_nodes if source in self.channels]
        scalars = {source: self._scalar(source) for source in node.all_input_nodes if source not in self.channels}
        if any(value is None for value in scalars.values()):
            return None
        for source in tensors:
            other = self.traced.shapes[source]
            if len(other) != len(shape) or other[1] != shape[1]:
                return None
        first, *rest = (self.channels[source] for source in tensors)
        for channels in rest:
            self.slots.tie(first.slots, channels.slots)

        def call(*constants: Tensor) -> Tensor:
            values: dict[fx.Node, Any] = {**scalars, **dict(zip(tensors, constants, strict=True))}
            args = fx.node.map_arg(node.args, values.__getitem__)
            kwargs = fx.node.map_arg(node.kwargs, values.__getitem__)
            if node.op == "call_method":
                return getattr(args[0], str(node.target))(*args[1:], **kwargs)  # type: ignore[no-any-return]
            assert callable(node.target)
            return node.target(*args, **kwargs)  # type: ignore[no-any-return]

        constants = [self.channels[source].constants for source in tensors]
        results = map_constants(call, *constants)
        if operation_name(node) in PRODUCTS:
            results = product_constants(results, constants)
        return Channels(first.slots, results)

    def _scalar(self, node: fx.Node) -> Tensor | None:
        """A parameter or buffer with one entry; what depends on the input has no fixed value."""
        if node.op != "get_attr":
            return None
        owner, _, name = str(node.target).rpartition(".")
        value = getattr(self.traced.model.get_submodule(owner), name)
        return value.detach().cpu().double().reshape(()) if isinstance(value, Tensor) and value.numel() == 1 else None

    def _concatenation(self, node: fx.Node) -> Channels | None:
        given = {**dict(zip(("tensors", "dim"), node.args, strict=False)), **node.kwargs}
        parts, dim = given["tensors"], given.get("dim", given.get("axis", 0))
        dims = len(self._shape(node))
        if dim not in (1, 1 - dims) or not isinstance(parts, (list, tuple)):
            return None
        sources = [self.channels.get(part) for part in parts if isinstance(part, fx.Node)]
        if len(sources) != len(parts) or any(source is None for source in sources):
            return None
        return Channels(
            torch.cat([source.slots for source in sources if source]),
            torch.cat([source.constants for source in sources if source]),
        )
