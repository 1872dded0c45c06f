"""What compacting removed: channels, parameters and multiply-adds of each layer."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from spikeslab.compression.macs import count_positions
from spikeslab.graph.example_input import ExampleInput
from spikeslab.graph.narrowable import CONVS
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
    """A network before and after compacting.

    Attributes:
        before: Size of each convolution and linear layer of the network that was given.
        after: The same of the compacted network, with zeros for a layer that is gone.
        parameters: Parameters of the whole network before and after.
        notes: One sentence for each thing that stays and why.
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
        """A row for each layer, and the whole network in the last."""
        rows: list[dict[str, Cell]] = [
            {
                "layer": name,
                "inputs": f"{size.inputs} → {self.after[name].inputs}",
                "outputs": f"{size.outputs} → {self.after[name].outputs}",
                "parameters": size.parameters,
                "parameters_after": self.after[name].parameters,
                "multiply_adds": size.multiply_adds,
                "multiply_adds_after": self.after[name].multiply_adds,
            }
            for name, size in self.before.items()
        ]
        whole = (*self.parameters, *self.multiply_adds)
        keys = ("parameters", "parameters_after", "multiply_adds", "multiply_adds_after")
        rows.append({"layer": "whole network", "inputs": "", "outputs": "", **dict(zip(keys, whole, strict=True))})
        columns = [
            Column("layer", "Layer"),
            Column("inputs", "Inputs"),
            Column("outputs", "Outputs"),
            Column("parameters", "Parameters", ","),
            Column("parameters_after", "after", ","),
            Column("multiply_adds", "Multiply-adds", ","),
            Column("multiply_adds_after", "after", ","),
        ]
        return Table("Compacted network", columns, rows, self.notes)

    def __str__(self) -> str:
        return self.table().markdown()


@torch.no_grad()
def layer_sizes(model: nn.Module, example_input: ExampleInput) -> dict[str, LayerSize]:
    """Sizes of the convolutions and linear layers that a network in evaluation mode uses on an example, by name.

    >>> layer_sizes(nn.Conv2d(3, 8, 5), torch.zeros(1, 3, 28, 28))
    {'': LayerSize(inputs=3, outputs=8, parameters=608, multiply_adds=345600)}
    """
    positions = count_positions(model, example_input)
    return {
        name: LayerSize(
            inputs=module.in_features if isinstance(module, nn.Linear) else module.in_channels,
            outputs=len(module.weight),
            parameters=sum(parameter.numel() for parameter in module.parameters(recurse=False)),
            multiply_adds=positions[weight] * module.weight.numel(),
        )
        for name, module in model.named_modules()
        if isinstance(module, (*CONVS, nn.Linear)) and (weight := f"{name}.weight".lstrip(".")) in positions
    }
