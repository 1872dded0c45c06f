"""The callbacks that feed the doctor: temperatures in the log, convergence of predictions in the evaluation."""

from __future__ import annotations

import json

import torch
from torch import nn

import spikeslab as ss
from spikeslab.diagnostics import Thermometer
from spikeslab.diagnostics.run_reader import read_run
from spikeslab.metrics import accuracy
from spikeslab.metrics.temperature import ConfigurationalTemperature, kinetic_temperature
from spikeslab.posterior import Chains
from spikeslab.training import Collect, Evaluate, Every, PosteriorEvaluation, RunFolder, TensorBatches, Training

ROWS = 40


def run(callbacks, model=None, seed=0):
    torch.manual_seed(seed)
    model = nn.Linear(5, 3) if model is None else model
    x = torch.randn(ROWS, 5)
    data = TensorBatches(x, (x[:, 0] > 0).long(), batch_size=8, seed=0)
    sampler = ss.SGHMC(model.parameters(), lr=0.01, num_data=ROWS, temperature=0.1, seed=seed)
    return Training(model, sampler, data, callbacks=callbacks)


def test_the_log_has_both_temperatures(tmp_path):
    thermometer = Thermometer(configurational_from=10)
    training = run([thermometer])
    training.run(steps=30, folder=RunFolder(tmp_path / "run", log_every=Every(steps=10)))
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert "configurational_temperature" not in records[0]
    assert set(records[1]["configurational_temperature"]) == {"weight", "bias"}
    reading = kinetic_temperature(training.model, training.sampler)["weight"]
    assert records[-1]["kinetic_temperature"]["weight"] == reading.value
    assert list(read_run(tmp_path / "run").metrics.layers("kinetic_temperature")) == ["weight", "bias"]


def test_the_configurational_temperature_is_that_of_a_loop_by_hand():
    thermometer = Thermometer(configurational_from=0)
    training = run([thermometer])
    training.run(steps=12)
    again = run([])
    average = ConfigurationalTemperature(again.model, again.sampler)
    again.sampler.register_step_pre_hook(lambda *_: average.update())
    again.run(steps=12)
    assert thermometer.metrics()["configurational_temperature"]["weight"] == average.result()["weight"].value


def test_the_thermometer_changes_nothing_and_lets_go():
    plain, measured = run([]), run([Thermometer(configurational_from=0)])
    plain.run(steps=20)
    measured.run(steps=20)
    assert torch.equal(plain.model.weight, measured.model.weight)
    assert not measured.sampler._optimizer_step_pre_hooks


def test_an_optimizer_has_no_temperature():
    training = run([thermometer := Thermometer(configurational_from=0)])
    training.sampler = torch.optim.SGD(training.model.parameters(), lr=0.1, momentum=0.9)
    training.run(steps=5)
    assert thermometer.metrics() == {}


def test_the_evaluation_of_a_posterior_has_its_convergence(tmp_path):
    model = nn.Linear(5, 3)
    posterior = ss.Posterior(model, burn_in=20)
    x, y = torch.randn(30, 5), torch.randint(0, 3, (30,))
    evaluation = PosteriorEvaluation(posterior, x, y, compared=4)
    assert "convergence" not in evaluation(), "there is no sample yet, so the model itself is evaluated"
    training = run([Collect(posterior), Evaluate(evaluation)], model)
    training.run(steps=60, folder=tmp_path / "run")
    record = json.loads((tmp_path / "run" / "evaluation.json").read_text())
    assert record["accuracy"] == accuracy(posterior.predict(x), y)
    (item,) = record["convergence"]
    assert (item["name"], item["count"], item["chains"], item["draws"]) == ("predictions", 12, 1, 40)
    assert read_run(tmp_path / "run").convergence[0].rhat == item["rhat"]
    assert read_run(tmp_path / "run").samples.chains == [40]


def test_several_chains_are_compared():
    posteriors = [ss.Posterior(nn.Linear(5, 3)) for _ in range(2)]
    for posterior in posteriors:
        for _ in range(6):
            with torch.no_grad():
                posterior.model.bias.normal_()
            posterior.collect()
    result = PosteriorEvaluation(Chains(posteriors), torch.randn(7, 5), torch.zeros(7, dtype=torch.long))()
    assert result["convergence"][0]["chains"] == 2
