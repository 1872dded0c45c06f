"""Networks of the paper for MNIST and Fashion-MNIST (section 5.2)."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn
from torch.nn.functional import max_pool2d


class CNN(nn.Module):
    """2-Conv-2-FC for images of 28 x 28 pixels; its prior sits on ``fc1.weight``, 627,200 of 681,506 parameters.

    >>> sum(parameter.numel() for parameter in CNN().parameters())
    681506

    Args:
        dropout: Rate at which the hidden units after ``fc1`` are dropped in training: 0.5 in the paper's Dropout, 0 in
            all its other runs.
        channels: Channels of an image.
        classes: Number of logits.
    """

    def __init__(self, dropout: float = 0.0, *, channels: int = 1, classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 32, kernel_size=5, padding=2)
        self.conv2 = nn.Conv2d(32, 64, kernel_size=5, padding=2)
        self.dropout = nn.Dropout(dropout)
        self.fc1 = nn.Linear(64 * 7 * 7, 200)
        self.fc2 = nn.Linear(200, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits of shape (batch, classes)."""
        return self.head(self.hidden(images))

    def hidden(self, images: Tensor) -> Tensor:
        """Return the units after ``fc1``, before they are dropped."""
        # Pooling before the rectifier is the same function of a quarter of the numbers.
        features = max_pool2d(self.conv1(images), 2).relu()
        features = max_pool2d(self.conv2(features), 2).relu()
        return cast(Tensor, self.fc1(features.flatten(1)).relu())

    def head(self, hidden: Tensor) -> Tensor:
        """Return logits of the units after ``fc1``."""
        return cast(Tensor, self.fc2(self.dropout(hidden)))


class BatchNormCNN(nn.Module):
    """2-Conv-BN-3-FC for images of 28 x 28 pixels, which the paper trains with augmentation: 493,772 parameters.

    Batch normalisation sits on the input and behind ``fc2``, and dropout behind both poolings, as in the code of the
    paper; its text has them elsewhere. The prior sits on ``fc1.weight``.

    >>> sum(parameter.numel() for parameter in BatchNormCNN().parameters())
    493772

    Args:
        dropout: Rates behind the first and the second pooling.
        hidden_dropout: Rate at which the hidden units after ``fc1`` are dropped: 0.5 in the Dropout baseline.
        channels: Channels of an image.
        classes: Number of logits.
    """

    def __init__(
        self,
        dropout: tuple[float, float] = (0.1, 0.3),
        hidden_dropout: float = 0.0,
        *,
        channels: int = 1,
        classes: int = 10,
    ) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv1 = nn.Conv2d(channels, 64, kernel_size=4, padding=2)
        self.conv2 = nn.Conv2d(64, 64, kernel_size=4)
        self.dropout1, self.dropout2 = nn.Dropout(dropout[0]), nn.Dropout(dropout[1])
        self.fc1 = nn.Linear(64 * 5 * 5, 256)
        self.hidden_dropout = nn.Dropout(hidden_dropout)
        self.fc2 = nn.Linear(256, 64)
        self.bn2 = nn.BatchNorm1d(64)
        self.fc3 = nn.Linear(64, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits of shape (batch, classes)."""
        return self.head(self.hidden(images))

    def hidden(self, images: Tensor) -> Tensor:
        """Return the units after ``fc1``, before they are dropped."""
        features = self.dropout1(max_pool2d(self.conv1(self.bn1(images)), 2).relu())
        features = self.dropout2(max_pool2d(self.conv2(features), 2).relu())
        return cast(Tensor, self.fc1(features.flatten(1)).relu())

    def head(self, hidden: Tensor) -> Tensor:
        """Return logits of the units after ``fc1``."""
        return cast(Tensor, self.fc3(self.bn2(self.fc2(self.hidden_dropout(hidden))).relu()))
