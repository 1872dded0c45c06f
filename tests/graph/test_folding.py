"""Batch normalisation that is folded computes the same; one that cannot be folded stays and says why."""

from __future__ import annotations

import pytest
import torch
from pruned_networks import NETWORKS, deviation, randomise
from torch import Tensor, nn

from spikeslab.compression import compact, fold_batch_norm
from spikeslab.errors import SpikeSlabWarning
from spikeslab.paper.cifar10 import resnet20
from spikeslab.paper.images import BatchNormCNN


def norms(model: nn.Module) -> list[str]:
    return [name for name, module in model.named_modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-4)])
@pytest.mark.parametrize("name", NETWORKS)
def test_the_outputs_are_the_same(name, dtype, tolerance) -> None:
    build, shapes = NETWORKS[name]
    model = randomise(build()).to(dtype)
    folded = fold_batch_norm(model, torch.zeros(shapes[0], dtype=dtype))
    for shape in shapes:
        assert deviation(model, folded, torch.randn(shape, dtype=dtype)) < tolerance


def test_every_normalisation_of_a_resnet_goes() -> None:
    model = randomise(resnet20()).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    folded = fold_batch_norm(model, torch.zeros(1, 3, 8, 8))
    assert norms(folded) == []
    assert type(folded) is type(model)
    assert not any(module.training for module in folded.modules())
    assert len(norms(model)) == 21
    assert all(module.training for module in model.modules())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_the_weight_is_scaled_and_the_bias_shifted() -> None:
    model = nn.Sequential(nn.Linear(1, 1), nn.BatchNorm1d(1, eps=0.0)).double()
    with torch.no_grad():
        model[0].weight.fill_(2.0)
        model[0].bias.fill_(5.0)
        model[1].running_mean.fill_(1.0)
        model[1].running_var.fill_(4.0)
        model[1].weight.fill_(3.0)
        model[1].bias.fill_(7.0)
    folded = fold_batch_norm(model, torch.zeros(2, 1).double())
    assert folded[0].weight.item() == 3.0  # 3 / 2 * 2
    assert folded[0].bias.item() == 13.0  # 3 / 2 * (5 - 1) + 7


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Conv2d(3, 4, 3), (2, 3, 6, 6)),
        (nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular"), (2, 3, 6, 6)),
        (nn.Conv2d(3, 4, 3, padding=2, padding_mode="reflect", bias=False), (2, 3, 6, 6)),
        (nn.Conv2d(3, 4, 3, padding="valid"), (2, 3, 6, 6)),
        (nn.Conv2d(3, 4, 1, padding="same"), (2, 3, 6, 6)),
    ],
)
def test_before_a_layer_it_goes_where_that_is_exact(layer, shape) -> None:
    model = randomise(nn.Sequential(nn.BatchNorm2d(3), layer)).double()
    folded = fold_batch_norm(model, torch.zeros(shape).double())
    assert norms(folded) == []
    assert deviation(model, folded, torch.randn(shape).double()) < 1e-13


@pytest.mark.parametrize("padding", [1, "same"])
def test_before_padding_it_goes_only_without_a_shift(padding) -> None:
    model = randomise(nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 4, 3, padding=padding))).double()
    assert norms(fold_batch_norm(model, torch.zeros(1, 3, 6, 6).double())) == ["0"]
    nn.init.zeros_(model[0].bias)
    model[0].running_mean.zero_()
    folded = fold_batch_norm(model, torch.zeros(1, 3, 6, 6).double())
    assert norms(folded) == []
    assert deviation(model, folded, torch.randn(2, 3, 6, 6).double()) < 1e-13


def test_two_in_a_row_and_one_without_scale() -> None:
    model = nn.Sequential(nn.Conv2d(2, 4, 3, groups=2), nn.BatchNorm2d(4), nn.BatchNorm2d(4)).double()
    randomise(model)
    model[2] = nn.BatchNorm2d(4, affine=False).double()
    model[2].running_mean.normal_()
    folded = fold_batch_norm(model, torch.zeros(1, 2, 5, 5).double())
    assert norms(folded) == []
    assert deviation(model, folded, torch.randn(2, 2, 5, 5).double()) < 1e-13


class TwoReaders(nn.Module):
    """The output of the convolution is read beside the normalisation too."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        return x + self.norm(x)


class Shared(nn.Module):
    """One convolution, read by two normalisations."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm1, self.norm2 = nn.Conv2d(2, 2, 3), nn.BatchNorm2d(2), nn.BatchNorm2d(2)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm2(self.conv(self.norm1(self.conv(x)).relu()))


class Steps(nn.Module):
    """A linear layer over the last dimension, where the normalisation is over the first behind the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.norm = nn.Linear(3, 3), nn.BatchNorm1d(3)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.fc(x))


@pytest.mark.parametrize(
    ("model", "shape", "left"),
    [
        (TwoReaders(), (2, 1, 5, 5), ["norm"]),
        (Shared(), (2, 2, 9, 9), ["norm1", "norm2"]),
        (Steps(), (2, 3, 3), ["norm"]),
    ],
)
def test_a_layer_that_others_read_or_share_stays(model, shape, left) -> None:
    model = randomise(model).double()
    x = torch.randn(shape).double()
    folded = fold_batch_norm(model, x)
    assert norms(folded) == left
    assert deviation(model, folded, x) == 0.0


def test_batch_statistics_are_not_folded() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2, track_running_stats=False))
    result = compact(model, torch.randn(4, 3))
    assert result.report.notes[0] == "'1' stays: it keeps no running statistics."
    assert norms(result.model) == ["1"]


def test_the_note_on_padding() -> None:
    notes = compact(randomise(BatchNormCNN()), torch.zeros(1, 1, 28, 28)).report.notes
    assert notes == ("'bn1' stays: 'conv1' behind it pads with zeros, which it would not have shifted.",)


class Branching(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else -x


def test_what_cannot_be_traced_is_copied_with_a_warning() -> None:
    with pytest.warns(SpikeSlabWarning, match="^Branching cannot be traced by torch.fx: .* It stays as it is.$"):
        fold_batch_norm(Branching(), torch.ones(1))
