"""Compaction: a network without its dead channels, which is smaller and faster and computes the same.

:mod:`spikeslab.graph.surgery` removes the channels; here they are counted.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from spikeslab.compression._op_counter import count_positions
from spikeslab.errors import warn
from spikeslab.graph.layers import LAYERS, is_transposed, weight_by_outputs
from spikeslab.graph.surgery import remove_dead_channels
from spikeslab.graph.tracing import ExampleInput, UntraceableError, compute_outputs, copy_model
from spikeslab.report.tables import Cell, Column, Table


@dataclass(frozen=True)
class LayerSize:
    """Size of one convolution or linear layer.

    Attributes:
        inputs: Input channels or features.
        outputs: Output channels or features.
        parameters: Entries of weight and bias.
        multiply_adds: Products for one example, biases not counted.
    """

    inputs: int
    outputs: int
    parameters: int
    multiply_adds: int


@dataclass(frozen=True)
class CompactReport:
    """Sizes of a network before and after compacting.

    Attributes:
        before: Size of each convolution and linear layer of the network that was given.
        after: Size of each of these layers in the compacted network, zeros for a layer that is gone.
        parameters: Parameters of the whole network before and after.
        notes: One sentence for each thing that stays, with the reason.
    """

    before: dict[str, LayerSize]
    after: dict[str, LayerSize]
    parameters: tuple[int, int]
    notes: tuple[str, ...]

    @property
    def multiply_adds(self) -> tuple[int, int]:
        """Multiply-adds of all layers for one example, before and after."""
        before, after = (sum(size.multiply_adds for size in sizes.values()) for sizes in (self.before, self.after))
        return before, after

    def table(self) -> Table:
        """Return a table with a row for each layer and one for the whole network."""
        columns = [
            Column("layer", "Layer"),
            Column("inputs", "Inputs"),
            Column("outputs", "Outputs"),
            Column("parameters", "Parameters", ","),
            Column("parameters_after", "after", ","),
            Column("multiply_adds", "Multiply-adds", ","),
            Column("multiply_adds_after", "after", ","),
        ]
        rows: list[tuple[Cell, ...]] = []
        for name, old in self.before.items():
            new = self.after[name]
            widths = (f"{old.inputs} → {new.inputs}", f"{old.outputs} → {new.outputs}")
            rows.append((name, *widths, old.parameters, new.parameters, old.multiply_adds, new.multiply_adds))
        rows.append(("whole network", "", "", *self.parameters, *self.multiply_adds))
        keys = [column.key for column in columns]
        return Table("Compacted network", columns, [dict(zip(keys, row, strict=True)) for row in rows], self.notes)

    def __str__(self) -> str:
        return self.table().markdown()


@dataclass(frozen=True)
class Compacted:
    """A network without its dead channels.

    Attributes:
        model: The smaller network, in evaluation mode, of the class of the original. If ``forward`` has fixed sizes in
            a ``view``, or a residual branch is gone, it is a ``torch.fx.GraphModule`` with the same names.
        report: Sizes before and after, and why some channels stay.
    """

    model: nn.Module
    report: CompactReport


def compact(model: nn.Module, example_input: ExampleInput, *, fold: bool = True) -> Compacted:
    """Return a copy without dead channels, whose outputs are the same up to rounding.

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
        example_input: An input of the model, or a tuple or mapping of its inputs; only the shape matters.
        fold: If True, fold batch normalisation first (``fold_batch_norm``).

    Raises:
        ValueError: If the model fails on the example.
    """
    original = copy_model(model).eval()
    compute_outputs(original, example_input)
    before = layer_sizes(original, example_input)
    try:
        smaller, notes = remove_dead_channels(original, example_input, fold)
    except UntraceableError as error:
        smaller, notes = copy_model(model).eval(), [error.note]
        warn(notes[0])
    parameters = tuple(sum(p.numel() for p in network.parameters()) for network in (model, smaller))
    found, weights = layer_sizes(smaller, example_input), dict(smaller.named_parameters())
    # A layer that the graph looked into is no module any more, but as it was if its weight stays.
    gone = {
        name: size if {f"{name}.weight", f"{name}_weight"} & weights.keys() else LayerSize(0, 0, 0, 0)
        for name, size in before.items()
    }
    after = {name: found.get(name, gone[name]) for name in before}
    return Compacted(smaller, CompactReport(before, after, (parameters[0], parameters[1]), tuple(notes)))


@torch.no_grad()
def layer_sizes(model: nn.Module, example_input: ExampleInput) -> dict[str, LayerSize]:
    """Return the sizes of the layers that a network uses on an example, by name.

    These are convolutions, linear layers, and the projections of queries, keys and values in ``nn.MultiheadAttention``.

    >>> layer_sizes(nn.Conv2d(3, 8, 5), torch.zeros(1, 3, 28, 28))
    {'': LayerSize(inputs=3, outputs=8, parameters=608, multiply_adds=345600)}
    """
    positions = count_positions(model, example_input)
    sizes = {}
    for name, module in model.named_modules():
        weight = f"{name}.weight".lstrip(".")
        if (isinstance(module, LAYERS) or is_transposed(module)) and weight in positions:
            assert isinstance(module, nn.Module)
            matrix = weight_by_outputs(module)  # type: ignore[arg-type]
            groups = getattr(module, "groups", 1)
            own = sum(parameter.numel() for parameter in module.parameters(recurse=False))
            sizes[name] = LayerSize(matrix.shape[1] * groups, len(matrix), own, positions[weight] * matrix.numel())
        elif isinstance(module, nn.MultiheadAttention) and module.in_proj_weight is not None:
            outputs, inputs = module.in_proj_weight.shape
            own = sum(parameter.numel() for parameter in module.parameters(recurse=False))
            products = positions.get(f"{name}.in_proj_weight".lstrip("."), 0) * outputs * inputs
            sizes[f"{name}.in_proj".lstrip(".")] = LayerSize(inputs, outputs, own, products)
    return sizes
