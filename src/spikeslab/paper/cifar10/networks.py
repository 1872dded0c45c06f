"""Residual networks for CIFAR-10 (section 5.4), after He et al., "Deep Residual Learning", CVPR 2016.

Depth 6n + 2: a 3x3 convolution, three stages of n basic blocks with 16, 32 and 64 channels, global average pooling and
one linear layer. Where a stage halves the image, the shortcut is a 1x1 convolution ("option B"), as in the network that
the paper started from; its parameters load by name.
"""

from __future__ import annotations

from torch import Tensor, nn

from spikeslab.errors import ArgumentValueError


class BasicBlock(nn.Module):
    """Block of two 3x3 convolutions with batch normalisation and a shortcut around them."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum of residual and shortcut, after a ReLU."""
        total: Tensor = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu_()))
        total += self.downsample(x)
        return total.relu_()


class ResNet(nn.Module):
    """Residual network for 32 x 32 colour images.

    The paper's sparse weights are ``select_weights(model, "layer*.conv*.weight")``.

    Args:
        depth: 6n + 2, such as 20, 32 or 56.
        classes: Number of logits.
    """

    def __init__(self, depth: int = 20, classes: int = 10) -> None:
        super().__init__()
        blocks, rest = divmod(depth - 2, 6)
        if rest or blocks < 1:
            raise ArgumentValueError("depth", "must be 6n + 2 with n >= 1, such as 20, 32 or 56", depth)
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = _stage(16, 16, blocks, stride=1)
        self.layer2 = _stage(16, 32, blocks, stride=2)
        self.layer3 = _stage(32, 64, blocks, stride=2)
        self.fc = nn.Linear(64, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        """Return logits of shape (batch, classes)."""
        features = self.bn1(self.conv1(images)).relu_()
        features = self.layer3(self.layer2(self.layer1(features)))
        logits: Tensor = self.fc(features.mean(dim=(2, 3)))
        return logits


def _stage(inputs: int, outputs: int, blocks: int, stride: int) -> nn.Sequential:
    first = BasicBlock(inputs, outputs, stride)
    return nn.Sequential(first, *(BasicBlock(outputs, outputs, 1) for _ in range(blocks - 1)))


def resnet20(classes: int = 10) -> ResNet:
    """Return a ResNet20, 272,474 parameters.

    >>> sum(parameter.numel() for parameter in resnet20().parameters())
    272474
    """
    return ResNet(20, classes)


def resnet32(classes: int = 10) -> ResNet:
    """Return a ResNet32, 466,906 parameters."""
    return ResNet(32, classes)


def resnet56(classes: int = 10) -> ResNet:
    """Return a ResNet56, 855,770 parameters."""
    return ResNet(56, classes)
