"""Short digests of models and states, by which processes can tell whether they hold the same bits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor, nn

from spikeslab.states import Stateful


def digests(part: nn.Module | Stateful) -> Iterator[tuple[str, int]]:
    """Name and digest of every parameter of a module, or of every tensor and number of a state.

    >>> [(name, digest)] = digests(nn.Linear(1, 1, bias=False))
    >>> name, -(2**63) <= digest < 2**63
    ('weight', True)
    """
    values = part.named_parameters() if isinstance(part, nn.Module) else _leaves("", part.state_dict())
    for name, value in values:
        yield name, _digest(name, value)


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Tensors and numbers of a nested state with their paths."""
    if isinstance(value, Mapping):
        items = list(value.items())
    elif isinstance(value, list | tuple):
        items = list(enumerate(value))
    else:
        yield path, value
        return
    for key, item in items:
        yield from _leaves(f"{path}.{key}" if path else str(key), item)


def _digest(name: str, value: Any) -> int:
    """64 bits of a hash of the name and of every bit of the value."""
    digest = sha256(name.encode())
    if isinstance(value, Tensor):
        digest.update(f"{value.dtype} {tuple(value.shape)}".encode())
        flat = value.detach().cpu().contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy().data)
    else:
        digest.update(repr(value).encode())
    return int.from_bytes(digest.digest()[:8], "little", signed=True)
