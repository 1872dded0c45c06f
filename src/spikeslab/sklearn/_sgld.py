"""Chains of the paper's stochastic-gradient methods."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from scipy import sparse
from scipy.special import log_expit, log_softmax
from sklearn.base import BaseEstimator

from spikeslab.errors import ArgumentValueError, SpikeSlabError, check_choice, check_count, check_number, mark
from spikeslab.sklearn._chains import Chain, ChainDraws
from spikeslab.sklearn._sgld_kernel import (
    BINARY,
    EM,
    FIXED,
    GAUSSIAN,
    SA,
    SOFTMAX,
    SGLDConstants,
    State,
    responsibilities,
    sgld_steps,
)

if TYPE_CHECKING:
    from numpy.random import Generator

    from spikeslab.sklearn._sgld_kernel import Array
    from spikeslab.sklearn._sweep import Floats, Ints

ADAPTATIONS = {"sgld-sa": SA, "sgld-em": EM, "sgld": FIXED}
CHECKED = 1000  # rows on which a kept draw is compared with no model
WORSE = 4.0  # times the loss of a model without variables: the chain has diverged
MAX_KEPT = 20_000_000  # numbers kept per chain; thinning grows beyond


@dataclass(repr=False)
class SGLDOptions(BaseEstimator):  # type: ignore[misc]
    """Options of SGLD-SA, SGLD-EM and SGLD in the paper's units.

    The defaults are those of the paper's simulations, which vary `v0` and `sigma`.

    Args:
        v0: Scale of the Laplace spike, in units of sigma.
        v1: Variance of the Gaussian slab, in units of sigma^2.
        sigma: Initial value of sigma.
        delta: Initial inclusion probability.
        a: First parameter of the Beta prior of delta.
        b: Second parameter of it; None is the number of features.
        nu: Degrees of freedom of the prior of sigma^2.
        lam: Scale of the prior of sigma^2.
        batch_size: Rows per step.
        step: (A, B, alpha) of the step size epsilon_k = A (k + B)^-alpha.
        omega: (A, B, alpha) of the step size of the stochastic approximation, clipped to [0, 1].
        temperature: 1 is the posterior; the paper's tau is its inverse.
        sigma_maximum: "printed" is equation 14 as the paper prints it for regression; "joint" is the maximum of the
            joint density, whose R_a has 2 more.
        kappa: Initial value of kappa0 and kappa1.
        init_scale: Standard deviation of the initial coefficients; the paper does not give it, and with a
            narrow spike a start away from zero can end in a worse mode.
        thin: Steps between kept draws.
    """

    v0: float = 0.1
    v1: float = 10.0
    sigma: float = 1.0
    delta: float = 0.5
    a: float = 1.0
    b: float | None = None
    nu: float = 1.0
    lam: float = 1.0
    batch_size: int = 50
    step: tuple[float, float, float] = (0.001, 0.0, 1 / 3)
    omega: tuple[float, float, float] = (10.0, 1000.0, 0.7)
    temperature: float = 1.0
    sigma_maximum: str = "printed"
    kappa: float = 1.0
    init_scale: float = 0.0
    thin: int = 100

    def __post_init__(self) -> None:
        self.check()

    def set_params(self, **params: Any) -> Self:
        """Set options by name; all stay as they are if a value is not allowed."""
        before = dict(self.__dict__)
        super().set_params(**params)
        try:
            self.check()
        except (TypeError, ValueError):
            self.__dict__.update(before)
            raise
        return self

    def check(self) -> None:
        """Raise an error if an option has a value that is not allowed."""
        for name in ("v0", "v1", "sigma", "a", "nu", "lam"):
            check_number(name, getattr(self, name), "> 0")
        for name in ("temperature", "kappa", "init_scale"):
            check_number(name, getattr(self, name), ">= 0")
        check_number("delta", self.delta, "(0, 1)")
        check_choice("sigma_maximum", self.sigma_maximum, ("joint", "printed"))
        if self.b is not None:
            check_number("b", self.b, "> 0")
        check_count("batch_size", self.batch_size)
        check_count("thin", self.thin)
        for name in ("step", "omega"):
            numbers = getattr(self, name)
            if not (isinstance(numbers, tuple | list) and len(numbers) == 3):
                raise ArgumentValueError(name, "must be three numbers (A, B, alpha)", numbers)
            for index, allowed in enumerate(("> 0", ">= 0", ">= 0")):
                check_number(f"{name}[{index}]", numbers[index], allowed)


class DivergenceError(SpikeSlabError, FloatingPointError):
    """A chain of a stochastic-gradient method has run away, because its steps are too large."""


class SGLDChain(Chain):
    """Chain of SGLD-SA, SGLD-EM or SGLD.

    Args:
        rows: Standardised X, shape (n, p), contiguous, float32 or float64.
        y: Centred response, or classes as 0, 1, ..., of the type of `rows`.
        n_classes: 0 for regression, otherwise the number of classes.
        method: "sgld-sa", "sgld-em" or "sgld".
        options: Options of the method.
        burn_in: Steps to discard of `steps` in all, which bound the number of kept draws.
        rng: Source of randomness of this chain alone.
    """

    def __init__(
        self,
        rows: Array,
        y: Array,
        n_classes: int,
        method: str,
        options: SGLDOptions,
        burn_in: int,
        steps: int,
        rng: Generator,
    ) -> None:
        n, p = rows.shape
        vectors = n_classes if n_classes > 2 else 1
        family = GAUSSIAN if n_classes == 0 else BINARY if n_classes == 2 else SOFTMAX
        kind = rows.dtype
        same = {name: getattr(options, name) for name in ("v0", "v1", "a", "nu", "lam", "temperature", "step", "omega")}
        self.rule = SGLDConstants(
            family=family,
            adaptation=ADAPTATIONS[method],
            b=float(vectors * p if options.b is None else options.b),
            num_data=float(n),
            batch=min(options.batch_size, n),
            printed=options.sigma_maximum == "printed",
            **same,
        )
        self.rows, self.y, self.rng, self.burn_in = rows, y, rng, burn_in
        self.thin = max(options.thin, -(-(steps - burn_in) * vectors * p // MAX_KEPT), 1)
        shape = (vectors, p)
        self.state = State(
            order=np.arange(n, dtype=np.int64),
            beta=rng.normal(0.0, options.init_scale, shape).astype(kind),
            intercept=np.zeros(vectors, kind),
            rho=np.full(shape, options.delta, kind),
            kappa0=np.full(shape, options.kappa, kind),
            kappa1=np.full(shape, options.kappa, kind),
            latent=np.array([options.sigma, options.delta]),
            xi=np.empty(p, kind),
            grad=np.empty((vectors, p + 1), kind),
        )
        self.kept: list[tuple[Array, Array, Floats]] = []
        self.excess: list[float] = []
        self.null_loss = self._loss(np.arange(n), np.zeros(shape), self._null_intercept())
        if family == GAUSSIAN:
            self.null_loss += options.sigma**2  # a response that does not vary is no reason to call noise divergence
        self.inclusion = np.zeros(shape)

    def advance(self, steps: int) -> int:
        """Run up to the next draw to keep."""
        target = self.burn_in if self.done < self.burn_in else self.done + self.thin
        ran = target - self.done if self.done >= self.burn_in else min(steps, target - self.done)
        sgld_steps(self.rows, self.y, self.state, self.rule, self.done + 1, ran, self.rng)
        self.done += ran
        beta, latent = self.state.beta, self.state.latent
        if not (np.isfinite(beta).all() and np.isfinite(latent).all()):
            raise self._make_error()
        if self.done > self.burn_in:
            self.kept.append((beta.copy(), self.state.intercept.copy(), latent.copy()))
            self.excess.append(self._loss(self.state.order[:CHECKED], beta, self.state.intercept) / self.null_loss)
            self.inclusion += responsibilities(beta, latent[0], latent[1], self.rule.v0, self.rule.v1)
        return ran

    def _null_intercept(self) -> Floats:
        """Return the intercepts of a model without variables."""
        if self.rule.family == GAUSSIAN:
            return np.zeros(1)
        shares = np.bincount(self.y.astype(np.int64), minlength=2) / self.y.size
        return np.log(shares[1:] / shares[0]) if self.rule.family == BINARY else np.log(shares)

    def _loss(self, chosen: Ints, beta: Array, intercept: Array) -> float:
        """Compute the mean squared error, or the mean log loss, on the chosen rows."""
        psi = self.rows[chosen] @ beta.T.astype(np.float64) + intercept
        y = self.y[chosen]
        if self.rule.family == GAUSSIAN:
            return float(np.square(y - psi[:, 0]).mean())
        if self.rule.family == BINARY:
            return float(-log_expit(np.where(y == 1, psi[:, 0], -psi[:, 0])).mean())
        return float(-log_softmax(psi, axis=1)[np.arange(y.size), y.astype(np.int64)].mean())

    def _make_error(self) -> DivergenceError:
        """Return the error for steps that were too large; the curvature grows with the number of rows."""
        n, p = self.rows.shape
        first, offset, power = self.rule.step
        smaller = float(f"{0.1 * first * min(1.0, 100 / n):.1g}")
        return DivergenceError(
            f"The chain diverged before step {self.done}: steps of sgld.step = {first:g} are too large for {n:,} rows "
            f"of {p:,} variables; use {mark('method', 'auto')}, or smaller steps, such as "
            f"sgld=SGLDOptions(step=({smaller:g}, {offset:g}, {power:.3g}))."
        )

    def collect(self) -> ChainDraws:
        """Return the kept draws; inclusion probabilities average the responsibilities of equation (12).

        Raises:
            DivergenceError: If the draws fit far worse than a model without variables: steps that are too large can
                let sigma grow without bound although no number becomes infinite.
        """
        if np.median(self.excess) > WORSE:
            raise self._make_error()
        coef, intercept, latent = (np.array(part, dtype=np.float64) for part in zip(*self.kept, strict=True))
        inclusion = self.inclusion / len(self.kept)
        size = coef.reshape(len(self.kept), -1)
        scalars = {"sigma": latent[:, 0], "delta": latent[:, 1], "norm": np.sqrt((size**2).sum(axis=1))}
        return ChainDraws(
            sparse.csr_array(size),
            intercept,
            scalars,
            1.0 - np.prod(1.0 - inclusion, axis=0) if len(inclusion) > 1 else inclusion[0],
            coef.mean(axis=0),
            (coef**2).mean(axis=0),
            self.done - self.burn_in,
        )
