r"""Sums to which one branch adds a constant: the branch goes, and with it all that only it reads.

A residual block whose inner channels are all dead computes :math:`x + c`, with one number for each channel. The
constant moves into the bias of the layer that computes x, or a :class:`Shift` adds it where x is not the output of a
layer. With c = 0 the sum goes too, and a rectifier behind it that would rectify a rectified x again.

A sum is a tensor of its own, and x is not: where the network writes in place or returns the sum, a shift by c = 0 takes
its place. A network with hooks keeps its branches, since a hook may see or change any of them, and so does one with a
layer of a class of its own, which the graph looks into.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, fx, nn

from spikeslab.graph.channel_graph import ChannelGraph
from spikeslab.graph.fold import changeable_layer
from spikeslab.graph.narrowable import CONVS, bias_of, set_weights
from spikeslab.graph.operations import IDENTITIES, operation_name
from spikeslab.graph.shift import Shift
from spikeslab.graph.tracing import Traced, has_hooks

SUMS = ("add", "add_")
RECTIFIERS = ("relu", "relu_")


class ConstantSum(NamedTuple):
    """A sum with a branch that is constant.

    Attributes:
        node: The sum.
        rest: Its other branch, which varies.
        branch: The branch that is constant.
        values: One number for each channel.
    """

    node: fx.Node
    rest: fx.Node
    branch: fx.Node
    values: Tensor


def remove_constant_branches(traced: Traced) -> bool:
    """Rewrite the graph until no sum has a constant branch that may go; whether there was one.

    The modules of the branches stay in the network: its graph no longer calls them.
    """
    if any(has_hooks(module) or _is_looked_into(module) for module in traced.model.modules()):
        return False
    found = False
    while (constant := _first(traced)) is not None:
        _replace(traced, constant)
        found = True
    return found


def _is_looked_into(module: nn.Module) -> bool:
    return isinstance(module, (*CONVS, nn.Linear)) and type(module) not in (*CONVS, nn.Linear)


def _first(traced: Traced) -> ConstantSum | None:
    channels = ChannelGraph(traced).channels
    for node in traced.graph.nodes:
        if operation_name(node) not in SUMS or len(node.args) != 2 or node.kwargs or traced.overwritten.get(node):
            continue
        branches = node.all_input_nodes
        if len(branches) != 2 or not all(branch in channels for branch in branches):
            continue
        if not _are_alike(traced, node, branches):
            continue
        for rest, branch in (branches, branches[::-1]):
            values = channels[branch].constants
            if not values.isnan().any() and channels[rest].constants.isnan().any():
                return ConstantSum(node, rest, branch, values)
    return None


def _are_alike(traced: Traced, node: fx.Node, branches: list[fx.Node]) -> bool:
    """Whether the sum broadcasts and promotes nothing, for an input of any size.

    A size of one may be one for this example only, or for every one; and what does not depend on the input has no
    batch.
    """
    nodes = [node, *branches]
    shape = traced.shapes[node]
    return (
        all(traced.shapes[other] == shape and traced.types[other] == traced.types[node] for other in nodes)
        and traced.types[node][0].is_floating_point
        and all(size > 1 for size in shape[2:])
        and all(_depends_on_input(branch) for branch in branches)
    )


def _depends_on_input(node: fx.Node) -> bool:
    seen, pending = {node}, [node]
    while pending:
        node = pending.pop()
        if node.op == "placeholder":
            return True
        new = set(node.all_input_nodes) - seen
        seen |= new
        pending += new
    return False


def _replace(traced: Traced, constant: ConstantSum) -> None:
    node, rest, branch, values = constant
    if not values.any() and not traced.overwritten and _rectifies(traced, _origin(traced, rest)):
        for user in list(node.users):
            if _rectifies(traced, user):
                traced.bypass(user, node)
    traced.bypass(node, _shifted(traced, constant))
    _erase_unread(traced, branch)


def _shifted(traced: Traced, constant: ConstantSum) -> fx.Node:
    """The node that stands for the sum: that of a layer whose bias has the constants now, of a shift, or x itself."""
    node, rest, _, values = constant
    layer = changeable_layer(traced, rest)
    if layer is not None and len(rest.users) == 1:
        set_weights(layer, layer.weight.detach(), bias_of(layer) + values.to(layer.weight.device))
        return rest
    if not values.any() and not traced.overwritten and all(user.op != "output" for user in node.users):
        return rest
    dtype, device = traced.types[node]
    trained = any(parameter.requires_grad for parameter in traced.model.parameters())
    shift = Shift(values.to(device, dtype), len(traced.shapes[node]), trained)
    return traced.insert(node, f"{node.name}_shift", shift, rest)


def _origin(traced: Traced, node: fx.Node) -> fx.Node:
    """The node whose result passes unchanged through modules that do nothing."""
    while type(traced.module(node)) in IDENTITIES:
        (node,) = node.all_input_nodes
    return node


def _rectifies(traced: Traced, node: fx.Node) -> bool:
    return type(traced.module(node)) is nn.ReLU or operation_name(node) in RECTIFIERS


def _erase_unread(traced: Traced, node: fx.Node) -> None:
    """Erase a node that nothing reads, and what only it read; but not one that writes into what others read."""
    pending, erased = [node], set()
    while pending:
        node = pending.pop()
        if node in erased or node.users or node.op == "placeholder" or traced.overwritten.get(node):
            continue
        pending += node.all_input_nodes
        traced.graph.erase_node(node)
        erased.add(node)
