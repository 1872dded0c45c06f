"""Noise of the samplers: standard normal numbers as a pure function of (seed, step, parameter, element).

Nothing is read from or written to torch's global generators, so the noise is the same after a resume, on every process
that has the same seed, however the parameters are sharded, and on every device (:mod:`spikeslab.kernels.philox`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from spikeslab.errors import ArgumentValueError, check_count
from spikeslab.functional.tensors import is_dense
from spikeslab.kernels import philox_torch
from spikeslab.kernels.philox_torch import Range
from spikeslab.shards import local, locate

KIND = "philox"
LINE = 16  # slices of the buffer start on cache lines


class Noise:
    """Standard normal numbers; their state is a seed, an integer in [0, 2**64).

    They do not depend on how they are drawn, but for the last bits in float64: by compiled loops on the CPU, where
    numba is used, and with torch elsewhere.

    Args:
        seed: Seed.
        kernels: :mod:`spikeslab.kernels.philox_numba`, or ``None`` to draw with torch alone.
        compile: If True, draw with ``torch.compile`` where torch draws.
    """

    def __init__(self, seed: int, kernels: ModuleType | None = None, *, compile: bool = False) -> None:  # noqa: A002
        self.seed = check_count("seed", seed, minimum=0, bits=64)
        self.step = 0
        self._kernels = kernels
        self._compile = compile
        self._draw_blocks = torch.compile(philox_torch.draw_blocks) if compile else philox_torch.draw_blocks
        self._buffers: dict[torch.dtype, Tensor] = {}

    def start(self, step: int) -> None:
        """Begin the numbers of ``step``."""
        self.step = step

    def draw(self, params: Sequence[Tensor], streams: Sequence[int] | None = None) -> list[Tensor]:
        """Return a standard normal tensor for this rank's part of each of ``params``, in its layout.

        They share a device and a dtype; half precision rounds the numbers of float32. ``streams`` are their positions
        in the sampler, by default those in the list. The tensors are valid until the next call.
        """
        parts = [local(param) for param in params]
        if not parts:
            return []
        numbers = list(streams if streams is not None else range(len(params)))
        dtype = torch.float64 if parts[0].dtype == torch.float64 else torch.float32
        places = [locate(param) for param in params]
        draw = self._draw_with_numba if self._kernels is not None and parts[0].is_cpu else self._draw_with_torch
        consecutive = [
            Range(number, place, part.numel())
            for number, place, part in zip(numbers, places, parts, strict=True)
            if isinstance(place, int)
        ]
        flat = iter(draw(consecutive, dtype, parts[0].device))
        return [
            _in_layout_of(part, next(flat) if isinstance(place, int) else self._draw_at(place, number, part, dtype))
            for number, place, part in zip(numbers, places, parts, strict=True)
        ]

    def _draw_with_numba(self, ranges: Sequence[Range], dtype: torch.dtype, device: torch.device) -> list[Tensor]:
        assert self._kernels is not None
        spans = [-(-size // LINE) * LINE for _, _, size in ranges]
        drawn = []
        for (stream, offset, size), part in zip(ranges, self._buffer(dtype, sum(spans)).split(spans), strict=True):
            self._kernels.fill_normal(part[:size].numpy(), self.seed, self.step, stream, offset)
            drawn.append(part[:size])
        return drawn

    def _draw_with_torch(self, ranges: Sequence[Range], dtype: torch.dtype, device: torch.device) -> list[Tensor]:
        return philox_torch.draw_ranges(ranges, self.seed, self.step, dtype, device, self._draw_blocks)

    def _draw_at(self, index: Tensor, stream: int, part: Tensor, dtype: torch.dtype) -> Tensor:
        return philox_torch.normals_at(index.to(part.device), self.seed, self.step, stream, dtype)

    def _buffer(self, dtype: torch.dtype, size: int) -> Tensor:
        """Return memory for the numbers, kept between steps: to allocate it anew would cost more than an SGD step."""
        if dtype not in self._buffers or len(self._buffers[dtype]) < size:
            self._buffers[dtype] = torch.empty(size, dtype=dtype)
        return self._buffers[dtype][:size]

    def __deepcopy__(self, memo: dict[int, Any]) -> Noise:
        """Return a source of the same noise: all but the seed is made anew in every step."""
        return type(self)(self.seed, self._kernels, compile=self._compile)

    def state_dict(self) -> dict[str, Any]:
        """Return kind and seed; the step is the sampler's."""
        return {"kind": KIND, "seed": self.seed}

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Raise if ``state`` is of another kind of noise, as earlier versions drew without numba."""
        if state["kind"] != KIND:
            raise ArgumentValueError("state_dict", f"must have noise of the kind {KIND!r}", state["kind"])

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the seed."""
        self.check_state(state)
        self.seed = int(state["seed"])


def _in_layout_of(param: Tensor, flat: Tensor) -> Tensor:
    """Return ``flat`` with the dtype and the strides of ``param``, so that adding them is a straight pass."""
    strides = param.stride() if is_dense(param) else None
    noise = flat.view(param.shape) if strides is None else flat.as_strided(param.shape, strides)
    return noise.to(param.dtype)


def mix64(value: int) -> int:
    """Permute the 64-bit numbers so that no trace of their order is left (the finaliser of SplitMix64)."""
    mask = (1 << 64) - 1
    value = (value + 0x9E3779B97F4A7C15) & mask
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & mask
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & mask
    return value ^ (value >> 31)
