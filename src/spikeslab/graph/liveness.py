r"""Which channels have to stay.

With W_oi the kernel from input channel i to output channel o, they are the smallest set such that

- what the network returns, and what an operation that is not known reads, stays;
- if o stays, W_oi is not zero and i is not constant, then i stays.

A channel that is tied to others by a residual sum goes where none of them stays.

A constant c_i that goes is made up for in the bias, b_o + c_i sum W_oi. That is exact unless the convolution pads with
zeros: at the border of the image the channel is not constant then. Of the constants in front of such a convolution one,
c_j, stays and carries the others, W_oj + W_oi c_i / c_j, which is exact at the border too and costs one channel,
whatever their number.
"""

from __future__ import annotations

import torch
from torch import Tensor

from spikeslab.graph.channel_graph import ChannelGraph, Layer
from spikeslab.graph.narrowable import kernel_nonzero, pads_with_zeros

# A constant that stays anyway carries the others, unless it is so small that their ratio to it would lose digits.
PREFERENCE = 100.0


class Liveness:
    """The smallest set of slots that has to stay, with at least one for each layer."""

    def __init__(self, graph: ChannelGraph) -> None:
        self._roots = graph.slots.all_roots()
        self._stays = graph.slots.pinned()
        self._layers = graph.layers
        # A row that is constant reads nothing: its value moves into the bias.
        self._reads = {
            layer.name: kernel_nonzero(layer.module.weight).cpu() & layer.outputs.constants.isnan()[:, None]
            for layer in graph.layers
        }
        self._spread()
        self._choose_carriers()
        self._fill_empty()

    def __call__(self, slots: Tensor) -> Tensor:
        """Whether each of these slots stays."""
        return self._stays[self._roots[slots]]

    def reads(self, layer: Layer) -> Tensor:
        """Which inputs each output of a layer depends on, of shape (outputs, inputs)."""
        return self._reads[layer.name]

    def _keep(self, slots: Tensor) -> bool:
        """Let slots stay; whether that is new."""
        new = not bool(self(slots).all())
        self._stays[self._roots[slots]] = True
        return new

    def _spread(self) -> None:
        changed = True
        while changed:
            changed = False
            for layer in reversed(self._layers):
                read = self.reads(layer)[self(layer.outputs.slots)].any(0)
                needed = read & layer.inputs.constants.isnan()
                changed |= self._keep(layer.inputs.slots[needed])

    def _choose_carriers(self) -> None:
        for layer in self._layers:
            if self.carried(layer).any():
                self._keep_idle(layer.inputs.slots[self.carrier(layer)])

    def _fill_empty(self) -> None:
        for layer in self._layers:
            if not self(layer.outputs.slots).any():
                self._keep_idle(layer.outputs.slots[0])

    def _keep_idle(self, slot: Tensor) -> None:
        """Keep a slot that no output depends on; if it went, its rows need not read anything now."""
        root = self._roots[slot]
        if not self._stays[root]:
            self._stays[root] = True
            for layer in self._layers:
                self.reads(layer)[self._roots[layer.outputs.slots] == root] = False

    def carried(self, layer: Layer) -> Tensor:
        """The constants that go but are not zero, in front of a convolution that pads."""
        read = self.reads(layer)[self(layer.outputs.slots)].any(0)
        values = layer.inputs.constants
        removed = read & ~values.isnan() & (values != 0) & ~self(layer.inputs.slots)
        return removed & pads_with_zeros(layer.module)

    def carrier(self, layer: Layer) -> Tensor:
        """The input that carries other constants into a convolution that pads: large, and kept if possible."""
        sizes = layer.inputs.constants.abs().nan_to_num(0.0)
        return torch.where(self(layer.inputs.slots), PREFERENCE * sizes, sizes).argmax()
