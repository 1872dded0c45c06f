"""Exact pruning by magnitude in two passes over memory: one finds the threshold, one writes the zeros.

The bits of a float without its sign, read as an integer, are ordered as its magnitude. A sample of the weights gives a
bracket that holds the threshold almost surely; one pass counts the weights below the bracket and gathers those inside,
a few per cent, among which the threshold is selected. Where the bracket misses, all weights are gathered instead, so
the result is exact in any case.
"""

from collections.abc import Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from spikeslab.functional.tensors import FULL_PRECISION, is_dense
from spikeslab.kernels import _threads
from spikeslab.kernels._compiler import release_compiler
from spikeslab.kernels.compiling import compile_cached

BLOCK, PIECE, LINE = 8192, 8, 64
STRIDE, SMALL_SAMPLE = 64, 4096
SIGMAS = 3.0  # half the width of the bracket, in standard errors of the sample's quantile
INTEGERS: dict[int, np.dtype[Any]] = {4: np.dtype(np.int32), 8: np.dtype(np.int64)}
LARGEST_32, LARGEST_64 = np.int32((1 << 31) - 1), np.int64((1 << 63) - 1)  # all bits but the sign


def can_zero(weight: Tensor) -> bool:
    """Return True if :func:`zero_smallest_` can read and write the weight's memory."""
    return weight.is_cpu and weight.dtype in FULL_PRECISION and is_dense(weight) and weight.numel() > 0


def zero_smallest_(weights: Sequence[Tensor], count: int, keep: Sequence[int]) -> bool:
    """Zero exactly the ``count`` smallest weights of one ranking over all tensors; of equal ones, the first in memory.

    >>> weights = torch.tensor([3.0, -1.0, 0.5, -2.0])
    >>> zero_smallest_([weights], 2, [1]), weights.tolist()
    (True, [3.0, 0.0, 0.0, -2.0])

    Args:
        weights: Tensors of one dtype that :func:`can_zero` accepts.
        count: Number of zeros, at least 1.
        keep: Number of weights that each tensor keeps at least.

    Returns:
        True if done; False, with nothing changed, if ``keep`` spares smaller weights than others that go, or if there
        are more zeros already.
    """
    bits = [_bits_of(weight) for weight in weights]
    found = _select(bits, count, *_bracket(bits, count))
    if found.threshold == 0 or not found.keeps(keep):
        return False
    for of_tensor, missing in zip(bits, found.ties, strict=True):
        if missing:
            equal = np.flatnonzero((of_tensor & np.iinfo(of_tensor.dtype).max) == found.threshold)
            of_tensor[equal[:missing]] = 0
        _run(partial(_zero_below, of_tensor, found.threshold), of_tensor)
    increment_version(weights)
    return True


def zero_marked_(weight: Tensor, mask: Tensor) -> None:
    """Zero the weights that a mask marks."""
    bits = _bits_of(weight)
    if mask.stride() != weight.stride():
        mask = torch.empty_like(weight, dtype=torch.bool, requires_grad=False).copy_(mask)
    marks = torch.as_strided(mask, (mask.numel(),), (1,)).numpy()
    _run(partial(_zero_marked, bits, marks), bits)
    increment_version(weight)


def _bits_of(weight: Tensor) -> Any:
    flat = torch.as_strided(weight.detach(), (weight.numel(),), (1,)).numpy()
    _load(flat.itemsize)
    return flat.view(INTEGERS[flat.itemsize])


def _run(kernel: Any, bits: Any) -> list[Any]:
    return _threads.run(kernel, -(-len(bits) // BLOCK), torch.get_num_threads(), PIECE)


def _bracket(bits: Sequence[Any], count: int) -> tuple[Any, Any]:
    """Return integers between which the ``count``-th smallest magnitude lies almost surely, both included."""
    total, dtype = sum(map(len, bits)), bits[0].dtype.type
    largest = np.iinfo(dtype).max
    stride = max(min(STRIDE, total // SMALL_SAMPLE), 1)
    sample = np.concatenate([of_tensor[::stride] for of_tensor in bits]) & largest
    share, size = count / total, len(sample)
    margin = SIGMAS * (size * share * (1.0 - share)) ** 0.5 + 2.0
    first, last = max(int(share * size - margin), 0), min(int(share * size + margin) + 1, size - 1)
    sample.partition((first, last))
    return dtype(sample[first] if first > 0 else 0), dtype(sample[last] if last < size - 1 else largest)


class Threshold(NamedTuple):
    """Smallest magnitude that is not below all that stay.

    Attributes:
        threshold: Its bits.
        sizes: Number of weights of each tensor.
        below: Number of smaller weights of each tensor.
        ties: Number of weights of this magnitude that go, of each tensor.
    """

    threshold: Any
    sizes: list[int]
    below: list[int]
    ties: list[int]

    def keeps(self, least: Sequence[int]) -> bool:
        """Return True if each tensor keeps at least so many weights."""
        return all(s - b - t >= k for s, b, t, k in zip(self.sizes, self.below, self.ties, least, strict=True))


def _select(bits: Sequence[Any], count: int, low: Any, high: Any) -> Threshold:
    """Return the ``count``-th smallest magnitude; NaN counts as larger than all numbers."""
    found = [_run(partial(_gather, of_tensor, low, high), of_tensor) for of_tensor in bits]
    below = [sum(number for number, _ in pieces) for pieces in found]
    inside = [np.concatenate([piece for _, piece in pieces]) for pieces in found]
    everything = np.concatenate(inside)
    place = count - sum(below) - 1
    if not 0 <= place < len(everything):
        integer = bits[0].dtype.type
        return _select(bits, count, integer(0), integer(np.iinfo(integer).max))
    threshold = np.partition(everything, place)[place]
    below = [number + int((piece < threshold).sum()) for number, piece in zip(below, inside, strict=True)]
    ties, missing = [], count - sum(below)
    for piece in inside:
        ties.append(min(int((piece == threshold).sum()), missing))
        missing -= ties[-1]
    return Threshold(threshold, [len(of_tensor) for of_tensor in bits], below, ties)


@compile_cached()
def _gather(bits: Any, low: Any, high: Any, first: Any, last: Any) -> Any:
    """Return the number of magnitudes below ``low``, and those from ``low`` to ``high``, in some blocks."""
    unsigned = bits.dtype.type(LARGEST_32 if bits.itemsize == 4 else LARGEST_64)
    part = bits[first * BLOCK : last * BLOCK]
    inside = np.empty(part.size, bits.dtype)
    below, size = 0, 0
    for start in range(0, part.size, LINE):
        line = part[start : start + LINE]
        under, upto = 0, 0
        for i in range(line.size):
            magnitude = line[i] & unsigned
            under += magnitude < low
            upto += magnitude <= high
        below += under
        if upto > under:
            for i in range(line.size):
                magnitude = line[i] & unsigned
                inside[size] = magnitude
                size += magnitude >= low and magnitude <= high
    return below, inside[:size].copy()


# Slices, whose indices begin at 0, become SIMD code; a loop from one offset to another does not.
@compile_cached()
def _zero_below(bits: Any, threshold: Any, first: Any, last: Any) -> None:
    unsigned = bits.dtype.type(LARGEST_32 if bits.itemsize == 4 else LARGEST_64)
    zero = bits.dtype.type(0)
    part = bits[first * BLOCK : last * BLOCK]
    for i in range(part.size):
        part[i] = zero if part[i] & unsigned < threshold else part[i]


@compile_cached()
def _zero_marked(bits: Any, marks: Any, first: Any, last: Any) -> None:
    zero = bits.dtype.type(0)
    part, marked = bits[first * BLOCK : last * BLOCK], marks[first * BLOCK : last * BLOCK]
    for i in range(part.size):
        part[i] = zero if marked[i] else part[i]


@cache
def _load(itemsize: int) -> None:
    """Load the kernels for weights of so many bytes, by calling them with none, and let go of the compiler's memory."""
    bits = np.empty(0, INTEGERS[itemsize])
    zero = bits.dtype.type(0)
    _gather(bits, zero, zero, 0, 0)
    _zero_below(bits, zero, 0, 0)
    _zero_marked(bits, np.empty(0, np.bool_), 0, 0)
    release_compiler()
