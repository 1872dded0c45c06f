import numpy as np
import pytest
from scipy.special import expit, logit

from spikeslab.sklearn._chains import run_chains
from spikeslab.sklearn._sgld import SGLDChain, SGLDOptions
from spikeslab.sklearn._sgld_kernel import responsibilities


def _data(rng, n=30, p=6):
    X = rng.standard_normal((n, p))
    return X, X[:, 0] + rng.standard_normal(n)


def _reference(X, y, state, options, method, family, steps):
    """The equations of the module's docstring in plain numpy, full batch, no noise."""
    beta, rho, kappa0, kappa1 = (a[0].astype(float) for a in (state.beta, state.rho, state.kappa0, state.kappa1))
    sigma, delta = state.latent
    n, p = X.shape
    level = 0.0
    for k in range(1, steps + 1):
        epsilon = options.step[0] * (k + options.step[1]) ** -options.step[2]
        omega = min(1.0, options.omega[0] * (k + options.omega[1]) ** -options.omega[2])
        omega = {"sgld-sa": omega, "sgld-em": 1.0, "sgld": 0.0}[method]
        psi = X @ beta + level
        residual = y - (psi if family == "gaussian" else expit(psi))
        weight = 1 / sigma**2 if family == "gaussian" else 1.0
        prior = kappa0 * np.sign(beta) / sigma + kappa1 * beta / sigma**2
        beta = beta + epsilon * (weight * X.T @ residual - prior)
        if family == "binary":
            level += epsilon * residual.sum()
        size = np.abs(beta)
        inside = -(size**2) / (2 * sigma**2 * options.v1) + size / (sigma * options.v0)
        inside += 0.5 * np.log(2 * options.v0**2 / (np.pi * options.v1)) + logit(delta)
        rho = rho + omega * (expit(inside) - rho)
        kappa0 = kappa0 + omega * ((1 - rho) / options.v0 - kappa0)
        kappa1 = kappa1 + omega * (rho / options.v1 - kappa1)
        r_b = (kappa0 * size).sum()
        r_c = (kappa1 * size**2).sum() + options.nu * options.lam
        r_a = p + options.nu + 2
        if family == "gaussian":
            r_a, r_c = n + p + options.nu, r_c + residual @ residual
        sigma += omega * ((r_b + np.sqrt(r_b**2 + 4 * r_a * r_c)) / (2 * r_a) - sigma)
        delta += omega * ((rho.sum() + options.a - 1) / (options.a + p + p - 2) - delta)
    return beta, rho, kappa0, kappa1, sigma, delta


@pytest.mark.parametrize("family", ["gaussian", "binary"])
@pytest.mark.parametrize("method", ["sgld-sa", "sgld-em", "sgld"])
def test_a_noiseless_full_batch_run_follows_the_equations(method, family, rng):
    X, y = _data(rng)
    if family == "binary":
        y = (y > 0).astype(float)
    options = SGLDOptions(a=2.0, batch_size=30, temperature=0.0, step=(0.004, 0.0, 1 / 3), omega=(1.0, 5.0, 0.7))
    chain = SGLDChain(X, y, 0 if family == "gaussian" else 2, method, options, 40, 40, rng)
    expected = _reference(X, y, chain.state, options, method, family, 40)
    chain.advance(40)
    state = chain.state
    for got, want in zip((state.beta[0], state.rho[0], state.kappa0[0], state.kappa1[0]), expected, strict=False):
        assert got == pytest.approx(want, rel=1e-6)
    assert state.latent == pytest.approx(expected[4:], rel=1e-6)


def test_single_precision_follows_double_precision(rng):
    X, y = _data(rng)
    options = SGLDOptions(batch_size=10, step=(0.002, 0.0, 1 / 3))
    runs = []
    for kind in (np.float32, np.float64):
        chain = SGLDChain(X.astype(kind), y.astype(kind), 0, "sgld-sa", options, 50, 50, np.random.default_rng(1))
        chain.advance(50)
        assert chain.state.beta.dtype == kind
        runs.append(chain.state.beta)
    assert runs[0] == pytest.approx(runs[1], abs=1e-4)


def test_sgld_has_the_variance_of_its_discretisation(rng):
    """U = lambda beta^2 / 2 has the variance 2 / (lambda (2 - epsilon lambda)): start and stay there."""
    p, precision, epsilon = 4000, 4.0, 0.1
    rows = np.zeros((2, p))
    options = SGLDOptions(step=(epsilon, 0.0, 0.0), sigma=1.0, kappa=0.0, batch_size=2)
    chain = SGLDChain(rows, np.zeros(2), 0, "sgld", options, 0, 200, rng)
    chain.state.kappa1[:] = precision
    variance = 2 / (precision * (2 - epsilon * precision))
    chain.state.beta[:] = np.sqrt(variance) * rng.standard_normal(p)
    (draws,) = run_chains([chain], 200, 1)
    final = draws.coef.toarray()[-1]
    assert final.var() == pytest.approx(variance, rel=5 * np.sqrt(2 / p))
    assert abs(final.mean()) < 5 * np.sqrt(variance / p)


def test_batches_give_an_unbiased_gradient(rng):
    X, y = _data(rng, n=12, p=3)
    options = SGLDOptions(batch_size=4, temperature=0.0, step=(1e-6, 0.0, 0.0), kappa=0.0, init_scale=0.3)
    moves = []
    for seed in range(3000):
        chain = SGLDChain(X, y, 0, "sgld", options, 10, 10, np.random.default_rng(7))
        chain.rng = np.random.default_rng(seed)
        start = chain.state.beta.copy()
        chain.advance(1)
        moves.append((chain.state.beta - start)[0] / 1e-6)
    full = X.T @ (y - X @ start[0])
    error = np.std(moves, axis=0) / np.sqrt(len(moves))
    assert np.all(np.abs(np.mean(moves, axis=0) - full) < 4.5 * error)


def test_responsibilities_do_not_overflow():
    values = responsibilities(np.array([[0.0, 1e6, -1e3]]), 1.0, 0.5, 1e-3, 10.0)
    assert np.isfinite(values).all()
    assert values[0, 2] == 1.0
    assert values[0, 1] < 1e-300
