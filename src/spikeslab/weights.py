"""Which weights are sparse: globs over parameter names, or the parameters themselves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import TypeAlias

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from spikeslab.errors import quote

NORMALISATIONS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)

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


def to_device_of(model: nn.Module, tensor: Tensor) -> Tensor:
    """Return the tensor on the device of the model, or as it is if the model has no parameters."""
    first = next(model.parameters(), None)
    return tensor if first is None else tensor.to(first.device)


def select_weights(model: nn.Module, *globs: str) -> dict[str, nn.Parameter]:
    """Pick the parameters of ``model`` whose names match any of the ``globs``, in the model's order.

    A glob takes matrices and filters; biases and what belongs to normalisations only where it matches nothing else. A
    parameter that several modules share matches under each of its names and is listed once, under the first. A compiled
    model has the names it had.

    >>> model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 2))
    >>> list(select_weights(model, "*.weight")), list(select_weights(model, "1.*"))
    (['0.weight', '3.weight'], ['1.weight', '1.bias'])

    Args:
        model: Any module.
        *globs: Shell patterns such as ``"layer*.conv*.weight"``; ``*`` also matches dots.

    Raises:
        ValueError: If a glob matches no parameter; the message says which, and what there is.
    """
    if not globs:
        raise ValueError("globs must be at least one pattern such as '*.weight', but got none.")
    selected, idle = matching(uncompiled(model), globs)
    if idle:
        names = quote(name for name, _ in uncompiled(model).named_parameters())
        raise ValueError(f"globs must each match a parameter, but {quote(idle)} matched none of {names}.")
    return selected


def matching(model: nn.Module, globs: Iterable[str]) -> tuple[dict[str, nn.Parameter], list[str]]:
    """The parameters that the ``globs`` take, and the globs that match none."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    matrices = {id(parameter) for parameter in matrices_of(model).values()}
    taken: set[int] = set()
    idle: list[str] = []
    for glob in globs:
        found = {id(parameter) for name, parameter in parameters.items() if fnmatchcase(name, glob)}
        taken |= found & matrices or found
        idle += [] if found else [glob]
    return {name: p for name, p in model.named_parameters() if id(p) in taken}, idle


def matrices_of(model: nn.Module) -> dict[str, nn.Parameter]:
    """All parameters but biases and what belongs to normalisations: matrices, filters and what will become one."""
    scales = {id(p) for module in model.modules() if isinstance(module, NORMALISATIONS) for p in module.parameters()}
    # A lazy parameter has no shape yet, and one dimension to torch.
    return {name: p for name, p in model.named_parameters() if id(p) not in scales and (is_lazy(p) or p.ndim > 1)}


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
