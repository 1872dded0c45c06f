"""Parameter counts, shapes, and the public checkpoint of the residual networks."""

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


@pytest.mark.parametrize(
    ("build", "parameters", "image"),
    [
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
