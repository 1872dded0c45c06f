"""Noise from the counter-based generator: a pure function of (seed, step, parameter, element in memory order).

It needs numba. Where the fused update runs, the kernel draws the same numbers itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from spikeslab.functional.layout import is_dense
from spikeslab.kernels import philox
from spikeslab.kernels.noise import Noise

# Slices of the buffer start on cache lines.
LINE = 16


class PhiloxNoise(Noise):
    """Normal numbers from Philox, the same at any number of threads and for any choice of active parameters."""

    kind: ClassVar[str] = "philox"

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.step = 0
        self._buffers: dict[torch.dtype, Tensor] = {}

    def start(self, step: int) -> None:
        """Begin the numbers of ``step``."""
        self.step = step

    def draw(self, params: Sequence[Tensor], streams: Sequence[int] | None = None) -> list[Tensor]:
        """A standard normal tensor for each of ``params``, which share a device and a dtype, in their layout.

        The tensors are valid until the next call.

        Args:
            params: Parameters. Half precision rounds the numbers of float32.
            streams: The number of each in the sampler; by default the position in ``params``.
        """
        dtype = torch.float64 if params[0].dtype == torch.float64 else torch.float32
        spans = [-(-param.numel() // LINE) * LINE for param in params]
        parts = self._buffer(dtype, sum(spans)).split(spans)
        noises = []
        for stream, param, part in zip(streams or range(len(params)), params, parts, strict=True):
            flat = part[: param.numel()]
            philox.fill_normal(flat.numpy(), self.seed, self.step, stream)
            strides = param.stride() if is_dense(param) else None
            noise = flat.view(param.shape) if strides is None else flat.as_strided(param.shape, strides)
            noises.append(noise.to(param.device, param.dtype))
        return noises

    def _buffer(self, dtype: torch.dtype, size: int) -> Tensor:
        if dtype not in self._buffers or len(self._buffers[dtype]) < size:
            self._buffers[dtype] = torch.empty(size, dtype=dtype, device="cpu")
        return self._buffers[dtype][:size]
