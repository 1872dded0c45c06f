"""Remove the channels of a network that do nothing, so that it is smaller and faster and computes the same.

Four steps: fold batch normalisation (``fold.py``), drop residual branches that add a constant (``branches.py``), find
the slots that channels are in and which of them are constant (``channel_graph.py``), find the slots that have to stay
(``liveness.py``). What is here cuts the others out.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import torch
from torch import Tensor, fx, nn

from spikeslab.compression.compact_report import CompactReport, LayerSize, layer_sizes
from spikeslab.errors import SpikeSlabWarning
from spikeslab.graph.branches import remove_constant_branches
from spikeslab.graph.channel_graph import ChannelGraph, Layer, PerChannel
from spikeslab.graph.example_input import ExampleInput
from spikeslab.graph.fold import fold_traced
from spikeslab.graph.liveness import Liveness
from spikeslab.graph.narrowable import bias_of, kernel_sums, pads_with_zeros, set_weights
from spikeslab.graph.shift import Shift
from spikeslab.graph.tracing import (
    Traced,
    UntraceableError,
    agree,
    evaluation_copy,
    outputs,
    probe,
    trace,
)


@dataclass(frozen=True)
class Compacted:
    """A network without its dead channels.

    Attributes:
        model: The smaller network, in evaluation mode. It has the class of the original, with narrower layers in the
            place of the old ones; where ``forward`` has fixed sizes in a ``view``, or a residual branch is gone, it
            is a ``torch.fx.GraphModule`` with the same names.
        report: What was removed, and what was left alone and why.
    """

    model: nn.Module
    report: CompactReport


def compact(model: nn.Module, example_input: ExampleInput, *, fold: bool = True) -> Compacted:
    """Remove dead channels for real; the outputs stay the same up to rounding.

    >>> network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> with torch.no_grad():
    ...     _ = network[0].weight[:3].zero_()  # three units that do not see the input
    ...     _ = network[2].weight[:, 3].zero_()  # one that nothing reads
    >>> compact(network, torch.zeros(1, 4)).model
    Sequential(
      (0): Linear(in_features=4, out_features=4, bias=True)
      (1): ReLU()
      (2): Linear(in_features=4, out_features=2, bias=True)
    )

    Args:
        model: Any module, such as a pruned network with exact zeros; it is not changed.
        example_input: An input of the model, or a tuple of its inputs; only the shape matters.
        fold: Fold batch normalisation first (``fold_batch_norm``).

    Raises:
        ValueError: If the model fails on the example.
    """
    original = evaluation_copy(model)
    outputs(original, example_input)
    probes = probe(original, example_input)
    expected = outputs(original, probes)
    before = layer_sizes(original, example_input)
    try:
        smaller, notes = _compacted(original, example_input, fold)
        _check(smaller, probes, expected)
    except UntraceableError as error:
        smaller, notes = evaluation_copy(model), [f"{error} It stays as it is."]
        warnings.warn(notes[0], SpikeSlabWarning, stacklevel=2)
    parameters = tuple(sum(p.numel() for p in network.parameters()) for network in (model, smaller))
    after = _sizes_after(before, smaller, example_input)
    return Compacted(smaller, CompactReport(before, after, (parameters[0], parameters[1]), tuple(notes)))


def _sizes_after(before: dict[str, LayerSize], smaller: nn.Module, example_input: ExampleInput) -> dict[str, LayerSize]:
    """Sizes of all layers; one that the graph looked into is no module any more, but as it was if its weight stays."""
    found, weights = layer_sizes(smaller, example_input), dict(smaller.named_parameters())
    gone = LayerSize(0, 0, 0, 0)
    return {name: found.get(name, size if f"{name}.weight" in weights else gone) for name, size in before.items()}


def _check(network: nn.Module, example_input: ExampleInput, expected: list[Tensor]) -> None:
    """Refuse a network whose ``forward`` depends on widths in a way that the trace does not show."""
    try:
        same = agree(expected, outputs(network, example_input))
    except ValueError:
        same = False
    if not same:
        raise UntraceableError(f"{type(network).__name__} computes something else when its layers are narrower.")


def _compacted(network: nn.Module, example_input: ExampleInput, fold: bool) -> tuple[nn.Module, list[str]]:
    """Compact a network in place."""
    traced = trace(network, example_input)
    unfolded = fold_traced(traced) if fold else {}
    rewritten = remove_constant_branches(traced)
    graph = ChannelGraph(traced)
    keep = Liveness(graph)
    for layer in graph.layers:
        _cut(layer, keep)
    for part in graph.per_channel:
        _cut_per_channel(part, keep(part.slots))
    if rewritten or _has_other_sizes(traced, graph, keep):
        network = fx.GraphModule(traced.model, traced.graph, class_name=type(traced.model).__name__).eval()
    called = {str(node.target) for node in traced.graph.nodes if node.op == "call_module"}
    notes = [f"'{name}' stays: {reason}." for name, reason in unfolded.items() if name in called]
    return network, notes + graph.notes()


def _cut(layer: Layer, keep: Liveness) -> None:
    """Keep the rows and columns that stay, and make up for the constants among the others."""
    module, values = layer.module, layer.inputs.constants
    device = module.weight.device
    weight = module.weight.detach().cpu().double()
    reads, rows, columns = keep.reads(layer), keep(layer.outputs.slots), keep(layer.inputs.slots)
    weight = weight * reads.view(*reads.shape, *[1] * (weight.dim() - 2))
    constants = layer.outputs.constants
    bias = torch.where(constants.isnan(), bias_of(module).cpu(), constants)
    gone = ~columns & ~values.isnan()
    if not pads_with_zeros(module):
        bias = bias + kernel_sums(weight[:, gone]) @ values[gone]
    elif keep.carried(layer).any():
        carrier = keep.carrier(layer)
        weight[:, carrier] += torch.einsum("oi...,i->o...", weight[:, gone], values[gone] / values[carrier])
    set_weights(module, weight[rows][:, columns].to(device), bias[rows].to(device))


def _cut_per_channel(part: PerChannel, stays: Tensor) -> None:
    module = part.module
    stays = stays.to(next(iter((*module.parameters(), *module.buffers()))).device)
    if isinstance(module, Shift):
        module.bias = nn.Parameter(module.bias.detach()[stays], module.bias.requires_grad)
    elif isinstance(module, nn.modules.batchnorm._BatchNorm):
        for name in ("weight", "bias"):
            old = getattr(module, name)
            if old is not None:
                setattr(module, name, nn.Parameter(old.detach()[stays], old.requires_grad))
        assert module.running_mean is not None
        assert module.running_var is not None
        module.running_mean, module.running_var = module.running_mean[stays], module.running_var[stays]
        module.num_features = int(stays.sum())
    else:
        multiplier = module.out_channels // module.groups
        module.groups = int(stays.sum()) // multiplier
        set_weights(module, module.weight.detach()[stays], bias_of(module)[stays])


def _has_other_sizes(traced: Traced, graph: ChannelGraph, keep: Liveness) -> bool:
    """Whether a fixed size in ``forward`` no longer fits."""
    return any(
        source in graph.channels and not keep(graph.channels[source].slots).all()
        for node in traced.rewritten
        for source in node.all_input_nodes[:1]
    )
