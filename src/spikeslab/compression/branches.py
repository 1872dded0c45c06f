r"""Sums to which one branch adds a constant: the branch goes, and with it all that only it reads.

A residual block whose inner channels are all dead computes :math:`x + c`, with one number for each channel. With
c = 0 the sum goes too, and a rectifier behind it that would rectify a rectified x again. Otherwise c moves into the
bias of the layer that computes x, or a :class:`Shift` adds it where x is not the output of a layer.
"""

from __future__ import annotations

from torch import Tensor, fx, nn

from spikeslab.compression.channel_graph import ChannelGraph
from spikeslab.compression.narrowable import CONVS, bias_of, set_weights
from spikeslab.compression.operations import IDENTITIES, operation_name
from spikeslab.compression.shift import Shift
from spikeslab.compression.tracing import Traced

SUMS = ("add", "add_")
RECTIFIERS = ("relu", "relu_")


def remove_constant_branches(traced: Traced) -> bool:
    """Rewrite the graph until no sum has a constant branch; whether there was one.

    The modules of the branches stay in the network: its graph no longer calls them.
    """
    found = False
    while (sums := _first_sum(traced)) is not None:
        _replace(traced, *sums)
        found = True
    return found


def _first_sum(traced: Traced) -> tuple[fx.Node, fx.Node, fx.Node, Tensor] | None:
    """A sum, its branch that varies, the one that does not, and the constants of that."""
    channels = ChannelGraph(traced).channels
    for node in traced.graph.nodes:
        if operation_name(node) not in SUMS or len(node.args) != 2 or node.kwargs or traced.overwritten.get(node):
            continue
        branches = [branch for branch in node.all_input_nodes if branch in channels]
        if len(branches) != 2 or len({traced.shapes[branch] for branch in branches}) > 1:
            continue
        for branch, constant in (branches, branches[::-1]):
            values = channels[constant].constants
            if not values.isnan().any() and channels[branch].constants.isnan().any():
                return node, branch, constant, values
    return None


def _replace(traced: Traced, node: fx.Node, branch: fx.Node, constant: fx.Node, values: Tensor) -> None:
    if not values.any() and _rectifies(traced, _origin(traced, branch)):
        for user in list(node.users):
            if _rectifies(traced, user):
                traced.bypass(user, node)
    traced.bypass(node, _shifted(traced, node, branch, values))
    _erase_unread(traced, constant)


def _shifted(traced: Traced, node: fx.Node, branch: fx.Node, values: Tensor) -> fx.Node:
    """The node that computes the branch plus its constants."""
    layer = traced.module(branch)
    if isinstance(layer, (*CONVS, nn.Linear)) and traced.owned(branch) and len(branch.users) == 1:
        set_weights(layer, layer.weight.detach(), bias_of(layer) + values.to(layer.weight.device))
        return branch
    # What is written over must be a tensor of its own, as the sum is: others may read the branch.
    if not values.any() and not any(user in traced.overwritten for user in node.users):
        return branch
    like = next(traced.model.parameters())
    shift = Shift(values.to(like.device, like.dtype), dims=len(traced.shapes[node]))
    return traced.insert(node, f"{node.name}_shift", shift, branch)


def _origin(traced: Traced, node: fx.Node) -> fx.Node:
    """The node whose result passes unchanged through modules that do nothing."""
    while type(traced.module(node)) in IDENTITIES:
        (node,) = node.all_input_nodes
    return node


def _rectifies(traced: Traced, node: fx.Node) -> bool:
    return isinstance(traced.module(node), nn.ReLU) or operation_name(node) in RECTIFIERS


def _erase_unread(traced: Traced, node: fx.Node) -> None:
    """Erase a node that nothing reads, and what only it read; but not one that others see by a write or a hook."""
    module = traced.module(node)
    hooked = module is not None and (module._forward_hooks or module._forward_pre_hooks)
    if node.users or node.op == "placeholder" or traced.overwritten.get(node) or hooked:
        return
    sources = node.all_input_nodes
    traced.graph.erase_node(node)
    for source in sources:
        _erase_unread(traced, source)
