r"""Allocation of the zeros of a network to its layers.

Layer l, of :math:`n_l` weights, keeps :math:`\mathrm{clip}(\varepsilon d_l n_l,\; k_l,\; n_l)` of them, where
:math:`k_l` is its floor and :math:`\varepsilon` the one number at which all layers together keep what the target
leaves. ``per_layer`` has :math:`d_l = 1`, the same rate everywhere. ``erk``, the Erdős–Rényi-kernel rule, has

.. math:: d_l = \frac{c_{out} + c_{in} + h + w}{c_{out}\, c_{in}\, h\, w},

the sum of the weight's dimensions over their product, so that small layers stay denser. The third way, a ranking of all
weights together, is :func:`~spikeslab.functional.thresholds.smallest_overall`. All end on exactly the zeros asked for.

Reference: Evci, Gale, Menick, Castro and Elsen, "Rigging the Lottery: Making All Tickets Winners", ICML 2020.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence

from spikeslab.errors import ArgumentValueError
from spikeslab.functional.thresholds import apportion


def floors(sizes: Sequence[int], floor: float) -> list[int]:
    """Return the weights that each layer keeps at least: ``floor`` if it is an integer, or that share of its weights.

    >>> floors([100, 7], 0.1), floors([100, 7], 10)
    ([10, 1], [10, 7])
    """
    if isinstance(floor, int) and not isinstance(floor, bool) and floor >= 1:
        return [min(floor, size) for size in sizes]
    if not isinstance(floor, float) or not 0.0 < floor < 1.0:
        raise ArgumentValueError("floor", "must be an integer >= 1 or a number in (0, 1)", floor)
    # The share 0.1 of 70 weights is 7, though 0.1 * 70 is a little more in floating point.
    return [max(math.ceil(round(floor * size, 9)), 1) for size in sizes]


def per_layer(
    zeros: int, sizes: Sequence[int], keep: Sequence[int], at_least: Sequence[int] | None = None
) -> list[int]:
    """Return the zeros of each layer at the same rate in all, except where a floor binds.

    >>> per_layer(90, [100, 50], keep=[1, 1]), per_layer(90, [100, 50], keep=[1, 40])
    ([60, 30], [80, 10])

    Args:
        zeros: Zeros in all.
        sizes: Weights of each layer.
        keep: Number that each layer keeps at least.
        at_least: Zeros that each layer has already and does not give back.
    """
    return _share_out(zeros, sizes, [1.0] * len(sizes), keep, at_least)


def erk(
    zeros: int,
    shapes: Sequence[Sequence[int]],
    keep: Sequence[int],
    at_least: Sequence[int] | None = None,
    sizes: Sequence[int] | None = None,
) -> list[int]:
    """Return the zeros of each layer by the Erdős–Rényi-kernel rule, from the shapes of the weights.

    >>> erk(14_000, [(16, 16, 3, 3), (64, 64, 3, 3)], keep=[1, 1])
    [0, 14000]
    >>> erk(30_000, [(16, 16, 3, 3), (64, 64, 3, 3)], keep=[1, 1])
    [279, 29721]

    Args:
        zeros: Zeros in all.
        shapes: Shapes of the weights.
        keep: Number that each layer keeps at least.
        at_least: Zeros that each layer has already and does not give back.
        sizes: Units of each layer, where they are not single weights.
    """
    densities = [sum(shape) / math.prod(shape) for shape in shapes]
    own = [math.prod(shape) for shape in shapes] if sizes is None else sizes
    return _share_out(zeros, own, densities, keep, at_least)


def _share_out(
    zeros: int,
    sizes: Sequence[int],
    densities: Sequence[float],
    keep: Sequence[int],
    at_least: Sequence[int] | None,
) -> list[int]:
    kept = _allocate_kept(sum(sizes) - zeros, sizes, densities, keep)
    # Rounded, so that equal remainders are equal in floating point too.
    shares = [round(size - share, 9) for size, share in zip(sizes, kept, strict=True)]
    return apportion(zeros, sizes, at_least, keep=keep, shares=shares)


def _allocate_kept(total: float, sizes: Sequence[int], densities: Sequence[float], keep: Sequence[int]) -> list[float]:
    """Return the real numbers that the layers keep, which sum to ``total`` and are linear between breakpoints."""
    slopes = [density * size for density, size in zip(densities, sizes, strict=True)]

    def at(epsilon: float) -> list[float]:
        return [min(max(epsilon * b, k), n) for b, k, n in zip(slopes, keep, sizes, strict=True)]

    breakpoints = sorted({0.0, *(k / b for k, b in zip(keep, slopes, strict=True)), *(1.0 / d for d in densities)})
    index = bisect_right(breakpoints, total, key=lambda epsilon: sum(at(epsilon)))
    if index in (0, len(breakpoints)):
        return at(breakpoints[max(index - 1, 0)])
    low, high = breakpoints[index - 1], breakpoints[index]
    below, above = sum(at(low)), sum(at(high))
    return at(low + (high - low) * (total - below) / (above - below))
