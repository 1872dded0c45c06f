"""Networks as users write them, with random statistics and random dead channels."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spikeslab.compression import Compacted
from spikeslab.paper.cifar10 import resnet20
from spikeslab.paper.demo import DigitsCNN
from spikeslab.paper.images import CNN, BatchNormCNN
from spikeslab.paper.uci import MLP


class LeNet(nn.Module):
    """Fixed sizes in a view."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 6, 5), nn.Conv2d(6, 16, 5)
        self.fc1, self.fc2 = nn.Linear(16 * 4 * 4, 20), nn.Linear(20, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = x.view(-1, 16 * 4 * 4)
        return self.fc2(F.dropout(F.relu(self.fc1(x)), training=self.training))


class Sizes(nn.Module):
    """Views with sizes read from the tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 6, 3, padding=1)
        self.fc1, self.fc2 = nn.Linear(6, 9), nn.Linear(9, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.conv1(x))
        n, c, h, w = x.shape
        x = torch.sigmoid(self.conv2(x.view(n, c, h, w)))
        x = x.reshape(n, x.size(1), x.size(2) * x.size(3)).mean(-1)
        return self.fc2(F.gelu(self.fc1(x.view(x.size(0), -1))))


class SqueezeExcite(nn.Module):
    """A gate for each channel, on an inverted residual with a depthwise convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.widen, self.bn1 = nn.Conv2d(3, 12, 1, bias=False), nn.BatchNorm2d(12)
        self.depthwise, self.bn2 = nn.Conv2d(12, 12, 3, padding=1, groups=12, bias=False), nn.BatchNorm2d(12)
        self.gate1, self.gate2 = nn.Linear(12, 4), nn.Linear(4, 12)
        self.narrow, self.bn3 = nn.Conv2d(12, 3, 1, bias=False), nn.BatchNorm2d(3)
        self.fc = nn.Linear(3, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu6(self.bn1(self.widen(x)))
        y = F.hardswish(self.bn2(self.depthwise(y)))
        gate = torch.sigmoid(self.gate2(F.relu(self.gate1(y.mean((2, 3))))))
        y = y * gate[:, :, None, None]
        x = x + self.bn3(self.narrow(y))
        return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))


class Dense(nn.Module):
    """Branches that are concatenated, one of them pooled with padding."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 6, 3, padding=1)
        self.left = nn.Sequential(nn.Conv2d(6, 5, 3, padding=1), nn.BatchNorm2d(5), nn.LeakyReLU(inplace=True))
        self.right = nn.Sequential(nn.AvgPool2d(3, stride=1, padding=1), nn.Conv2d(6, 4, 1), nn.ELU())
        self.mix = nn.Conv2d(15, 7, 3, padding=1, stride=2)
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(28, 8), nn.ReLU(), nn.Linear(8, 3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).relu()
        return self.head(torch.relu(self.mix(torch.cat([x, self.left(x), self.right(x)], dim=1))))


class Signals(nn.Module):
    """One dimension, a padding that keeps constants, a normalisation before its layer, a multiplier of channels."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(2, 6, 3, padding=1, padding_mode="replicate")
        self.bn1 = nn.BatchNorm1d(6)
        self.conv2 = nn.Conv1d(6, 12, 3, groups=6)
        self.conv3 = nn.Conv1d(12, 5, 3)
        self.bn2 = nn.BatchNorm1d(5)
        self.fc = nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = F.softplus(self.conv2(self.bn1(self.conv1(x).abs())))
        x = F.max_pool1d(self.conv3(x), 2).amax(dim=2)
        return self.fc(self.bn2(x))


def plain(norm: bool) -> nn.Module:
    """A Sequential, as in tutorials."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=not norm), nn.BatchNorm2d(8) if norm else nn.Identity(), nn.ReLU(),
        nn.Conv2d(8, 10, 3, padding=1, bias=not norm), nn.BatchNorm2d(10) if norm else nn.Identity(), nn.ReLU(True),
        nn.MaxPool2d(2), nn.Dropout2d(0.2), nn.Conv2d(10, 6, 3), nn.SiLU(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(24, 12), nn.Sigmoid(), nn.Linear(12, 4),
    )  # fmt: skip


# Constructor, and inputs of several sizes where the network takes them.
NETWORKS = {
    "CNN": (CNN, [(2, 1, 28, 28)]),
    "BatchNormCNN": (BatchNormCNN, [(2, 1, 28, 28)]),
    "DigitsCNN": (DigitsCNN, [(3, 1, 8, 8), (1, 1, 8, 8)]),
    "MLP": (lambda: MLP(7, (20, 15), 2), [(5, 7), (1, 7)]),
    "resnet20": (resnet20, [(2, 3, 16, 16), (1, 3, 20, 12)]),
    "plain": (lambda: plain(norm=False), [(2, 3, 10, 10), (1, 3, 13, 9)]),
    "plain with normalisation": (lambda: plain(norm=True), [(2, 3, 10, 10), (1, 3, 13, 9)]),
    "LeNet": (LeNet, [(2, 1, 28, 28), (3, 1, 28, 28)]),
    "Sizes": (Sizes, [(2, 3, 6, 6), (3, 3, 5, 7)]),
    "SqueezeExcite": (SqueezeExcite, [(2, 3, 6, 6), (1, 3, 9, 5)]),
    "Dense": (Dense, [(2, 2, 8, 8), (3, 2, 9, 6)]),
    "Signals": (Signals, [(2, 2, 12), (4, 2, 15)]),
}


@torch.no_grad()
def randomise(model: nn.Module) -> nn.Module:
    """Statistics, scales and biases as after training: none of them trivial."""
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.running_mean.normal_(0.0, 0.5)
            module.running_var.uniform_(0.5, 2.0)
            module.weight.normal_(1.0, 0.3)
            module.bias.normal_(0.0, 0.5)
        elif isinstance(module, (nn.Conv1d, nn.Conv2d, nn.Linear)) and module.bias is not None:
            module.bias.normal_(0.0, 0.5)
    return model


@torch.no_grad()
def kill(model: nn.Module, share: float, seed: int = 0) -> nn.Module:
    """Zero filters, and columns, at random: channels that see nothing, and channels that nothing sees."""
    generator = torch.Generator().manual_seed(seed)
    for module in model.modules():
        if isinstance(module, (nn.Conv1d, nn.Conv2d, nn.Linear)):
            rows, columns = module.weight.shape[:2]
            module.weight[torch.rand(rows, generator=generator) < share] = 0.0
            module.weight[:, torch.rand(columns, generator=generator) < share / 2] = 0.0
    return model


@torch.no_grad()
def deviation(model: nn.Module, smaller: nn.Module, x: Tensor) -> float:
    """Largest difference of the outputs, relative to the largest output."""
    expected, got = copy.deepcopy(model).eval()(x), smaller(x)
    assert expected.shape == got.shape
    return float((expected - got).abs().max() / expected.abs().max())


def widths(result: Compacted) -> dict[str, tuple[int, int]]:
    return {name: (size.inputs, size.outputs) for name, size in result.report.after.items()}
