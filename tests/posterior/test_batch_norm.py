"""Batch normalisation of the samples, and its recalibration."""

import re

import pytest
import torch
from posteriors import filled, move, network
from torch import nn

import spikeslab as ss


def test_every_sample_keeps_its_own_batch_norm_buffers() -> None:
    model = network()
    posterior = ss.Posterior(model)
    for seed in range(3):
        move(model, seed)
        model.train()
        for _ in range(20):
            model(10.0**seed * torch.randn(16, 3))
        posterior.collect()
    variances = [float(posterior.tensors(i)["1.running_var"].mean()) for i in range(3)]
    assert variances[0] < variances[1] < variances[2]
    x = torch.randn(5, 3)
    expected = torch.stack([posterior.sample(i).eval()(x).detach().softmax(1) for i in range(3)]).mean(0)
    torch.testing.assert_close(posterior.predict(x), expected)


@pytest.mark.parametrize("on_disk", [False, True])
def test_recalibration_gives_each_sample_the_statistics_of_its_weights(on_disk: bool, tmp_path) -> None:
    model = network()
    posterior = filled(model, 3, directory=tmp_path / "samples" if on_disk else None)
    batches = [torch.randn(10, 3), torch.randn(10, 3)]
    posterior.recalibrate([(batch, torch.zeros(10)) for batch in batches])
    for index in range(3):
        sample = posterior.sample(index)
        features = [sample[0](batch).detach() for batch in batches]
        mean = torch.stack([f.mean(0) for f in features]).mean(0)
        variance = torch.stack([f.var(0) for f in features]).mean(0)
        torch.testing.assert_close(sample[1].running_mean, mean, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(sample[1].running_var, variance, rtol=1e-4, atol=1e-5)


def test_recalibrate_touches_nothing_but_batch_norm_statistics() -> None:
    model = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5, momentum=0.3), nn.Dropout(0.5)).eval()
    model[0].train()
    weights = [param.clone() for param in model.parameters()]
    ss.posterior.recalibrate(model, [torch.randn(10, 3)])
    assert all(torch.equal(a, b) for a, b in zip(weights, model.parameters(), strict=True))
    assert (model[1].momentum, model[0].training, model[1].training, model[2].training) == (0.3, True, False, False)
    assert not torch.equal(model[1].running_mean, torch.zeros(5))
    ss.posterior.recalibrate(model.eval(), [torch.randn(10, 3)])
    assert not any(module.training for module in model.modules())


def test_an_iterator_of_batches_is_refused_since_it_serves_one_sample_only() -> None:
    posterior = filled(network(), 2)
    message = "batches must be a list or a loader that can be read again, but got an iterator."
    with pytest.raises(TypeError, match=re.escape(message)):
        posterior.recalibrate(iter([torch.randn(4, 3)]))
