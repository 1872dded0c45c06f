"""Parameter counts, shapes, and the public checkpoint."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from spikeslab import select_weights
from spikeslab.paper.cifar10 import ResNet, resnet20, resnet32, resnet56
from spikeslab.paper.demo import DigitsCNN
from spikeslab.paper.images import CNN, BatchNormCNN


@pytest.mark.parametrize(
    ("build", "parameters", "image"),
    [
        (CNN, 681_506, (1, 28, 28)),
        (BatchNormCNN, 493_772, (1, 28, 28)),
        (DigitsCNN, 53_002, (1, 8, 8)),
        (resnet20, 272_474, (3, 32, 32)),
        (resnet32, 466_906, (3, 32, 32)),
        (resnet56, 855_770, (3, 32, 32)),
    ],
)
def test_parameters_and_logits(build: Callable[[], nn.Module], parameters: int, image: tuple[int, int, int]) -> None:
    model = build()
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters
    logits = model(torch.rand(2, *image))
    assert logits.shape == (2, 10)
    assert not torch.allclose(logits.exp().sum(1), torch.ones(2)), "logits, not log-probabilities"


def test_the_sparse_layers_of_the_paper() -> None:
    assert CNN().fc1.weight.numel() == 627_200
    sparse = select_weights(resnet20(), "layer*.conv*.weight")
    assert len(sparse) == 18
    assert sum(weight.numel() for weight in sparse.values()) == 267_264


def test_resnet_init_is_he_normal_over_the_fan_out() -> None:
    weight = resnet20().layer3[1].conv2.weight
    assert weight.std().item() == pytest.approx((2.0 / (64 * 9)) ** 0.5, rel=0.02)


def test_resnet_refuses_other_depths() -> None:
    with pytest.raises(ValueError, match=r"^depth must be 6n \+ 2 with n >= 1, such as 20, 32 or 56, but got 18\.$"):
        ResNet(18)


def test_the_names_of_resnet20_are_those_of_public_files() -> None:
    names = set(resnet20().state_dict())
    block = {f"layer2.0.{part}" for part in ("conv1.weight", "bn1.running_var", "conv2.weight", "bn2.bias")}
    shortcut = {"layer2.0.downsample.0.weight", "layer2.0.downsample.1.weight"}
    assert names >= {"conv1.weight", "bn1.num_batches_tracked", "fc.weight", "fc.bias"} | block | shortcut
    assert not any("downsample" in name for name in names if not name.startswith(("layer2.0.", "layer3.0.")))


def test_the_public_resnet20_loads_strictly() -> None:
    folder = os.environ.get("SPIKESLAB_DATA")
    path = Path(folder or ".") / "cifar10" / "resnet20_dense.safetensors"
    if not folder or not path.is_file():
        pytest.skip("SPIKESLAB_DATA has no cifar10/resnet20_dense.safetensors")
    model = resnet20()
    model.load_state_dict(load_file(path), strict=True)
    assert model.layer1[0].conv1.weight.count_nonzero() == 16 * 16 * 9


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
