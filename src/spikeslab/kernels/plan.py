"""The kernels' table of the parameters of one dtype, most of which stays from step to step."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter
from types import ModuleType
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from spikeslab.functional.layout import aligned
from spikeslab.kernels.protocol import FusedTerms, LatentSums

# Columns of the kernels' tables.
WEIGHT, GRADIENT, BUFFER, RHO, RHO_BAR, SIZE, STREAM, FIRST_BLOCK = range(8)
ELASTIC_NET = 3
NO_LATENTS = (0.0,) * 4
NUMPY = {torch.float32: np.float32, torch.float64: np.float64}


class Move(NamedTuple):
    """How the kernels move the parameters of a group.

    Attributes:
        lr: Learning rate of this step.
        noise_std: Standard deviation of the noise, in the buffer or without one in the weight.
        momentum: Momentum of SGHMC.
        buffer: Name of the buffer in the sampler's state; ``None`` is SGLD.
    """

    lr: float
    noise_std: float
    momentum: float = 0.0
    buffer: str | None = None


class Row(NamedTuple):
    """A parameter in the table of the kernels.

    Attributes:
        group: Number of its group.
        stream: Number of its noise.
        param: The parameter.
        sparse: Whether the prior covers it.
    """

    group: int
    stream: int
    param: Tensor
    sparse: bool


class Plan:
    """The parameters of one dtype and what the kernels need to know of them."""

    def __init__(self, kernels: ModuleType, dtype: torch.dtype, rows: Sequence[Row]) -> None:
        self.dtype = dtype
        self.like = np.empty(0, NUMPY[dtype])
        self.groups = np.array([row.group for row in rows])
        self.params = [row.param for row in rows]
        self.layouts = [(param.shape, param.stride()) for param in self.params]
        self.sparse = [index for index, row in enumerate(rows) if row.sparse]
        self.sparse_rows = np.array(self.sparse, dtype=np.intp)
        # The rows are in the order of the groups.
        self.sparse_groups = [
            (group, [row.param for row in of_group])
            for group, of_group in groupby((row for row in rows if row.sparse), key=attrgetter("group"))
        ]
        sizes = np.array([param.numel() for param in self.params], dtype=np.int64)
        blocks = -(-sizes * self.like.itemsize // kernels.BLOCK_BYTES)
        first_blocks = np.cumsum(blocks) - blocks
        self.blocks = int(blocks.sum())
        self.sparse_blocks = [slice(first_blocks[i], first_blocks[i] + blocks[i]) for i in self.sparse]
        self.table = np.zeros((len(rows), len(kernels.TABLE)), dtype=np.int64)
        self.table[:, SIZE] = sizes
        self.table[:, STREAM] = [row.stream for row in rows]
        self.table[:, FIRST_BLOCK] = first_blocks
        self.factors = np.zeros((len(rows), len(kernels.FACTORS)))
        self.all_sums = np.zeros((self.blocks, len(kernels.SUMS)))
        self.rho_sums = np.zeros((self.blocks, 1))
        self.sums = self.all_sums
        self.numbers: list[tuple[float, ...]] = []
        self.buffers: list[Tensor | None] = [None] * len(rows)
        self.gradients: list[Tensor] = []  # keeps their memory alive until the kernels have run
        self.addresses: list[int] = []
        self.latents: list[tuple[int, int]] = []
        # Versions of the parameters after the last step, and whether that left them finite; None where nobody knows.
        self._left: tuple[list[int], bool] | None = None

    def fits(self) -> bool:
        """Whether the parameters still lie in memory as they did: a model may be moved or change its format."""
        return all(
            (param.shape, param.stride()) == layout and param.dtype is self.dtype and param.is_cpu
            for param, layout in zip(self.params, self.layouts, strict=True)
        )

    def set_gradients(self) -> None:
        """Write the addresses of weights and gradients."""
        self.gradients = [aligned(cast(Tensor, param.grad), param) for param in self.params]
        addresses = [param.data_ptr() for param in self.params]
        if addresses != self.addresses:
            self.table[:, WEIGHT] = self.addresses = addresses
            self._left = None
        self.table[:, GRADIENT] = [grad.data_ptr() for grad in self.gradients]

    def moving(self) -> None:
        """Note that the weights are about to change: a step that is broken off leaves them as nobody knows."""
        self._left = None

    def moved(self, finite: bool) -> None:
        """Tell autograd that what it may have saved for a backward pass is gone, and note whether all is finite."""
        _increment_versions(self.params)
        if not any(param.is_inference() for param in self.params):  # these have no version
            self._left = [param._version for param in self.params], finite

    def weights_finite(self) -> bool | None:
        """Whether the last step left the weights finite; ``None`` if somebody may have written to them since."""
        if self._left is None:
            return None
        versions, finite = self._left
        return finite if [param._version for param in self.params] == versions else None

    def set_moves(self, moves: list[Move], weight_decays: list[float], state: Any) -> None:
        """Write what the groups say, and the addresses of the buffers, which are zero at first."""
        numbers: list[tuple[float, ...]] = [
            (m.lr, m.momentum, m.noise_std, 0, 0, d, 0) for m, d in zip(moves, weight_decays, strict=True)
        ]
        if numbers != self.numbers:
            self.factors[:, : len(numbers[0])] = np.array(numbers)[self.groups]
            self.numbers = numbers
        if moves[0].buffer is None:
            return
        for index, param in enumerate(self.params):
            own = state[param]
            buffer = own.get(moves[0].buffer)
            if buffer is None or buffer is not self.buffers[index]:
                buffer = torch.zeros_like(param, requires_grad=False) if buffer is None else aligned(buffer, param)
                own[moves[0].buffer] = self.buffers[index] = buffer
        self.table[:, BUFFER] = [cast(Tensor, buffer).data_ptr() for buffer in self.buffers]

    def set_terms(self, terms: list[FusedTerms], adapt: bool) -> None:
        """Write the prior's part for the sparse parameters."""
        if not terms:
            return
        latents = [t.latents if adapt else None for t in terms]
        self.sums = self.all_sums if any(x is not None and x.sums for x in latents) else self.rho_sums
        addresses = [
            (0 if x is None else x.rho.data_ptr(), 0 if t.smoothed is None else t.smoothed.data_ptr())
            for t, x in zip(terms, latents, strict=True)
        ]
        if addresses != self.latents:
            self.table[self.sparse_rows, RHO : RHO_BAR + 1] = self.latents = addresses
        self.factors[self.sparse_rows, ELASTIC_NET:] = [
            (*t.l1, *t.l2, *(NO_LATENTS if x is None else (*x.log_odds, x.omega)))
            for t, x in zip(terms, latents, strict=True)
        ]

    def sparse_sums(self) -> list[LatentSums]:
        """Sums over each sparse parameter, in an order that depends on its number of blocks alone."""
        rows = [self.sums[blocks].sum(axis=0).tolist() for blocks in self.sparse_blocks]
        return [LatentSums(*row) if len(row) > 1 else LatentSums(rho=row[0]) for row in rows]


def _increment_versions(params: list[Tensor]) -> None:
    try:
        increment_version(params)
    except TypeError:  # older versions of torch take one at a time
        for param in params:
            increment_version(param)
