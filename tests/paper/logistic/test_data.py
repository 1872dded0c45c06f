from __future__ import annotations

import math

import pytest
import torch

from spikeslab.paper.logistic import simulate_logistic


def test_the_paper_s_sizes_and_signals() -> None:
    data = simulate_logistic(seed=3)
    assert data.x_train.shape == (500, 1000)
    assert data.x_test.shape == (50, 1000)
    assert data.x_score.shape == (5000, 1000)
    assert data.beta.count_nonzero() == 3
    assert torch.allclose(data.beta[:3], torch.tensor([3.0, 2.0, 1.0]), atol=1.0)
    assert set(data.y_train.tolist()) == {0, 1}


def test_the_columns_have_the_stated_covariance() -> None:
    x = simulate_logistic(seed=0, rows=100_000, variables=4, score_rows=1).x_train
    position = torch.arange(4.0)
    expected = 0.3 ** (position[:, None] - position[None, :]).abs()
    assert torch.allclose(x.T.cov(), expected, atol=0.03)


def test_labels_are_drawn_with_the_exact_probabilities() -> None:
    data = simulate_logistic(seed=1, variables=3, score_rows=200_000)
    probabilities = data.probabilities(data.x_score)
    for low in (0.0, 0.2, 0.4, 0.6, 0.8):
        inside = (probabilities >= low) & (probabilities < low + 0.2)
        error = (data.y_score[inside] - probabilities[inside]).mean().item()
        assert abs(error) < 4.0 * 0.5 / math.sqrt(int(inside.sum()))


def test_the_noise_is_integrated_out() -> None:
    data = simulate_logistic(seed=2, variables=3, score_rows=3)
    noise = math.sqrt(0.5) * torch.randn(400_000, dtype=torch.float64)
    logits = data.x_score.double() @ data.beta.double()
    averages = torch.sigmoid(logits[:, None] + noise).mean(dim=1)
    assert torch.allclose(data.probabilities(data.x_score), averages, atol=2e-3)


def test_the_seed_decides_and_the_global_generator_is_left_alone() -> None:
    before = torch.get_rng_state()
    first, again, other = (simulate_logistic(seed, variables=5) for seed in (0, 0, 1))
    assert torch.equal(first.x_train, again.x_train)
    assert torch.equal(first.y_score, again.y_score)
    assert not torch.equal(first.x_train, other.x_train)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": -1}, "seed must be an integer >= 0, but got -1."),
        ({"variables": 2}, "variables must be an integer >= 3, but got 2."),
        ({"score_rows": 0}, "score_rows must be an integer >= 1, but got 0."),
    ],
)
def test_bad_sizes(options: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        simulate_logistic(**{"seed": 0} | options)
    assert str(caught.value) == message
