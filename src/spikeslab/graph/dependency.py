"""Dependency graph of channels: which of them belong together, and which are constant.

Every tensor of the graph has its channels in dimension 1, and each channel is in a *group*. Operations that keep
channels apart (activations, pooling, batch normalisation, flattening) pass groups on, a sum of two branches merges the
groups of both, a convolution or linear layer begins new ones. The channels of a group are kept or removed together.

A channel also has a constant: the number that it holds at every place for every input, or NaN if it depends on the
input. A filter of zeros makes its channel constant, and every later operation maps the constant.

An operation that is not in the table of :mod:`~spikeslab.graph.operations` pins the groups that reach it: they stay,
and a note says so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _BatchNorm

from spikeslab.errors import quote
from spikeslab.graph.layers import (
    BATCH_NORMS,
    LAYERS,
    ChannelBias,
    Conv,
    get_bias,
    is_batched,
    kernel_nonzero,
    kernel_sums,
    pads_with_zeros,
    scale_and_shift,
)
from spikeslab.graph.operations import find_effect, infinite_to_nan, operation_name, reads_other_sizes
from spikeslab.graph.tracing import TracedModel


class ChannelGroups:
    """Groups of channels as a forest of channels (union-find with path halving).

    >>> groups = ChannelGroups()
    >>> first, second = groups.add(2), groups.add(2)
    >>> groups.merge(first, second)
    >>> groups.pin(first[:1])
    >>> groups.find_pinned().tolist()
    [True, False, True, False]
    """

    def __init__(self) -> None:
        self._parents: list[int] = []
        self._pinned: list[Tensor] = []

    def __len__(self) -> int:
        return len(self._parents)

    def add(self, count: int) -> Tensor:
        """Add channels, each in a group of its own, and return their numbers."""
        added = torch.arange(len(self), len(self) + count)
        self._parents.extend(added.tolist())
        return added

    def merge(self, first: Tensor, second: Tensor) -> None:
        """Merge the group of each channel with that of its counterpart."""
        for a, b in zip(first.tolist(), second.tolist(), strict=True):
            self._parents[self._root(a)] = self._root(b)

    def pin(self, channels: Tensor) -> None:
        """Mark channels that stay, whatever the weights are."""
        self._pinned.append(channels)

    def find_roots(self, channels: Tensor | None = None) -> Tensor:
        """Return one representative of the group of each channel; by default of all channels."""
        numbers = range(len(self)) if channels is None else channels.tolist()
        return torch.tensor([self._root(number) for number in numbers], dtype=torch.long)

    def find_pinned(self) -> Tensor:
        """Return for every channel True if one of its group is pinned."""
        pinned = torch.zeros(len(self), dtype=torch.bool)
        for channels in self._pinned:
            pinned[self.find_roots(channels)] = True
        return pinned[self.find_roots()]

    def _root(self, channel: int) -> int:
        while self._parents[channel] != channel:
            self._parents[channel] = self._parents[self._parents[channel]]
            channel = self._parents[channel]
        return channel


class Channels(NamedTuple):
    """Channels of one tensor.

    Attributes:
        numbers: Number of each channel in the :class:`ChannelGroups`.
        constants: Constant of each channel.
    """

    numbers: Tensor
    constants: Tensor

    def repeat(self, times: int) -> Channels:
        """Return the channels with each of them repeated."""
        return Channels(*(part.repeat_interleave(times) for part in self))


@dataclass(frozen=True)
class MixingLayer:
    """Convolution or linear layer in which every output channel sees every input channel."""

    name: str
    module: Conv | nn.Linear
    inputs: Channels
    outputs: Channels


@dataclass(frozen=True)
class ChannelwiseLayer:
    """Batch normalisation, channel bias or depthwise convolution: an output channel sees its own input channel only."""

    module: Conv | _BatchNorm | ChannelBias
    numbers: Tensor


@dataclass
class DependencyGraph:
    """Channels of a traced network.

    Attributes:
        traced: The network, traced with an example.
        layers: Layers that begin groups, in the order of execution.
        channelwise: Layers with parameters for each channel.
        channels: Channels of each tensor.
        groups: Groups of all channels.
    """

    traced: TracedModel
    layers: list[MixingLayer] = field(default_factory=list)
    channelwise: list[ChannelwiseLayer] = field(default_factory=list)
    channels: dict[fx.Node, Channels] = field(default_factory=dict)
    groups: ChannelGroups = field(default_factory=ChannelGroups)

    def __post_init__(self) -> None:
        self._reasons: list[tuple[str, Tensor]] = []
        self._left: list[str] = []
        for node in self.traced.graph.nodes:
            self._visit(node)

    def notes(self) -> list[str]:
        """Return a sentence for each layer that stays, or whose outputs stay, whatever the weights are."""
        notes = list(dict.fromkeys(self._left))
        for reason, numbers in self._reasons:
            roots = self.groups.find_roots(numbers)
            names = [
                layer.name
                for layer in self.layers
                if torch.isin(self.groups.find_roots(layer.outputs.numbers), roots).any()
            ]
            if names:
                notes.append(f"The outputs of {quote(names)} stay: {reason}.")
        return notes

    def _visit(self, node: fx.Node) -> None:
        shape = self.traced.shapes.get(node, ())
        if node.op == "output":
            self._pin(node.all_input_nodes)
        elif node.op == "placeholder":
            self._begin_pinned(node, shape)
        elif node.op != "get_attr":
            result = self._apply(node, shape) if len(shape) >= 2 else None
            if result is not None and len(result.numbers) == shape[1]:
                self.channels[node] = result
            elif node in self.traced.shapes or not self._reads_other_sizes(node):
                self._leave(node, shape)
        for stale in self.traced.overwritten.get(node, []):
            if stale in self.channels:
                self._pin([stale])
                numbers = self.channels[stale].numbers
                self._reasons.append((f"the operation '{node.name}' overwrites them and they are read again", numbers))
                self.channels[stale] = _without_constants(numbers)

    def _pin(self, nodes: Sequence[fx.Node]) -> None:
        for node in nodes:
            if node in self.channels:
                self.groups.pin(self.channels[node].numbers)

    def _begin_pinned(self, node: fx.Node, shape: tuple[int, ...]) -> None:
        if len(shape) >= 2:
            self.channels[node] = _without_constants(self.groups.add(shape[1]))
            self._pin([node])

    def _reads_other_sizes(self, node: fx.Node) -> bool:
        """Return True if a node that gives no tensor reads a size, but not the number of channels."""
        source = next(iter(node.all_input_nodes), None)
        return source in self.channels and reads_other_sizes(node, len(self.traced.shapes[source]))

    def _leave(self, node: fx.Node, shape: tuple[int, ...]) -> None:
        """Pin the channels that an unknown operation reads, and begin new ones."""
        sources = [source for source in node.all_input_nodes if source in self.channels]
        module = self.traced.module(node)
        what = f"'{node.target}' ({type(module).__name__})" if module else f"the operation '{node.name}'"
        reads_sizes = node.target in ("size", getattr)
        reason = (
            f"{what} reads how many there are" if reads_sizes else f"they reach {what}, which compact cannot handle"
        )
        self._reasons.extend((reason, self.channels[source].numbers) for source in sources)
        self._pin(sources)
        if isinstance(module, LAYERS):
            self._left.append(f"{what} stays: it is shared, grouped, parametrized or not batched, or it has hooks.")
        self._begin_pinned(node, shape)

    def _apply(self, node: fx.Node, shape: tuple[int, ...]) -> Channels | None:
        """Return the channels of the result of a known operation; ``None`` for any other."""
        tensors = [source for source in node.all_input_nodes if source in self.channels]
        if not tensors:
            return None
        source, module = self.channels[tensors[0]], self.traced.module(node)
        if module is not None and self.traced.is_owned(node) and len(node.all_input_nodes) == 1:
            if type(module) in LAYERS:
                assert isinstance(module, LAYERS)
                return self._apply_layer(str(node.target), module, source) if is_batched(module, shape) else None
            if type(module) in (*BATCH_NORMS, ChannelBias):
                assert isinstance(module, (_BatchNorm, ChannelBias))
                return self._apply_channelwise(module, source)
        if module is None and operation_name(node) in ("cat", "concat"):
            return self._concatenate(node)
        before = self.traced.shapes[tensors[0]]
        effect = find_effect(self.traced, node, tensors, len(before))
        if effect is None or effect.rank != len(shape):
            return None
        operands = tensors if effect.combines else tensors[:1]
        for other in operands[1:]:
            if len(self.traced.shapes[other]) != len(shape) or self.traced.shapes[other][1] != before[1]:
                return None
        for other in operands[1:]:
            self.groups.merge(source.numbers, self.channels[other].numbers)
        result = Channels(source.numbers, effect.map_constants(*(self.channels[node].constants for node in operands)))
        return result.repeat(math.prod(before[2:])) if effect.flattens else result

    def _apply_layer(self, name: str, module: Conv | nn.Linear, source: Channels) -> Channels | None:
        weight = module.weight
        nonzero, sums, bias = (part.cpu() for part in (kernel_nonzero(weight), kernel_sums(weight), get_bias(module)))
        varies = source.constants.isnan() | ((source.constants != 0) & pads_with_zeros(module))
        if isinstance(module, nn.Linear) or module.groups == 1:
            values = bias + sums @ source.constants.nan_to_num(0.0)
            constants = values.masked_fill((nonzero & varies).any(1), math.nan)
            outputs = Channels(self.groups.add(len(bias)), infinite_to_nan(constants))
            self.layers.append(MixingLayer(name, module, source, outputs))
            return outputs
        if module.groups != module.in_channels:
            return None
        multiplier = len(bias) // module.groups
        inputs = source.repeat(multiplier)
        values = bias + sums[:, 0] * inputs.constants.nan_to_num(0.0)
        constants = values.masked_fill(nonzero[:, 0] & varies.repeat_interleave(multiplier), math.nan)
        self.channelwise.append(ChannelwiseLayer(module, inputs.numbers))
        return Channels(inputs.numbers, infinite_to_nan(constants))

    def _apply_channelwise(self, module: _BatchNorm | ChannelBias, source: Channels) -> Channels | None:
        if isinstance(module, ChannelBias):
            constants = source.constants + module.bias.detach().cpu().double()
        elif module.running_mean is None:
            return None
        else:
            scale, shift = (part.cpu() for part in scale_and_shift(module))
            constants = infinite_to_nan(torch.where(scale == 0, shift, scale * source.constants + shift))
        self.channelwise.append(ChannelwiseLayer(module, source.numbers))
        return Channels(source.numbers, constants)

    def _concatenate(self, node: fx.Node) -> Channels | None:
        given = {**dict(zip(("tensors", "dim"), node.args, strict=False)), **node.kwargs}
        parts, dim = given["tensors"], given.get("dim", given.get("axis", 0))
        dims = len(self.traced.shapes[node])
        if dim not in (1, 1 - dims) or not isinstance(parts, (list, tuple)):
            return None
        if not all(isinstance(part, fx.Node) and part in self.channels for part in parts):
            return None
        return Channels(*map(torch.cat, zip(*(self.channels[part] for part in parts), strict=True)))


def _without_constants(numbers: Tensor) -> Channels:
    return Channels(numbers, torch.full(numbers.shape, math.nan, dtype=torch.float64))
