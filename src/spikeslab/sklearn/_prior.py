"""The hyper-parameters of the point-mass spike-and-slab prior."""

from __future__ import annotations

from typing import NamedTuple


class Prior(NamedTuple):
    """Prior of a sparse linear predictor, on the scale the samplers work on (standardised columns).

        gamma_j | pi ~ Bernoulli(pi),  pi ~ Beta(a, b),  beta_j | gamma_j = 1 ~ N(0, s2),
        s2 ~ IG(slab_df / 2, slab_df slab_scale^2 / 2),
        sigma2 ~ IG(noise_df / 2, noise_df noise_scale^2 / 2).

    The slab does not depend on sigma2, and the intercept has a flat prior. An infinite noise_df says that
    sigma2 is known to be noise_scale^2.
    """

    a: float
    b: float
    slab_df: float
    slab_scale: float
    noise_df: float = 1.0
    noise_scale: float = 1.0
