"""Seeded runs whose numbers are pinned: a change of the code that is meant to change none must leave them as they are.

The numbers are sums over the whole state after a few steps. Their tolerance allows for another order of summation on
another processor, and for nothing else.
"""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import spikeslab as ss
from spikeslab.paper.uci import UCIData
from spikeslab.paper.uci import sampling as uci
from spikeslab.sklearn import SGLDOptions, SpikeSlabClassifier, SpikeSlabRegressor
from spikeslab.training import Callback, TensorBatches

DIGITS = 1e-4


def perceptron() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 2)
    )


def rows(number: int = 96) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(number, 4, generator=generator)
    return x, (x[:, 0] + x[:, 1] > 0).long()


def total(tensors: list[Tensor]) -> float:
    return float(sum(tensor.double().abs().sum() for tensor in tensors))


@pytest.mark.parametrize("fused", [True, False])
def test_own_loop(fused: bool) -> None:
    model, (x, y) = perceptron(), rows()
    weights = ss.select_weights(model, "3.weight")
    prior = ss.SpikeSlab(weights, v0=0.02, v1=1.0, delta=0.3, adapt=ss.SA(ss.polynomial(1.0, power=0.75, offset=3)))
    sampler = ss.SGHMC(
        model.parameters(), lr=0.05, num_data=96, temperature=0.1, weight_decay=1e-3, prior=prior, seed=5, fused=fused
    )
    pruner = ss.Pruner(weights, ss.cubic_sparsity(0.5, total=15))
    for _ in range(20):
        sampler.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        sampler.step()
        pruner.step()
    rho, kappa = prior.rho["3.weight"], prior.kappa["3.weight"]
    found = (total(list(model.parameters())), total([rho]), total(list(kappa)), prior.delta["3.weight"])
    assert int((model[3].weight == 0).sum()) == 128
    assert found == pytest.approx((52.180337, 17.026404, 10785.791, 0.081640040), rel=DIGITS)


@pytest.mark.parametrize(("sampler", "pinned"), [("SGLD", 75.604269), ("PSGLD", 291.63665)])
def test_other_samplers(sampler: str, pinned: float) -> None:
    model, (x, y) = perceptron(), rows()
    chain = getattr(ss, sampler)(model.parameters(), lr=0.01, num_data=96, temperature=0.1, seed=5)
    for _ in range(20):
        chain.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        chain.step()
    assert total(list(model.parameters())) == pytest.approx(pinned, rel=DIGITS)


def test_regression_with_a_learned_sigma() -> None:
    torch.manual_seed(0)
    x = torch.randn(60, 8, generator=torch.Generator().manual_seed(2))
    y = 2.0 * x[:, :1] + 0.3
    model = nn.Linear(8, 1)
    prior = ss.SpikeSlab([model.weight], v0=0.1, v1=10.0, delta=0.5, sigma_coupling="conjugate")
    likelihood = ss.GaussianLikelihood(prior)
    sampler = ss.SGLD(model.parameters(), lr=0.01, num_data=60, temperature=0.1, prior=prior, seed=4)
    for _ in range(20):
        sampler.zero_grad()
        likelihood(model(x), y).backward()
        sampler.step()
    assert (total(list(model.parameters())), prior.sigma) == pytest.approx((1.1740302, 1.0840014), rel=DIGITS)


def table(n: int = 40, p: int = 30) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(7)
    X = generator.standard_normal((n, p))
    return X, 2.0 * X[:, 3] - X[:, 5] + 0.5 * generator.standard_normal(n)


@pytest.mark.parametrize(
    ("method", "pinned"),
    [
        ("gibbs", (3.3152386, 2.9068095)),
        ("sgld-sa", (4.8210942, 0.0038321802)),
        ("sgld-em", (4.4384752, 3.4838021e-12)),
    ],
)
def test_regressor(method: str, pinned: tuple[float, float]) -> None:
    sgld = None if method == "gibbs" else SGLDOptions(batch_size=20)
    model = SpikeSlabRegressor(method, n_chains=2, n_iter=40, burn_in=20, sgld=sgld, random_state=1).fit(*table())
    assert (np.abs(model.coef_).sum(), model.pip_.sum()) == pytest.approx(pinned, rel=DIGITS)


@pytest.mark.parametrize(("classes", "pinned"), [(2, (9.1623239, 3.1158041)), (3, (26.267510, 4.9875))])
def test_classifier(classes: int, pinned: tuple[float, float]) -> None:
    X, response = table()
    y = np.digitize(response, [0.0] if classes == 2 else [-1.0, 1.0])
    model = SpikeSlabClassifier("gibbs", n_chains=2, n_iter=40, burn_in=20, random_state=1).fit(X, y)
    assert (np.abs(model.coef_).sum(), model.pip_.sum()) == pytest.approx(pinned, rel=DIGITS)


class StopError(Exception):
    """The end of a run before its time."""


class StopAt20(Callback):
    def after_step(self, run) -> None:
        if run.steps == 20:
            raise StopError


def test_compress_with_resume(tmp_path) -> None:
    def compress(**more):
        data = TensorBatches(*rows(), batch_size=16, seed=2)
        return ss.compress(
            perceptron(), data, [rows(32)], sparsity=0.4, epochs=6, samples=3, lr=0.05, seed=1, progress=False, **more
        )

    whole = compress()
    with pytest.raises(StopError):
        compress(folder=tmp_path / "run", callbacks=[StopAt20()])
    resumed = compress(folder=tmp_path / "run", resume=True)
    for result in (whole, resumed):
        found = total(list(result.model.parameters())), result.report["network"]["nonzeros"]
        assert found == pytest.approx((72.756622, 251), rel=DIGITS)
    probabilities = resumed.posterior.predict(rows(8)[0])
    assert float(probabilities[:, 0].sum()) == pytest.approx(4.5826645, rel=DIGITS)


def test_sparse_file(tmp_path) -> None:
    tensors = {
        "a.weight": (torch.arange(600, dtype=torch.float32).reshape(20, 30) % 7).where(torch.arange(30) % 3 == 0, 0.0),
        "a.bias": torch.linspace(-1, 1, 20),
        "count": torch.tensor(3),
    }
    content = ss.save_sparse(tensors, tmp_path / "file").read_bytes()
    assert hashlib.sha256(content).hexdigest() == "a06b4799a0e6cb91560a92170ebccbbbb968e06efe0796665809328ac77bca27"


@pytest.mark.parametrize(("preset", "pinned"), [("paper", 40.748), ("default", 6.0296)])
def test_uci_cell(preset: str, pinned: float) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 3, dtype=torch.float64, generator=generator)
    y = 20.0 + 3.0 * x[:, 0] + 0.1 * torch.randn(60, dtype=torch.float64, generator=generator)
    order = torch.stack([torch.randperm(60, generator=generator) for _ in range(2)])
    splits = uci.Splits.of(UCIData("yacht", x, y, order[:, 10:], order[:, :10]))
    chosen = uci.make_preset(preset, "yacht", "A-SGHMC-SA", 50, 4)
    record = uci.sample_splits(splits, chosen, standardise=preset == "default", epochs=4, seed=0)
    assert sum(record["rmse"]) == pytest.approx(pinned, rel=DIGITS)
