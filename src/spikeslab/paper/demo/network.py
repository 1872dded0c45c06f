"""A small network for scikit-learn's digits of 8 x 8 pixels, large enough that 90 % of it can go."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import max_pool2d


class DigitsCNN(nn.Module):
    """Two convolutions and two fully connected layers with 53,002 parameters, 52,768 of them weights.

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
        """Logits of shape (batch, 10)."""
        features = max_pool2d(self.conv1(images).relu(), 2)
        features = max_pool2d(self.conv2(features).relu(), 2)
        hidden: Tensor = self.fc1(features.flatten(1))
        logits: Tensor = self.fc2(hidden.relu())
        return logits
