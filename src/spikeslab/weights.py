"""Selection of weights by globs over parameter names, and the modules behind wrappers."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any, NoReturn, Self, TypeAlias

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from spikeslab.errors import ArgumentTypeError, ArgumentValueError, Phrase, quote

NORMALISATIONS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)

Weights: TypeAlias = Mapping[str, Tensor] | Iterable[Tensor] | Iterable[tuple[str, Tensor]]


class WeightHolder:
    """Base of objects that hold weights of a model: they are deep-copied together with it and never pickled."""

    def __getstate__(self) -> NoReturn:
        """Refuse to be pickled: the copy would hold weights that are no model's."""
        raise TypeError(
            f"{type(self).__name__} cannot be pickled or copied alone: save its state_dict(), or copy it together with "
            "its model, as in copy.deepcopy((model, sampler, pruner))."
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return a copy; made together with the model, it holds the weights of the model's copy."""
        twin = type(self).__new__(type(self))
        memo[id(self)] = twin
        twin.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return twin


def unwrap_compiled(model: nn.Module) -> nn.Module:
    """Return the module that ``torch.compile(model)`` wraps, with the same parameters under their own names."""
    inner = getattr(model, "_orig_mod", None)
    return unwrap_compiled(inner) if isinstance(inner, nn.Module) else model


def unwrap(model: nn.Module) -> nn.Module:
    """Return the module inside the wrappers of ``torch.compile`` and of data parallelism."""
    inner = unwrap_compiled(model)
    if isinstance(inner, nn.DataParallel | nn.parallel.DistributedDataParallel):
        return unwrap(inner.module)
    return inner


def select_weights(model: nn.Module, *globs: str) -> dict[str, nn.Parameter]:
    """Pick the parameters of ``model`` whose names match any of the ``globs``, in the model's order.

    A glob selects matrices and filters; it selects biases and parameters of normalisations only if it matches nothing
    else. A parameter that several modules share matches under each of its names and is listed once, under the first.
    The parameters of a compiled model keep their names.

    >>> model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 2))
    >>> list(select_weights(model, "*.weight")), list(select_weights(model, "1.*"))
    (['0.weight', '3.weight'], ['1.weight', '1.bias'])

    Args:
        model: Any module.
        *globs: Shell patterns such as ``"layer*.conv*.weight"``; ``*`` also matches dots.

    Raises:
        ArgumentValueError: If a glob matches no parameter; the message lists the parameters.
    """
    if not globs:
        raise ArgumentValueError("globs", "must be at least one pattern such as '*.weight'", Phrase("got none"))
    model = unwrap_compiled(model)
    parameters = dict(model.named_parameters(remove_duplicate=False))
    matrices = {id(parameter) for parameter in select_matrices(model).values()}
    taken: set[int] = set()
    idle: list[str] = []
    for glob in globs:
        found = {id(parameter) for name, parameter in parameters.items() if fnmatchcase(name, glob)}
        taken |= found & matrices or found
        idle += [] if found else [glob]
    if idle:
        names = quote(name for name, _ in model.named_parameters())
        raise ArgumentValueError(
            "globs", "must each match a parameter", Phrase(f"{quote(idle)} matched none of {names}")
        )
    return {name: p for name, p in model.named_parameters() if id(p) in taken}


def select_matrices(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the matrices and filters: all parameters but biases and those of normalisations, lazy ones included."""
    scales = {id(p) for module in model.modules() if isinstance(module, NORMALISATIONS) for p in module.parameters()}
    # A lazy parameter has no shape yet, and one dimension to torch.
    return {name: p for name, p in model.named_parameters() if id(p) not in scales and (is_lazy(p) or p.ndim > 1)}


def name_weights(weights: Weights) -> dict[str, Tensor]:
    """Give every weight a name: the caller's where there is one, else its position.

    >>> list(name_weights([nn.Parameter(Tensor(2)), nn.Parameter(Tensor(3))]))
    ['weights[0]', 'weights[1]']
    """
    if isinstance(weights, Tensor):
        raise ArgumentTypeError("weights", "must be a dict or a list of parameters", Phrase("got a single tensor"))
    named: dict[str, Tensor] = {}
    seen: set[int] = set()
    items: Iterable[tuple[str, Tensor] | Tensor] = weights.items() if isinstance(weights, Mapping) else weights
    for index, item in enumerate(items):
        name, tensor = item if isinstance(item, tuple) else (f"weights[{index}]", item)
        if not isinstance(tensor, Tensor):
            raise ArgumentTypeError("weights", "must hold parameters", Phrase(f"{name} is a {type(tensor).__name__}"))
        if tensor.numel() and id(tensor) not in seen:
            if name in named:
                raise ArgumentValueError("weights", "must have different names", Phrase(f"two are called {name!r}"))
            named[name] = tensor
            seen.add(id(tensor))
    if not named:
        expectation = "must hold at least one parameter that is not empty"
        raise ArgumentValueError("weights", expectation, Phrase("got none"))
    return named
