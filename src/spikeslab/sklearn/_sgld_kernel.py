r"""SGLD-SA, SGLD-EM and SGLD for (generalised) linear models in one fused loop.

The prior of the paper is a mixture of a Laplace spike and a Gaussian slab whose scales carry the noise's
sigma,

    beta_j | gamma_j, sigma ~ (1 - gamma_j) Laplace(0, sigma v0) + gamma_j N(0, sigma^2 v1),

and a step k = 1, 2, ... on a batch S of n of the N rows, with epsilon in the paper's units, is

    beta   += epsilon_k (N/n sum_S grad log p(y_i | beta) - kappa0 sign(beta) / sigma - kappa1 beta / sigma^2)
              + sqrt(2 epsilon_k T) xi,
    rho    += omega_k (logistic(-beta^2 / (2 sigma^2 v1) + |beta| / (sigma v0)
                                + log(2 v0^2 / (pi v1)) / 2 + logit(delta)) - rho),              (12)
    kappa0 += omega_k ((1 - rho) / v0 - kappa0),    kappa1 += omega_k (rho / v1 - kappa1),       (13)
    sigma  += omega_k ((R_b + sqrt(R_b^2 + 4 R_a R_c)) / (2 R_a) - sigma),                       (14)
    delta  += omega_k ((sum rho + a - 1) / (a + b + p - 2) - delta),                             (15)

with R_b = sum kappa0 |beta|. In regression R_a = N + p + nu + 2, or N + p + nu as the paper prints it, and
R_c = N/n sum_S (y_i - x_i beta)^2 + sum kappa1 beta^2 + nu lambda, with the residuals at the coefficients before
the step; in classification R_a = p + nu + 2 and R_c = sum kappa1 beta^2 + nu lambda. SGLD-SA has a decreasing
omega_k, SGLD-EM omega_k = 1 and SGLD omega_k = 0. For fixed (kappa, sigma) and epsilon -> 0 the law of beta tends to
exp(L / T), L the log posterior whose gradient stands in the first line; under SA the latent variables tend
to a fixed point, and the pair approximates the spike-and-slab posterior.

References:
    W. Deng, X. Zhang, F. Liang and G. Lin (2019), An adaptive empirical Bayesian method for sparse deep
    learning, Advances in Neural Information Processing Systems 32; the numbers are those of its equations.
"""

from __future__ import annotations

from math import exp, log, pi, sqrt
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from spikeslab.kernels.compiling import compile_cached
from spikeslab.sklearn._sweep import REORDER

if TYPE_CHECKING:
    from numpy.random import Generator
    from numpy.typing import NDArray

    from spikeslab.sklearn._sweep import Floats, Ints

    Array = NDArray[np.floating]
    Scalar = float | np.floating

GAUSSIAN, BINARY, SOFTMAX = 0, 1, 2
SA, EM, FIXED = 0, 1, 2


class SGLDConstants(NamedTuple):
    """Constants of a run: the family, the adaptation and the numbers of `SGLDOptions`."""

    family: int
    adaptation: int
    v0: float
    v1: float
    a: float
    b: float
    nu: float
    lam: float
    temperature: float
    num_data: float
    batch: int
    step: tuple[float, float, float]
    omega: tuple[float, float, float]
    printed: bool


class State(NamedTuple):
    """State of a chain and its work space; floating arrays have the type of X but for `latent`.

    Attributes:
        order: A permutation of the rows.
        beta: Coefficients, shape (vectors, p), as `rho`, `kappa0` and `kappa1`.
        intercept: Intercepts, shape (vectors,).
        latent: Sigma and delta.
        xi: Work space for noise, shape (p,).
        grad: Work space for gradients, shape (vectors, p + 1).
    """

    order: Ints
    beta: Array
    intercept: Array
    rho: Array
    kappa0: Array
    kappa1: Array
    latent: Floats
    xi: Array
    grad: Array


@compile_cached()
def draw_batch(order: Ints, batch: int, rng: Generator) -> None:
    """Put a uniform sample without replacement in front of `order`, a permutation of the rows."""
    n = order.shape[0]
    for i in range(batch):
        j = i + int(rng.random() * (n - i))
        order[i], order[j] = order[j], order[i]


@compile_cached(fastmath=REORDER)
def _dot(x: Array, beta: Array) -> Scalar:
    acc: Scalar = x[0] * beta[0]
    for j in range(1, x.shape[0]):
        acc += x[j] * beta[j]
    return acc


@compile_cached(fastmath=REORDER)
def _add(grad: Array, x: Array, weight: Scalar) -> None:
    for j in range(x.shape[0]):
        grad[j] += weight * x[j]


@compile_cached()
def likelihood_gradient(
    rows: Array, y: Array, order: Ints, rule: SGLDConstants, beta: Array, intercept: Array, grad: Array, psi: Array
) -> float:
    """Write the gradient of the batch's log likelihood and return its residual sum of squares (regression).

    In regression the gradient is that times sigma^2. The last column is for the intercepts.
    """
    classes, p = beta.shape
    one = rows.dtype.type(1)
    grad[:] = 0
    squares = 0.0
    for s in range(rule.batch):
        i = order[s]
        x = rows[i]
        for c in range(classes):
            psi[c] = _dot(x, beta[c]) + intercept[c]
        if rule.family == GAUSSIAN:
            psi[0] = y[i] - psi[0]
            squares += psi[0] * psi[0]
        elif rule.family == BINARY:
            psi[0] = y[i] - one / (one + exp(-psi[0]))
        else:
            top = psi.max()
            psi[:] = np.exp(psi - top)
            psi *= -one / psi.sum()
            psi[int(y[i])] += one
        for c in range(classes):
            _add(grad[c, :p], x, psi[c])
            grad[c, p] += psi[c]
    return squares


def responsibilities(beta: Array, sigma: float, delta: float, v0: float, v1: float) -> Floats:
    """Compute the probability of the slab given each coefficient, the right-hand side of equation (12)."""
    size = np.abs(beta) / sigma
    logit = size / v0 - 0.5 * size**2 / v1 + 0.5 * log(2.0 * v0 * v0 / (pi * v1)) + log(delta / (1.0 - delta))
    return np.asarray(1.0 / (1.0 + np.exp(-np.maximum(logit, -700.0))), dtype=np.float64)


@compile_cached(fastmath=REORDER)
def langevin_step(
    beta: Array,
    grad: Array,
    kappa0: Array,
    kappa1: Array,
    xi: Array,
    epsilon: Scalar,
    scale: Scalar,
    sigma: Scalar,
    noise: Scalar,
) -> None:
    """Move one coefficient vector; all scalars have the type of the arrays."""
    inverse = beta.dtype.type(1) / sigma
    for j in range(beta.shape[0]):
        b = beta[j]
        prior = (kappa0[j] * np.sign(b) + kappa1[j] * b * inverse) * inverse
        beta[j] = b + epsilon * (scale * grad[j] - prior) + noise * xi[j]


@compile_cached()
def adapt_coefficients(
    beta: Array,
    rho: Array,
    kappa0: Array,
    kappa1: Array,
    omega: float,
    sigma: float,
    rule: SGLDConstants,
    logit_delta: float,
) -> tuple[float, float, float]:
    """Update rho and kappa of one coefficient vector; return sum rho, R_b and sum kappa1 beta^2."""
    kind = beta.dtype.type
    half = kind(-0.5 / (sigma * sigma * rule.v1))
    slope = kind(1.0 / (sigma * rule.v0))
    offset = kind(0.5 * log(2.0 * rule.v0 * rule.v0 / (pi * rule.v1)) + logit_delta)
    w, spike, slab, one = kind(omega), kind(1.0 / rule.v0), kind(1.0 / rule.v1), kind(1.0)
    total = linear = quadratic = 0.0
    for j in range(beta.shape[0]):
        size = abs(beta[j])
        logit = (half * size + slope) * size + offset
        rho[j] += w * (one / (one + exp(-max(logit, kind(-80)))) - rho[j])
        kappa0[j] += w * ((one - rho[j]) * spike - kappa0[j])
        kappa1[j] += w * (rho[j] * slab - kappa1[j])
        total += rho[j]
        linear += kappa0[j] * size
        quadratic += kappa1[j] * size * size
    return total, linear, quadratic


@compile_cached()
def sgld_steps(
    rows: Array, y: Array, state: State, rule: SGLDConstants, first: int, steps: int, rng: Generator
) -> None:
    """Take the steps first, ..., first + steps - 1 of the chain `state`, in place."""
    beta, rho, kappa0, kappa1, latent = state.beta, state.rho, state.kappa0, state.kappa1, state.latent
    intercept, xi, grad = state.intercept, state.xi, state.grad
    classes, p = beta.shape
    kind = beta.dtype.type
    psi = np.empty(classes, beta.dtype)
    scale = rule.num_data / rule.batch
    for k in range(first, first + steps):
        epsilon = rule.step[0] * (k + rule.step[1]) ** -rule.step[2]
        noise = sqrt(2.0 * epsilon * rule.temperature)
        sigma = latent[0]
        draw_batch(state.order, rule.batch, rng)
        squares = likelihood_gradient(rows, y, state.order, rule, beta, intercept, grad, psi)
        weight = scale / (sigma * sigma) if rule.family == GAUSSIAN else scale
        for c in range(classes):
            for j in range(p):
                xi[j] = rng.standard_normal()
            langevin_step(
                beta[c], grad[c], kappa0[c], kappa1[c], xi, kind(epsilon), kind(weight), kind(sigma), kind(noise)
            )
            if rule.family != GAUSSIAN:
                intercept[c] += epsilon * weight * grad[c, p] + noise * rng.standard_normal()
        if rule.adaptation == FIXED:
            continue
        omega = 1.0
        if rule.adaptation == SA:
            omega = min(1.0, rule.omega[0] * (k + rule.omega[1]) ** -rule.omega[2])
        logit_delta = log(latent[1] / (1.0 - latent[1]))
        total = linear = quadratic = 0.0
        for c in range(classes):
            sums = adapt_coefficients(beta[c], rho[c], kappa0[c], kappa1[c], omega, sigma, rule, logit_delta)
            total += sums[0]
            linear += sums[1]
            quadratic += sums[2]
        if rule.family == GAUSSIAN:
            r_a = rule.num_data + p + rule.nu + (0.0 if rule.printed else 2.0)
            r_c = scale * squares + quadratic + rule.nu * rule.lam
        else:
            r_a = classes * p + rule.nu + 2.0
            r_c = quadratic + rule.nu * rule.lam
        latent[0] += omega * ((linear + sqrt(linear * linear + 4.0 * r_a * r_c)) / (2.0 * r_a) - sigma)
        delta = (total + rule.a - 1.0) / (rule.a + rule.b + classes * p - 2.0)
        latent[1] += omega * (delta - latent[1])
        latent[1] = min(max(latent[1], 1e-12), 1.0 - 1e-12)
