"""Samples, their average prediction, and their files."""

from __future__ import annotations

import json
import math
import random
import re

import pytest
import torch
from torch import Tensor, nn

import spikeslab as ss
from spikeslab.paper.uci import MLP
from spikeslab.posterior import _forward as batched
from spikeslab.posterior import prediction, samples


def move(model: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for param in model.parameters():
            param.copy_(torch.randn(param.shape, generator=generator))


def filled(model: nn.Module, samples: int = 4, **options) -> ss.Posterior:
    posterior = ss.Posterior(model, **options)
    for seed in range(samples):
        move(model, seed)
        posterior.collect()
    return posterior


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 4))


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


def test_the_oldest_sample_goes_where_there_are_too_many(tmp_path) -> None:
    for options in ({}, {"directory": tmp_path / "samples"}):
        model = nn.Linear(2, 2)
        posterior = filled(model, 5, max_samples=2, **options)
        assert len(posterior) == 2
        move(model, 4)
        assert torch.equal(posterior.tensors(-1)["weight"], model.weight)
        move(model, 3)
        assert torch.equal(posterior.tensors(0)["weight"], model.weight)
    assert len(list((tmp_path / "samples").glob("*.safetensors"))) == 2


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


def test_log_probabilities_give_the_same_as_logits() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.LogSoftmax(dim=1))
    posterior = filled(model)
    x = torch.randn(6, 3)
    expected = torch.stack([posterior.sample(i)(x).detach().exp() for i in range(4)]).mean(0)
    torch.testing.assert_close(posterior.predict(x), expected)


def test_variance_of_a_classification_splits_into_aleatoric_and_epistemic() -> None:
    posterior = filled(nn.Linear(3, 4).double())
    x = torch.randn(6, 3, dtype=torch.float64)
    prediction = posterior.predictive(x)
    values = torch.stack(list(posterior.outputs(x)))
    torch.testing.assert_close(prediction.epistemic, values.var(0, unbiased=False))
    torch.testing.assert_close(prediction.aleatoric, (values * (1 - values)).mean(0))
    torch.testing.assert_close(prediction.variance, prediction.mean * (1 - prediction.mean))


def test_variance_of_a_regression_adds_the_noise_of_each_sample() -> None:
    model = nn.Linear(3, 2).double()
    prior = ss.SpikeSlab([model.weight], v0=0.02, v1=1.0)
    posterior = ss.Posterior(model, likelihood=ss.GaussianLikelihood(prior))
    sigmas = [0.5, 1.0, 3.0]
    for seed, sigma in enumerate(sigmas):
        move(model, seed)
        prior.scale.sigma = sigma
        posterior.collect()
    x = torch.randn(6, 3, dtype=torch.float64)
    prediction = posterior.predictive(x)
    means = torch.stack([posterior.sample(i)(x).detach() for i in range(3)])
    torch.testing.assert_close(prediction.mean, means.mean(0))
    torch.testing.assert_close(prediction.epistemic, means.var(0, unbiased=False))
    expected = torch.full((6, 2), sum(s**2 for s in sigmas) / 3, dtype=torch.float64)
    torch.testing.assert_close(prediction.aleatoric, expected)


def test_a_small_epistemic_variance_does_not_cancel() -> None:
    model = nn.Linear(1, 1, bias=False)
    posterior = ss.Posterior(model, link=lambda outputs: outputs)
    for shift in (-1.0, 0.0, 1.0):
        with torch.no_grad():
            model.weight.fill_(1000.0 + 0.01 * shift)
        posterior.collect()
    prediction = posterior.predictive(torch.ones(1, 1))
    values = torch.cat(list(posterior.outputs(torch.ones(1, 1)))).double()
    assert float(prediction.epistemic) == pytest.approx(float(values.var(unbiased=False)), rel=0.02)


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


def test_predicting_leaves_the_model_as_it_was() -> None:
    model = network()
    posterior = filled(model)
    move(model, 99)
    model.train()
    model[1].eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    posterior.predict(torch.randn(7, 3))
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert (model.training, model[0].training, model[1].training) == (True, True, False)


# ---- batch normalisation ---------------------------------------------------------------------------------------------


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


# ---- the mean model --------------------------------------------------------------------------------------------------


def test_mean_model_is_the_mean_of_the_weights() -> None:
    model = network()
    posterior = filled(model)
    mean = posterior.mean_model()
    for name, param in mean.named_parameters():
        expected = torch.stack([posterior.tensors(i)[name] for i in range(4)]).mean(0)
        torch.testing.assert_close(param.detach(), expected)
    assert mean[1].num_batches_tracked.dtype == torch.int64


def test_mean_model_warns_where_the_samples_have_different_zeros(recwarn) -> None:
    model = nn.Linear(4, 1, bias=False)

    def collect(posterior: ss.Posterior, values: list[float]) -> None:
        with torch.no_grad():
            model.weight.copy_(torch.tensor([values]))
        posterior.collect()

    same = ss.Posterior(model)
    collect(same, [0.0, 1.0, 0.0, 2.0])
    collect(same, [0.0, 3.0, 0.0, 2.0])
    assert same.mean_model().weight.tolist() == [[0.0, 2.0, 0.0, 2.0]]
    assert len(recwarn) == 0
    other = ss.Posterior(model)
    collect(other, [0.0, 1.0, 0.0, 2.0])
    collect(other, [0.0, 0.0, 1.0, 2.0])
    with pytest.warns(ss.SpikeSlabWarning) as record:
        other.mean_model()
    assert [str(w.message) for w in record] == [
        "The samples have different zeros: their mean has 1, each sample at least 2. Freeze the mask before "
        "collecting, or prune the mean again and recalibrate it."
    ]
    assert record[0].filename == __file__


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


def test_on_disk_equals_in_memory(tmp_path) -> None:
    x = torch.randn(5, 3)
    torch.manual_seed(0)
    memory = filled(network())
    torch.manual_seed(0)
    disk = filled(network(), directory=tmp_path / "samples")
    assert torch.equal(memory.predict(x), disk.predict(x))
    assert all(
        torch.equal(tensor, disk.tensors(i)[name]) for i in range(4) for name, tensor in memory.tensors(i).items()
    )


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


@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.parametrize("model", [nn.Linear(3, 1), nn.Sequential(nn.Linear(3, 1), nn.Flatten(0))])
def test_one_output_has_no_softmax(model: nn.Module, samples: int) -> None:
    posterior, x = filled(model, samples), torch.randn(5, 3)
    message = (
        "The model has one output for each row: give link=torch.sigmoid for a logit, or likelihood=... for a "
        f"regression. The outputs have shape {tuple(model(x).shape)}."
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        posterior.predict(x)
    assert filled(model, samples, link=torch.sigmoid).predict(x).shape == model(x).shape


@pytest.mark.parametrize("name", ["identity", "probabilities"])
def test_the_link_is_kept_through_a_file(name: str, tmp_path) -> None:
    posterior = filled(network(), 3, link=getattr(prediction, name))
    posterior.save(tmp_path / "saved")
    x = torch.randn(5, 3)
    assert torch.equal(ss.Posterior.load(tmp_path / "saved", network()).predict(x), posterior.predict(x))


def test_a_link_of_ones_own_must_be_given_again(tmp_path) -> None:
    posterior, x = filled(network(), 3, link=torch.sigmoid), torch.randn(5, 3)
    posterior.save(tmp_path / "saved")
    message = "link must be given: the samples were saved with a link of your own."
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        ss.Posterior.load(tmp_path / "saved", network())
    again = ss.Posterior.load(tmp_path / "saved", network(), link=torch.sigmoid)
    assert torch.equal(again.predict(x), posterior.predict(x))


def test_files_hold_no_pickle(tmp_path) -> None:
    filled(network(), 2, directory=tmp_path / "samples")
    names = sorted(path.name for path in (tmp_path / "samples").iterdir())
    assert names == ["posterior.json", "sample-000000001.safetensors", "sample-000000002.safetensors"]


def test_another_model_is_refused(tmp_path) -> None:
    filled(nn.Linear(3, 4), 1).save(tmp_path / "saved")
    with pytest.raises(ValueError, match="model must") as error:
        ss.Posterior.load(tmp_path / "saved", nn.Linear(3, 5))
    assert str(error.value) == ("model must have the tensors of the saved samples, but it differs in 'weight', 'bias'.")
    with pytest.raises(ValueError, match=re.escape("differs in 'bias'.")):
        ss.Posterior.load(tmp_path / "saved", nn.Linear(3, 4, bias=False))


def test_a_posterior_is_never_overwritten(tmp_path) -> None:
    posterior = filled(nn.Linear(3, 4), 1)
    posterior.save(tmp_path / "saved")
    before = {path.name: path.read_bytes() for path in (tmp_path / "saved").iterdir()}
    message = f"{tmp_path / 'saved'} holds a posterior already"
    with pytest.raises(FileExistsError, match=re.escape(message)):
        posterior.save(tmp_path / "saved")
    with pytest.raises(FileExistsError, match=re.escape(message)):
        ss.Posterior(nn.Linear(3, 4), directory=tmp_path / "saved")
    assert {path.name: path.read_bytes() for path in (tmp_path / "saved").iterdir()} == before


class TestDamagedFiles:
    def test_a_damaged_sample_is_named(self, tmp_path) -> None:
        model = nn.Linear(3, 4)
        filled(model, 2).save(tmp_path)
        sample = tmp_path / "sample-000000002.safetensors"
        sample.write_bytes(sample.read_bytes()[:40])
        loaded = ss.Posterior.load(tmp_path, model)
        loaded.tensors(0)
        with pytest.raises(ValueError, match=re.escape(f"The sample {sample} has changed since it was written")):
            loaded.predict(torch.ones(1, 3))

    def test_a_missing_sample_is_named(self, tmp_path) -> None:
        model = nn.Linear(3, 4)
        filled(model, 1).save(tmp_path)
        sample = tmp_path / "sample-000000001.safetensors"
        sample.unlink()
        with pytest.raises(ValueError, match=re.escape(f"Cannot read the sample {sample}: ")):
            ss.Posterior.load(tmp_path, model).tensors(0)

    def test_a_damaged_index_is_named(self, tmp_path) -> None:
        model = nn.Linear(3, 4)
        filled(model, 1).save(tmp_path)
        index = tmp_path / "posterior.json"
        text = index.read_text()
        index.write_text(text[:30])
        with pytest.raises(ValueError, match=re.escape(f"Cannot read {index}: ")):
            ss.Posterior.load(tmp_path, model)
        index.write_text(json.dumps(json.loads(text) | {"version": 99}))
        with pytest.raises(ValueError, match=re.escape(f"{index} has version 99, but this spikeslab reads 1 and 2.")):
            ss.Posterior.load(tmp_path, model)

    def test_no_changed_byte_is_silent(self, tmp_path) -> None:
        model, x = nn.Linear(3, 4), torch.ones(1, 3)
        filled(model, 2).save(tmp_path)
        source = random.Random(0)
        for path in sorted(tmp_path.iterdir()):
            content = path.read_bytes()
            for _ in range(60):
                place, change = source.randrange(len(content)), source.randrange(1, 256)
                path.write_bytes(content[:place] + bytes([content[place] ^ change]) + content[place + 1 :])
                with pytest.raises(ValueError, match=re.escape(str(path))):
                    ss.Posterior.load(tmp_path, model).predict(x)
            path.write_bytes(content)
        ss.Posterior.load(tmp_path, model).predict(x)

    def test_a_kill_while_a_sample_is_replaced_leaves_a_pair_that_fits(self, tmp_path, monkeypatch) -> None:
        model = nn.BatchNorm1d(3)
        posterior = filled(model, 1, directory=tmp_path, link=torch.sigmoid)
        before = posterior.tensors(0)["running_mean"]
        writes = []

        def write_then_die(path, content, write=samples.write_atomically):
            write(path, content)
            writes.append(path.name)
            if len(writes) == killed:
                raise KeyboardInterrupt

        monkeypatch.setattr(samples, "write_atomically", write_then_die)
        for killed in (1, 2):
            writes.clear()
            with pytest.raises(KeyboardInterrupt):
                posterior.recalibrate([torch.ones(4, 3)])
            found = ss.Posterior.load(tmp_path, model, link=torch.sigmoid).tensors(0)["running_mean"]
            assert torch.equal(found, before if killed == 1 else torch.ones(3))

    @pytest.mark.parametrize(
        ("change", "field"),
        [
            ({"thin": 0}, "thin"),
            ({"steps": -1}, "steps"),
            ({"samples": [{"step": 1, "weight": -1.0}]}, "weight of a sample"),
            ({"samples": [{"step": 1, "weight": 1.0}] * 2}, "samples"),
            ({"samples": [{"step": 1, "weight": math.nan}]}, "weight of a sample"),
        ],
    )
    def test_an_impossible_index_of_version_1_is_refused(self, tmp_path, change, field) -> None:
        model = nn.Linear(3, 4)
        filled(model, 1).save(tmp_path)
        index = tmp_path / "posterior.json"
        old = {
            name: value for name, value in json.loads(index.read_text()).items() if name not in ("sha256", "checksum")
        }
        index.write_text(json.dumps(old | {"version": 1}))
        assert len(ss.Posterior.load(tmp_path, model)) == 1
        index.write_text(json.dumps(old | {"version": 1} | change))
        with pytest.raises(ValueError, match=re.escape(f"{index} has impossible values of {field}.")):
            ss.Posterior.load(tmp_path, model)

    def test_a_state_of_another_model_is_refused_and_changes_nothing(self, tmp_path) -> None:
        posterior = filled(nn.Linear(3, 4), 2, directory=tmp_path)
        before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
        with pytest.raises(
            ValueError, match=r"^The sample of step 1 in the state is of another model: it differs in 'b"
        ):
            posterior.load_state_dict(filled(nn.Linear(3, 4, bias=False), 1).state_dict())
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
        assert len(posterior) == 2

    def test_a_folder_without_a_posterior_is_named(self, tmp_path) -> None:
        message = f"{tmp_path} holds no posterior: it has no posterior.json."
        with pytest.raises(FileNotFoundError, match=re.escape(message)):
            ss.Posterior.load(tmp_path, nn.Linear(3, 4))


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
        with pytest.raises(ValueError, match="must be") as error:
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


class OneAtATime(nn.Module):
    """A model whose forward pass depends on its numbers, which vmap cannot batch."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) if self.linear.bias.sum() > 0 else self.linear(-x)


@pytest.mark.parametrize("budget", [1, 2_000, 1 << 26])
@pytest.mark.parametrize(
    "build",
    [
        lambda: nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Dropout(), nn.Linear(5, 2)),
        lambda: MLP(3, hidden=(5,), outputs=2),
        OneAtATime,
    ],
)
def test_many_samples_at_once_predict_what_each_does_alone(build, budget, monkeypatch):
    monkeypatch.setattr(batched, "BUDGET", budget)
    model = build().double()
    posterior = ss.Posterior(model)
    for _ in range(7):
        for parameter in model.parameters():
            nn.init.normal_(parameter)
        posterior.collect()
    x = torch.randn(9, 3, dtype=torch.float64)
    alone = torch.stack([posterior.sample(index).eval()(x).softmax(1) for index in range(7)])
    for batch_size in (None, 4):
        torch.testing.assert_close(torch.stack(list(posterior.outputs(x, batch_size=batch_size))), alone)
        torch.testing.assert_close(posterior.predict(x, batch_size=batch_size), alone.mean(0))
    assert model.training
