"""Handwritten digits of 8 x 8 pixels, bundled with scikit-learn: real data without a download, and a CNN for them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate, max_pool2d

from spikeslab.errors import MissingExtraError
from spikeslab.paper.images.data import DIGITS, Images


@dataclass(frozen=True)
class Digits:
    """Images in [0, 1] of shape (rows, 1, 8, 8) and their labels, to train, to choose settings and to test."""

    x_train: Tensor
    y_train: Tensor
    x_validation: Tensor
    y_validation: Tensor
    x_test: Tensor
    y_test: Tensor


def load_digits() -> Digits:
    """Load the 1,797 digits, always split into 1,078 for training, 270 for validation and 449 for the test.

    Every part has the classes in the same shares.

    Raises:
        MissingExtraError: If scikit-learn is not installed.
    """
    try:
        from sklearn.datasets import load_digits as load
        from sklearn.model_selection import train_test_split
    except ImportError as error:
        raise MissingExtraError("The digits come with scikit-learn: pip install spikeslab[sklearn].") from error
    images, labels = load(return_X_y=True)
    rest, test = train_test_split(list(range(len(labels))), test_size=449, stratify=labels, random_state=0)
    train, validation = train_test_split(rest, test_size=270, stratify=labels[rest], random_state=0)
    x = torch.from_numpy(images).float().div(16.0).view(-1, 1, 8, 8)
    y = torch.from_numpy(labels).long()
    return Digits(*(tensor[rows] for rows in (train, validation, test) for tensor in (x, y)))


def load_upscaled_digits() -> Images:
    """Load the digits as bytes of 28 x 28 pixels, a stand-in for MNIST without a download: 1,348 and 449 images.

    Raises:
        MissingExtraError: If scikit-learn is not installed.
    """
    digits = load_digits()

    def bytes_of(images: Tensor) -> Tensor:
        return (interpolate(images, size=28, mode="bilinear") * 255.0).round().to(torch.uint8)

    return Images(
        x_train=bytes_of(torch.cat([digits.x_train, digits.x_validation])),
        y_train=torch.cat([digits.y_train, digits.y_validation]),
        x_test=bytes_of(digits.x_test),
        y_test=digits.y_test,
        classes=DIGITS,
    )


class DigitsCNN(nn.Module):
    """Network of two convolutions and two fully connected layers: 53,002 parameters, 52,768 of them weights.

    >>> sum(parameter.numel() for parameter in DigitsCNN().parameters())
    53002
    """

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, kernel_size=3, padding=1)
        self.conv2 = nn.Conv2d(32, 64, kernel_size=3, padding=1)
        self.fc1 = nn.Linear(64 * 2 * 2, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of shape (batch, 10)."""
        features = max_pool2d(self.conv1(images).relu(), 2)
        features = max_pool2d(self.conv2(features).relu(), 2)
        hidden: Tensor = self.fc1(features.flatten(1))
        logits: Tensor = self.fc2(hidden.relu())
        return logits
