"""Settings of the stochastic-gradient methods; the paper's values are the defaults."""

from __future__ import annotations

from dataclasses import dataclass

from spikeslab.errors import check_count, check_number


@dataclass(frozen=True)
class SGLDSettings:
    """Settings of SGLD-SA, SGLD-EM and SGLD in the paper's units.

    The defaults are those of the paper's simulations, which vary `v0` and `sigma`.

    Args:
        v0: scale of the Laplace spike, in units of sigma.
        v1: variance of the Gaussian slab, in units of sigma^2.
        sigma: initial value of sigma.
        delta: initial inclusion probability.
        a: first parameter of the Beta prior of delta.
        b: second parameter of it; None is the number of features.
        nu: degrees of freedom of the prior of sigma^2.
        lam: scale of the prior of sigma^2.
        batch_size: rows per step.
        step: (A, B, alpha) of the step size epsilon_k = A (k + B)^-alpha.
        omega: (A, B, alpha) of the step size of the stochastic approximation, clipped to [0, 1].
        temperature: 1 is the posterior; the paper's tau is its inverse.
        kappa: initial value of kappa0 and kappa1.
        init_scale: standard deviation of the initial coefficients; the paper does not give it, and with a
            narrow spike a start away from zero can end in a worse mode.
        thin: steps between kept draws.
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
    kappa: float = 1.0
    init_scale: float = 0.0
    thin: int = 100

    def __post_init__(self) -> None:
        for name in ("v0", "v1", "sigma", "a", "nu", "lam"):
            check_number(name, getattr(self, name), "> 0")
        for name in ("temperature", "kappa", "init_scale"):
            check_number(name, getattr(self, name), ">= 0")
        check_number("delta", self.delta, "(0, 1)")
        if self.b is not None:
            check_number("b", self.b, "> 0")
        check_count("batch_size", self.batch_size)
        check_count("thin", self.thin)
        for name in ("step", "omega"):
            numbers = getattr(self, name)
            if not (isinstance(numbers, tuple | list) and len(numbers) == 3):
                raise ValueError(f"{name} must be three numbers (A, B, alpha), but got {numbers!r}.")
            for index, allowed in enumerate(("> 0", ">= 0", ">= 0")):
                check_number(f"{name}[{index}]", numbers[index], allowed)
