"""Batches of tensors in memory, and data orders that can be resumed.

``TensorBatches`` is far faster for small models than a ``DataLoader``, since it slices and transforms whole batches.
Order and transforms are pure functions of (seed, epoch, batch), so the position is all that a checkpoint holds.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from spikeslab.errors import ArgumentTypeError, ArgumentValueError, Phrase, check_count
from spikeslab.kernels.noise import mix64
from spikeslab.parallel.distributed import digest, walk
from spikeslab.states import describe
from spikeslab.training.checkpoints import CheckpointError
from spikeslab.training.randomness import get_randomness, preserve_randomness, restore_randomness, seed_everything

MASK64 = (1 << 64) - 1
HASHED_BYTES = 100 << 20
"""Bytes of the data that a checksum reads, less than a second's work."""

Transform: TypeAlias = Callable[[Tensor, torch.Generator], Tensor]


def mix(*numbers: int) -> int:
    """Return a seed in [0, 2**63), so that neighbouring seeds and epochs give unrelated shuffles."""
    state = 0
    for number in numbers:
        state = mix64((state + number) & MASK64)
    return state >> 1


class TensorBatches:
    """Batches of tensors in memory, in a new order in every epoch.

    ``Training`` iterates over the epochs. In a loop of your own write ``for x, y in batches.epoch(number)``: a plain
    ``for x, y in batches`` returns epoch 0 each time.

    >>> batches = TensorBatches(torch.arange(6.0), batch_size=4, seed=0)
    >>> len(batches), [len(x) for (x,) in batches.epoch(0)]
    (1, [4])

    Args:
        *tensors: Tensors with the same number of rows, such as inputs and targets.
        batch_size: Rows per batch, at most all of them.
        seed: Seed of the order and of the transform.
        transform: Function from the first tensor of a batch and a generator on its device to the transformed tensor,
            such as an augmentation.
        drop_last: If True, leave out the last rows of an epoch if they do not fill a batch.
    """

    def __init__(
        self,
        *tensors: Tensor,
        batch_size: int,
        seed: int = 0,
        transform: Transform | None = None,
        drop_last: bool = True,
    ) -> None:
        rows = {len(tensor) for tensor in tensors}
        if len(rows) != 1 or not min(rows):
            raise ArgumentValueError("tensors", "must have the same number of rows, at least 1", sorted(rows))
        self.tensors = tensors
        self.rows = rows.pop()
        self.batch_size = min(check_count("batch_size", batch_size), self.rows)
        self.seed = check_count("seed", seed, minimum=0, bits=64)
        self.transform = transform
        self.drop_last = drop_last

    def __len__(self) -> int:
        whole, rest = divmod(self.rows, self.batch_size)
        return whole + (rest > 0 and not self.drop_last)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[tuple[Tensor, ...]]:
        """Yield the batches of an epoch, from batch ``start`` on."""
        order = torch.randperm(self.rows, generator=torch.Generator().manual_seed(mix(self.seed, epoch)))
        for index in range(start, len(self)):
            rows = order[index * self.batch_size : (index + 1) * self.batch_size]
            first, *others = (tensor[rows.to(tensor.device)] for tensor in self.tensors)
            if self.transform is not None:
                generator = torch.Generator(first.device).manual_seed(mix(self.seed, epoch, index))
                first = self.transform(first, generator)
            yield first, *others

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        """Yield the batches of epoch 0, so that evaluations see the same rows each time."""
        return self.epoch(0)


def repeat_epochs(data: TensorBatches | Iterable[Any]) -> Iterator[Any]:
    """Yield the batches of one epoch after the other, without end.

    >>> from itertools import islice
    >>> list(islice(repeat_epochs(["a", "b"]), 5))
    ['a', 'b', 'a', 'b', 'a']
    """
    for epoch in itertools.count():
        yield from data.epoch(epoch) if isinstance(data, TensorBatches) else data


class DataOrder:
    """Endless iteration over epochs of data that resumes exactly from a state.

    Data other than ``TensorBatches`` are any iterable that can be iterated repeatedly, such as a ``DataLoader``. To
    resume within an epoch, the generators are set to their state at its beginning, and the batches already used are
    drawn again and discarded. A loader with ``persistent_workers`` cannot be resumed exactly if its workers draw random
    numbers. ``set_epoch`` of a ``DistributedSampler`` is called in every epoch.

    Attributes:
        epoch: Number of finished epochs.
        position: Number of batches used in the present epoch.
    """

    def __init__(self, data: TensorBatches | Iterable[Any]) -> None:
        if not isinstance(data, TensorBatches) and not hasattr(data, "__iter__") and not hasattr(data, "__getitem__"):
            raise ArgumentTypeError("data", "must be a list or a loader of batches", data)
        if not isinstance(data, TensorBatches) and iter(data) is data:
            raise ArgumentTypeError(
                "data", "must be a list or a loader that can be iterated repeatedly", Phrase("got an iterator")
            )
        self.data = data
        self.epoch = 0
        self.position = 0
        self._begin: dict[str, Any] | None = None
        self._iterator: Iterator[Any] | None = None
        self._settings: dict[str, Any] | None = None

    @property
    def length(self) -> int | None:
        """Number of batches per epoch; ``None`` for data without a length."""
        return _count(self.data)

    def next(self) -> Any:
        """Return the next batch; :attr:`epoch` counts up with the last one of an epoch."""
        if self._iterator is None:
            self._iterator = self._start()
        try:
            batch = next(self._iterator)
        except StopIteration:
            if not self.position:
                raise ArgumentValueError("data", "must hold at least one batch", Phrase("got none")) from None
            self._end()
            return self.next()
        self.position += 1
        if self.position == self.length:
            self._end()
        return batch

    def _end(self) -> None:
        self.epoch += 1
        self.position = 0
        self._iterator = self._begin = None

    def _start(self) -> Iterator[Any]:
        if isinstance(self.data, TensorBatches):
            return self.data.epoch(self.epoch, self.position)
        set_epoch = getattr(getattr(self.data, "sampler", None), "set_epoch", None)
        if set_epoch is not None:
            set_epoch(self.epoch)
        if self._begin is None:
            self._begin = {"global": get_randomness(), "own": _get_generator_state(self.data)}
            return iter(self.data)
        # The loader's own generator ends where it was; the global ones also served others and are put back.
        with preserve_randomness():
            restore_randomness(self._begin["global"])
            _set_generator_state(self.data, self._begin["own"])
            iterator = iter(self.data)
            for _ in range(self.position):
                next(iterator)
        return iterator

    def settings_dict(self) -> dict[str, Any]:
        """Return what decides the batches, and a checksum of the data; it is computed once."""
        if self._settings is None:
            data = self.data
            self._settings = _describe_batches(data) if isinstance(data, TensorBatches) else _describe_loader(data)
        return dict(self._settings)

    def load_settings(self, settings: Mapping[str, Any]) -> None:
        """Set batch size, seed or ``drop_last`` of ``TensorBatches``; all else is the user's to give."""
        own = self.settings_dict()
        unlike = {name: value for name, value in settings.items() if value != own[name]}
        odd = unlike.keys() - {"batch_size", "seed", "drop_last"}
        if odd or (unlike and not isinstance(self.data, TensorBatches)):
            names = sorted(odd or unlike)
            raise ArgumentValueError("data", f"must be given with the {names[0]} {unlike[names[0]]}", own[names[0]])
        vars(self.data).update(unlike)
        self._settings = own | unlike

    def state_dict(self) -> dict[str, Any]:
        """Return the position and the generators' states at the beginning of the epoch."""
        return {
            "epoch": self.epoch,
            "position": self.position,
            "begin": self._begin,
            "tensors": self._tensors(),
            "generator": _get_generator_state(self.data),
        }

    def _tensors(self) -> dict[str, int] | None:
        """Return what determines the order of ``TensorBatches``."""
        data = self.data
        if not isinstance(data, TensorBatches):
            return None
        return {"rows": data.rows, "batch_size": data.batch_size, "seed": data.seed, "drop_last": int(data.drop_last)}

    def load_state_dict(self, state: Mapping[str, Any], restart: bool = False) -> None:
        """Load a state; one of other ``TensorBatches`` raises ``ValueError`` and changes nothing.

        With ``restart`` the data are others, and the epoch of the state begins anew in their order.
        """
        if restart:
            self.epoch, self.position = int(state["epoch"]), 0
            self._begin = self._iterator = None
            return
        if state["tensors"] != self._tensors():
            raise CheckpointError(
                f"the checkpoint was made with other data ({state['tensors']}, now {self._tensors()})."
            )
        self.epoch, self.position = int(state["epoch"]), int(state["position"])
        self._begin = state["begin"]
        self._iterator = None
        _set_generator_state(self.data, state["generator"])


def _describe_batches(data: TensorBatches) -> dict[str, Any]:
    order = {"batch_size": data.batch_size, "seed": data.seed, "drop_last": data.drop_last}
    kinds = [f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}" for tensor in data.tensors]
    own = {"rows": data.rows, "tensors": kinds, "transform": describe(data.transform)}
    return {"type": type(data).__name__, **order, **own, "sha256": _checksum(data.tensors)}


def _describe_loader(data: Any) -> dict[str, Any]:
    """Return what can be known of a loader or a list of batches without running through it."""
    dataset = getattr(data, "dataset", data if isinstance(data, Sequence) else None)
    sampler, generator = getattr(data, "sampler", None), getattr(data, "generator", None)
    seed = generator.initial_seed() if isinstance(generator, torch.Generator) else getattr(sampler, "seed", None)
    return {
        "type": type(data).__name__,
        "batches": _count(data),
        "batch_size": getattr(data, "batch_size", None),
        "drop_last": getattr(data, "drop_last", None),
        "sampler": None if sampler is None else type(sampler).__name__,
        "seed": seed,
        "dataset": None if dataset is None else f"{type(dataset).__name__} of {_count(dataset)}",
        "sha256": _check_items(dataset, workers=getattr(data, "num_workers", 0)),
    }


def _checksum(tensors: Sequence[Tensor]) -> str:
    """Return a checksum of tensors; of more than ``HASHED_BYTES`` only every so many rows count, as the text says."""
    every = -(-sum(tensor.numel() * tensor.element_size() for tensor in tensors) // HASHED_BYTES)
    text = f"{_hash({str(i): tensor[:: max(every, 1)] for i, tensor in enumerate(tensors)}):016x}"
    return text if every <= 1 else f"{text} (rows 0, {every}, {2 * every}, ...)"


def _check_items(dataset: Any, workers: int) -> str | None:
    """Return a checksum of a few items, or ``None`` if they cannot be read or are not the same when read twice.

    Where worker processes read the data nothing is touched here, unless they are tensors: a file that this process
    opens would be shared with them.
    """
    tensors = getattr(dataset, "tensors", None)
    if isinstance(tensors, tuple) and all(isinstance(tensor, Tensor) and tensor.ndim for tensor in tensors):
        return _checksum(tensors)
    if dataset is None or workers:
        return None
    hashes = set()
    with preserve_randomness(), suppress(Exception):
        last = len(dataset) - 1
        for _ in range(2):
            seed_everything(0)
            hashes.add(_hash({str(i): dataset[i] for i in sorted({0, last // 3, 2 * last // 3, last})}))
    return f"{hashes.pop():016x}" if len(hashes) == 1 else None


def _hash(value: Any) -> int:
    """Return 64 bits of a hash of nested tensors, arrays, images, numbers and strings."""
    bits = []
    for name, leaf in walk("", value):
        if isinstance(leaf, np.ndarray) and leaf.dtype != object:
            leaf = leaf.tobytes()
        elif not isinstance(leaf, Tensor | str | bytes | bool | int | float | np.generic | None):
            leaf = leaf.tobytes() if hasattr(leaf, "tobytes") else type(leaf).__name__  # others print their address
        bits.append(digest(name, leaf))
    return digest("", tuple(bits)) & MASK64


def _count(data: Any) -> int | None:
    try:
        return len(data)
    except TypeError:
        return None


def _get_generator_state(data: object) -> Tensor | None:
    """Return the state of the generator that a ``DataLoader`` was given, if any."""
    generator = getattr(data, "generator", None)
    return generator.get_state() if isinstance(generator, torch.Generator) else None


def _set_generator_state(data: object, state: Tensor | None) -> None:
    generator = getattr(data, "generator", None)
    if isinstance(generator, torch.Generator) and state is not None:
        generator.set_state(state)
