"""Batches whose order can be continued: of tensors in memory, and of any loader.

``TensorBatches`` is for data that fit into memory, and far faster for small models than a ``DataLoader``: whole batches
are cut and changed at once. Its order and the randomness of its ``transform`` are pure functions of (seed, epoch,
batch), so nothing but the position needs to be saved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor

from spikeslab.errors import check_count
from spikeslab.kernels.noise import mix64
from spikeslab.training.randomness import randomness, restore_randomness

MASK64 = (1 << 64) - 1

Transform: TypeAlias = Callable[[Tensor, torch.Generator], Tensor]


def mix(*numbers: int) -> int:
    """One seed in [0, 2**63) of several numbers: neighbouring seeds and epochs must not give related shuffles."""
    state = 0
    for number in numbers:
        state = mix64((state + number) & MASK64)
    return state >> 1


class TensorBatches:
    """Batches of tensors that lie in memory, in a new order in every epoch.

    ``Training`` asks for one epoch after the other. In a loop of your own say ``for x, y in batches.epoch(number)``:
    iterated without a number, they are those of epoch 0 each time.

    >>> batches = TensorBatches(torch.arange(6.0), batch_size=4, seed=0)
    >>> len(batches), [len(x) for (x,) in batches.epoch(0)]
    (1, [4])

    Args:
        *tensors: Tensors with the same number of rows, such as inputs and targets.
        batch_size: Rows in a batch; where there are fewer, all of them.
        seed: Seed of the order and of the transform.
        transform: Changes the first tensor of a batch, such as an augmentation, given a generator on its device.
        drop_last: Whether rows that do not fill a batch are left out of an epoch; otherwise the last batch is smaller.
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
            raise ValueError(f"tensors must have one number of rows, at least 1, but got {sorted(rows)}.")
        self.tensors = tensors
        self.rows = rows.pop()
        self.batch_size = min(check_count("batch_size", batch_size), self.rows)
        self.seed = check_count("seed", seed, minimum=0)
        self.transform = transform
        self.drop_last = drop_last

    def __len__(self) -> int:
        whole, rest = divmod(self.rows, self.batch_size)
        return whole + (rest > 0 and not self.drop_last)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[tuple[Tensor, ...]]:
        """The batches of an epoch, from batch ``start`` on."""
        order = torch.randperm(self.rows, generator=torch.Generator().manual_seed(mix(self.seed, epoch)))
        for index in range(start, len(self)):
            rows = order[index * self.batch_size : (index + 1) * self.batch_size]
            first, *others = (tensor[rows.to(tensor.device)] for tensor in self.tensors)
            if self.transform is not None:
                generator = torch.Generator(first.device).manual_seed(mix(self.seed, epoch, index))
                first = self.transform(first, generator)
            yield first, *others

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        """The batches of epoch 0, so that whatever is judged on them is judged on the same rows each time."""
        return self.epoch(0)


class DataOrder:
    """Runs through data epoch by epoch, without end, and continues exactly where a state was taken.

    Data other than ``TensorBatches`` are any iterable that can be run through again, such as a ``DataLoader``. To
    continue within an epoch, the generators are set to where they were when it began, and the batches that were
    already used are drawn again and thrown away. A loader with ``persistent_workers`` cannot be continued exactly if
    its workers draw random numbers. A ``DistributedSampler`` is told of every new epoch.

    Attributes:
        epoch: Number of epochs finished.
        position: Batches used of the present epoch.
    """

    def __init__(self, data: TensorBatches | Iterable[Any]) -> None:
        if not isinstance(data, TensorBatches) and iter(data) is data:
            raise TypeError("data must be a list or a loader that can be run through again, but got an iterator.")
        self.data = data
        self.epoch = 0
        self.position = 0
        self._begin: dict[str, Any] | None = None
        self._iterator: Iterator[Any] | None = None

    @property
    def length(self) -> int | None:
        """Batches in an epoch, where it is known: a stream has none."""
        try:
            return len(self.data)  # type: ignore[arg-type]
        except TypeError:
            return None

    def next(self) -> Any:
        """The next batch; :attr:`epoch` has grown once the last one of an epoch was taken."""
        if self._iterator is None:
            self._iterator = self._start()
        try:
            batch = next(self._iterator)
        except StopIteration:
            if not self.position:
                raise ValueError("data must hold at least one batch, but got none.") from None
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
            self._begin = _generators(self.data)
            return iter(self.data)
        now = _generators(self.data)
        _restore_generators(self.data, self._begin)
        iterator = iter(self.data)
        for _ in range(self.position):
            next(iterator)
        # The loader's own generator has moved as it had; the global ones have since served others too.
        restore_randomness(now["global"])
        return iterator

    def state_dict(self) -> dict[str, Any]:
        """Where it is, and how the generators stood when the epoch began."""
        own = _own_generator(self.data)
        return {
            "epoch": self.epoch,
            "position": self.position,
            "begin": self._begin,
            "tensors": self._tensors(),
            "generator": None if own is None else own.get_state(),
        }

    def _tensors(self) -> dict[str, int] | None:
        """What the order of batches in memory depends on."""
        data = self.data
        if not isinstance(data, TensorBatches):
            return None
        return {"rows": data.rows, "batch_size": data.batch_size, "seed": data.seed, "drop_last": int(data.drop_last)}

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Raise if a state is of other ``TensorBatches``."""
        if state["tensors"] != self._tensors():
            raise ValueError(f"data must be those of the state, {state['tensors']}, but got {self._tensors()}.")

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state; one of other ``TensorBatches`` is refused and changes nothing."""
        self.check_state(state)
        self.epoch, self.position = int(state["epoch"]), int(state["position"])
        self._begin = state["begin"]
        self._iterator = None
        own = _own_generator(self.data)
        if own is not None and state["generator"] is not None:
            own.set_state(state["generator"])


def _own_generator(data: object) -> torch.Generator | None:
    """The generator that a ``DataLoader`` was given, if any."""
    generator = getattr(data, "generator", None)
    return generator if isinstance(generator, torch.Generator) else None


def _generators(data: object) -> dict[str, Any]:
    own = _own_generator(data)
    return {"global": randomness(), "own": None if own is None else own.get_state()}


def _restore_generators(data: object, state: Mapping[str, Any]) -> None:
    restore_randomness(state["global"])
    own = _own_generator(data)
    if own is not None and state["own"] is not None:
        own.set_state(state["own"])
