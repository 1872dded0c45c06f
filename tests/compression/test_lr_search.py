"""Learning rate that a short test finds."""

from __future__ import annotations

import copy
import math
import sys
from pathlib import Path

import pytest
import torch
from small import ROWS, batches, compress_small, data, equal, network, tensors
from torch import Tensor, nn
from torch.nn import functional as F

from spikeslab.compression import Settings, lr_search
from spikeslab.compression.compress import Compression
from spikeslab.compression.lr_search import find_lr
from spikeslab.compression.settings import UNKNOWN_LR
from spikeslab.training import Callback, TensorBatches, Training
from spikeslab.training.loop import Loss

OPTIONS = {"momentum": 0.9, "weight_decay": 0.0, "precision": "float32"}


def regression(scale: float = 1.0) -> tuple[nn.Module, TensorBatches]:
    """Return a linear model of two inputs that fits its noisy targets, of a size that grows with ``scale``."""
    torch.manual_seed(0)
    x, noise = torch.randn(200, 2), 0.3 * torch.randn(200, 1)
    model = nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(scale * torch.tensor([[1.0, -1.0]]))
    return model, TensorBatches(x, scale * (x[:, :1] - x[:, 1:] + noise), batch_size=20, seed=1)


def squared_error(factor: float = 1.0):
    return lambda model, batch: factor * F.mse_loss(model(batch[0]), batch[1])


def find(model: nn.Module, rows: object, loss: object) -> float:
    return find_lr(model, loss, rows, ["weight"], **OPTIONS)


def test_a_loss_in_other_units_has_an_lr_in_other_units() -> None:
    """SGD takes the same path if the loss is c times as large and the lr 1/c of it."""
    model, rows = regression()
    lr = find(model, rows, squared_error())
    for factor in (1e-2, 1e4, 1e8):
        assert factor * find(model, rows, squared_error(factor)) == pytest.approx(lr)


@pytest.mark.parametrize("seed", range(3))
def test_a_network_learns_at_the_lr_and_dies_far_above_it(seed: int) -> None:
    x = torch.randn(400, 8, generator=torch.Generator().manual_seed(seed))
    rows = TensorBatches(x, (x[:, :1] * x[:, 1:2]).sin() + x[:, 2:3], batch_size=20, seed=seed)

    def train(lr: float, epochs: int, model: nn.Module) -> float:
        optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
        for epoch in range(epochs):
            optimizer.param_groups[0]["lr"] = lr * (1.0 - epoch / epochs)
            for batch in rows.epoch(epoch):
                optimizer.zero_grad()
                loss = squared_error()(model, batch)
                loss.backward()
                optimizer.step()
        return loss.item()

    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))
    train(0.02, 20, model)
    lr = find_lr(model, squared_error(), rows, ["0.weight", "2.weight", "4.weight"], **OPTIONS)
    assert train(lr, 10, copy.deepcopy(model)) < 0.2
    assert not train(20.0 * lr, 10, copy.deepcopy(model)) < 0.9, "no better than a constant"


def test_targets_of_any_size_have_an_lr_at_which_the_network_learns() -> None:
    lrs = [find(*regression(scale), squared_error()) for scale in (1e-3, 1.0, 1e3)]
    assert len(set(lrs)) == 1, "the loss is a square of the targets, and so is that of the network without weights"


def test_a_network_that_cannot_learn_has_the_lr_of_one_of_which_nothing_is_known() -> None:
    x = torch.zeros(60, 2)
    rows = TensorBatches(x, torch.ones(60, 1), batch_size=20, seed=1)
    assert find(nn.Linear(2, 1, bias=False), rows, squared_error()) == UNKNOWN_LR


def test_an_endless_nan_is_no_lr() -> None:
    model, rows = regression()

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return squared_error()(model, batch) * math.nan

    assert find(model, rows, loss) == UNKNOWN_LR


def test_compress_takes_the_lr_that_it_finds_and_says_which() -> None:
    model = network()
    before, generator = tensors(model), torch.get_rng_state()
    found = compress_small(model, lr=None).report["settings"]["lr"]
    assert equal(tensors(model), before)
    assert torch.equal(torch.get_rng_state(), generator)
    loss = lambda model, batch: F.cross_entropy(model(batch[0]), batch[1])  # noqa: E731
    names = ["0.weight", "3.weight", "5.weight"]
    torch.manual_seed(0)
    assert found == find_lr(model, loss, batches(), names, **OPTIONS | {"weight_decay": 5e-4})
    assert compress_small(model, lr=0.03).report["settings"]["lr"] == 0.03
    assert compress_small(model, settings=Settings(lr=0.04)).report["settings"]["lr"] == 0.04


def test_with_a_teacher_the_network_holds_under_the_loss_of_the_targets_too(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = network(), next(iter(batches()))
    entropy = float(F.cross_entropy(model(batch[0]), batch[1]).detach())

    def reciprocal(model: nn.Module, loss: Loss, *_: object, **__: object) -> float:
        return 0.01 / float(loss(model, batch))

    monkeypatch.setattr(sys.modules[Compression.__module__], "find_lr", reciprocal)
    settings = Settings(distillation=0.5, softening=1.0)  # at the start the teacher's part is 0
    run = Compression(model, batches(), sparsity=0.5, epochs=1, settings=settings).prepare()
    assert run.problem.settings.lr == pytest.approx(0.01 / entropy)


class StopError(Exception):
    """Stands for a kill."""


class StopAt(Callback):
    name = "stop"

    def __init__(self, step: int) -> None:
        self.step = step

    def after_step(self, run: Training) -> None:
        if run.steps == self.step:
            raise StopError


@pytest.mark.parametrize("options", [{}, {"settings": Settings(rank="saliency")}], ids=["magnitude", "saliency"])
def test_a_run_that_is_continued_keeps_its_lr_without_a_search(
    options: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options["lr"] = None
    whole = compress_small(**options)
    with pytest.raises(StopError):
        compress_small(**options, folder=tmp_path, callbacks=[StopAt(8)])
    monkeypatch.setattr(lr_search, "grid_lr", lambda power: 0.123)  # what a search would find
    resumed = compress_small(**options, folder=tmp_path, resume=True, callbacks=[StopAt(0)])
    assert resumed.report["settings"]["lr"] == whole.report["settings"]["lr"]
    assert equal(tensors(resumed.model), tensors(whole.model))


def test_few_rows_are_run_through_again() -> None:
    x, y = data()
    rows = [(x[: ROWS // 2], y[: ROWS // 2])]
    loss = lambda model, batch: F.cross_entropy(model(batch[0]), batch[1])  # noqa: E731
    assert find_lr(network(), loss, rows, ["3.weight"], **OPTIONS) > 0.0
