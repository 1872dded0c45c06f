"""Forward pass of a batch: from what a loader yields to the tensor that a task reads.

A batch is an input, a tuple whose last entry holds the targets, or a mapping of the model's arguments, which may hold
the targets as ``"labels"``. An output is a tensor, or something that holds one: a tuple, a mapping, or an object with
``logits``, as the models of Hugging Face return. What this does not cover takes two functions of the user's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from torch import Tensor, nn

from spikeslab.errors import ArgumentTypeError, ArgumentValueError, Phrase, quote

LABELS = ("labels", "label")
"""Keys of the targets in a batch that is a mapping."""
LOGITS, LOSS = "logits", "loss"

RunForward: TypeAlias = Callable[[nn.Module, Any], Any]
"""Function from a model and its inputs to what the model returns."""
ReadOutput: TypeAlias = Callable[[Any], Tensor]
"""Function from what a model returns to the tensor of its outputs."""


class Arguments(NamedTuple):
    """Arguments of a call."""

    positional: tuple[Any, ...]
    named: dict[str, Any]


def split_batch(batch: Any) -> tuple[Any, Any]:
    """Return the inputs and the targets of a batch; the targets are ``None`` if it has none.

    >>> split_batch(("x", "y")), split_batch(("x", "mask", "y")), split_batch({"ids": 1, "labels": 2}), split_batch("x")
    (('x', 'y'), (('x', 'mask'), 'y'), ({'ids': 1}, 2), ('x', None))
    """
    if isinstance(batch, Mapping):
        key = next((name for name in LABELS if name in batch), None)
        return {name: value for name, value in batch.items() if name != key}, None if key is None else batch[key]
    if not isinstance(batch, (tuple, list)) or not batch:
        return batch, None
    if len(batch) < 3:
        return batch[0], batch[1] if len(batch) == 2 else None
    return tuple(batch[:-1]), batch[-1]


def bind(inputs: Any) -> Arguments:
    """Return inputs as the arguments of a model: a mapping by name, a tuple or list in its order, or a single one.

    >>> bind({"ids": 1}), bind((1, 2)), bind(1)
    (Arguments(positional=(), named={'ids': 1}), Arguments(positional=(1, 2), named={}), \
Arguments(positional=(1,), named={}))
    """
    if isinstance(inputs, Mapping):
        return Arguments((), dict(inputs))
    return Arguments(tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,), {})


def run(model: nn.Module, inputs: Any) -> Any:
    """Return what a model returns for its inputs."""
    positional, named = bind(inputs)
    return model(*positional, **named)


def map_tensors(function: Callable[[Tensor], Any], value: Any) -> Any:
    """Apply a function to all tensors in nested tuples, lists and mappings; a mapping becomes a dict.

    >>> map_tensors(len, {"ids": Tensor(3, 2), "names": ["a"]})
    {'ids': 3, 'names': ['a']}
    """
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, Mapping):
        return {name: map_tensors(function, item) for name, item in value.items()}
    if isinstance(value, (tuple, list)):
        items = [map_tensors(function, item) for item in value]
        return items if isinstance(value, list) else tuple(items)
    return value


def iterate_tensors(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in nested tuples, lists and mappings."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (Mapping, tuple, list)):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from iterate_tensors(item)


def split_rows(inputs: Any, size: int) -> Iterator[Any]:
    """Yield parts of at most ``size`` rows of a tensor, or of all tensors in nested tuples, lists and mappings.

    >>> [part["ids"].tolist() for part in split_rows({"ids": Tensor([1, 2, 3])}, 2)]
    [[1.0, 2.0], [3.0]]
    """
    for start in range(0, len(next(iterate_tensors(inputs))), size):
        yield map_tensors(partial(_take_rows, start=start, size=size), inputs)


def _take_rows(tensor: Tensor, start: int, size: int) -> Tensor:
    return tensor[start : start + size]


def to_device_of(model: nn.Module, value: Any) -> Any:
    """Return a tensor, or nested ones, on the device of the model, or as they are if the model has no parameters."""
    first = next(model.parameters(), None)
    return value if first is None else map_tensors(lambda tensor: tensor.to(first.device), value)


def read_output(result: Any) -> Tensor:
    """Return the tensor of outputs in what a model returned.

    It is the result itself, its ``logits``, the first tensor with dimensions of a tuple, or the only one of a mapping
    or a dataclass besides its loss.

    >>> read_output({"loss": Tensor([1.0]).sum(), "scores": Tensor([[2.0]])})
    tensor([[2.]])

    Raises:
        TypeError: If it holds no such tensor.
    """
    if isinstance(result, Tensor):
        return result
    parts = _name_parts(result)
    if isinstance(parts.get(LOGITS), Tensor):
        return parts[LOGITS]  # type: ignore[no-any-return]
    found = [part for name, part in parts.items() if name != LOSS and isinstance(part, Tensor) and part.ndim]
    if len(found) == 1 or (found and isinstance(result, (tuple, list))):
        return found[0]
    what = f"a {type(result).__name__}" + (f" of {quote(map(str, parts))}" if parts else "")
    expectation = "must be given where a model returns neither a tensor nor logits"
    raise ArgumentTypeError("output", expectation, Phrase(f"it returned {what}"))


def read_loss(result: Any) -> Tensor | None:
    """Return the loss that a model computed from the labels in a batch, or ``None``."""
    loss = None if isinstance(result, Tensor) else _name_parts(result).get(LOSS)
    return loss if isinstance(loss, Tensor) and loss.numel() == 1 else None


def _name_parts(result: Any) -> dict[Any, Any]:
    """Return the parts of a result by name, those of a tuple by their places."""
    if isinstance(result, Mapping):
        return dict(result)
    if is_dataclass(result) and not isinstance(result, type):
        return {field.name: getattr(result, field.name) for field in fields(result)}
    if isinstance(result, (tuple, list)):
        return dict(zip(getattr(result, "_fields", range(len(result))), result, strict=True))
    return {name: getattr(result, name) for name in (LOSS, LOGITS) if hasattr(result, name)}


@dataclass(frozen=True)
class Forward:
    """Forward pass from inputs to a tensor of outputs.

    >>> forward = Forward(output=lambda result: result[..., :1])
    >>> forward(nn.Identity(), Tensor([[1.0, 2.0]]))
    tensor([[1.]])

    Attributes:
        forward: Function from (model, inputs) to what the model returns; by default :func:`run`.
        output: Function from that to the tensor; by default :func:`read_output`.
    """

    forward: RunForward | None = None
    output: ReadOutput | None = None

    def __post_init__(self) -> None:
        for name, function in vars(self).items():
            if function is not None and not callable(function):
                raise ArgumentTypeError(name, "must be a function or None", function)

    def __call__(self, model: nn.Module, inputs: Any) -> Tensor:
        """Return the outputs of a model for inputs on its device."""
        return self.read((self.forward or run)(model, inputs))

    def read(self, result: Any) -> Tensor:
        """Return the tensor in what the model returned."""
        if self.output is None:
            return read_output(result)
        found: Any = self.output(result)
        if not isinstance(found, Tensor):
            raise ArgumentTypeError("output", "must return a tensor", Phrase(f"it returned a {type(found).__name__}"))
        return found

    @property
    def is_default(self) -> bool:
        """True if there is no function of the user's."""
        return self.forward is None and self.output is None


PLAIN = Forward()
"""Forward pass without functions of the user's."""


class Layout(NamedTuple):
    """Place of the classes in the outputs of a classification, and of the labels that belong to them.

    Attributes:
        last: True if the classes are in the last dimension, False if in dimension 1.
        shift: True if each output stands for the label behind it, as in a language model whose labels are its inputs.
    """

    last: bool = False
    shift: bool = False

    def align(self, output: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return outputs with the classes in dimension 1, and the label of each."""
        if self.shift:
            output, y = output[:, :-1], y[:, 1:]
        return (output.movedim(-1, 1) if self.last else output), y

    def flatten(self, output: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return one row of outputs for each label; labels below 0 are left out, as by torch."""
        output, y = self.align(output, y)
        rows, labels = output.movedim(1, -1).reshape(-1, output.shape[1]), y.reshape(-1)
        return rows[labels >= 0], labels[labels >= 0]

    def fits(self, output: Tensor, y: Tensor) -> bool:
        """Return True if there is one label for each row of outputs, and more than one class."""
        if output.ndim < 2 or (self.shift and (y.ndim < 2 or y.shape[1] < 2)):
            return False
        classes = output.shape[-1 if self.last else 1]
        rest = output.shape[:-1] if self.last else output.shape[:1] + output.shape[2:]
        return rest == y.shape and classes > 1


LAYOUTS = FIRST, LAST, NEXT = Layout(), Layout(last=True), Layout(last=True, shift=True)


def find_layout(output: Tensor, y: Tensor) -> Layout:
    """Return the place of the classes in the outputs, by the shape of the labels; dimension 1 where nothing fits.

    >>> find_layout(Tensor(4, 8, 20), Tensor(4, 8)), find_layout(Tensor(4, 20, 8), Tensor(4, 8))
    (Layout(last=True, shift=False), Layout(last=False, shift=False))

    Raises:
        ValueError: If both dimensions fit.
    """
    if y.ndim < 2 or not LAST.fits(output, y):
        return FIRST
    if FIRST.fits(output, y):
        shapes = f"outputs have the shape {tuple(output.shape)} and labels {tuple(y.shape)}"
        expectation = "must be given where classes may be in dimension 1 or in the last"
        raise ArgumentValueError("loss", expectation, Phrase(shapes))
    return LAST
