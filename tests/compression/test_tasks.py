"""The dense network as a teacher: the loss is what its formula says, and the network learns from it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from small import ROWS, batches, data, network
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, SubsetRandomSampler, TensorDataset

from spikeslab.compression import Settings, compress
from spikeslab.compression.tasks import (
    REGRESSION,
    Evaluation,
    Task,
    classify,
    count_rows,
    estimate_noise,
    find_task,
    regress,
    softened_divergences,
    with_distillation,
    with_noise,
)
from spikeslab.likelihoods import GaussianLikelihood
from spikeslab.training import Callback, TensorBatches, Training

SHARE, SOFTENING = 0.3, 2.5


def test_the_divergence_is_that_of_softened_probabilities() -> None:
    logits, told = torch.randn(2, 5, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    q, p = (each.div(SOFTENING).softmax(dim=1) for each in (told, logits))
    expected = SOFTENING**2 * (q * (q / p).log()).sum(dim=1).mean()
    torch.testing.assert_close(softened_divergences(logits, told, SOFTENING).mean(), expected)


def test_a_large_softening_compares_centred_logits() -> None:
    logits, told = torch.randn(2, 5, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    expected = 0.5 * (logits - told).var(dim=1, correction=0).mean()
    torch.testing.assert_close(softened_divergences(logits, told, 1e4).mean(), expected, rtol=1e-3, atol=0.0)


def test_rounded_logits_are_compared_in_float32() -> None:
    logits, told = torch.randn(2, 5, 7, generator=torch.Generator().manual_seed(1)).bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = softened_divergences(logits, told, 4.0).mean()
    torch.testing.assert_close(
        found, softened_divergences(logits.float(), told.float(), 4.0).mean(), rtol=1e-6, atol=0.0
    )


def test_labels_within_a_row_count_alike() -> None:
    logits, told = torch.randn(2, 3, 4, 6, generator=torch.Generator().manual_seed(2))
    flat = [each.transpose(1, 2).reshape(-1, 4) for each in (logits, told)]
    torch.testing.assert_close(softened_divergences(logits, told, 3.0).mean(), softened_divergences(*flat, 3.0).mean())


def test_targets_and_teacher_have_their_shares_in_a_classification() -> None:
    dense, sparse, (x, y) = network(), nn.Linear(4, 2), data()
    told = dense.eval()(x)
    lesson = with_distillation(find_task(dense, (x, y), None), dense.train(), SHARE, SOFTENING)
    expected = 0.7 * F.cross_entropy(sparse(x), y) + 0.3 * softened_divergences(sparse(x), told, SOFTENING).mean()
    torch.testing.assert_close(lesson.loss(sparse, (x, y)), expected)


def test_what_has_no_label_is_not_learned() -> None:
    dense, sparse, (x, y) = network(), nn.Linear(4, 2), data()
    lesson = with_distillation(find_task(dense, (x, y), None), dense, SHARE, SOFTENING)
    some = y.masked_fill(torch.arange(len(y)) % 3 == 0, -100)
    labelled = some != -100
    torch.testing.assert_close(lesson.loss(sparse, (x, some)), lesson.loss(sparse, (x[labelled], y[labelled])))


def test_targets_and_teacher_have_their_shares_in_a_regression() -> None:
    dense, sparse, x = nn.Linear(4, 1), nn.Linear(4, 1), data()[0]
    y = x[:, 0]
    lesson = with_distillation(Task(REGRESSION, regress), dense, SHARE, SOFTENING)
    expected = 0.7 * F.mse_loss(sparse(x), y[:, None]) + 0.3 * F.mse_loss(sparse(x), dense(x))
    torch.testing.assert_close(lesson.loss(sparse, (x, y)), expected)


def test_the_teacher_stays_as_it_was_and_gets_no_gradient() -> None:
    dense, (x, y) = network().train(), data()
    lesson = with_distillation(find_task(dense, (x, y), None), dense, 1.0, 1.0)
    before = lesson.loss(network().eval(), (x, y)).item()
    assert before == pytest.approx(0.0, abs=1e-6), "a network that is its own teacher has nothing to learn"
    lesson.loss(dense, (x, y)).backward()
    assert lesson.loss(network().eval(), (x, y)).item() == before, "dense's new statistics are not the teacher's"


def test_without_a_share_nothing_changes() -> None:
    task = Task("classification", classify)
    assert with_distillation(task, network(), 0.0, 4.0) is task


def test_what_the_teacher_says_is_learned_against_the_labels() -> None:
    dense, x = network(), data()[0]
    told = dense.eval()(x).argmax(dim=1)
    train = TensorBatches(x, 1 - told, batch_size=16, seed=2)
    settings = Settings(distillation=1.0, samples=2, lr=0.02)
    result = compress(dense, train, sparsity=0.2, epochs=20, settings=settings, progress=False)
    assert (result.model(x).argmax(dim=1) == told).float().mean() > 0.75


class Crash(Callback):
    """Ends the run after a step."""

    def after_step(self, run: Training) -> None:
        if run.steps == 9:
            raise RuntimeError("a crash")


def test_a_run_with_a_teacher_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    def done(name: str, *callbacks: Callback) -> dict:
        options = {"settings": Settings(distillation=0.5, samples=2), "folder": tmp_path / name, "report": False}
        result = compress(
            network(), batches(), sparsity=0.5, epochs=4, progress=False, resume=True, callbacks=callbacks, **options
        )
        return result.model.state_dict()

    with pytest.raises(RuntimeError, match=r"^a crash$"):
        done("broken", Crash())
    whole, broken = done("whole"), done("broken")
    assert all(torch.equal(whole[name], broken[name]) for name in whole)
    with pytest.raises(ValueError, match=r"distillation was 0\.5 and is now 0\.0"):
        compress(
            network(), batches(), sparsity=0.5, epochs=4, progress=False, samples=2, report=False, resume=True,
            folder=tmp_path / "whole",
        )  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"distillation": 1.5}, r"^distillation must be a number in \[0, 1\], but got 1\.5\.$"),
        ({"softening": 0.0}, r"^softening must be a number > 0, but got 0\.0\.$"),
    ],
)
def test_bad_settings(settings: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Settings(**settings)


def test_a_loss_of_ones_own_has_no_teacher() -> None:
    message = r"^distillation must be 0 where a loss is given, which decides what is learned, but got 0\.5\.$"
    with pytest.raises(ValueError, match=message):
        compress(network(), batches(), loss=classify, settings=Settings(distillation=0.5), progress=False)


def test_a_loader_of_a_subset_has_as_many_rows_as_the_subset() -> None:
    rows = TensorDataset(*data())
    subset = DataLoader(rows, batch_size=8, sampler=SubsetRandomSampler(range(40)))
    assert count_rows(subset, None) == 40
    assert count_rows(DataLoader(rows, batch_size=8, shuffle=True), None) == ROWS
    assert count_rows(DataLoader(rows, batch_sampler=[[0, 1], [2, 3], [3, 0]]), None) == 4


def test_the_loss_on_validation_data_is_a_mean_over_rows() -> None:
    x, y = data()
    model = network().eval()
    task = find_task(model, (x, y), lambda net, batch: F.cross_entropy(net(batch[0]), batch[1]))
    uneven = [(x[:90], y[:90]), (x[90:], y[90:])]
    found = Evaluation(task, uneven).of_model(model)["loss"]
    assert found == pytest.approx(F.cross_entropy(model(x), y).item(), rel=1e-5)


def line(noise: float = 0.3) -> tuple[nn.Module, TensorBatches, Tensor]:
    """Return a network that fits a line with noise, its batches and its residuals."""
    torch.manual_seed(0)
    x = torch.randn(320, 4)
    y = x[:, 0] + noise * torch.randn(320)
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))
    with torch.no_grad():
        model[0].weight.zero_(), model[0].bias.zero_(), model[2].weight.zero_(), model[2].bias.zero_()
        model[0].weight[:2, 0] = torch.tensor([1.0, -1.0])
        model[2].weight[0, :2] = torch.tensor([1.0, -1.0])
        residuals = y - model(x).squeeze(1)
    return model, TensorBatches(x, y, batch_size=32, seed=1), residuals


def test_the_loss_of_a_regression_is_the_gaussian_likelihood() -> None:
    model, rows, residuals = line()
    options = {"sparsity": 0.5, "epochs": 2, "lr": 1e-6, "progress": False}
    found = compress(model, rows, method="magnitude", weights="0.*", count="layers", **options)
    sigma = found.report["settings"]["sigma"]
    assert sigma == pytest.approx(float(residuals.square().mean().sqrt()), rel=0.05)
    # Half of the weights were zero before: the network stays what it was.
    assert found.history[-1]["loss"] == pytest.approx(float(residuals.square().mean()) / (2 * sigma**2), rel=1e-2)
    given = compress(model, rows, settings=Settings(sigma=2.0), **options)
    assert given.report["settings"]["sigma"] == 2.0


def test_the_noise_of_a_network_that_interpolates_is_a_thousandth_of_the_spread() -> None:
    model, rows, _ = line(noise=0.0)
    assert estimate_noise(model, rows.epoch(0)) == pytest.approx(1e-3, rel=0.15)


@pytest.mark.parametrize("outputs", [1, 3])
def test_several_outputs_add_up_in_the_likelihood(outputs: int) -> None:
    torch.manual_seed(0)
    model, x, y = nn.Linear(4, outputs), torch.randn(8, 4), torch.randn(8, outputs)
    found = with_noise(find_task(model, (x, y), None), 0.5).loss(model, (x, y))
    torch.testing.assert_close(found, GaussianLikelihood(0.5)(model(x), y))
