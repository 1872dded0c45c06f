"""Collected samples, their average prediction, and their files."""

from __future__ import annotations

import math
import re

import pytest
import torch
from posteriors import filled, move, network
from torch import Tensor, nn

import spikeslab as ss
from spikeslab.errors import ArgumentValueError
from spikeslab.posterior import prediction

# ---- collecting ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("burn_in", "thin", "steps", "expected"),
    [(0, 1, 3, [1, 2, 3]), (2, 3, 12, [5, 8, 11]), (5, 1, 5, []), (5, 5, 9, []), (5, 5, 10, [10]), (0, 4, 9, [4, 8])],
)
def test_burn_in_and_thinning_count_steps_not_tensors(burn_in, thin, steps, expected) -> None:
    model = network()  # many tensors: a count by tensor would be off
    posterior = ss.Posterior(model, burn_in, thin)
    kept = [step for step in range(1, steps + 1) if posterior.collect()]
    assert kept == expected
    assert len(posterior) == len(expected)
    assert posterior.steps == steps


def test_it_counts_the_samplers_steps_where_it_knows_it() -> None:
    model = nn.Linear(2, 2)
    sampler = ss.SGLD(model.parameters(), lr=0.1, num_data=10)
    posterior = ss.Posterior(model, burn_in=1, thin=2, sampler=sampler)
    kept = []
    for step in range(1, 8):
        for param in model.parameters():
            param.grad = torch.zeros_like(param)
        sampler.step()
        if posterior.collect():
            kept.append(step)
        assert not posterior.collect()  # the same step twice is one sample
    assert kept == [3, 5, 7]


@pytest.mark.parametrize(("max_samples", "expected"), [(None, [2, 4, 6, 8, 10, 12]), (3, [8, 10, 12])])
def test_a_sampler_that_was_set_back_does_not_double_its_samples(tmp_path, max_samples, expected) -> None:
    def advance(steps: int) -> None:
        for _ in range(steps):
            for param in model.parameters():
                param.grad = param.detach().clone()
            sampler.step()
            posterior.collect()

    model = nn.Linear(2, 2)
    sampler = ss.SGLD(model.parameters(), lr=0.1, num_data=10, seed=0)
    posterior = ss.Posterior(model, thin=2, sampler=sampler, directory=tmp_path, max_samples=max_samples)
    advance(6)
    weights, state = {n: t.clone() for n, t in model.state_dict().items()}, sampler.state_dict()
    advance(4)  # then the process ends: the folder has more samples than the checkpoint
    model.load_state_dict(weights)
    sampler.load_state_dict(state)
    posterior = ss.Posterior.load(tmp_path, model, sampler=sampler)
    advance(6)
    assert sorted(record.step for record in posterior.records) == expected
    assert torch.equal(posterior.tensors(-1)["weight"], model.weight)
    assert posterior.predict(torch.ones(1, 2)).isfinite().all()


def test_samples_vary_and_are_copies() -> None:
    model = nn.Linear(2, 2)
    posterior = filled(model, 3)
    weights = [posterior.tensors(i)["weight"].clone() for i in range(3)]
    assert not torch.equal(weights[0], weights[1])
    with torch.no_grad():
        model.weight.zero_()
    assert all(torch.equal(posterior.tensors(i)["weight"], weights[i]) for i in range(3))
    sample = posterior.sample(1)
    with torch.no_grad():
        sample.weight.zero_()
    assert torch.equal(posterior.tensors(1)["weight"], weights[1])


# ---- predicting ------------------------------------------------------------------------------------------------------


def test_predict_averages_probabilities_and_not_logits() -> None:
    model = nn.Linear(3, 4)
    posterior = filled(model)
    x = torch.randn(6, 3)
    logits = torch.stack([posterior.sample(i)(x).detach() for i in range(4)])
    expected = logits.softmax(-1).mean(0)
    torch.testing.assert_close(posterior.predict(x), expected)
    assert not torch.allclose(posterior.predict(x), logits.mean(0).softmax(-1), atol=1e-3)
    assert not torch.allclose(posterior.predict(x), logits.log_softmax(-1).mean(0).exp(), atol=1e-3)
    torch.testing.assert_close(posterior.predict(x).sum(1), torch.ones(6))


def test_epsilon_weights_are_the_step_sizes() -> None:
    model = nn.Linear(3, 4)
    sampler = ss.SGLD(model.parameters(), lr=ss.polynomial(1.0, power=1.0), num_data=10, temperature=0.0)
    posterior = ss.Posterior(model, weighting="epsilon", sampler=sampler)
    for seed in range(3):
        move(model, seed)
        sampler.zero_grad()
        for param in model.parameters():
            param.grad = torch.zeros_like(param)
        sampler.step()
        posterior.collect()
    weights = torch.tensor([1.0, 1 / 2, 1 / 3], dtype=torch.float64)
    weights /= weights.sum()
    torch.testing.assert_close(posterior.sample_weights, weights)
    x = torch.randn(6, 3)
    values = torch.stack([posterior.sample(i)(x).detach().softmax(1) for i in range(3)]).double()
    mean = (weights[:, None, None] * values).sum(0)
    torch.testing.assert_close(posterior.predict(x).double(), mean, rtol=1e-5, atol=1e-6)
    epistemic = (weights[:, None, None] * (values - mean) ** 2).sum(0)
    torch.testing.assert_close(posterior.predictive(x).epistemic.double(), epistemic, rtol=1e-4, atol=1e-6)
    expected = sum(w * posterior.tensors(i)["weight"].double() for i, w in enumerate(weights.tolist()))
    torch.testing.assert_close(posterior.mean_model().weight.double(), expected, rtol=1e-5, atol=1e-6)


def test_batches_do_not_change_the_prediction() -> None:
    posterior = filled(network())
    x = torch.randn(7, 3)
    torch.testing.assert_close(posterior.predict(x, batch_size=3), posterior.predict(x))


def test_tied_parameters_stay_tied(tmp_path) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.outer = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
            self.outer.weight = self.inner.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.outer(torch.tanh(self.inner(x)))

    model = Tied()
    posterior = filled(model, 3, directory=tmp_path / "samples")
    sample = posterior.sample(0)
    assert sample.outer.weight is sample.inner.weight
    x = torch.randn(2, 4)
    expected = torch.stack([posterior.sample(i)(x).detach().softmax(1) for i in range(3)]).mean(0)
    torch.testing.assert_close(posterior.predict(x), expected)
    loaded = ss.Posterior.load(tmp_path / "samples", Tied())
    torch.testing.assert_close(loaded.predict(x), expected)


# ---- files -----------------------------------------------------------------------------------------------------------


def test_save_and_load_give_the_same_and_collecting_goes_on(tmp_path) -> None:
    model, x = network(), torch.randn(5, 3)
    posterior = filled(model, 6, burn_in=1, thin=2)
    posterior.save(tmp_path / "saved")
    loaded = ss.Posterior.load(tmp_path / "saved", network())
    assert (len(loaded), loaded.steps, loaded.burn_in, loaded.thin) == (2, 6, 1, 2)
    assert torch.equal(loaded.predict(x), posterior.predict(x))
    assert [loaded.collect() for _ in range(3)] == [True, False, True]
    assert len(ss.Posterior.load(tmp_path / "saved", network())) == 4


def test_a_regression_keeps_its_sigmas_and_its_link_through_a_file(tmp_path) -> None:
    model, x = nn.Linear(3, 2), torch.randn(5, 3)
    posterior = filled(model, 3, likelihood=ss.GaussianLikelihood(0.7))
    posterior.save(tmp_path / "saved")
    ours, theirs = posterior.predictive(x), ss.Posterior.load(tmp_path / "saved", nn.Linear(3, 2)).predictive(x)
    for field in ("mean", "aleatoric", "epistemic"):
        assert torch.equal(getattr(ours, field), getattr(theirs, field))
    assert float(ours.aleatoric[0, 0]) == pytest.approx(0.49)


@pytest.mark.parametrize("name", ["identity", "probabilities"])
def test_the_link_is_kept_through_a_file(name: str, tmp_path) -> None:
    posterior = filled(network(), 3, link=getattr(prediction, name))
    posterior.save(tmp_path / "saved")
    x = torch.randn(5, 3)
    assert torch.equal(ss.Posterior.load(tmp_path / "saved", network()).predict(x), posterior.predict(x))


def test_a_link_of_ones_own_must_be_given_again(tmp_path) -> None:
    posterior, x = filled(network(), 3, link=torch.sigmoid), torch.randn(5, 3)
    posterior.save(tmp_path / "saved")
    message = "link must be given for samples that were saved with a link of your own, but got None."
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        ss.Posterior.load(tmp_path / "saved", network())
    again = ss.Posterior.load(tmp_path / "saved", network(), link=torch.sigmoid)
    assert torch.equal(again.predict(x), posterior.predict(x))


def test_another_model_is_refused(tmp_path) -> None:
    filled(nn.Linear(3, 4), 1).save(tmp_path / "saved")
    for model, names in ((nn.Linear(3, 5), "'weight', 'bias'"), (nn.Linear(3, 4, bias=False), "'bias'")):
        with pytest.raises(ArgumentValueError) as error:
            ss.Posterior.load(tmp_path / "saved", model)
        file = tmp_path / "saved" / "posterior.json"
        assert str(error.value) == (
            f"model must have the tensors of the saved samples in {file}, but it differs in {names}."
        )


# ---- bad input -------------------------------------------------------------------------------------------------------


def test_an_empty_posterior_says_when_the_first_sample_comes() -> None:
    posterior = ss.Posterior(nn.Linear(2, 2), burn_in=5, thin=3)
    posterior.collect()
    message = "The posterior has no samples after 1 steps: the first is taken at step burn_in + thin = 8."
    for use in (
        lambda: posterior.predict(torch.ones(1, 2)),
        posterior.mean_model,
        lambda: posterior.recalibrate([]),
        lambda: next(iter(posterior.outputs(torch.ones(1, 2)))),
    ):
        with pytest.raises(RuntimeError) as error:
            use()
        assert str(error.value) == message


def test_bad_arguments_are_refused() -> None:
    model = nn.Linear(2, 2)
    for options, message in [
        ({"burn_in": -1}, "burn_in must be an integer >= 0, but got -1."),
        ({"thin": 0}, "thin must be an integer >= 1, but got 0."),
        ({"weighting": "lr"}, "weighting must be one of 'uniform', 'epsilon', but got 'lr'."),
        ({"weighting": "epsilon"}, "sampler must be given where weighting='epsilon', but got None."),
        ({"max_samples": 0}, "max_samples must be an integer >= 1, but got 0."),
    ]:
        with pytest.raises(ArgumentValueError) as error:
            ss.Posterior(model, **options)
        assert str(error.value) == message
    posterior = filled(model, 2)
    for index in (2, -3):
        with pytest.raises(IndexError) as error:
            posterior.sample(index)
        assert str(error.value) == f"index must be below the number of samples, 2, but got {index}."


def test_a_posterior_of_an_exact_gaussian_has_its_variance() -> None:
    """End to end: the collected samples of a chain on a quadratic have the chain's stationary law."""
    model = nn.Linear(1, 20_000, bias=False)
    with torch.no_grad():
        model.weight.normal_().mul_(math.sqrt(0.1 * 2 / (2 - 0.5)))
    sampler = ss.SGLD(model.parameters(), lr=0.5, num_data=10, seed=0)
    posterior = ss.Posterior(model, burn_in=5, thin=5, link=lambda outputs: outputs)
    for _ in range(105):
        model.weight.grad = model.weight.detach().clone()
        sampler.step()
        posterior.collect()
    prediction = posterior.predictive(torch.ones(1, 1))
    # Twenty samples, five steps apart: a correlation of 0.5^5 lowers their variance by 5 % of 1/20 and more.
    assert float(prediction.epistemic.mean()) == pytest.approx(0.1 * 2 / 1.5 * (1 - 1 / 20), rel=0.02)


def test_a_sample_of_weight_zero_is_not_kept() -> None:
    model = nn.Linear(2, 2)
    sampler = ss.SGLD(model.parameters(), lr=ss.schedules.multistep(1.0, 1e-300, [1]), num_data=10, seed=0)
    posterior = ss.Posterior(model, weighting="epsilon", sampler=sampler)
    kept = []
    for lr in (0.5, 0.0):
        model(torch.ones(1, 2)).sum().backward()
        sampler.step()
        sampler.param_groups[0]["lr"] = lr
        kept.append(posterior.collect())
    assert kept == [True, False]
    assert posterior.sample_weights.tolist() == [1.0]


def test_a_loaded_epsilon_posterior_needs_its_sampler_to_go_on(tmp_path) -> None:
    model = nn.Linear(2, 2)
    sampler = ss.SGLD(model.parameters(), lr=0.1, num_data=10, seed=0)
    ss.Posterior(model, weighting="epsilon", sampler=sampler).save(tmp_path / "posterior")
    loaded = ss.Posterior.load(tmp_path / "posterior", model)
    with pytest.raises(ValueError, match="sampler must be given where weighting='epsilon', but got None"):
        loaded.collect()


def test_a_sampler_that_is_made_later_is_followed() -> None:
    model = nn.Linear(2, 2)
    posterior = ss.Posterior(model, burn_in=1)
    sampler = ss.SGLD(model.parameters(), lr=0.1, num_data=10)
    posterior.attach(sampler)
    for _ in range(3):
        model(torch.ones(1, 2)).sum().backward()
        sampler.step()
        posterior.collect()
        posterior.collect()  # no new step
    assert [record.step for record in posterior.records] == [2, 3]
    posterior.attach(sampler)
    message = r"^sampler must be the one that the posterior was given, but got another\.$"
    with pytest.raises(ValueError, match=message):
        posterior.attach(ss.SGLD(model.parameters(), lr=0.1, num_data=10))
