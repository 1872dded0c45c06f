"""The paper's network for MNIST and Fashion-MNIST: two convolutions, two fully connected layers (section 5.2)."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import max_pool2d


class CNN(nn.Module):
    """2-Conv-2-FC for images of 28 x 28 pixels; its prior sits on ``fc1.weight``, 627,200 of 681,506 parameters.

    >>> sum(parameter.numel() for parameter in CNN().parameters())
    681506

    Args:
        dropout: Rate at which the inputs of ``fc1`` are dropped in training; 0 in all runs but the paper's Dropout.
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
        """Logits of shape (batch, classes)."""
        features = max_pool2d(self.conv1(images).relu(), 2)
        features = max_pool2d(self.conv2(features).relu(), 2)
        hidden: Tensor = self.fc1(self.dropout(features.flatten(1)))
        logits: Tensor = self.fc2(hidden.relu())
        return logits
