"""A sparse model in one small file, and back; ``sparse_format`` says what is in it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor, nn

from spikeslab.compression.finalize import finalize
from spikeslab.compression.sparse_format import decode, encode, header
from spikeslab.compression.stored import tensor_dict
from spikeslab.errors import quote
from spikeslab.files import write_atomically


def save_sparse(model: nn.Module | Mapping[str, Tensor], file: str | os.PathLike[str], values: str = "fp32") -> Path:
    """Write the tensors of a model to one small file.

    Args:
        model: A module, of which the file holds the state_dict of ``finalize(model)``; or a state_dict.
        file: File to write. A file that this function wrote is replaced, no other is.
        values: ``"fp32"`` is lossless, to the bit; ``"fp16"`` and ``"int8"`` round the weights and are smaller.

    Returns:
        The path of the file.

    Raises:
        ValueError: If a tensor holds NaN, or something in the state_dict is not a dense tensor.
        FileExistsError: If there is another file of that name.

    Example:
        >>> import tempfile, torch
        >>> model = nn.Linear(100, 50)
        >>> with torch.no_grad():
        ...     _ = model.weight.masked_fill_(model.weight.abs() < 0.09, 0.0)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = save_sparse(model, f"{folder}/model.sparse")
        ...     tensors = load_sparse(file)
        >>> all(torch.equal(tensors[name], tensor) for name, tensor in model.state_dict().items())
        True
    """
    path = Path(file)
    content = encode(finalize(model).state_dict() if isinstance(model, nn.Module) else model, values)
    if path.exists() and (path.is_dir() or header(path.read_bytes()) is None):
        raise FileExistsError(f"file must be a new file or one of save_sparse, but {path} is something else.")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, content)
    return path


def load_sparse(file: str | os.PathLike[str]) -> dict[str, Tensor]:
    """Read what :func:`save_sparse` wrote: an ordinary state_dict, on the CPU, in the order it was saved in.

    Tensors that shared memory share it again.

    Raises:
        ValueError: If the file cannot be read, is not of this format, or was changed by as little as a bit.
    """
    path = Path(file)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ValueError(f"file must be a readable file, but {path}: {error.strerror}.") from error
    return decode(content, str(path))


def load_sparse_into(model: nn.Module, file: str | os.PathLike[str]) -> None:
    """Load what :func:`save_sparse` wrote into a model of the same shape; on an error the model is as it was.

    Raises:
        ValueError: If the file cannot be read, or its tensors have other names or shapes than the model's.
    """
    fill(model, load_sparse(file), str(file))


def fill(model: nn.Module, tensors: Mapping[str, Tensor], file: str) -> None:
    """Load tensors if they have the names and shapes of the model's; ``file`` is where they are from.

    What a module keeps that is no tensor, in its extra state, stays as it is.
    """
    own = tensor_dict(model)
    if set(own) != set(tensors):
        odd = sorted(set(own) ^ set(tensors))
        raise ValueError(f"model must have the tensors of {file}, but they differ in {quote(odd)}.")
    for name, tensor in own.items():
        if tensor.shape != tensors[name].shape:
            raise ValueError(
                f"model must have the shapes of {file}, but {name!r} is {list(tensor.shape)} in the model and "
                f"{list(tensors[name].shape)} in the file."
            )
    model.load_state_dict({**model.state_dict(), **tensors})
