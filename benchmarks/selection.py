"""Accuracy, calibration and speed of the variable-selection estimators on the paper's simulations.

python benchmarks/selection.py linear --seeds 0 100
python benchmarks/selection.py logistic --seeds 0 20
python benchmarks/selection.py calibration --seeds 0 1000
python benchmarks/selection.py speed
"""

from __future__ import annotations

import argparse
import itertools
import time
import warnings

import numpy as np
from sklearn.linear_model import LassoCV

from spikeslab.sklearn import SpikeSlabClassifier, SpikeSlabRegressor
from spikeslab.sklearn._chains import run_chains
from spikeslab.sklearn._gibbs_linear import ColumnChain, GramChain, GramData
from spikeslab.sklearn._prior import Prior
from spikeslab.sklearn._sgld import SGLDChain
from spikeslab.sklearn._sgld_settings import SGLDSettings


def autoregressive(rng, n, p, rho):
    X = rng.standard_normal((n, p))
    for j in range(1, p):
        X[:, j] = rho * X[:, j - 1] + np.sqrt(1 - rho**2) * X[:, j]
    return X


def true_coefficients(rng, p):
    beta = np.zeros(p)
    beta[:3] = rng.normal([3, 2, 1], 0.2)
    return beta


def population_mse(coef, intercept, beta, rho=0.6, noise=3.0):
    """Exact expected squared error of a prediction: noise + (b - beta)' Sigma (b - beta) + b0^2."""
    d = coef - beta
    lags = np.abs(np.subtract.outer(np.arange(d.size), np.arange(d.size)))
    return noise + d @ (rho**lags) @ d + float(intercept) ** 2


def report(results, keys):
    ours = np.array(results["spikeslab"])
    print(f"{'':12}" + "".join(f"{key:>12}" for key in keys) + "   spikeslab minus it (standard error)")
    for name, rows in results.items():
        values = np.array(rows, dtype=float)
        difference = ours[:, 0] - values[:, 0]
        error = difference.std(ddof=1) / np.sqrt(len(rows))
        cells = "".join(f"{value:12.4f}" for value in values.mean(0))
        print(f"{name:12}{cells}   {difference.mean():+.4f} ({error:.4f})")


def linear(seeds):
    results = {}

    def add(name, model, begin, beta, support):
        hits = len(set(support) & {0, 1, 2})
        precision = hits / len(support) if len(support) else 1.0
        row = (population_mse(model.coef_, np.ravel(model.intercept_)[0], beta), precision, hits / 3)
        results.setdefault(name, []).append((*row, time.perf_counter() - begin))

    for seed in seeds:
        rng = np.random.default_rng(seed)
        X, beta = autoregressive(rng, 100, 1000, 0.6), true_coefficients(rng, 1000)
        y = X @ beta + np.sqrt(3) * rng.standard_normal(100)
        begin = time.perf_counter()
        model = SpikeSlabRegressor(random_state=seed).fit(X, y)
        add("spikeslab", model, begin, beta, model.get_support(indices=True))
        begin = time.perf_counter()
        lasso = LassoCV().fit(X, y)
        add("LassoCV", lasso, begin, beta, np.flatnonzero(lasso.coef_))
        for name, peer in abess_peer("LinearRegression"):
            begin = time.perf_counter()
            peer.fit(X, y)
            add(name, peer, begin, beta, np.flatnonzero(peer.coef_))
    report(results, ["pop MSE", "precision", "recall", "seconds"])


def logistic(seeds):
    results = {}

    def add(name, proba, y, begin, support):
        proba = np.clip(proba, 1e-12, 1 - 1e-12)
        brier, log_loss = np.mean((proba - y) ** 2), -np.mean(np.log(np.where(y == 1, proba, 1 - proba)))
        exact = float(set(support) == {0, 1, 2})
        results.setdefault(name, []).append((log_loss, brier, exact, time.perf_counter() - begin))

    for seed in seeds:
        rng = np.random.default_rng(seed)
        X, beta = autoregressive(rng, 5500, 1000, 0.3), true_coefficients(rng, 1000)
        psi = X @ beta + np.sqrt(0.5) * rng.standard_normal(5500)
        y = (rng.random(5500) < 1 / (1 + np.exp(-psi))).astype(int)
        train, test = slice(0, 500), slice(500, None)
        models = [("spikeslab", SpikeSlabClassifier(random_state=seed)), *abess_peer("LogisticRegression")]
        for name, model in models:
            begin = time.perf_counter()
            model.fit(X[train], y[train])
            support = model.get_support(indices=True) if name == "spikeslab" else np.flatnonzero(model.coef_)
            add(name, model.predict_proba(X[test])[:, 1], y[test], begin, support)
    report(results, ["log loss", "Brier", "exact", "seconds"])


def abess_peer(kind):
    try:
        import abess
    except ImportError:
        return []
    return [("abess", getattr(abess, kind)(ic_type="ebic"))]


def calibration(seeds):
    """Data from the model's own prior: are probabilities frequencies, and do intervals cover?"""
    prior = Prior(a=1.0, b=20.0, slab_df=4.0, slab_scale=0.5, noise_df=4.0, noise_scale=0.7)
    n, p = 60, 60
    pips, truth, covered, coef_covered = [], [], [], []
    for seed in seeds:
        rng = np.random.default_rng(seed)
        X = autoregressive(rng, n + 20, p, 0.7)
        X = (X - X[:n].mean(0)) / X[:n].std(0)
        noise = prior.noise_df * prior.noise_scale**2 / 2 / rng.standard_gamma(prior.noise_df / 2)
        slab = prior.slab_df * prior.slab_scale**2 / 2 / rng.standard_gamma(prior.slab_df / 2)
        gamma = rng.random(p) < rng.beta(prior.a, prior.b)
        beta = gamma * np.sqrt(slab) * rng.standard_normal(p)
        y = X @ beta + np.sqrt(noise) * rng.standard_normal(n + 20)
        level, Z = y[:n].mean(), X[:n]
        data = GramData(Z.T @ Z, Z.T @ (y[:n] - level), float(np.sum((y[:n] - level) ** 2)), float(n))
        draws = run_chains([GramChain(data, prior, 300, r) for r in rng.spawn(2)], 1300, 2)
        coef = np.concatenate([d.coef.toarray() for d in draws])
        sigma = np.concatenate([d.scalars["sigma"] for d in draws])[:, None]
        future = coef @ X[n:].T + level + sigma / np.sqrt(n) * rng.standard_normal(sigma.shape)
        lower, upper = np.quantile(future + sigma * rng.standard_normal(future.shape), [0.05, 0.95], axis=0)
        covered.append(np.mean((lower < y[n:]) & (y[n:] < upper)))
        pip = np.mean([d.pip for d in draws], axis=0)
        pips.append(pip)
        truth.append(gamma)
        sure = np.flatnonzero(pip > 0.9)
        ends = np.quantile(coef[:, sure], [0.05, 0.95], axis=0)
        coef_covered += list((ends[0] < beta[sure]) & (beta[sure] < ends[1]))
    pips, truth = np.concatenate(pips), np.concatenate(truth)
    edges = [0.0, 0.05, 0.2, 0.4, 0.6, 0.8, 0.95, 1.0 + 1e-9]
    for low, high in itertools.pairwise(edges):
        inside = (pips >= low) & (pips < high)
        mean = pips[inside].mean()
        error = np.sqrt(mean * (1 - mean) / inside.sum())
        print(
            f"pip in [{low:.2f}, {high:.2f}): mean {mean:.3f}, real {truth[inside].mean():.3f} ({error:.3f})"
        )
    print(f"90 % prediction intervals cover {np.mean(covered):.3f}")
    print(f"90 % intervals of coefficients with pip > 0.9 cover {np.mean(coef_covered):.3f}")


def speed():
    """Default fit against LassoCV in one process, and the cost of a sweep and of a step as p grows."""
    rng = np.random.default_rng(0)
    X, beta = autoregressive(rng, 100, 1000, 0.6), true_coefficients(rng, 1000)
    y = X @ beta + np.sqrt(3) * rng.standard_normal(100)
    for model in (SpikeSlabRegressor(random_state=0), LassoCV()):
        model.fit(X, y)
        times = []
        for _ in range(7):
            begin = time.perf_counter()
            model.fit(X, y)
            times.append(time.perf_counter() - begin)
        print(f"{type(model).__name__}: {np.median(times):.3f} s")
    for p in (1000, 10_000, 100_000):
        X = rng.standard_normal((100, p))
        X = (X - X.mean(0)) / X.std(0)
        y = 2 * X[:, 0] + rng.standard_normal(100)
        y -= y.mean()
        columns = np.ascontiguousarray(X.T)
        prior = Prior(a=1.0, b=float(p), slab_df=3.0, slab_scale=0.4, noise_scale=0.5)
        settings = SGLDSettings(step=(1e-6, 0.0, 1 / 3))
        sweep = cost(ColumnChain(columns, y, prior, 10**9, np.random.default_rng(1)), 300_000 // p)
        cells = [f"sweep {sweep:9.1f} us"]
        for kind in (np.float64, np.float32):
            chain = SGLDChain(
                X.astype(kind), y.astype(kind), 0, "sgld-sa", settings, 10**9, 10**9, np.random.default_rng(1)
            )
            cells.append(f"SGLD-SA step ({kind.__name__}) {cost(chain, 2_000_000 // p):8.1f} us")
        print(f"p = {p:6d}: " + ", ".join(cells))


def cost(chain, steps):
    """Microseconds of processor time per step."""
    chain.advance(1)
    begin, start = time.process_time(), chain.done
    while chain.done - start < steps:
        chain.advance(steps)
    return 1e6 * (time.process_time() - begin) / (chain.done - start)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=["linear", "logistic", "calibration", "speed"])
    parser.add_argument("--seeds", nargs=2, type=int, default=(0, 20), metavar=("FIRST", "END"))
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    if args.part == "speed":
        speed()
    else:
        {"linear": linear, "logistic": logistic, "calibration": calibration}[args.part](range(*args.seeds))


if __name__ == "__main__":
    main()
