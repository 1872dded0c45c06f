"""Dependency graph of channels: which of them belong together, and which are constant.

The channels of a tensor lie along one or more of its dimensions, and each is in a *group*. Operations that keep
channels apart (activations, pooling, batch normalisation) pass groups on, those that move entries take the numbers
along (:mod:`~spikeslab.graph.moves`), a sum or product of two branches merges the groups of both, a convolution or
linear layer begins new ones. The channels of a group are kept or removed together.

Attention ties the channels of a head: what is multiplied and summed over goes with the head that it belongs to. A
convolution in groups ties the inputs and outputs of each group.

A channel also has a constant: the number that it holds at every place for every input, or NaN if it depends on the
input. A filter of zeros makes its channel constant, and every later operation maps the constant.

A tensor that cannot lose entries, such as the input, has no channels here. An operation that is not known pins the
groups that reach it: they stay, and a note says so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _BatchNorm

from spikeslab.errors import quote
from spikeslab.graph.attention import can_lose_heads, head_values
from spikeslab.graph.channel_groups import ChannelGroups, Factor, contract
from spikeslab.graph.layers import (
    BATCH_NORMS,
    CONVS,
    LAYERS,
    ChannelBias,
    Conv,
    find_channel_axis,
    get_bias,
    kernel_nonzero,
    kernel_sums,
    mixes_channels,
    pads_with_zeros,
    scale_and_shift,
    weight_by_outputs,
)
from spikeslab.graph.moves import MOVES, ChannelLayout, as_rows, fixed_axes, is_plain, move
from spikeslab.graph.operations import (
    ELEMENTWISE,
    ELEMENTWISE_MODULES,
    find_effect,
    find_reduced_dims,
    infinite_to_nan,
    operation_name,
    product_letters,
    reads_other_sizes,
)
from spikeslab.graph.recurrent import can_lose_units, zero_units
from spikeslab.graph.tracing import TracedModel


class Channels(NamedTuple):
    """Channels that a layer reads or writes.

    Attributes:
        numbers: Number of each channel in the :class:`ChannelGroups`.
        constants: Constant of each channel.
    """

    numbers: Tensor
    constants: Tensor


Layouts: TypeAlias = ChannelLayout | tuple[Any, ...] | None
"""ChannelLayout of a tensor, or of each of several; ``None`` for one that has no channels."""


@dataclass(frozen=True)
class MixingLayer:
    """Convolution or linear layer in which every output channel sees every input channel."""

    name: str
    module: Conv | nn.Linear
    inputs: Channels
    outputs: Channels


@dataclass(frozen=True)
class ChannelwiseLayer:
    """Layer in which an output channel sees the input channels of its own group only.

    Batch normalisation, a channel bias, a convolution in groups, or attention, whose channels are its heads.
    """

    name: str
    module: Conv | _BatchNorm | ChannelBias | nn.MultiheadAttention
    numbers: Tensor


@dataclass(frozen=True)
class RecurrentLayer:
    """Recurrent layer, whose units are those of all of its layers and directions."""

    name: str
    module: nn.RNNBase
    inputs: Channels
    outputs: Channels


@dataclass
class DependencyGraph:
    """Channels of a traced network.

    Attributes:
        traced: The network, traced with an example.
        assume_dead: If True, every layer that may lose its outputs is taken to write zeros.
        layers: Layers that begin groups, in the order of execution.
        channelwise: Layers with parameters for each channel.
        recurrent: Recurrent layers, which begin groups too.
        layouts: Channels of each tensor that has some.
        groups: Groups of all channels.
    """

    traced: TracedModel
    assume_dead: bool = False
    layers: list[MixingLayer] = field(default_factory=list)
    channelwise: list[ChannelwiseLayer] = field(default_factory=list)
    recurrent: list[RecurrentLayer] = field(default_factory=list)
    layouts: dict[fx.Node, Layouts] = field(default_factory=dict)
    groups: ChannelGroups = field(default_factory=ChannelGroups)

    def __post_init__(self) -> None:
        self._reasons: list[tuple[str, Tensor]] = []
        self._left: list[str] = []
        for node in self.traced.graph.nodes:
            self._visit(node)
        self._make_rectangular()

    def notes(self) -> list[str]:
        """Return a sentence for each layer that stays, or whose outputs stay, whatever the weights are."""
        notes, told, named = list(dict.fromkeys(self._left)), dict[str, list[str]](), set[str]()
        for reason, numbers in self._reasons:
            roots = self.groups.find_roots(numbers)
            names = [
                layer.name
                for layer in self.readers
                if torch.isin(self.groups.find_roots(layer.outputs.numbers), roots).any()
            ]  # one reason for each layer is enough
            told.setdefault(reason, []).extend(name for name in names if name not in named)
            named.update(names)
        return notes + [f"The outputs of {quote(names)} stay: {reason}." for reason, names in told.items() if names]

    @property
    def readers(self) -> list[MixingLayer | RecurrentLayer]:
        """Layers that read channels and begin groups of their own."""
        return [*self.layers, *self.recurrent]

    def layout(self, node: fx.Node) -> ChannelLayout | None:
        """Return the channels of a node, if it is a tensor that has some."""
        found = self.layouts.get(node)
        return found if isinstance(found, ChannelLayout) else None

    def constants_along(self, node: fx.Node, axis: int) -> Tensor | None:
        """Return the constants of a tensor whose channels lie along one dimension, ``None`` if they do not."""
        layout = self.layout(node)
        return layout.constants if layout is not None and layout.axes == (axis,) else None

    def _visit(self, node: fx.Node) -> None:
        sources = [source for source in node.all_input_nodes if self.layouts.get(source) is not None]
        if node.op == "output":
            self._pin(sources)
        elif node.op not in ("placeholder", "get_attr"):
            known = self._apply(node, sources)
            if known is False:
                if node in self.traced.shapes or not self._reads_other_sizes(node):
                    self._leave(node, sources)
            else:
                self.layouts[node] = known
        for stale in self.traced.overwritten.get(node, []):
            if (layout := self.layout(stale)) is not None:
                self._pin([stale])
                self._reasons.append(
                    (f"the operation '{node.name}' overwrites them and they are read again", layout.numbers)
                )
                self.layouts[stale] = layout._replace(constants=torch.full_like(layout.constants, math.nan))

    def _pin(self, nodes: Sequence[fx.Node]) -> None:
        for node in nodes:
            for layout in _parts(self.layouts.get(node)):
                self.groups.pin(layout.numbers)

    def _reads_other_sizes(self, node: fx.Node) -> bool:
        """Return True if a node that gives no tensor reads a size, but not the number of channels."""
        source = next(iter(node.all_input_nodes), None)
        layout = None if source is None else self.layout(source)
        if source is None or layout is None:
            return True
        return reads_other_sizes(node, len(self.traced.shapes[source]), layout.axes)

    def _leave(self, node: fx.Node, sources: Sequence[fx.Node]) -> None:
        """Pin the channels that an unknown operation reads."""
        module = self.traced.module(node)
        what = f"'{node.target}' ({type(module).__name__})" if module else f"the operation '{node.name}'"
        reads_sizes = node.target in ("size", getattr)
        reason = (
            f"{what} reads how many there are" if reads_sizes else f"they reach {what}, which compact cannot handle"
        )
        self.keep(sources, reason)
        if isinstance(module, LAYERS) or mixes_channels(module):
            self._left.append(f"{what} stays: it is shared, grouped, parametrized or not batched, or it has hooks.")

    def keep(self, nodes: Sequence[fx.Node], reason: str) -> None:
        """Pin the channels of nodes for a reason."""
        self._pin(nodes)
        self._reasons.extend((reason, layout.numbers) for node in nodes for layout in _parts(self.layouts.get(node)))

    def _apply(self, node: fx.Node, sources: list[fx.Node]) -> Layouts | Literal[False]:
        """Return the channels of the result of a known operation, ``None`` if it has none, False for an unknown one."""
        module = self.traced.module(node)
        if mixes_channels(module) or isinstance(module, (nn.MultiheadAttention, nn.RNNBase)):
            return self._apply_layer(node, module)
        if not sources:
            return None
        if type(module) in (*BATCH_NORMS, ChannelBias):
            assert isinstance(module, (_BatchNorm, ChannelBias))
            return self._apply_channelwise(node, module)
        name = operation_name(node)
        if name in ELEMENTWISE or type(module) in ELEMENTWISE_MODULES:
            return self._combine(node)
        if (letters := product_letters(node, self.traced.shapes)) is not None:
            return self._multiply(node, letters)
        if name == "scaled_dot_product_attention":
            return self._attend(node)
        if name in ("cat", "concat"):
            return self._concatenate(node)
        if name in MOVES or isinstance(module, (nn.Flatten, nn.Unflatten)):
            return self._move(node)
        if len(sources) != 1 or (layout := self.layout(sources[0])) is None:
            return False
        return self._reduce(node, sources[0], layout)

    def _apply_layer(self, node: fx.Node, module: nn.Module | None) -> Layouts | Literal[False]:
        if not self.traced.is_owned(node):
            return False
        if isinstance(module, nn.MultiheadAttention):
            return self._apply_attention(node, module)
        if isinstance(module, nn.RNNBase):
            return self._apply_recurrent(node, module)
        shape = self.traced.shapes[node]
        axis = find_channel_axis(module, shape) if module is not None else None
        if axis is None or len(node.all_input_nodes) != 1:
            return False
        (source,) = node.all_input_nodes
        inputs = self._read(source, axis)
        if inputs is None:
            return False
        return ChannelLayout(*self._write(str(node.target), module, inputs), (axis,))

    def _read(self, node: fx.Node, axis: int) -> Channels | None:
        """Return the channels of a tensor along one dimension; ``None`` if they lie along others."""
        size, layout = self.traced.shapes[node][axis], self.layout(node)
        if layout is None:
            numbers = self.groups.add(size)
            self.groups.pin(numbers)
            return Channels(numbers, torch.full((size,), math.nan, dtype=torch.float64))
        if layout.axes not in ((), (axis,)):
            return None
        return Channels(*(part.expand(size) for part in (layout.numbers, layout.constants)))

    def _write(self, name: str, module: Any, inputs: Channels) -> Channels:
        """Return the outputs of a convolution or linear layer."""
        weight = weight_by_outputs(module)
        nonzero, sums, bias = (part.cpu() for part in (kernel_nonzero(weight), kernel_sums(weight), get_bias(module)))
        groups = module.groups if isinstance(module, CONVS) else 1
        varies = inputs.constants.isnan() | ((inputs.constants != 0) & pads_with_zeros(module))
        values = torch.einsum(
            "goi,gi->go", sums.unflatten(0, (groups, -1)), inputs.constants.nan_to_num(0.0).view(groups, -1)
        )
        reads = (nonzero.unflatten(0, (groups, -1)) & varies.view(groups, 1, -1)).any(2).flatten()
        constants = infinite_to_nan((bias + values.flatten()).masked_fill(reads, math.nan))
        if self.assume_dead:
            constants = torch.zeros_like(constants)
        if groups == 1:
            outputs = Channels(self.groups.add(len(bias)), constants)
            self.layers.append(MixingLayer(name, module, inputs, outputs))
            return outputs
        tied = inputs.numbers.view(groups, -1)
        self.groups.tie(tied)
        numbers = tied[:, :1].expand(-1, len(bias) // groups).flatten()
        self.channelwise.append(ChannelwiseLayer(name, module, numbers))
        return Channels(numbers, constants)

    def _apply_channelwise(self, node: fx.Node, module: _BatchNorm | ChannelBias) -> Layouts | Literal[False]:
        (source,) = node.all_input_nodes
        axis = 1 if isinstance(module, _BatchNorm) else len(self.traced.shapes[source]) - module.from_end
        if not self.traced.is_owned(node) or (read := self._read(source, axis)) is None:
            return False
        if isinstance(module, ChannelBias):
            constants = read.constants + module.bias.detach().cpu().double()
        elif module.running_mean is None:
            return False
        else:
            scale, shift = (part.cpu() for part in scale_and_shift(module))
            constants = infinite_to_nan(torch.where(scale == 0, shift, scale * read.constants + shift))
        if self.assume_dead:
            constants = torch.zeros_like(constants)
        self.channelwise.append(ChannelwiseLayer(str(node.target), module, read.numbers))
        return ChannelLayout(read.numbers, constants, (axis,))

    def _apply_attention(self, node: fx.Node, module: nn.MultiheadAttention) -> Layouts | Literal[False]:
        reads_weights = any(user.args[1:] != (0,) or operation_name(user) != "getitem" for user in node.users)
        mask = node.args[5] if len(node.args) > 5 else node.kwargs.get("attn_mask")
        for_each_head = isinstance(mask, fx.Node) and len(self.traced.shapes.get(mask, ())) > 2
        if reads_weights or for_each_head or not can_lose_heads(module):
            return False
        self.keep(
            [source for source in node.all_input_nodes if self.layouts.get(source) is not None],
            f"they reach '{node.target}' ({type(module).__name__}), which compact cannot handle",
        )
        numbers = self.groups.add(module.num_heads)
        constants = torch.zeros(module.num_heads, dtype=torch.float64)
        if not self.assume_dead:
            constants.masked_fill_((head_values(module) != 0).any(1), math.nan)
        self.channelwise.append(ChannelwiseLayer(str(node.target), module, numbers))
        inputs = Channels(*(part.repeat_interleave(module.head_dim) for part in (numbers, constants)))
        axis = len(self.traced.shapes[node.all_input_nodes[0]]) - 1
        return ChannelLayout(*self._write(f"{node.target}.out_proj", module.out_proj, inputs), (axis,)), None

    def _apply_recurrent(self, node: fx.Node, module: nn.RNNBase) -> Layouts | Literal[False]:
        source = node.all_input_nodes[0]
        batched = len(self.traced.shapes[source]) == 3
        if not can_lose_units(module) or len(node.all_input_nodes) != 1 or not batched:  # it begins at zero
            return False
        inputs = self._read(source, 2)
        if inputs is None:
            return False
        numbers = self.groups.add(module.hidden_size)
        zero = zero_units(module) | self.assume_dead
        constants = torch.where(zero, 0.0, math.nan).double()
        self.recurrent.append(RecurrentLayer(str(node.target), module, inputs, Channels(numbers, constants)))
        output = Channels(*(part.repeat(2 if module.bidirectional else 1) for part in (numbers, constants)))
        state = ChannelLayout(numbers, constants, (2,))
        states = (state, state) if isinstance(module, nn.LSTM) else state
        return ChannelLayout(*output, (2,)), states

    def _combine(self, node: fx.Node) -> Layouts | Literal[False]:
        """Return the channels of a function of every entry, which merges those of its tensors."""
        shape = self.traced.shapes.get(node)
        operands = [
            source
            for source in node.all_input_nodes
            if source in self.traced.shapes and self.traced.scalar(source) is None
        ]
        effect = None if shape is None else find_effect(self.traced, node, operands, len(shape))
        if effect is None or shape is None:
            return False
        layouts = [self._align(operand, shape) for operand in operands]
        axes = tuple(sorted({axis for layout in layouts if layout is not None for axis in layout.axes}))
        fixed = self._find_fixed(operands, layouts, axes, shape)
        if fixed and fixed >= set(axes):
            self.keep(
                [other for other in operands if self.layouts.get(other) is not None],
                f"they meet a tensor that stays as it is in the operation '{node.name}'",
            )
            return None
        sizes = [shape[axis] for axis in axes]
        spread = [self._spread(layout, axes, sizes) for layout in layouts]
        numbers = [numbers for numbers, _ in spread if numbers is not None]
        if not numbers:
            return None
        for other in numbers[1:]:
            self.groups.merge(other, numbers[0])
        if fixed:
            self.groups.tie(as_rows(numbers[0], [place for place, axis in enumerate(axes) if axis not in fixed]))
        flat = [constants.flatten() for _, constants in spread]
        return ChannelLayout(numbers[0], effect.map_constants(*flat).view(sizes), axes)

    def _find_fixed(
        self,
        operands: list[fx.Node],
        layouts: list[ChannelLayout | None],
        axes: tuple[int, ...],
        shape: tuple[int, ...],
    ) -> set[int]:
        """Return the dimensions of channels along which a tensor has entries that stay."""
        fixed: set[int] = set()
        for operand, layout in zip(operands, layouts, strict=True):
            own = (1,) * (len(shape) - len(self.traced.shapes[operand])) + self.traced.shapes[operand]
            varying = set(axes) - set(() if layout is None else layout.axes)
            fixed |= {axis for axis in varying if own[axis] > 1}
        return fixed

    def _align(self, node: fx.Node, shape: tuple[int, ...]) -> ChannelLayout | None:
        """Return the layout of a tensor in the dimensions of a result; one channel for many stays."""
        layout, own = self.layout(node), self.traced.shapes[node]
        if layout is None:
            return None
        extra = len(shape) - len(own)
        axes = tuple(axis + extra for axis in layout.axes)
        if any(own[axis] < shape[axis + extra] for axis in layout.axes):
            self._pin([node])
            return None
        return layout._replace(axes=axes)

    def _spread(
        self, layout: ChannelLayout | None, axes: tuple[int, ...], sizes: list[int]
    ) -> tuple[Tensor | None, Tensor]:
        """Return numbers and constants along dimensions of which a layout has some."""
        if layout is None:
            return None, torch.full(sizes, math.nan, dtype=torch.float64)
        own = [size if axis in layout.axes else 1 for axis, size in zip(axes, sizes, strict=True)]
        numbers, constants = (part.reshape(own).expand(sizes) for part in (layout.numbers, layout.constants))
        return numbers, constants

    def _move(self, node: fx.Node) -> Layouts | Literal[False]:
        source = node.all_input_nodes[0]
        layout, shape = self.layouts.get(source), self.traced.shapes.get(source)
        if operation_name(node) == "getitem" and isinstance(layout, tuple) and not isinstance(layout, ChannelLayout):
            return layout[node.args[1]] if isinstance(node.args[1], int) else False
        if not isinstance(layout, ChannelLayout) or shape is None or not is_plain(node) or not _pads_with_zeros(node):
            return False
        for place in fixed_axes(node, layout, len(shape)):
            if len(layout.axes) == 1:
                return False
            rest = [other for other in range(len(layout.axes)) if other != place]
            self.groups.tie(as_rows(layout.numbers, rest))
        try:
            result = move(layout, shape, lambda entries: self._call(node, source, entries))
        except (RuntimeError, TypeError, KeyError, IndexError, ValueError):  # arguments that it does not take
            return False
        parts = [self._number_padding(part) for part in _parts(result)]
        return parts[0] if isinstance(result, ChannelLayout) else tuple(parts)

    def _call(self, node: fx.Node, source: fx.Node, entries: Tensor) -> Any:
        """Run the operation of a node on other entries."""
        values = {source: entries}

        def find(other: fx.Node) -> Any:
            return values[other] if other in values else self.traced.values[other]

        args, kwargs = fx.node.map_arg(node.args, find), fx.node.map_arg(node.kwargs, find)
        if node.op == "call_method":
            return getattr(args[0], str(node.target))(*args[1:], **kwargs)
        function: Any = self.traced.module(node) or node.target
        return function(*args, **kwargs)

    def _number_padding(self, layout: ChannelLayout) -> ChannelLayout:
        """Return a layout in which channels of padding have numbers of their own."""
        padding = layout.numbers < 0
        numbers = layout.numbers.masked_scatter(padding, self.groups.add(int(padding.sum())))
        return layout._replace(numbers=numbers)

    def _concatenate(self, node: fx.Node) -> Layouts | Literal[False]:
        given: dict[str, Any] = {**dict(zip(("tensors", "dim"), node.args, strict=False)), **node.kwargs}
        parts, shape = given.get("tensors"), self.traced.shapes[node]
        dim = int(given.get("dim", given.get("axis", 0))) % len(shape)
        if not isinstance(parts, (list, tuple)) or not all(isinstance(part, fx.Node) for part in parts):
            return False
        parts = [part for part in parts if math.prod(self.traced.shapes[part])]  # a cache may begin empty
        layouts = [layout for part in parts if (layout := self.layout(part)) is not None]
        if all(layout.axes in ((), (dim,)) for layout in layouts):
            read = [self._read(part, dim) for part in parts]
            numbers, constants = (torch.cat([part[place] for part in read if part is not None]) for place in (0, 1))
            return ChannelLayout(numbers, constants, (dim,))
        axes = layouts[0].axes
        if len(layouts) < len(parts) or any(layout.axes != axes for layout in layouts):
            return False
        if dim in axes:
            place = axes.index(dim)
            numbers = torch.cat([layout.numbers for layout in layouts], place)
            return ChannelLayout(numbers, torch.cat([layout.constants for layout in layouts], place), axes)
        first, *others = layouts
        constants = first.constants
        for layout in others:
            self.groups.merge(layout.numbers, first.numbers)
            constants = torch.where(constants == layout.constants, constants, math.nan)
        return first._replace(constants=constants)

    def _reduce(self, node: fx.Node, source: fx.Node, layout: ChannelLayout) -> Layouts | Literal[False]:
        """Return the channels of an operation over other dimensions than theirs."""
        shape = self.traced.shapes[source]
        reduction = find_reduced_dims(self.traced, node, len(shape))
        if reduction is not None:
            if reduction.dims & set(layout.axes):
                rest = [place for place, axis in enumerate(layout.axes) if axis not in reduction.dims]
                if not rest or not reduction.keeps_shape:
                    return False
                self.groups.tie(as_rows(layout.numbers, rest))
            constants = reduction.map_constants(layout.constants)
            axes = tuple(
                axis - (sum(dim < axis for dim in reduction.dims) if reduction.drops else 0) for axis in layout.axes
            )
            return ChannelLayout(layout.numbers, constants, axes)
        effect = find_effect(self.traced, node, [source], len(shape))
        # The table has channels in dimension 1; an operation that keeps the shape may have them anywhere.
        if effect is None or (layout.axes != (1,) and not effect.everywhere):
            return False
        return layout._replace(constants=effect.map_constants(layout.constants.flatten()).view_as(layout.constants))

    def _multiply(self, node: fx.Node, letters: tuple[str, str, str]) -> Layouts | Literal[False]:
        first, second = _factors(node)
        if not isinstance(first, fx.Node) or not isinstance(second, fx.Node):
            return False
        *own, out = letters
        factors = [
            Factor(part, self.traced.shapes[source], self.layout(source))
            for part, source in zip(own, (first, second), strict=True)
        ]
        layout, known = contract(self.groups, factors, out)
        return layout if known else False

    def _attend(self, node: fx.Node) -> Layouts | Literal[False]:
        given = {**dict(zip(("query", "key", "value"), node.args, strict=False)), **node.kwargs}
        sources = [given[name] for name in ("query", "key", "value") if isinstance(given.get(name), fx.Node)]
        masks = [self.traced.shapes[other] for other in node.all_input_nodes if other not in sources]
        pinned = any(self.layouts.get(other) is not None for other in node.all_input_nodes if other not in sources)
        # A mask for each head, such as a bias of positions, cannot lose one.
        if len(sources) < 3 or pinned or any(len(mask) > 2 and mask[-3] > 1 for mask in masks):
            return False
        batch = "abcdefgh"[: len(self.traced.shapes[node]) - 2]
        ends = ("td", "sd", "sd")
        query, key, value = (
            Factor(batch + end, self.traced.shapes[source], self.layout(source))
            for end, source in zip(ends, sources, strict=True)
            if isinstance(source, fx.Node)
        )
        if given.get("enable_gqa"):
            key, value = (part.repeat(-3, query.shape[-3] // part.shape[-3]) for part in (key, value))
        scores, known = contract(self.groups, [query, key], f"{batch}ts")
        if not known:
            return False
        if scores is not None:
            scores = scores._replace(constants=torch.full_like(scores.constants, math.nan))
        weights = Factor(f"{batch}ts", (*query.shape[:-1], key.shape[-2]), scores)
        layout, known = contract(self.groups, [weights, value], f"{batch}td")
        return layout if known else False

    def _make_rectangular(self) -> None:
        """Tie channels along all but one dimension of every tensor, so that whole rows of it go."""
        joint = [layout for node in self.layouts for layout in _parts(self.layouts[node]) if len(layout.axes) > 1]
        changed = True
        while changed:
            changed = False
            for layout in joint:
                roots = self.groups.find_roots(layout.numbers)
                views = [as_rows(roots, [place]) for place in range(roots.dim())]
                if any(bool((rows == rows[:, :1]).all()) for rows in views):
                    continue
                finest = max(range(roots.dim()), key=lambda place: len(views[place].unique(dim=0)))
                self.groups.tie(as_rows(layout.numbers, [finest]))
                changed = True


def _parts(layouts: Layouts) -> list[ChannelLayout]:
    """Return the layouts of a tensor or of several."""
    if isinstance(layouts, ChannelLayout):
        return [layouts]
    return [part for layout in layouts or () for part in _parts(layout)]


def _factors(node: fx.Node) -> Sequence[Any]:
    """Return the two tensors of a product."""
    operands = [argument for argument in node.args if not isinstance(argument, str)]
    if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
        operands = list(operands[0])
    return operands[:2] if len(operands) >= 2 else (*operands, node.kwargs.get("other"), None)[:2]


def _pads_with_zeros(node: fx.Node) -> bool:
    """Return False for padding with anything but zeros, or by less than nothing."""
    if operation_name(node) != "pad":
        return True
    given = {**dict(zip(("input", "pad", "mode", "value"), node.args, strict=False)), **node.kwargs}
    amounts = given["pad"]
    whole = isinstance(amounts, (list, tuple)) and all(isinstance(amount, int) and amount >= 0 for amount in amounts)
    return whole and given.get("mode", "constant") == "constant" and not given.get("value")
