"""Scores against numbers computed by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from spikeslab.bench.compression.networks import StudyData
from spikeslab.bench.compression.scores import score_classes, score_network, score_posterior, score_regression
from spikeslab.compression import compress
from spikeslab.errors import NonFiniteError


def test_classes_by_hand():
    probabilities = torch.tensor([[0.7, 0.3], [0.4, 0.6], [0.9, 0.1]])
    found = score_classes(probabilities, torch.tensor([0, 0, 0]))
    assert found.numbers["accuracy"] == pytest.approx(2 / 3)
    assert found.numbers["nll"] == pytest.approx(-math.log(0.7 * 0.4 * 0.9) / 3)
    assert found.numbers["ece"] == pytest.approx((0.3 + 0.6 + 0.1) / 3, abs=1e-6)
    assert found.rows["correct"].tolist() == [1, 0, 1]
    assert found.rows["log_prob"].tolist() == pytest.approx([math.log(p) for p in (0.7, 0.4, 0.9)], abs=1e-3)


def test_every_position_of_a_text_is_a_row():
    probabilities = torch.tensor([[[0.7, 0.1, 0.5], [0.3, 0.9, 0.5]]])  # one row, two characters, three positions
    found = score_classes(probabilities, torch.tensor([[0, 0, 1]]))
    assert found.numbers["nll"] == pytest.approx(-math.log(0.7 * 0.1 * 0.5) / 3)
    assert len(found.rows["correct"]) == 3


def test_the_variance_of_a_regression_is_that_of_held_out_rows(tiny):
    held_out, test = torch.tensor([1.0, -1.0, 3.0, -3.0]), torch.tensor([2.0, 0.0])
    data = StudyData(tiny["mlp"].load(None, 0).train, *([(torch.zeros(len(y), 4), y)] for y in (held_out, test)))
    silent = nn.Linear(4, 1)
    nn.init.zeros_(silent.weight)
    nn.init.zeros_(silent.bias)
    found = score_network(tiny["mlp"], data, silent)
    variance = (1 + 1 + 9 + 9) / 4
    assert found.numbers["rmse"] == pytest.approx(math.sqrt(2.0))
    assert found.numbers["nll"] == pytest.approx(0.5 * math.log(2 * math.pi * variance) + 2.0 / (2 * variance))
    assert found.numbers["held_out_rmse"] == pytest.approx(math.sqrt(variance))
    assert found.rows["square"].tolist() == [4.0, 0.0]


@pytest.mark.parametrize("name", ["lenet", "mlp", "transformer"])
def test_the_average_is_that_of_the_predictions_of_the_samples(tiny, name):
    network = tiny[name]
    data = network.load(None, 0)
    options = {"sparsity": 0.4, "epochs": 4, "progress": False, "report": False, "loss": network.loss}
    posterior = compress(network.build(), data.train, data.held_out, **options).posterior
    x, y = data.test[0]
    assert len(data.test) == 1
    with torch.no_grad():
        outputs = [posterior.sample(index)(x).double() for index in range(len(posterior))]
    link = (lambda o: o) if name == "mlp" else (lambda o: o.softmax(dim=1))
    mean = sum(map(link, outputs)) / len(outputs)
    score = score_regression if name == "mlp" else score_classes
    found = score_posterior(network, data, posterior).numbers
    key = "rmse" if name == "mlp" else "nll"
    assert found[key] == pytest.approx(score(mean, y).numbers[key], rel=1e-5)


def test_predictions_that_are_not_finite():
    with pytest.raises(NonFiniteError, match="diverged"):
        score_regression(torch.tensor([math.nan]), torch.tensor([0.0]))
