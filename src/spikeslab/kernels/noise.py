"""Sources of noise: standard normal numbers as a pure function of (kind, seed, step).

Nothing is read from or written to torch's global generators, so the noise is the same after a resume and on every
process that has the same seed, whatever else draws random numbers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from spikeslab.errors import ArgumentValueError, check_count, mark

MASK32 = 0xFFFFFFFF
FUSED_OF_KIND = {"torch": False, "philox": True}


class Noise(ABC):
    """Source of noise; its state is its kind and a seed, an integer in [0, 2**64)."""

    kind: ClassVar[str]

    def __init__(self, seed: int) -> None:
        if check_count("seed", seed, minimum=0) >= 1 << 64:
            raise ArgumentValueError("seed", "must be an integer below 2**64", seed)
        self.seed = int(seed)
        self._buffers: dict[tuple[torch.device, torch.dtype], Tensor] = {}

    @abstractmethod
    def start(self, step: int) -> None:
        """Begin the numbers of ``step``."""

    @abstractmethod
    def draw(self, params: Sequence[Tensor], streams: Sequence[int] | None = None) -> list[Tensor]:
        """Return a standard normal tensor for each of ``params``, which share a device and a dtype, in their layout.

        ``streams`` are their numbers in the sampler, by default their positions. The tensors are valid until the next
        call.
        """

    def _buffer(self, device: torch.device, dtype: torch.dtype, size: int) -> Tensor:
        """Return memory for the numbers, kept between steps: to allocate it anew would cost more than an SGD step."""
        key = device, dtype
        if key not in self._buffers or len(self._buffers[key]) < size:
            self._buffers[key] = torch.empty(size, dtype=dtype, device=device)
        return self._buffers[key][:size]

    def __deepcopy__(self, memo: dict[int, Any]) -> Noise:
        """Return a source of the same noise: all but the seed is made anew in every step."""
        return type(self)(self.seed)

    def state_dict(self) -> dict[str, Any]:
        """Return kind and seed; the step is the sampler's."""
        return {"kind": self.kind, "seed": self.seed}

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Raise if ``state`` is of another kind of noise."""
        kind = state["kind"]
        if kind != self.kind:
            hint = f"create the sampler with {mark('fused', FUSED_OF_KIND[kind])}" if kind in FUSED_OF_KIND else ""
            raise ArgumentValueError("state_dict", f"must have noise of the kind {self.kind!r}", kind, hint)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the seed."""
        self.check_state(state)
        self.seed = int(state["seed"])


class TorchNoise(Noise):
    """Normal numbers from torch's own generator of each device, seeded anew for every step."""

    kind: ClassVar[str] = "torch"

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._generators: dict[torch.device, torch.Generator] = {}

    def start(self, step: int) -> None:
        """Begin the numbers of ``step``; :meth:`draw` continues them."""
        self._generators = {}
        self._step_seed = step_seed(self.seed, step)

    def draw(self, params: Sequence[Tensor], streams: Sequence[int] | None = None) -> list[Tensor]:
        """Return a standard normal tensor for each of ``params``; torch's generators go on from one to the next."""
        first = params[0]
        generator = self._generators.get(first.device)
        if generator is None:
            generator = torch.Generator(first.device)
            generator.manual_seed(self._step_seed)
            self._generators[first.device] = generator
        # One call for all: small tensors would take torch's slow scalar path one by one.
        sizes = [param.numel() for param in params]
        flat = self._buffer(first.device, first.dtype, sum(sizes)).normal_(generator=generator)
        return [_in_layout_of(param, part) for param, part in zip(params, torch.split(flat, sizes), strict=True)]


def _in_layout_of(param: Tensor, flat: Tensor) -> Tensor:
    """Return ``flat`` with the strides of ``param``, so that adding one to the other is a straight pass."""
    if param.is_contiguous() or not param.is_contiguous(memory_format=torch.channels_last):
        return flat.view(param.shape)
    return flat.as_strided(param.shape, param.stride())


def step_seed(seed: int, step: int) -> int:
    """Return a 32-bit seed for each step, different for all steps of a run and unrelated for other runs.

    torch's CPU generator uses 32 bits of its seed. For every ``seed`` this is a permutation of the 32-bit numbers,
    so no two of the first 2**32 steps share their noise; a random 32-bit hash would repeat one after about 80,000.
    """
    key = mix64(seed)
    word = (step ^ key) & MASK32
    for rotation in (0, 16, 32):
        word ^= (key >> rotation) & MASK32
        word = (word ^ (word >> 16)) * 0x7FEB352D & MASK32
        word = (word ^ (word >> 15)) * 0x846CA68B & MASK32
        word ^= word >> 16
    return word


def mix64(value: int) -> int:
    """Permute the 64-bit numbers so that no trace of their order is left (the finaliser of SplitMix64)."""
    mask = (1 << 64) - 1
    value = (value + 0x9E3779B97F4A7C15) & mask
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & mask
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & mask
    return value ^ (value >> 31)
