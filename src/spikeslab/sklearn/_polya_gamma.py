r"""Exact draws from the Polya-Gamma law PG(1, z).

omega ~ PG(1, z) makes the logistic likelihood Gaussian given omega:

    e^(psi y) / (1 + e^psi) = e^((y - 1/2) psi) / 2 * E_omega[exp(-omega psi^2 / 2)],   omega ~ PG(1, 0),

and PG(1, z) is the law of omega given psi = z. It is a quarter of the law J*(1, z/2), whose density is an
alternating series; its partial sums bracket the density, so that accept or reject is decided after finitely
many terms (Devroye's method) without any truncation error. E[omega] = tanh(z/2) / (2 z).

References:
    N. G. Polson, J. G. Scott and J. Windle (2013), Bayesian inference for logistic models using Pólya-Gamma
    latent variables, Journal of the American Statistical Association 108.
    L. Devroye (2009), On exact simulation algorithms for some distributions related to Jacobi theta
    functions, Statistics and Probability Letters 79.
"""

from __future__ import annotations

from math import erfc, exp, log, pi, sqrt
from typing import TYPE_CHECKING

from spikeslab.kernels.compiling import compile_cached

if TYPE_CHECKING:
    from numpy.random import Generator

SPLIT = 0.64  # where the two forms of the series change over


@compile_cached()
def _term(n: int, x: float) -> float:
    """Compute the n-th term of the alternating series of the density of J*(1, 0) at x."""
    half = n + 0.5
    if x <= SPLIT:
        return pi * half * float((2.0 / (pi * x)) ** 1.5) * exp(-2.0 * half * half / x)
    return pi * half * exp(-0.5 * half * half * pi * pi * x)


@compile_cached()
def _left_mass(z: float) -> float:
    """Compute the mass of the proposal on (0, SPLIT) times e^z: twice its probability under IG(1/z, 1)."""
    root = 1.0 / sqrt(2.0 * SPLIT)
    mass = erfc(root * (1.0 - SPLIT * z))
    if z < 50.0:  # beyond, this term is below the smallest number
        mass += exp(2.0 * z) * erfc(root * (1.0 + SPLIT * z))
    return mass


@compile_cached()
def _truncated_inverse_gaussian(z: float, rng: Generator) -> float:
    """Draw from IG(1/z, 1) restricted to (0, SPLIT)."""
    if z * SPLIT < 1.0:  # the mean lies to the right: start from the law of 1 / chi^2 on the interval
        while True:
            e1 = -log(1.0 - rng.random())
            e2 = -log(1.0 - rng.random())
            if e1 * e1 <= 2.0 * e2 / SPLIT:
                x = SPLIT / (1.0 + SPLIT * e1) ** 2
                if rng.random() <= exp(-0.5 * z * z * x):
                    return x
    mean = 1.0 / z
    while True:
        y = rng.standard_normal() ** 2
        x = mean + 0.5 * mean * mean * y - 0.5 * mean * sqrt(4.0 * mean * y + (mean * y) ** 2)
        if rng.random() > mean / (mean + x):
            x = mean * mean / x
        if 0.0 < x <= SPLIT:
            return x


@compile_cached()
def draw_polya_gamma(z: float, rng: Generator) -> float:
    """Draw from PG(1, z)."""
    z = 0.5 * abs(z)
    rate = 0.125 * pi * pi + 0.5 * z * z
    right = 0.5 * pi / rate * exp(z - rate * SPLIT)  # mass on (SPLIT, inf), times e^z
    share = right / (right + _left_mass(z))
    while True:
        tail = rng.random() < share
        x = SPLIT - log(1.0 - rng.random()) / rate if tail else _truncated_inverse_gaussian(z, rng)
        partial = _term(0, x)
        level = rng.random() * partial
        n = 0
        while True:
            n += 1
            if n % 2 == 1:
                partial -= _term(n, x)
                if level <= partial:
                    return 0.25 * x
            else:
                partial += _term(n, x)
                if level > partial:
                    break
