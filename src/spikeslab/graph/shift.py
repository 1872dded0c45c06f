"""What is left of a residual branch that adds a constant."""

from __future__ import annotations

from torch import Tensor, nn


class Shift(nn.Module):
    """Add one number to each channel, which are in dimension 1.

    >>> import torch
    >>> shift = Shift(torch.tensor([1.0, 2.0]), dims=4)
    >>> shift(torch.zeros(1, 2, 1, 1)).flatten().tolist()
    [1.0, 2.0]

    Args:
        values: The numbers.
        dims: Dimensions of what it is added to.
        requires_grad: Whether the numbers are trained.
    """

    def __init__(self, values: Tensor, dims: int, requires_grad: bool = True) -> None:
        super().__init__()
        self.bias = nn.Parameter(values, requires_grad)
        self._shape = (-1, *[1] * (dims - 2))

    def forward(self, x: Tensor) -> Tensor:
        """The shifted channels."""
        return x + self.bias.view(self._shape)

    def extra_repr(self) -> str:
        """The number of channels, for ``print``."""
        return str(len(self.bias))
