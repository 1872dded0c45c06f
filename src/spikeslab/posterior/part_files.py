"""Files of a sample that several ranks have written: parts of tensors, with their places in the whole ones.

Each is a safetensors file of one rank. Its metadata say for each tensor how the whole one was cut, so any number of
ranks can read what they need, or all of it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from spikeslab.shards import Place, Reduction, local, part_of

PLACES = "places"
"""Key of the places in the metadata of a file, JSON."""


def encode_parts(tensors: Mapping[str, Tensor], ranks: Reduction) -> bytes:
    """Return this rank's parts of tensors as the content of a file; of several copies of a part one is written."""
    counted = {name: tensor.detach() for name, tensor in tensors.items() if ranks.is_counted(tensor)}
    parts = {name: local(tensor).to("cpu", copy=True).contiguous() for name, tensor in counted.items()}
    return save(parts, {PLACES: json.dumps({name: Place.of(tensor) for name, tensor in counted.items()})})


class PartFiles:
    """Tensors of a sample, to be read from the files of all ranks.

    Args:
        paths: The files.

    Attributes:
        kinds: dtype of each tensor, as safetensors names it, and shape of the whole one.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self.kinds: dict[str, tuple[str, tuple[int, ...]]] = {}
        self._found: dict[str, list[tuple[Path, Place]]] = {}
        for path in paths:
            with safe_open(path, framework="pt") as file:
                places = json.loads((file.metadata() or {})[PLACES])
                for name in file.keys():  # noqa: SIM118 - not a dict
                    shape, cuts, coordinate = places[name]
                    place = Place(tuple(shape), tuple((dim, parts) for dim, parts in cuts), tuple(coordinate))
                    self._found.setdefault(name, []).append((path, place))
                    self.kinds[name] = file.get_slice(name).get_dtype(), place.shape

    def whole(self, name: str) -> Tensor:
        """Return a whole tensor.

        Raises:
            ValueError: If the files lack a part of it.
        """
        parts = [(_read(path, name), place) for path, place in self._found[name]]
        missing = math.prod(self.kinds[name][1])
        if len({place.cuts for _, place in parts}) > 1:
            raise ValueError(f"{name} was cut in several ways")
        flat = parts[0][0].new_empty(missing)
        for part, place in parts:
            at = place.locate(tuple(part.shape))
            if isinstance(at, int):
                flat[at : at + part.numel()] = part.reshape(-1)
            else:
                flat[at] = part.reshape(-1)
            missing -= part.numel()
        if missing:
            raise ValueError(f"{name} is not whole")
        return flat.view(self.kinds[name][1])

    def part(self, name: str, like: Tensor) -> Tensor:
        """Return this rank's part of a tensor that is spread as ``like``, from one file if it was written so."""
        place = Place.of(like)
        for path, other in self._found[name]:
            if other == place:
                return _read(path, name)
        return part_of(self.whole(name), like)


def _read(path: Path, name: str) -> Tensor:
    with safe_open(path, framework="pt") as file:
        tensor: Tensor = file.get_tensor(name)
    return tensor
