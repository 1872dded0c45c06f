"""Parameter counts, shapes and dropout of the networks for MNIST."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from spikeslab.paper.images import CNN, BatchNormCNN


@pytest.mark.parametrize(
    ("build", "parameters", "image"),
    [
        (CNN, 681_506, (1, 28, 28)),
        (BatchNormCNN, 493_772, (1, 28, 28)),
    ],
)
def test_parameters_and_logits(build: Callable[[], nn.Module], parameters: int, image: tuple[int, int, int]) -> None:
    model = build()
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters
    logits = model(torch.rand(2, *image))
    assert logits.shape == (2, 10)
    assert not torch.allclose(logits.exp().sum(1), torch.ones(2)), "logits, not log-probabilities"


def test_the_sparse_layer_of_the_paper() -> None:
    assert CNN().fc1.weight.numel() == 627_200


def test_dropout_drops_the_hidden_units_after_the_first_full_layer() -> None:
    model = CNN(dropout=0.5).train()
    seen = {}
    model.fc1.register_forward_pre_hook(lambda module, inputs: seen.update(before=inputs[0]))
    model.fc2.register_forward_pre_hook(lambda module, inputs: seen.update(after=inputs[0]))
    images = torch.rand(64, 1, 28, 28)
    model(images)
    zeros = {name: float((units == 0).double().mean()) for name, units in seen.items()}
    model.eval()
    model(images)
    rest = float((seen["after"] == 0).double().mean())
    assert zeros["after"] == pytest.approx(rest + 0.5 * (1 - rest), abs=0.03)
    assert zeros["before"] == float((seen["before"] == 0).double().mean())


@pytest.mark.parametrize(
    ("rates", "hidden", "layer", "rate"),
    [((0.4, 0.0), 0.0, "conv2", 0.4), ((0.0, 0.4), 0.0, "fc1", 0.4), ((0.0, 0.0), 0.5, "fc2", 0.5)],
)
def test_batch_norm_cnn_drops_behind_both_poolings_and_the_first_full_layer(
    rates: tuple[float, float], hidden: float, layer: str, rate: float
) -> None:
    model = BatchNormCNN(rates, hidden)
    seen = {}
    for name in ("conv2", "fc1", "fc2"):
        model.get_submodule(name).register_forward_pre_hook(lambda _, x, name=name: seen.update({name: x[0] != 0}))
    images = torch.rand(64, 1, 28, 28)
    model.eval()(images)
    units = int(seen[layer].sum())
    model.train().bn1.eval()  # the same statistics in both passes
    model(images)
    assert int(seen[layer].sum()) == pytest.approx((1.0 - rate) * units, rel=0.05)
