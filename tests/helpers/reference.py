"""The paper's objective and algorithm written down directly, in float64, to compare the package with."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Array = NDArray[np.float64]


def log_inverse_gamma_kernel(sigma: float, nu: float, lam: float) -> float:
    """log of IG(sigma^2; nu/2, nu lam/2) without its constant."""
    return -(nu / 2 + 1) * math.log(sigma**2) - nu * lam / (2 * sigma**2)


def q1(
    sigma: float,
    beta: Array,
    kappa0: Array,
    kappa1: Array,
    nu: float,
    lam: float,
    residuals: Array | None = None,
    power0: int = 1,
) -> float:
    """Q1 of the paper as a function of sigma: expected log prior of beta and sigma, and the Gaussian likelihood."""
    p = beta.size
    spike = np.abs(beta) / sigma if power0 == 1 else beta**2 / (2 * sigma**2)
    value = -p * math.log(sigma) - np.sum(kappa0 * spike + kappa1 * beta**2 / (2 * sigma**2))
    value += log_inverse_gamma_kernel(sigma, nu, lam)
    if residuals is not None:
        value += np.sum(stats.norm.logpdf(residuals, scale=sigma))
    return float(value)


def q2(delta: float, rho: Array, a: float, b: float) -> float:
    """Q2 of the paper as a function of delta: expected log of the indicators and of their Beta prior."""
    p = rho.size
    return float(
        np.sum(math.log(delta / (1 - delta)) * rho) + (a - 1) * math.log(delta) + (p + b - 1) * math.log(1 - delta)
    )


def slab_probability(beta: Array, v0: float, v1: float, sigma: float, delta: float, spike: str = "laplace") -> Array:
    """Bayes' rule with scipy's densities."""
    slab = stats.norm(scale=sigma * math.sqrt(v1)).pdf(beta) * delta
    narrow = stats.laplace(scale=sigma * v0) if spike == "laplace" else stats.norm(scale=sigma * math.sqrt(v0))
    return slab / (slab + narrow.pdf(beta) * (1 - delta))


def _quick_slab_probability(beta: Array, v0: float, v1: float, sigma: float, delta: float, spike: str) -> Array:
    """The same with the densities spelled out: scipy's take most of the time of a test with many steps."""

    def normal(variance: float) -> Array:
        return np.exp(-(beta**2) / (2 * variance)) / math.sqrt(2 * math.pi * variance)

    slab = normal(sigma**2 * v1) * delta
    laplace = np.exp(-np.abs(beta) / (sigma * v0)) / (2 * sigma * v0)
    return slab / (slab + (laplace if spike == "laplace" else normal(sigma**2 * v0)) * (1 - delta))


@dataclass
class Latents:
    """Algorithm 1 with every latent stored by itself: rho, kappa0, kappa1, delta of each layer, and sigma."""

    sizes: list[int]
    v0: float
    v1: float
    sigma: float
    deltas: list[float]
    a: float
    b: list[float]
    nu: float
    lam: float
    initial_rho: float
    initial_kappa: tuple[float, float]
    coupling: str
    average: str
    learn_delta: bool = True
    sigma_in_rho: bool = True
    spike: str = "laplace"
    rho: list[Array] = field(init=False)
    kappa0: list[Array] = field(init=False)
    kappa1: list[Array] = field(init=False)

    def __post_init__(self) -> None:
        self.rho = [np.full(size, self.initial_rho) for size in self.sizes]
        self.kappa0 = [np.full(size, self.initial_kappa[0]) for size in self.sizes]
        self.kappa1 = [np.full(size, self.initial_kappa[1]) for size in self.sizes]

    @property
    def prior_sigma(self) -> float:
        return 1.0 if self.coupling == "independent" else self.sigma

    def update(
        self, betas: list[Array], omega: float, residual_squares: float | None = None, num_targets: float = 0
    ) -> None:
        """Move all latents by omega, in the order of the paper's appendix B."""

        def smooth(old: Array, new: Array) -> Array:
            return (1 - omega) * old + omega * new

        scale = self.prior_sigma if self.sigma_in_rho else 1.0
        for index, beta in enumerate(betas):
            new = _quick_slab_probability(beta, self.v0, self.v1, scale, self.deltas[index], self.spike)
            self.rho[index] = smooth(self.rho[index], new)
            self.kappa0[index] = smooth(self.kappa0[index], (1 - self.rho[index]) / self.v0)
            self.kappa1[index] = smooth(self.kappa1[index], self.rho[index] / self.v1)
        self._update_sigma(betas, omega, residual_squares, num_targets)
        if self.learn_delta:
            for index, size in enumerate(self.sizes):
                new_delta = (self.rho[index].sum() + self.a - 1) / (self.a + self.b[index] + size - 2)
                self.deltas[index] = (1 - omega) * self.deltas[index] + omega * new_delta

    def _update_sigma(self, betas: list[Array], omega: float, squares: float | None, num_targets: float) -> None:
        if self.coupling == "fixed":
            return
        p = sum(self.sizes)
        b = j = 0.0
        for beta, kappa0, kappa1 in zip(betas, self.kappa0, self.kappa1, strict=True):
            if self.spike == "laplace":
                b += np.sum(kappa0 * np.abs(beta))
            else:
                j += np.sum(kappa0 * beta**2)
            j += np.sum(kappa1 * beta**2)
        if squares is None:
            quadratic = [p + self.nu + 2, -b, -(j + self.nu * self.lam)]
        elif self.coupling == "independent":
            quadratic = [num_targets + self.nu + 2, 0.0, -(squares + self.nu * self.lam)]
        else:
            quadratic = [num_targets + p + self.nu + 2, -b, -(squares + j + self.nu * self.lam)]
        new = float(max(np.roots(quadratic)))
        if self.average == "sigma":
            self.sigma = (1 - omega) * self.sigma + omega * new
        else:
            self.sigma = math.sqrt((1 - omega) * self.sigma**2 + omega * new**2)

    def gradient(self, beta: Array, index: int) -> Array:
        """Gradient of the penalty of layer ``index``."""
        sigma = self.prior_sigma
        spike = np.sign(beta) / sigma if self.spike == "laplace" else beta / sigma**2
        return self.kappa0[index] * spike + self.kappa1[index] * beta / sigma**2

    def penalty(self, betas: list[Array]) -> float:
        sigma, total = self.prior_sigma, 0.0
        for beta, kappa0, kappa1 in zip(betas, self.kappa0, self.kappa1, strict=True):
            spike = np.abs(beta) / sigma if self.spike == "laplace" else beta**2 / (2 * sigma**2)
            total += np.sum(kappa0 * spike + kappa1 * beta**2 / (2 * sigma**2))
        return float(total)
