r"""Spike-and-slab with two Gaussians (SSG), the classical prior of George and McCulloch.

.. math:: \beta_j \mid \sigma, \gamma_j \sim (1-\gamma_j)\,N(0, \sigma^2 v_0) + \gamma_j\,N(0, \sigma^2 v_1).

Everything but the spike's density is that of :class:`~spikeslab.SpikeSlab`; both parts of the penalty are quadratic.

Reference: George and McCulloch, "Variable Selection via Gibbs Sampling", JASA 1993.
"""

from __future__ import annotations

from typing import ClassVar

from spikeslab.functional.mixture import GAUSSIAN, Component
from spikeslab.priors.spike_slab import SpikeSlab


class SpikeSlabGaussian(SpikeSlab):
    """Spike-and-slab prior with a Gaussian spike of variance ``sigma**2 * v0``; arguments as for ``SpikeSlab``."""

    spike: ClassVar[Component] = GAUSSIAN
