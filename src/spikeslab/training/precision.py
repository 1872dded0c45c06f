"""In which floating-point numbers the loss is computed; weights, gradients, prior and noise are float32 in any case.

``"bfloat16"`` runs the forward pass under :func:`torch.autocast`: convolutions and products of matrices, forward and
backward, take numbers of 8 bits of precision and the range of float32, so that no scaling of the loss is needed. It
pays where the processor multiplies such numbers itself, and is slower elsewhere.
"""

from __future__ import annotations

import torch
from torch import nn

FLOAT32, BFLOAT16 = "float32", "bfloat16"
PRECISIONS = (FLOAT32, BFLOAT16)


def computing(model: nn.Module, precision: str) -> torch.autocast:
    """Contexts in which a model computes its loss in this precision.

    >>> layer = nn.Linear(2, 2)
    >>> with computing(layer, "bfloat16"):
    ...     print(layer(torch.ones(1, 2)).dtype, layer.weight.dtype)
    torch.bfloat16 torch.float32
    """
    parameter = next(model.parameters(), None)
    device = "cpu" if parameter is None else parameter.device.type
    return torch.autocast(device, dtype=torch.bfloat16, enabled=precision == BFLOAT16)
