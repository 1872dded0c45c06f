"""Handwritten digits of 8 x 8 pixels, bundled with scikit-learn: real data without a download."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from spikeslab.paper.images.data import DIGITS, Images

TEST_SHARE = 0.25
VALIDATION_SHARE = 0.15
SPLIT_SEED = 0


@dataclass(frozen=True)
class Digits:
    """Images in [0, 1] of shape (rows, 1, 8, 8) and labels from 0 to 9, in three parts.

    Attributes:
        x_train: Training images.
        y_train: Training labels.
        x_validation: Images for choosing settings.
        y_validation: Their labels.
        x_test: Images for the final numbers.
        y_test: Their labels.
    """

    x_train: Tensor
    y_train: Tensor
    x_validation: Tensor
    y_validation: Tensor
    x_test: Tensor
    y_test: Tensor


def load_digits() -> Digits:
    """The 1,797 digits, split once and for all into 1,078 for training, 270 for validation and 449 for the test.

    Every part has the classes in the same shares.

    Raises:
        ImportError: If scikit-learn is not installed.
    """
    try:
        from sklearn.datasets import load_digits as load
        from sklearn.model_selection import train_test_split
    except ImportError as error:
        raise ImportError("The digits come with scikit-learn: pip install spikeslab[sklearn].") from error
    images, labels = load(return_X_y=True)

    def split(indices: list[int], share: float) -> tuple[list[int], list[int]]:
        stay, leave = train_test_split(
            indices, test_size=round(share * len(labels)), stratify=labels[indices], random_state=SPLIT_SEED
        )
        return stay, leave

    rest, test = split(list(range(len(labels))), TEST_SHARE)
    train, validation = split(rest, VALIDATION_SHARE)
    x = torch.from_numpy(images).float().div(16.0).view(-1, 1, 8, 8)
    y = torch.from_numpy(labels).long()
    return Digits(
        x_train=x[train],
        y_train=y[train],
        x_validation=x[validation],
        y_validation=y[validation],
        x_test=x[test],
        y_test=y[test],
    )


def load_upscaled_digits() -> Images:
    """The same digits as bytes of 28 x 28 pixels, a stand-in for MNIST without a download: 1,348 and 449 images.

    Raises:
        ImportError: If scikit-learn is not installed.
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
