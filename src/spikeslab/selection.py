"""Which weights are sparse: globs over parameter names, or the parameters themselves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import TypeAlias

from torch import Tensor, nn

from spikeslab.errors import quoted

Weights: TypeAlias = Mapping[str, Tensor] | Iterable[Tensor] | Iterable[tuple[str, Tensor]]


def uncompiled(model: nn.Module) -> nn.Module:
    """The module that ``torch.compile(model)`` wraps, with the same parameters under their own names."""
    inner = getattr(model, "_orig_mod", None)
    return uncompiled(inner) if isinstance(inner, nn.Module) else model


def unwrapped(model: nn.Module) -> nn.Module:
    """The module inside the wrappers of ``torch.compile`` and of data parallelism."""
    inner = uncompiled(model)
    if isinstance(inner, nn.DataParallel | nn.parallel.DistributedDataParallel):
        return unwrapped(inner.module)
    return inner


def select_weights(model: nn.Module, *globs: str) -> dict[str, nn.Parameter]:
    """Pick the parameters of ``model`` whose names match any of the ``globs``, in the model's order.

    A parameter that several modules share is listed once, under its first name. A compiled model has the names it had.

    >>> model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    >>> list(select_weights(model, "*.weight"))
    ['0.weight', '2.weight']

    Args:
        model: Any module.
        *globs: Shell patterns such as ``"layer*.conv*.weight"``; ``*`` also matches dots.

    Raises:
        ValueError: If a glob matches no parameter; the message says which, and what there is.
    """
    if not globs:
        raise ValueError("globs must be at least one pattern such as '*.weight', but got none.")
    parameters = dict(uncompiled(model).named_parameters())
    idle = [glob for glob in globs if not any(fnmatchcase(name, glob) for name in parameters)]
    if idle:
        raise ValueError(f"globs must each match a parameter, but {quoted(idle)} matched none of {quoted(parameters)}.")
    return {name: parameter for name, parameter in parameters.items() if any(fnmatchcase(name, glob) for glob in globs)}


def named_weights(weights: Weights) -> dict[str, Tensor]:
    """Give every weight a name: the caller's where there is one, else its position.

    >>> list(named_weights([nn.Parameter(Tensor(2)), nn.Parameter(Tensor(3))]))
    ['weights[0]', 'weights[1]']
    """
    if isinstance(weights, Tensor):
        raise TypeError("weights must be a dict or a list of parameters, but got a single tensor.")
    named: dict[str, Tensor] = {}
    seen: set[int] = set()
    items: Iterable[tuple[str, Tensor] | Tensor] = weights.items() if isinstance(weights, Mapping) else weights
    for index, item in enumerate(items):
        name, tensor = item if isinstance(item, tuple) else (f"weights[{index}]", item)
        if not isinstance(tensor, Tensor):
            raise TypeError(f"weights must hold parameters, but {name} is of type {type(tensor).__name__}.")
        if tensor.numel() and id(tensor) not in seen:
            if name in named:
                raise ValueError(f"weights must have different names, but two are called {name!r}.")
            named[name] = tensor
            seen.add(id(tensor))
    if not named:
        raise ValueError("weights must hold at least one parameter that is not empty, but got none.")
    return named
