"""Exact posteriors of small models, by enumeration of all models and numerical integration."""

import itertools

import numpy as np
from scipy.special import betaln, logsumexp
from scipy.stats import invgamma


def log_model_prior(size, p, a, b):
    """Log prior probability of one given model of `size` of p variables under the beta-binomial prior."""
    return betaln(a + size, b + p - size) - betaln(a, b)


def linear_posterior(X, y, prior, grid=80):
    """Inclusion probabilities, E[beta], E[sigma] and E[sqrt(s2)] for centred X and y."""
    n, p = X.shape
    noise = np.exp(np.linspace(np.log(1e-2), np.log(3e1), grid))
    slab = np.exp(np.linspace(np.log(1e-3), np.log(1e3), grid))
    v, s = np.meshgrid(noise, slab, indexing="ij")
    base = invgamma(prior.noise_df / 2, scale=prior.noise_df * prior.noise_scale**2 / 2).logpdf(v) + np.log(v)
    base += invgamma(prior.slab_df / 2, scale=prior.slab_df * prior.slab_scale**2 / 2).logpdf(s) + np.log(s)
    models = list(itertools.product([0, 1], repeat=p))
    logs = np.empty((len(models), grid, grid))
    means = np.zeros((len(models), p, grid, grid))
    for m, model in enumerate(models):
        active = np.flatnonzero(model)
        d, u = np.linalg.eigh(X[:, active].T @ X[:, active])
        z = u.T @ (X[:, active].T @ y)
        precision = d[:, None, None] / v + 1 / s
        quadratic = y @ y / v - ((z[:, None, None] / v) ** 2 / precision).sum(0)
        determinant = (n - 1) * np.log(v) + (np.log(precision) + np.log(s)).sum(0)
        logs[m] = -0.5 * (determinant + quadratic) + base + log_model_prior(active.size, p, prior.a, prior.b)
        means[m, active] = np.einsum("ij,jkl->ikl", u, z[:, None, None] / v / precision)
    weights = np.exp(logs - logsumexp(logs))
    pip = np.einsum("mkl,mj->j", weights, np.array(models))
    mean = np.einsum("mkl,mjkl->j", weights, means)
    return pip, mean, (weights * np.sqrt(v)).sum(), (weights * np.sqrt(s)).sum()


def logistic_posterior(X, y, prior, points=81, width=9.0):
    """Inclusion probabilities and E[beta] for a slab of known variance."""
    p = X.shape[1]
    axis = np.linspace(-width, width, points)
    logs, firsts = [], []
    models = list(itertools.product([0, 1], repeat=p))
    for model in models:
        active = np.flatnonzero(model)
        mesh = np.meshgrid(*[axis] * (active.size + 1), indexing="ij")
        theta = np.stack([g.ravel() for g in mesh])
        psi = theta[0][:, None] + theta[1:].T @ X[:, active].T
        fit = (y * psi - np.logaddexp(0, psi)).sum(1)
        fit -= 0.5 * (theta[1:] ** 2).sum(0) / prior.slab_scale**2 + 0.5 * theta[0] ** 2 / prior.intercept_scale**2
        fit += active.size * (np.log(axis[1] - axis[0]) - 0.5 * np.log(2 * np.pi * prior.slab_scale**2))
        total = logsumexp(fit)
        mean = np.zeros(p)
        mean[active] = (np.exp(fit - total) * theta[1:]).sum(1)
        logs.append(total + log_model_prior(active.size, p, prior.a, prior.b))
        firsts.append(mean)
    weights = np.exp(np.array(logs) - logsumexp(logs))
    return weights @ np.array(models), weights @ np.array(firsts)


def multinomial_patterns(x, labels, n_classes, prior, rng, draws=40_000):
    """Posterior probability of every pattern of classes for one feature, by importance sampling.

    The slab's variance is known; the last intercept is zero, which fixes the common shift.
    """
    from scipy.optimize import minimize
    from scipy.stats import multivariate_t

    logs = []
    patterns = np.arange(2**n_classes)
    for pattern in patterns:
        active = [c for c in range(n_classes) if pattern >> c & 1]

        def log_joint(theta, active=active):
            theta = np.atleast_2d(theta)
            psi = np.zeros((theta.shape[0], n_classes, x.size))
            psi[:, :-1] += theta[:, : n_classes - 1, None]
            for i, c in enumerate(active):
                psi[:, c] += theta[:, n_classes - 1 + i, None] * x
            fit = (psi[:, labels, np.arange(x.size)] - logsumexp(psi, axis=1)).sum(1)
            slopes = theta[:, n_classes - 1 :]
            levels = np.column_stack([theta[:, : n_classes - 1], np.zeros(len(theta))])
            return (
                fit
                - 0.5 * n_classes * levels.var(axis=1) / prior.intercept_scale**2
                - 0.5 * (slopes**2).sum(1) / prior.slab_scale**2
                - len(active) * 0.5 * np.log(2 * np.pi * prior.slab_scale**2)
            )

        size = n_classes - 1 + len(active)
        mode = minimize(lambda t: -log_joint(t)[0], np.zeros(size), method="BFGS")
        proposal = multivariate_t(mode.x, 1.3 * mode.hess_inv, df=8)
        theta = proposal.rvs(draws, random_state=rng).reshape(draws, size)
        value = logsumexp(log_joint(theta) - proposal.logpdf(theta)) - np.log(draws)
        logs.append(value + log_model_prior(len(active), n_classes, prior.a, prior.b))
    return np.exp(np.array(logs) - logsumexp(logs))


def separable_slab_scale(X, labels, n_classes, prior, rng, draws=400_000):
    """Posterior quantiles (0.1, 0.5, 0.9) of sqrt(s2) by importance sampling from the prior.

    Few rows, which the prior separates often enough for its draws to have usable weights.
    """
    n, p = X.shape
    pi = rng.beta(prior.a, prior.b, draws)
    slab = np.sqrt(prior.slab_df * prior.slab_scale**2 / 2 / rng.standard_gamma(prior.slab_df / 2, draws))
    gamma = rng.random((draws, n_classes, p)) < pi[:, None, None]
    beta = gamma * rng.standard_normal((draws, n_classes, p)) * slab[:, None, None]
    psi = beta @ X.T + prior.intercept_scale * rng.standard_normal((draws, n_classes, 1))
    fit = (psi[:, labels, np.arange(n)] - logsumexp(psi, axis=1)).sum(1)
    order = np.argsort(slab)
    mass = np.cumsum(np.exp(fit - fit.max())[order])
    return slab[order][np.searchsorted(mass, np.array([0.1, 0.5, 0.9]) * mass[-1])]
