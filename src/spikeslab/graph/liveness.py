r"""Live channels: the smallest set that has to stay.

With W_oi the kernel from input channel i to output channel o,

- channels that the network returns, or that an unknown operation reads, stay;
- if o stays, W_oi is not zero and i is not constant, then i stays;
- a group of channels goes if none of its members has to stay.

A constant c_i that goes moves into the bias, b_o + c_i sum W_oi. That is exact unless the convolution pads with zeros,
since the channel is then not constant at the border of the image. In front of such a convolution one constant c_j stays
and carries the others, W_oj + W_oi c_i / c_j, which is exact at the border too and costs one channel in all.
"""

from __future__ import annotations

import torch
from torch import Tensor

from spikeslab.graph.dependency import DependencyGraph, MixingLayer
from spikeslab.graph.layers import kernel_nonzero, pads_with_zeros

PREFERENCE = 100.0
"""Preference for a carrier that stays anyway, unless it is so small that ratios to it would lose digits."""


class Liveness:
    """Set of live channels, with at least one output of each layer."""

    def __init__(self, graph: DependencyGraph) -> None:
        self._roots = graph.groups.roots()
        self._stays = graph.groups.pinned()
        self._layers = graph.layers
        # A row that is constant reads nothing: its value moves into the bias.
        self._reads = {
            layer.name: kernel_nonzero(layer.module.weight).cpu() & layer.outputs.constants.isnan()[:, None]
            for layer in graph.layers
        }
        self._spread()
        self._choose_carriers()
        self._fill_empty()

    def stays(self, channels: Tensor) -> Tensor:
        """Return True for each of these channels that stays."""
        return self._stays[self._roots[channels]]

    def reads(self, layer: MixingLayer) -> Tensor:
        """Return a mask of the inputs that each output of a layer depends on, of shape (outputs, inputs)."""
        return self._reads[layer.name]

    def _keep(self, channels: Tensor) -> bool:
        """Let channels stay; return True if one of them did not before."""
        new = not bool(self.stays(channels).all())
        self._stays[self._roots[channels]] = True
        return new

    def _spread(self) -> None:
        changed = True
        while changed:
            changed = False
            for layer in reversed(self._layers):
                read = self.reads(layer)[self.stays(layer.outputs.numbers)].any(0)
                needed = read & layer.inputs.constants.isnan()
                changed |= self._keep(layer.inputs.numbers[needed])

    def _choose_carriers(self) -> None:
        for layer in self._layers:
            if self.carried(layer).any():
                self._keep_idle(layer.inputs.numbers[self.carrier(layer)])

    def _fill_empty(self) -> None:
        for layer in self._layers:
            if not self.stays(layer.outputs.numbers).any():
                self._keep_idle(layer.outputs.numbers[0])

    def _keep_idle(self, channel: Tensor) -> None:
        """Keep a channel that no output depends on; if it is new, its rows read nothing."""
        root = self._roots[channel]
        if not self._stays[root]:
            self._stays[root] = True
            for layer in self._layers:
                self.reads(layer)[self._roots[layer.outputs.numbers] == root] = False

    def carried(self, layer: MixingLayer) -> Tensor:
        """Return a mask of the inputs that go, constant but not zero, in front of a convolution that pads."""
        read = self.reads(layer)[self.stays(layer.outputs.numbers)].any(0)
        values = layer.inputs.constants
        removed = read & ~values.isnan() & (values != 0) & ~self.stays(layer.inputs.numbers)
        return removed & pads_with_zeros(layer.module)

    def carrier(self, layer: MixingLayer) -> Tensor:
        """Return the input that carries other constants into a convolution that pads: large, and kept if possible."""
        sizes = layer.inputs.constants.abs().nan_to_num(0.0)
        return torch.where(self.stays(layer.inputs.numbers), PREFERENCE * sizes, sizes).argmax()
