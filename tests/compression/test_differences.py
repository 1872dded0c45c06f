"""Paired differences: their values, and standard errors that follow from the influence of each row."""

from __future__ import annotations

import math

import pytest
import torch
from small import compress_small, data, network
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from spikeslab.compression.differences import (
    ACCURACY,
    LOSS,
    NATS,
    RMSE,
    RowScores,
    check_order,
    compare,
    score_probabilities,
    score_rows,
)
from spikeslab.compression.tasks import Evaluation, classify, find_task, regress

SHUFFLED = (
    r"^val_loader must yield the same rows in the same order whenever it is run through, since networks are compared "
    r"row by row, but got others the second time: do not shuffle it\.$"
)


def scores(unit: str, seed: int, rows: int = 40) -> RowScores:
    generator = torch.Generator().manual_seed(seed)
    values = torch.rand(rows, generator=generator, dtype=torch.float64) + 0.5
    sizes = torch.randint(1, 9, (rows,), generator=torch.Generator().manual_seed(0)).double()
    return RowScores(unit, values, sizes)


def difference(unit: str, first: Tensor, second: Tensor, sizes: Tensor) -> Tensor:
    before, after = ((sizes * values).sum() / sizes.sum() for values in (first, second))
    if unit in (ACCURACY, NATS):
        return (100.0 if unit == ACCURACY else 1.0) * (after - before)
    return 100.0 * ((after / before).sqrt() - 1.0) if unit == RMSE else 100.0 * (after - before) / before.abs()


@pytest.mark.parametrize("unit", [ACCURACY, NATS, RMSE, LOSS])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_error_is_that_of_the_influences(unit: str, sign: float) -> None:
    first, second = scores(unit, 1), scores(unit, 2)
    if sign < 0.0 and unit == LOSS:  # a log density may be negative
        first, second = (RowScores(unit, -each.values, each.sizes) for each in (first, second))
    found = compare(first, second)
    assert found.value == pytest.approx(float(difference(unit, first.values, second.values, first.sizes)), rel=1e-12)
    # The influence of a row is the derivative by its weight; infinitesimal jackknife.
    weights = first.sizes.clone().requires_grad_()
    (slope,) = torch.autograd.grad(difference(unit, first.values, second.values, weights), weights)
    rows = len(slope)
    expected = float((first.sizes * slope).square().sum().sqrt()) * math.sqrt(rows / (rows - 1))
    assert found.error == pytest.approx(expected, rel=1e-9)
    low, high = found.interval
    assert (low + high) / 2 == pytest.approx(found.value)
    assert high - low == pytest.approx(2 * 1.959964 * found.error)


def test_the_error_of_an_accuracy_is_the_textbook_one() -> None:
    generator = torch.Generator().manual_seed(0)
    before, after = (torch.randint(0, 2, (500,), generator=generator).double() for _ in range(2))
    found = compare(*(RowScores(ACCURACY, values, torch.ones(500)) for values in (before, after)))
    assert found.error == pytest.approx(100.0 * float((after - before).std()) / math.sqrt(500))
    assert found.rows == 500


def test_the_interval_covers_the_true_difference_in_nineteen_of_twenty_cases() -> None:
    generator, covered, trials = torch.Generator().manual_seed(0), 0, 400
    for _ in range(trials):
        common = torch.rand(200, generator=generator, dtype=torch.float64)
        errors = [(common + torch.rand(200, generator=generator) < limit).double() for limit in (0.5, 0.6)]
        low, high = compare(*(RowScores(ACCURACY, each, torch.ones(200)) for each in errors)).interval
        covered += low <= 100.0 * (0.18 - 0.125) <= high  # P(sum of two uniforms < t) = t^2 / 2
    assert covered / trials == pytest.approx(0.95, abs=4 * math.sqrt(0.95 * 0.05 / trials))


@pytest.mark.parametrize("unit", [ACCURACY, NATS, RMSE, LOSS])
def test_a_network_is_as_good_as_itself(unit: str) -> None:
    found = compare(scores(unit, 1), scores(unit, 1))
    assert (found.value, found.error) == (0.0, pytest.approx(0.0, abs=1e-12))


def test_one_row_has_no_error() -> None:
    one = RowScores(ACCURACY, torch.ones(1), torch.ones(1))
    assert math.isnan(compare(one, one).error)


def test_a_loss_of_zero_has_no_per_cents() -> None:
    zero = RowScores(LOSS, torch.zeros(3), torch.ones(3))
    with pytest.raises(ValueError, match=r"^val_loader must give the dense network a loss that is finite and not zero"):
        compare(zero, zero)


@pytest.mark.parametrize("changed", ["values", "targets"])
def test_other_rows_are_refused(changed: str) -> None:
    first = RowScores(ACCURACY, torch.ones(4), torch.ones(4), torch.arange(4))
    rows = 3 if changed == "values" else 4
    second = RowScores(ACCURACY, torch.ones(rows), torch.ones(rows), torch.arange(rows).flip(0))
    with pytest.raises(ValueError, match=SHUFFLED):
        compare(first, second)


def test_a_loader_that_shuffles_is_found_out_at_its_first_batch() -> None:
    torch.manual_seed(0)
    rows = TensorDataset(torch.randn(64, 4), torch.arange(64))
    state = torch.get_rng_state()
    with pytest.raises(ValueError, match=SHUFFLED):
        check_order(DataLoader(rows, batch_size=16, shuffle=True))
    assert torch.equal(torch.get_rng_state(), state)
    check_order(DataLoader(rows, batch_size=16))
    check_order([{"x": torch.ones(3)}])


def test_scores_agree_with_the_evaluation() -> None:
    x, y = data(5)
    batches = [(x[:50], y[:50]), (x[50:], y[50:])]
    model = network()
    model.train()
    evaluation = Evaluation(find_task(model, batches[0], None), batches)
    found = evaluation.of_model(model)
    assert score_rows(evaluation, model).mean == pytest.approx(1.0 - found["accuracy"])
    assert score_probabilities(*evaluation.predict(model)).mean == pytest.approx(found["nll"], rel=1e-6)
    assert model.training
    regression = nn.Sequential(nn.Linear(4, 1))
    targets = [(xb, xb[:, 0]) for xb, _ in batches]
    evaluation = Evaluation(find_task(regression, targets[0], None), targets)
    rmse = evaluation.of_model(regression)["rmse"]
    assert score_rows(evaluation, regression).mean == pytest.approx(rmse**2, rel=1e-6)
    assert evaluation.task.loss is regress


def test_losses_of_batches_are_weighted_by_their_rows_and_averaged_over_samples() -> None:
    x, y = data(5)
    batches = [{"x": x[:70], "y": y[:70]}, {"x": x[70:], "y": y[70:]}]

    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return classify(model, (batch["x"], batch["y"]))

    result = compress_small(train=batches, loss=loss, num_data=96, val_loader=batches)
    evaluation = Evaluation(result.task, batches)
    assert score_rows(evaluation, result.model).sizes.tolist() == [70, 26]
    assert score_rows(evaluation, result.model).mean == pytest.approx(result.evaluation["sparse"]["loss"])
    assert score_rows(evaluation, result.posterior).mean == pytest.approx(result.evaluation["average"]["loss"])
