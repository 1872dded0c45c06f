"""The hyper-parameters of the point-mass spike-and-slab prior."""

from __future__ import annotations

from typing import NamedTuple


class Prior(NamedTuple):
    """Prior of a sparse linear predictor, on the scale the samplers work on (standardised columns).

        gamma_j | pi ~ Bernoulli(pi),  pi ~ Beta(a, b),  beta_j | gamma_j = 1 ~ N(0, s2),
        s2 ~ IG(slab_df / 2, slab_df slab_scale^2 / 2),
        sigma2 ~ IG(noise_df / 2, noise_df noise_scale^2 / 2),
        b0_c ~ N(0, intercept_scale^2) for the intercepts of a logistic model, flat in a linear one.

    The slab does not depend on sigma2. An infinite noise_df says that sigma2 is known to be noise_scale^2, an
    infinite intercept_scale that the intercepts have a flat prior.

    A flat prior of the intercepts would be no limit of proper ones where hyperplanes separate C classes: the
    likelihood is then near one on a cone, in which the C - 1 free intercepts fill a volume proportional to
    s^(C-1) given the scale s of the slab. The posterior density of s would fall like s^(C-1) s^(-slab_df-1),
    which has no finite integral once C - 1 >= slab_df: four classes at slab_df = 3. With a proper prior the tail
    is that of the prior of s at any number of classes.
    """

    a: float
    b: float
    slab_df: float
    slab_scale: float
    noise_df: float = 1.0
    noise_scale: float = 1.0
    intercept_scale: float = 10.0
