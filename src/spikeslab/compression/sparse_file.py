"""Sparse files: a model in one small file, and its bytes in each format; ``sparse_format`` says what is in a file."""

from __future__ import annotations

import copy
import math
import os
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path

from safetensors.torch import save
from torch import Tensor, nn

from spikeslab.compression.finalize import finalize
from spikeslab.compression.sparse_format import (
    VALUES,
    TensorFileError,
    decode,
    default_limit,
    encode,
    memory_key,
    read_header,
)
from spikeslab.compression.tasks import Evaluation, keep_numbers
from spikeslab.errors import ArgumentValueError, Phrase, check_count, first_line, quote
from spikeslab.files import read_regular, write_atomically

DENSE, ZIPPED, COMPACTED, COMPACTED_SPARSE = "dense", "dense, zipped", "compacted", "compacted, sparse fp32"
"""Names of formats beside those of :data:`~spikeslab.compression.sparse_format.VALUES`."""
WIDEST = 8
"""Bytes of the widest common dtype."""


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
    if path.exists() and (not path.is_file() or read_header(path.read_bytes()) is None):
        raise FileExistsError(f"file must be a new file or one of save_sparse, but {path} is something else.")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, content)
    return path


def load_sparse(file: str | os.PathLike[str], max_bytes: int | None = None) -> dict[str, Tensor]:
    """Read a file of :func:`save_sparse`: an ordinary state_dict, on the CPU, in the order it was saved in.

    Tensors that shared memory share it again.

    Args:
        file: The file.
        max_bytes: Memory that reading may take beside the file's own bytes; by default the length of the file and
            128 MiB, since a small file from elsewhere can claim to be a network that fills the memory.

    Raises:
        ValueError: If the file cannot be read, is not of this format, was changed by as little as a bit, or would take
            more memory than allowed.
    """
    if max_bytes is not None:
        check_count("max_bytes", max_bytes)
    return decode(_read_content(file), str(file), max_bytes)


def load_sparse_into(model: nn.Module, file: str | os.PathLike[str]) -> None:
    """Load a file of :func:`save_sparse` into a model of the same shape; on an error the model is as it was.

    Reading takes no more memory than a network of this shape needs.

    Raises:
        ValueError: If the file cannot be read, or its tensors have other names or shapes than the model's.
    """
    content = _read_content(file)
    # Tensors of the file may be wider than the model's, and their values are unpacked before they are put in place.
    needed = sum(2 * max(tensor.nbytes, WIDEST * tensor.numel()) for tensor in tensor_dict(model).values())
    load_tensors_into(model, decode(content, str(file), default_limit(content) + needed), str(file))


def _read_content(file: str | os.PathLike[str]) -> bytes:
    try:
        return read_regular(Path(file), follow=True)
    except OSError as error:
        reason = error.strerror or first_line(error)
        raise ArgumentValueError("file", "must be a readable file", Phrase(f"{file}: {reason}")) from error


def load_tensors_into(model: nn.Module, tensors: Mapping[str, Tensor], file: str) -> None:
    """Load tensors if they have the names and shapes of the model's; ``file`` says where they are from.

    Extra state of a module that is no tensor stays as it is.
    """
    own = tensor_dict(model)
    if set(own) != set(tensors):
        odd = sorted(set(own) ^ set(tensors))
        raise TensorFileError(f"The model does not have the tensors of {file}: they differ in {quote(odd)}.")
    for name, tensor in own.items():
        if tensor.shape != tensors[name].shape:
            raise TensorFileError(
                f"The model does not have the shapes of {file}: {name!r} is {list(tensor.shape)} in the model and "
                f"{list(tensors[name].shape)} in the file."
            )
    model.load_state_dict({**model.state_dict(), **tensors})


def tensor_dict(model: nn.Module) -> dict[str, Tensor]:
    """Return the tensors of the ``state_dict`` under the names of the model, parametrizations included."""
    return {name: entry for name, entry in model.state_dict().items() if isinstance(entry, Tensor)}


def state_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return copies of the tensors on the CPU, each with memory of its own, as a safetensors file needs them."""
    return {name: tensor.to("cpu", copy=True).contiguous() for name, tensor in tensor_dict(model).items()}


def drop_shared(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors without those that are an earlier one under another name."""
    first: dict[object, str] = {}
    return {name: t for name, t in tensors.items() if first.setdefault(memory_key(name, t), name) == name}


def _encode_dense(tensors: Mapping[str, Tensor]) -> bytes:
    """Return an ordinary safetensors file; tensors that share their memory are in it once."""
    return save({name: tensor.detach().contiguous() for name, tensor in drop_shared(tensors).items()})


def file_sizes(
    tensors: Mapping[str, Tensor], dense: Mapping[str, Tensor], compacted: Mapping[str, Tensor] | None = None
) -> dict[str, int]:
    """Return the bytes of the dense file, plain and zipped, of the sparse file in each format, and of a smaller one."""
    content = _encode_dense(dense)
    sizes = {DENSE: len(content), ZIPPED: len(zlib.compress(content, 9))}
    sizes |= {f"sparse {values}": len(encode(tensors, values)) for values in VALUES}
    if compacted is not None:
        sizes |= {COMPACTED: len(_encode_dense(compacted)), COMPACTED_SPARSE: len(encode(compacted, "fp32"))}
    return sizes


def evaluate_stored(
    model: nn.Module, evaluation: Evaluation, sparse: Iterable[str] = ()
) -> dict[str, dict[str, float]]:
    """Measure and evaluate a model in every format, as :meth:`~spikeslab.compression.Compressed.evaluate_stored` says.

    ``sparse`` names the weights whose non-zeros are counted apart.
    """
    names = set(sparse)
    read = copy.deepcopy(model)
    found: dict[str, dict[str, float]] = {DENSE: {"bytes": len(_encode_dense(tensor_dict(model)))}}
    for values in VALUES:
        content = encode(tensor_dict(model), values)
        read.load_state_dict({**read.state_dict(), **decode(content, values, math.inf)})
        counts = {name: int(parameter.count_nonzero()) for name, parameter in read.named_parameters()}
        found[values] = {
            "bytes": len(content),
            "nonzeros": sum(counts.values()),
            "sparse_nonzeros": sum(count for name, count in counts.items() if name in names),
            **keep_numbers(evaluation.of_model(read)),
        }
    return found
