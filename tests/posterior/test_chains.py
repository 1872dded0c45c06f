"""Several chains predict as the average of all their samples, and come out of ArviZ as they went in."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import spikeslab as ss
from spikeslab.posterior import Chains
from spikeslab.posterior.samples import INDEX


def chain(seed: int, draws: int = 4, directory=None) -> ss.Posterior:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    posterior = ss.Posterior(model, directory=directory)
    for _ in range(draws):
        with torch.no_grad():
            for param in model.parameters():
                param.copy_(torch.randn(param.shape))
        posterior.collect()
    return posterior


def test_prediction_is_the_average_over_all_samples():
    chains, inputs = Chains([chain(0, 4), chain(1, 2)]), torch.randn(5, 3)
    values = [value for posterior in chains.posteriors for value in posterior.outputs(inputs)]
    assert len(chains) == 6
    torch.testing.assert_close(chains.predict(inputs), torch.stack(values).mean(0))
    prediction = chains.predictive(inputs, batch_size=2)
    torch.testing.assert_close(prediction.epistemic, torch.stack(values).var(0, correction=0))
    torch.testing.assert_close(prediction.variance, prediction.mean * (1 - prediction.mean))


def test_samples_and_their_weights_are_counted_chain_after_chain():
    posteriors, inputs = [chain(0, 4), chain(1, 2)], torch.randn(5, 3)
    for posterior, weight in zip(posteriors, (1.0, 3.0), strict=True):
        posterior.records = [replace(record, weight=weight) for record in posterior.records]
    chains = Chains(posteriors)
    assert chains.sample_weights.tolist() == pytest.approx([0.1] * 4 + [0.3] * 2)
    with torch.no_grad():
        values = torch.stack([chains.sample(index)(inputs).softmax(1) for index in range(6)])
        assert torch.equal(chains.sample(-1)(inputs), posteriors[1].sample(1)(inputs))
    torch.testing.assert_close(torch.einsum("s,sij->ij", chains.sample_weights.float(), values), chains.predict(inputs))
    for index in (6, -7):
        with pytest.raises(IndexError, match=rf"^index must be below the number of samples, 6, but got {index}\.$"):
            chains.sample(index)


def test_inference_data_has_parameters_predictions_and_steps():
    inputs = torch.randn(5, 3)
    posteriors = [chain(0, 4), chain(1, 6)]
    data = Chains(posteriors).to_arviz(inputs)
    assert data.groups() == ["posterior", "predictions", "sample_stats"]
    assert data.posterior["0.weight"].shape == (2, 4, 4, 3)
    np.testing.assert_array_equal(data.posterior["2.bias"][1, 0], posteriors[1].tensors(2)["2.bias"])
    np.testing.assert_array_equal(data.sample_stats["step"], [[1, 2, 3, 4], [3, 4, 5, 6]])
    expected = list(posteriors[0].outputs(inputs))[-1]
    np.testing.assert_allclose(data.predictions["prediction"][0, -1], expected, rtol=1e-6)


def test_big_networks_are_thinned_and_sampled():
    posterior = chain(0, 7)
    data = posterior.to_arviz(weights=["*.weight"], limit=5, thin=3)
    assert list(data.posterior.data_vars) == ["0.weight", "2.weight"]
    assert data.posterior["0.weight"].shape == (1, 3, 5)
    assert data.sample_stats["step"].values.tolist() == [[1, 4, 7]]
    places = data.posterior["0.weight_index"].values
    np.testing.assert_array_equal(
        data.posterior["0.weight"][0, -1], posterior.tensors(-1)["0.weight"].numpy().reshape(-1)[places]
    )
    whole = posterior.to_arviz(weights="2.*", limit=None)
    assert whole.posterior["2.weight"].shape == (1, 7, 2, 4)


def test_double_precision_is_kept():
    model = nn.Linear(1, 1).double()
    posterior = ss.Posterior(model)
    posterior.collect()
    assert posterior.to_arviz().posterior["weight"].values.item() == model.weight.item()


def sampled(directory=None) -> ss.Posterior:
    """A regression with a prior, whose sigma and delta are kept."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    prior = ss.SpikeSlab(ss.select_weights(model, "weight"), v0=0.1, v1=1.0, adapt=ss.SA(lambda k: 0.1))
    likelihood = ss.GaussianLikelihood(prior)
    sampler = ss.SGHMC(model.parameters(), lr=0.01, num_data=32, prior=prior, seed=0)
    posterior = ss.Posterior(model, likelihood=likelihood, sampler=sampler, directory=directory)
    x = torch.randn(32, 4)
    for _ in range(10):
        sampler.zero_grad()
        likelihood(model(x), x[:, :1]).backward()
        sampler.step()
        posterior.collect()
    return posterior


def test_latents_are_kept_with_the_samples(tmp_path):
    posterior = sampled(tmp_path / "posterior")
    data = posterior.to_arviz()
    assert data.posterior["sigma"].shape == (1, 10)
    assert data.posterior["delta"].sel(layer="weight").values.tolist() == [
        [record.delta["weight"] for record in posterior.records]
    ]
    assert len(set(data.posterior["delta"].values.ravel())) == 10
    again = ss.Posterior.load(tmp_path / "posterior", nn.Linear(4, 1))
    assert again.records == posterior.records
    assert [result.name for result in posterior.convergence()] == ["norms of layers", "sigma", "delta", "some weights"]


def test_files_from_before_delta_was_kept_still_load(tmp_path):
    posterior = sampled(tmp_path / "posterior")
    path = tmp_path / "posterior" / INDEX
    index = json.loads(path.read_text())
    for record in index["samples"]:
        del record["delta"]
    del index["sha256"], index["checksum"], index["sealed"]
    path.write_text(json.dumps(index | {"version": 1}))
    again = ss.Posterior.load(tmp_path / "posterior", nn.Linear(4, 1))
    assert len(again) == len(posterior)
    assert "delta" not in again.to_arviz().posterior


def test_chains_are_read_from_folders_in_their_order(tmp_path):
    for index in (0, 2, 10):
        chain(index, directory=tmp_path / f"chain-{index}")
    model = chain(0).model
    chains = Chains.load(tmp_path, model)
    assert len(chains.posteriors) == 3
    inputs = torch.randn(2, 3)
    torch.testing.assert_close(chains.posteriors[2].predict(inputs), chain(10).predict(inputs))
    assert len(Chains.load(tmp_path / "chain-2", model)) == 4


def test_bad_input(tmp_path):
    for call, error, message in (
        (lambda: Chains([]), ValueError, r"^posteriors must hold at least one chain, but got none\.$"),
        (
            lambda: Chains([ss.Posterior(nn.Linear(1, 2)), ss.Posterior(nn.Linear(1, 3))]),
            ValueError,
            r"^posteriors must be of models with the same tensors, but chain 1 differs in 'weight', 'bias'\.$",
        ),
        (
            lambda: Chains.load(tmp_path, nn.Linear(1, 1)),
            FileNotFoundError,
            r"holds neither a posterior nor folders chain-0",
        ),
        (
            lambda: chain(0).to_arviz(weights="fc*"),
            ValueError,
            r"^weights must match parameters among '0\.weight', .*, but got 'fc\*'\.$",
        ),
        (lambda: chain(0).to_arviz(limit=0), ValueError, r"^limit must be an integer >= 1, but got 0\.$"),
        (
            Chains([chain(0), chain(1, draws=0)]).to_arviz,
            RuntimeError,
            r"^Every chain must hold a sample, but one has none\.$",
        ),
    ):
        with pytest.raises(error, match=message):
            call()
