r"""Surgery: the removal of dead channels and of branches that add a constant.

A residual block whose inner channels are all dead computes :math:`x + c`, with one number for each channel. The
constant moves into the bias of the layer that computes x, or into a :class:`~spikeslab.graph.layers.ChannelBias` if x
is not the output of a layer. With c = 0 the sum goes too, and a rectifier behind it if x is rectified already.

A sum is a tensor of its own, and x is not: where the network writes in place or returns the sum, a channel bias of
zeros replaces it. Branches stay in a network with hooks, since a hook may see or change any of them, and in one that
has a subclass of a convolution or linear layer, into which the graph looks.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _BatchNorm

from spikeslab.graph import recurrent
from spikeslab.graph.attention import cut_heads
from spikeslab.graph.dependency import ChannelwiseLayer, DependencyGraph, MixingLayer, RecurrentLayer
from spikeslab.graph.fitting import find_misfits, fit_attributes, pin_fixed_channels, rewrite
from spikeslab.graph.folding import changeable_layer, fold_traced
from spikeslab.graph.layers import (
    CONVS,
    LAYERS,
    ChannelBias,
    get_bias,
    kernel_nonzero,
    kernel_sums,
    pads_with_zeros,
    set_weights,
    weight_by_outputs,
)
from spikeslab.graph.operations import IDENTITIES, operation_name
from spikeslab.graph.tracing import (
    ExampleInput,
    TracedModel,
    UntraceableError,
    agree,
    compute_outputs,
    has_hooks,
    trace,
)

SUMS = ("add", "add_")
RECTIFIERS = ("relu", "relu_")
PREFERENCE = 100.0
"""Preference for a carrier that stays anyway, unless it is so small that ratios to it would lose digits."""


def remove_dead_channels(
    network: nn.Module, example_input: ExampleInput, fold: bool = True
) -> tuple[nn.Module, list[str]]:
    """Remove dead channels in place; return the network, and a note for each thing that stays.

    The result is a ``torch.fx.GraphModule`` if a branch is gone or a fixed size in ``forward`` no longer fits.
    With ``fold=True``, batch normalisation is folded first. The network is in evaluation mode.

    Raises:
        UntraceableError: If the network has no faithful graph, or ``forward`` reads widths in a way that it hides.
    """
    traced = trace(network, example_input)
    if traced.rewritable:
        return _remove(traced, fold)
    # A recording cannot take the place of forward: what does not fit it has to stay.
    whole = copy.deepcopy(network)
    try:
        return _remove(traced, fold)
    except UntraceableError:
        return _remove(trace(whole, example_input), fold, fixed=True)


def _remove(traced: TracedModel, fold: bool, fixed: bool = False) -> tuple[nn.Module, list[str]]:
    """Remove dead channels; if ``fixed``, none whose number ``forward`` fixes."""
    network = traced.model
    unfolded = fold_traced(traced) if fold else {}
    rewritten = traced.rewritable and _remove_constant_branches(traced)
    graph = DependencyGraph(traced)
    if fixed:
        pin_fixed_channels(graph)
    live = Liveness(graph)
    misfits = find_misfits(graph, live.stays)
    for layer in graph.layers:
        _cut(layer, live)
    for part in graph.channelwise:
        _cut_channelwise(part, live.stays(part.numbers))
    for cell in graph.recurrent:
        inputs = cell.inputs
        recurrent.cut_units(cell.module, live.stays(cell.outputs.numbers), live.stays(inputs.numbers), inputs.constants)
    fitted = not rewritten and fit_attributes(traced, misfits)
    if traced.rewritable and not fitted and (rewritten or misfits or _has_misfit_views(traced, graph, live)):
        rewrite(misfits)
        network = fx.GraphModule(traced.model, traced.graph, class_name=type(traced.model).__name__).eval()
    try:
        same = agree(traced.outputs, compute_outputs(network, traced.inputs))
    except ValueError:
        same = False
    if not same:
        raise UntraceableError(network, "computes something else when its layers are narrower")
    called = {str(node.target) for node in traced.graph.nodes if node.op == "call_module"}
    notes = [f"'{name}' stays: {reason}." for name, reason in unfolded.items() if name in called]
    return network, notes + graph.notes()


class Liveness:
    """Live channels: the smallest set that has to stay, with at least one output of each layer.

    With W_oi the kernel from input channel i to output channel o,

    - channels that the network returns, or that an unknown operation reads, stay;
    - if o stays, W_oi is not zero and i is not constant, then i stays;
    - a group of channels goes if none of its members has to stay.

    A constant c_i that goes moves into the bias, b_o + c_i sum W_oi. That is exact unless the convolution pads with
    zeros, since the channel is then not constant at the border of the image. In front of such a convolution one
    constant c_j stays and carries the others, W_oj + W_oi c_i / c_j, which is exact at the border too.
    """

    def __init__(self, graph: DependencyGraph) -> None:
        self._roots = graph.groups.find_roots()
        self._stays = graph.groups.find_pinned()
        self._layers = graph.layers
        self._recurrent = graph.recurrent
        # A row that is constant reads nothing: its value moves into the bias.
        self._reads = {
            layer.name: kernel_nonzero(weight_by_outputs(layer.module)).cpu() & layer.outputs.constants.isnan()[:, None]
            for layer in graph.layers
        }
        self._spread()
        for layer in self._layers:
            if self.needs_carrier(layer):
                self._keep_idle(layer.inputs.numbers[self.find_carrier(layer)])
        for writer in graph.readers:
            if not self.stays(writer.outputs.numbers).any():
                self._keep_idle(writer.outputs.numbers[0])

    def stays(self, channels: Tensor) -> Tensor:
        """Return True for each of these channels that stays."""
        return self._stays[self._roots[channels]]

    def reads(self, layer: MixingLayer) -> Tensor:
        """Return a mask of the inputs that each output of a layer depends on, of shape (outputs, inputs)."""
        return self._reads[layer.name]

    def _reads_live(self, layer: MixingLayer) -> Tensor:
        return self.reads(layer)[self.stays(layer.outputs.numbers)].any(0)

    def _spread(self) -> None:
        changed = True
        while changed:
            changed = False
            for layer in reversed(self._layers):
                needed = layer.inputs.numbers[self._reads_live(layer) & layer.inputs.constants.isnan()]
                changed |= not bool(self.stays(needed).all())
                self._stays[self._roots[needed]] = True
            for part in self._recurrent:
                needed = self._needed_by(part)
                changed |= not bool(self.stays(needed).all())
                self._stays[self._roots[needed]] = True

    def _needed_by(self, part: RecurrentLayer) -> Tensor:
        """Return the inputs and units that the units of a recurrent layer that stay depend on."""
        living = self.stays(part.outputs.numbers) & part.outputs.constants.isnan()
        units, inputs = torch.zeros_like(living), torch.zeros(len(part.inputs.numbers), dtype=torch.bool)
        for layer, mask in recurrent.reads(part.module, "ih"):
            read = mask[living].any(0)
            if layer:  # the units of the layer below, in one direction or two
                units |= read.view(-1, len(units)).any(0)
            else:
                inputs |= read
        for _, mask in recurrent.reads(part.module, "hh"):
            units |= mask[living].any(0)
        units &= part.outputs.constants.isnan()
        # Without a bias there is nowhere for a constant to go.
        constants = part.inputs.constants
        inputs &= constants.isnan() | ((constants != 0) & (not part.module.bias))
        return torch.cat([part.outputs.numbers[units], part.inputs.numbers[inputs]])

    def _keep_idle(self, channel: Tensor) -> None:
        """Keep a channel that no output depends on; if it is new, its rows read nothing."""
        root = self._roots[channel]
        if not self._stays[root]:
            self._stays[root] = True
            for layer in self._layers:
                self.reads(layer)[self._roots[layer.outputs.numbers] == root] = False

    def needs_carrier(self, layer: MixingLayer) -> bool:
        """Return True if an input that is constant but not zero goes, in front of a convolution that pads."""
        constant = layer.inputs.constants.nan_to_num(0.0) != 0
        removed = self._reads_live(layer) & constant & ~self.stays(layer.inputs.numbers)
        return pads_with_zeros(layer.module) and bool(removed.any())

    def find_carrier(self, layer: MixingLayer) -> Tensor:
        """Return the input that carries other constants into a convolution that pads: large, and kept if possible."""
        sizes = layer.inputs.constants.abs().nan_to_num(0.0)
        return torch.where(self.stays(layer.inputs.numbers), PREFERENCE * sizes, sizes).argmax()


def _cut(layer: MixingLayer, live: Liveness) -> None:
    """Keep the rows and columns that stay, and make up for the constants among the others."""
    module, values = layer.module, layer.inputs.constants
    device = module.weight.device
    weight = weight_by_outputs(module).cpu().double()
    reads, rows, columns = live.reads(layer), live.stays(layer.outputs.numbers), live.stays(layer.inputs.numbers)
    weight = weight * reads.view(*reads.shape, *[1] * (weight.dim() - 2))
    constants = layer.outputs.constants
    bias = torch.where(constants.isnan(), get_bias(module).cpu(), constants)
    gone = ~columns & ~values.isnan()
    if not pads_with_zeros(module):
        bias = bias + kernel_sums(weight[:, gone]) @ values[gone]
    elif live.needs_carrier(layer):
        carrier = live.find_carrier(layer)
        weight[:, carrier] += torch.einsum("oi...,i->o...", weight[:, gone], values[gone] / values[carrier])
    set_weights(module, weight[rows][:, columns].to(device), bias[rows].to(device))


def _cut_channelwise(part: ChannelwiseLayer, stays: Tensor) -> None:
    module = part.module
    if isinstance(module, nn.MultiheadAttention):
        cut_heads(module, stays)
        return
    stays = stays.to(next(iter((*module.parameters(), *module.buffers()))).device)
    if isinstance(module, CONVS):
        outputs = module.out_channels // module.groups
        module.groups = int(stays.sum()) // outputs
        set_weights(module, module.weight.detach()[stays], get_bias(module)[stays])
        return
    for name, old in list(module.named_parameters()):
        setattr(module, name, nn.Parameter(old.detach()[stays], old.requires_grad))
    if isinstance(module, _BatchNorm):
        assert module.running_mean is not None
        assert module.running_var is not None
        module.running_mean, module.running_var = module.running_mean[stays], module.running_var[stays]
        module.num_features = int(stays.sum())


def _has_misfit_views(traced: TracedModel, graph: DependencyGraph, live: Liveness) -> bool:
    """Return True if a fixed size in ``forward`` no longer fits."""
    layouts = [graph.layout(source) for node in traced.fixed_views for source in node.all_input_nodes[:1]]
    return any(layout is not None and not live.stays(layout.numbers).all() for layout in layouts)


def _remove_constant_branches(traced: TracedModel) -> bool:
    """Remove from the graph all branches that add a constant; return True if there was one.

    The modules of a branch stay in the network, but its graph no longer calls them.
    """
    if any(has_hooks(m) or (isinstance(m, LAYERS) and type(m) not in LAYERS) for m in traced.model.modules()):
        return False
    found = False
    while _remove_constant_branch(traced):
        found = True
    return found


def _remove_constant_branch(traced: TracedModel) -> bool:
    """Remove the first branch that adds a constant, and what only it reads; return True if there was one."""
    graph = DependencyGraph(traced)
    for node in traced.graph.nodes:
        if operation_name(node) not in SUMS or len(node.args) != 2 or node.kwargs or traced.overwritten.get(node):
            continue
        branches = node.all_input_nodes
        if len(branches) != 2 or not _are_alike(traced, node, branches):
            continue
        for rest, branch in (branches, branches[::-1]):
            constants, others = (graph.constants_along(part, 1) for part in (branch, rest))
            if constants is None or constants.isnan().any():
                continue
            if others is None or others.isnan().any():
                _replace_sum(traced, node, rest, constants)
                return True
    return False


def _are_alike(traced: TracedModel, node: fx.Node, branches: list[fx.Node]) -> bool:
    """Return True if the sum neither broadcasts nor promotes, for an input of any size."""
    # A size of one may be so for this example only, and a branch that does not depend on the input has no batch.
    shape, dependent = traced.shapes[node], set[fx.Node]()
    for other in traced.graph.nodes:
        if other.op == "placeholder" or not dependent.isdisjoint(other.all_input_nodes):
            dependent.add(other)
    return (
        all(traced.shapes[branch] == shape and traced.types[branch] == traced.types[node] for branch in branches)
        and traced.types[node][0].is_floating_point
        and all(size > 1 for size in shape[2:])
        and dependent.issuperset(branches)
    )


def _replace_sum(traced: TracedModel, node: fx.Node, rest: fx.Node, constants: Tensor) -> None:
    if not constants.any() and not traced.overwritten and _rectifies(traced, _origin(traced, rest)):
        for user in list(node.users):
            if _rectifies(traced, user):
                traced.replace(user, node)
    traced.replace(node, _add_constants(traced, node, rest, constants))
    for other in reversed(traced.graph.nodes):
        if not other.users and other.op not in ("placeholder", "output") and not traced.overwritten.get(other):
            traced.graph.erase_node(other)


def _add_constants(traced: TracedModel, node: fx.Node, rest: fx.Node, constants: Tensor) -> fx.Node:
    """Return the node that replaces the sum: a layer with another bias, a new channel bias, or x itself."""
    layer = changeable_layer(traced, rest)
    if layer is not None and len(rest.users) == 1:
        set_weights(layer, layer.weight.detach(), get_bias(layer) + constants.to(layer.weight.device))
        return rest
    if not constants.any() and not traced.overwritten and all(user.op != "output" for user in node.users):
        return rest
    dtype, device = traced.types[node]
    trained = any(parameter.requires_grad for parameter in traced.model.parameters())
    bias = ChannelBias(constants.to(device, dtype), len(traced.shapes[node]), trained)
    return traced.insert(node, f"{node.name}_shift", bias, rest)


def _origin(traced: TracedModel, node: fx.Node) -> fx.Node:
    """Return the node whose result reaches ``node`` through modules that do nothing."""
    while type(traced.module(node)) in IDENTITIES:
        (node,) = node.all_input_nodes
    return node


def _rectifies(traced: TracedModel, node: fx.Node) -> bool:
    return type(traced.module(node)) is nn.ReLU or operation_name(node) in RECTIFIERS
