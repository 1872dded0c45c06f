"""Nested states as text, tensors and files, without pickle.

States are dicts, lists and tuples of numbers, strings, booleans, ``None``, tensors and paths of files. Everything but
the tensors and the files becomes JSON, in which names that begin with ``$`` stand for what JSON cannot express:

======================  =========================================================
``{"$tensor": name}``   the tensor of that name
``{"$file": name}``     the file of that name
``{"$tuple": [...]}``   a tuple
``{"$items": [...]}``   a dict whose keys are not all plain strings, as pairs
``{"$float": "nan"}``   a number that is not finite
======================  =========================================================
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from spikeslab.errors import ArgumentTypeError, Phrase, SpikeSlabError, first_line
from spikeslab.files import CHECKSUM, check_tensors, read_regular

State: TypeAlias = Any

ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
MAIN = ("", "__main__", "__mp_main__")
"""Modules whose names depend on how a script was started."""


class Stateful(Protocol):
    """Object with a state that a checkpoint should hold, such as torch's lr schedulers."""

    def state_dict(self) -> dict[str, State]:
        """Return the state."""
        ...

    def load_state_dict(self, state: Any, /) -> object:
        """Continue from a state."""
        ...


class Configured(Protocol):
    """Object with settings that decide the result of a run, so that a resume compares them."""

    def settings_dict(self) -> dict[str, Any]:
        """Return the settings by name, as JSON values."""
        ...

    def load_settings(self, settings: Mapping[str, Any]) -> None:
        """Set some of the settings, in the form of :meth:`settings_dict`."""
        ...


def describe(value: object) -> Any:
    """Return a setting as a JSON value: functions by their names, other objects as they print, without addresses.

    >>> describe((0.9, 0.999)), describe(math.sqrt)
    ([0.9, 0.999], 'math.sqrt')
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [describe(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): describe(item) for key, item in value.items()}
    if isinstance(value, Tensor) and value.numel() == 1:
        return value.item()
    name = getattr(value, "__qualname__", None)
    if name is None:
        return ADDRESS.sub("", repr(value))
    module = getattr(value, "__module__", None) or ""
    return name if module in MAIN else f"{module}.{name}"


class Parts(NamedTuple):
    """State, taken apart.

    Attributes:
        text: The part that can be written as JSON.
        tensors: Tensors by name, on the CPU, each with its own memory.
        files: Files by name.
    """

    text: Any
    tensors: dict[str, Tensor]
    files: dict[str, Path]


def split(state: State) -> Parts:
    """Return the parts of a state.

    >>> import torch
    >>> parts = split({"steps": 3, "rho": [torch.ones(2)]})
    >>> parts.text, list(parts.tensors)
    ({'steps': 3, 'rho': [{'$tensor': 'rho/0'}]}, ['rho/0'])
    """
    parts = Parts(None, {}, {})
    return parts._replace(text=_encode(state, (), parts))


def join(parts: Parts) -> State:
    """Return the state of its parts.

    Raises:
        ValueError: If the text refers to a tensor or a file that is not there.
    """
    return _decode(parts.text, parts)


def encode_tensors(tensors: Mapping[str, Tensor]) -> bytes:
    """Return the content of a safetensors file with a checksum of the tensors in its metadata."""
    return save(dict(tensors), {CHECKSUM: _hash_tensors(tensors)})


def decode_tensors(content: bytes, file: str, error: type[SpikeSlabError]) -> dict[str, Tensor]:
    """Return the tensors in the content of a safetensors file; one of another program may have no checksum.

    Args:
        content: The content.
        file: Name of the file, for the message.
        error: Class of the error to raise.

    Raises:
        SpikeSlabError: If it is not a safetensors file, or has changed since it was written.
    """
    try:
        check_tensors(content)
        tensors = load(content)
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        checksum = header.get("__metadata__", {}).get(CHECKSUM)
    except (SafetensorError, ValueError, RecursionError, AttributeError, KeyError) as cause:
        raise error(f"{file} is not a readable safetensors file: {first_line(cause)}.") from cause
    if checksum is not None and checksum != _hash_tensors(tensors):
        raise error(f"{file} has changed since it was written: its checksum does not match.")
    return tensors


def read_tensors_file(path: Path, error: type[SpikeSlabError]) -> dict[str, Tensor]:
    """Read a safetensors file of :func:`encode_tensors`; see :func:`decode_tensors`."""
    try:
        content = read_regular(path)
    except OSError as cause:
        raise error(f"{path} cannot be read: {cause.strerror or first_line(cause)}.") from cause
    return decode_tensors(content, str(path), error)


def _hash_tensors(tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name}\n{tensor.dtype} {list(tensor.shape)}\n".encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy().data if flat.numel() else b"")
    return digest.hexdigest()


def _encode(value: State, path: tuple[str, ...], parts: Parts) -> Any:
    name = "/".join(path)
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"$float": repr(value)}
    if isinstance(value, Tensor):
        # A copy: two names of one memory, as with tied weights, have no place in a safetensors file.
        name = _find_unused(name, parts.tensors)
        parts.tensors[name] = value.detach().to("cpu", copy=True).contiguous()
        return {"$tensor": name}
    if isinstance(value, Path):
        name = _find_unused(name, parts.files)
        parts.files[name] = value
        return {"$file": name}
    if isinstance(value, (list, tuple)):
        items = [_encode(item, (*path, str(index)), parts) for index, item in enumerate(value)]
        return {"$tuple": items} if isinstance(value, tuple) else items
    if isinstance(value, Mapping):
        if all(isinstance(key, str) and not key.startswith("$") for key in value):
            return {key: _encode(item, (*path, key), parts) for key, item in value.items()}
        return {"$items": [[_encode(k, path, parts), _encode(v, (*path, str(k)), parts)] for k, v in value.items()]}
    got = Phrase(f"{name or 'it'} is a {type(value).__name__}")
    raise ArgumentTypeError("state", "may hold only numbers, strings, tensors, paths, lists and dicts", got)


def _find_unused(name: str, taken: Container[str]) -> str:
    """Return ``name``, or a longer one: keys may hold the separator, or differ in nothing but their type."""
    while name in taken:
        name += "'"
    return name


def _decode(text: Any, parts: Parts) -> State:
    if isinstance(text, list):
        return [_decode(item, parts) for item in text]
    if not isinstance(text, dict):
        return text
    if len(text) == 1:
        ((kind, content),) = text.items()
        if kind in ("$tensor", "$file"):
            known: Mapping[str, Tensor | Path] = parts.tensors if kind == "$tensor" else parts.files
            if content not in known:
                raise ValueError(f"The {kind[1:]} {content!r} of the state is missing.")
            return known[content]
        if kind == "$tuple":
            return tuple(_decode(item, parts) for item in content)
        if kind == "$items":
            return {_decode(key, parts): _decode(item, parts) for key, item in content}
        if kind == "$float":
            return float(content)
    return {key: _decode(item, parts) for key, item in text.items()}
