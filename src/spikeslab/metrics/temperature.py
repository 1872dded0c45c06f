r"""Temperatures of a chain, layer by layer, measured from its momenta and from its weights.

**Kinetic.** SGHMC's buffer b has at stationarity, on :math:`U/N = \lambda w^2/2`, the exact variance

.. math:: E\,b^2 = \frac{2T}{N\,\mathrm{lr}\,(1+m)} \cdot \frac{2(1+m)}{2(1+m) - \mathrm{lr}\,\lambda},

so :math:`\hat T = \tfrac12 N\,\mathrm{lr}\,(1+m)\,\mathrm{mean}(b^2)` estimates T. The second factor is its bias: it
reads high by about :math:`\mathrm{lr}\,\lambda/(2(1+m))`, as the chain's variance is too large by the same factor.
Mini-batches add noise: if v is the variance of a coordinate of g over batches, the reading is high by
:math:`v\,N\,\mathrm{lr}/(2(1-m)T)` of T, unless ``gradient_noise`` makes up for it; the thermometer is there to
show this. Over d independent coordinates its relative standard error is :math:`\sqrt{2/d}`.

**Configurational.** Integration by parts gives :math:`E[(w - a)\cdot\nabla U] = d\,T` for the law exp(-U/T) and any
fixed a. With a the weights at which averaging began,
:math:`\hat T = \tfrac{N}{d}\,\mathrm{mean}_k\,(w_k - a)\cdot g_k`. A stochastic gradient may stand for the exact one,
because its noise at step k is independent of :math:`w_k`. The bias in lr is the same. A chain that is still near a
reads low, by the autocorrelation between a and :math:`w_k`: average over several relaxation times. While a chain
descends, the reading means nothing.

Both leave out weights that are exactly zero: a pruner holds them, and they do not follow the law.

References: Leimkuhler and Matthews, "Molecular Dynamics", 2015, section 6; Wenzel et al., "How Good is the Bayes
Posterior in Deep Neural Networks Really?", ICML 2020, appendix I.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import fmean, stdev

import torch
from torch import nn

from spikeslab.samplers.base import Sampler


@dataclass(frozen=True)
class Temperature:
    """Temperature with its standard error.

    Attributes:
        value: Estimated temperature, in the units of the sampler's ``temperature``.
        error: Its standard error; NaN where it is unknown.
    """

    value: float
    error: float

    def agrees(self, temperature: float, errors: float = 4.0) -> bool:
        """Return True if ``temperature`` is within ``errors`` standard errors of the value.

        >>> Temperature(1.1, 0.05).agrees(1.0), Temperature(2.0, 0.05).agrees(1.0)
        (True, False)
        """
        return abs(self.value - temperature) <= errors * self.error


@torch.no_grad()
def kinetic_temperature(model: nn.Module, sampler: Sampler) -> dict[str, Temperature]:
    """Return the present kinetic temperature of each parameter of ``model``, by name.

    >>> from spikeslab import SGHMC
    >>> model = nn.Linear(1000, 1)
    >>> sampler = SGHMC(model.parameters(), lr=0.01, momentum=0.5, num_data=10, temperature=0.1, seed=0)
    >>> for _ in range(20):
    ...     model.weight.grad = torch.zeros(1, 1000)
    ...     sampler.step()
    >>> kinetic_temperature(model, sampler)["weight"].agrees(0.1)
    True

    Args:
        model: The model that the sampler moves.
        sampler: An SGHMC sampler; a sampler without momenta gives an empty dict.
    """
    readings = {}
    names = {id(param): name for name, param in model.named_parameters()}
    for group in sampler.param_groups:
        for param in group["params"]:
            buffer = sampler.state[param].get("momentum_buffer") if param in sampler.state else None
            if buffer is None or id(param) not in names or not (alive := int(param.count_nonzero())):
                continue
            square = float(buffer.masked_fill(param == 0, 0.0).double().square().sum()) / alive
            value = 0.5 * group["num_data"] * group["lr"] * (1.0 + group["momentum"]) * square
            readings[names[id(param)]] = Temperature(value, value * math.sqrt(2.0 / alive))
    return readings


class ConfigurationalTemperature:
    """Average configurational temperature of each layer along a chain.

    Call :meth:`update` after ``backward()`` and before ``sampler.step()``, once the chain has stopped descending.

    Args:
        model: The model that the sampler moves; deviations are taken from its present weights.
        sampler: Any sampler.
    """

    def __init__(self, model: nn.Module, sampler: Sampler) -> None:
        self._sampler = sampler
        self._start = {
            id(param): (name, param.detach().clone(), list[float]()) for name, param in model.named_parameters()
        }

    @torch.no_grad()
    def update(self) -> None:
        """Add the weights and gradients of this step."""
        for group, param, gradient in self._sampler.energy_gradients():
            if id(param) in self._start:
                _, start, readings = self._start[id(param)]
                alive = param != 0
                work = float(((param - start).double() * gradient.double() * alive).sum())
                readings.append(work / max(int(alive.sum()), 1) * group["num_data"])

    def result(self) -> dict[str, Temperature]:
        """Return the average of each layer by name, with a standard error from batch means."""
        return {
            name: Temperature(fmean(readings), _batch_means_error(readings))
            for name, _, readings in self._start.values()
            if readings
        }


def _batch_means_error(readings: list[float]) -> float:
    """Return the standard error of a correlated series from sqrt(n) batch means; NaN for fewer than 9 readings."""
    size = math.isqrt(len(readings))
    if size < 3:
        return math.nan
    means = [fmean(readings[i : i + size]) for i in range(0, len(readings) - size + 1, size)]
    return stdev(means) / math.sqrt(len(means))
