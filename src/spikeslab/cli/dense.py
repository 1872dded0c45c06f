"""Weights of a dense network from a file, whole or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from spikeslab.cli.errors import InputError
from spikeslab.errors import quote

if TYPE_CHECKING:
    from torch import nn


def load_dense(model: nn.Module, path: Path, owner: str) -> None:
    """Load a ``state_dict`` into a model; ``owner`` is what messages call the model.

    Raises:
        InputError: If the file cannot be read, or has other keys or shapes; the model is then as it was.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        state = load_file(path)
    except (OSError, SafetensorError) as error:
        raise InputError(f"--dense must be a safetensors file, but {path} cannot be read: {error}.") from error
    own = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    found = {name: tuple(tensor.shape) for name, tensor in state.items()}
    missing = [name for name in own if name not in found]
    extra = [name for name in found if name not in own]
    odd = [name for name in own if name in found and own[name] != found[name]]
    faults = [
        f"it lacks {quote(missing)}" if missing else "",
        f"it has {quote(extra)} besides" if extra else "",
        f"{quote(odd)} has another shape" if odd else "",
    ]
    if any(faults):
        raise InputError(
            f"--dense must hold the state_dict of {owner}, but in {path} {', '.join(filter(None, faults))}."
        )
    model.load_state_dict(state)
