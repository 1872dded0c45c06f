"""Choice of the weights of a model to prune."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TypeAlias

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from spikeslab.errors import ArgumentError, ArgumentValueError, Phrase, mark, quote, warn
from spikeslab.functional.patterns import Pattern
from spikeslab.graph.tracing import ExampleInput, UntraceableError
from spikeslab.graph.units import UnitFamily, find_removable
from spikeslab.pruning.units import channel_units
from spikeslab.weights import select_matrices, select_weights

LAYERS = (nn.Linear, nn.modules.conv._ConvNd)
RECURRENT = (nn.RNNBase, nn.RNNCellBase)
EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)
MOST = 0.5
"""Share of the matrices besides embeddings above which matrices of modules that torch does not know are pruned too."""
OTHERS = 0.1
"""Share of the parameters above which matrices that stay dense are worth a warning."""

Chosen: TypeAlias = str | Sequence[str] | Iterable[Tensor] | Mapping[str, str | None] | None


def weight_names(model: nn.Module, weights: Chosen = None, *, trained: bool = True) -> list[str]:
    """Return the names of the weights to prune, in the model's order.

    >>> model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 2))
    >>> weight_names(model), weight_names(model, "[01].weight")
    (['0.weight', '1.weight', '2.weight'], ['0.weight', '1.weight'])

    Args:
        model: Any module.
        weights: Globs over parameter names, one or several, as in :func:`~spikeslab.select_weights`, or parameters of
            ``model``. ``None`` takes the trained matrices of all convolutions, linear layers, attention and recurrent
            layers but those that an embedding shares. Matrices of other modules, such as an attention written by hand
            or the ``Conv1D`` of transformers, are taken where they are most of what is no embedding. It warns if
            trained matrices of more than a tenth of the model are left out.
        trained: If True, refuse weights that are not trained.
    """
    parameters = dict(model.named_parameters())
    if weights is None:
        names = _layer_weights(model)
    elif isinstance(weights, str):
        names = _match(model, [weights])
    else:
        items: list[object] = list(weights)
        globs = [item for item in items if isinstance(item, str)]
        names = _match(model, globs) if len(globs) == len(items) else _find_names(parameters, items)
    if trained and (frozen := [name for name in names if not parameters[name].requires_grad]):
        raise ArgumentValueError("weights", "must be trained", Phrase(f"{quote(frozen)} has requires_grad=False"))
    return names


def fitting_names(model: nn.Module, names: Sequence[str], pattern: Pattern) -> list[str]:
    """Return the names of the weights whose inputs a pattern divides.

    >>> fitting_names(nn.Sequential(nn.Linear(3, 8), nn.Linear(8, 2)), ["0.weight", "1.weight"], Pattern(2, group=4))
    ['1.weight']

    Raises:
        ValueError: If there are none.
    """
    inputs = {name: model.get_parameter(name).shape[1] for name in names}
    if not (fitting := [name for name, count in inputs.items() if count % (pattern.group or 1) == 0]):
        numbers = ", ".join(str(count) for count in sorted(set(inputs.values())))
        raise ArgumentValueError("pattern", "must divide the inputs of a layer", Phrase(f"they have {numbers}"))
    return fitting


def choose_units(
    model: nn.Module, weights: Chosen = None, example: ExampleInput | None = None
) -> dict[str, UnitFamily]:
    """Return the families of units to prune, such as channels and heads, by the name of their first weight.

    >>> import torch
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 8), nn.Linear(8, 2))
    >>> list(choose_units(model)), list(choose_units(model, "3.*", torch.zeros(2, 4)))
    (['0.weight', '3.weight'], ['3.weight'])

    Args:
        model: Any module.
        weights: Globs or parameters that choose among the families that :func:`~spikeslab.compact` can remove units of,
            all of them where it is ``None``; or a mapping from the weights of layers to the normalisation behind each,
            which is taken as it is.
        example: Inputs of the model. Without them, or where they give no graph, only channels are found that nothing
            ties, and for these ``torch.fx`` must be able to trace the model.

    Raises:
        ValueError: If there is no such family, or one is named whose units cannot be removed.
    """
    found, fixed = _find_families(model, weights, example)
    if not found:
        raise ArgumentValueError(
            "model",
            "must have a layer with free channels",
            Phrase(f"its code fixes how many units {quote(fixed)} has"),
            "read sizes from attributes, or write -1 in a view",
        )
    parameters = dict(model.named_parameters())
    frozen = [name for name, family in found.items() if not _is_trained(family, parameters)]
    if weights is None:
        trained = {name: family for name, family in found.items() if name not in frozen}
        if not trained:
            raise _frozen_error("model", "must have a trained layer with free channels", frozen)
        if fixed:
            warn(f"{quote(fixed)} keep their units: the code of the model fixes how many there are.")
        return trained
    if isinstance(weights, Mapping):
        chosen = list(found)
    else:
        named = [name for name in weight_names(model, weights) if parameters[name].ndim > 1]
        owners = {part.name: name for name, family in found.items() for part in family.filters(parameters)}
        tied = [name for name in named if name not in owners]
        if tied or not named:
            raise ArgumentValueError(
                "weights",
                f"must name layers with free channels, {quote(found)}",
                Phrase(f"got {quote(tied) or 'none'}"),
                f"the code of the model fixes how many units {quote(fixed)} has" if {*tied} & {*fixed} else "",
            )
        chosen = list(dict.fromkeys(owners[name] for name in named))
    if frozen := [name for name in chosen if name in frozen]:
        raise _frozen_error("weights", "must be trained", frozen)
    return {name: found[name] for name in chosen}


def _find_families(
    model: nn.Module, weights: Chosen, example: ExampleInput | None
) -> tuple[dict[str, UnitFamily], list[str]]:
    """Return the families that can lose units, and the names of those that cannot."""
    if not isinstance(weights, Mapping) and example is not None:
        with suppress(UntraceableError, ValueError):  # on symbols it may still be traced
            found, fixed = find_removable(model, example)
            if found or fixed:
                return found, fixed
    try:
        return channel_units(model, weights if isinstance(weights, Mapping) else None), []
    except ArgumentError as error:
        raise error.change(argument="weights" if error.argument == "followers" else None) from error


def _is_trained(family: UnitFamily, parameters: Mapping[str, Tensor]) -> bool:
    parts = (*family.gates, *family.filters(parameters))
    return all(parameters[part.name].requires_grad for part in parts)


def _frozen_error(argument: str, expectation: str, frozen: list[str]) -> ArgumentValueError:
    phrase = Phrase(f"{quote(frozen)} has requires_grad=False, or its batch normalisation has")
    return ArgumentValueError(argument, expectation, phrase)


def _layer_weights(model: nn.Module) -> list[str]:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    embedded = {id(module.weight) for module in model.modules() if isinstance(module, EMBEDDINGS)}
    layers, others = (
        {id(p): p for module in model.modules() for p in find(module) if id(p) in names and id(p) not in embedded}
        for find in (_layer_matrices, _other_matrices)
    )
    if _count(others.values()) > MOST * (_count(layers.values()) + _count(others.values())):
        layers |= others
    chosen = [(name, layers[key]) for key, name in names.items() if key in layers]
    trained = [name for name, weight in chosen if weight.requires_grad]
    if not trained:
        raise ArgumentValueError(
            "model",
            "must have a trained Conv or Linear layer",
            Phrase(f"got {_describe_untrained([name for name, _ in chosen])}"),
            f"{mark('weights')} can name others",
        )
    _warn_of_others(model, trained)
    return trained


def _layer_matrices(module: nn.Module) -> list[Tensor]:
    """Return the matrices of a layer of torch, by which it multiplies its inputs."""
    if isinstance(module, LAYERS):
        return [module.weight]  # no parameter of the module if a mask or a norm of torch's computes it
    own = {name: p for name, p in module._parameters.items() if p is not None}
    if isinstance(module, nn.MultiheadAttention):
        return [p for name, p in own.items() if name.endswith("proj_weight")]
    return [p for name, p in own.items() if name.startswith("weight_")] if isinstance(module, RECURRENT) else []


def _other_matrices(module: nn.Module) -> list[Tensor]:
    """Return the matrices that a module holds which is none of torch's."""
    if any(kind.__module__.startswith("torch.") for kind in type(module).__mro__ if kind is not nn.Module):
        return []
    return [p for p in module._parameters.values() if p is not None and not is_lazy(p) and p.ndim == 2]


def _count(weights: Iterable[Tensor]) -> int:
    return sum(weight.numel() for weight in weights if weight.requires_grad and not is_lazy(weight))


def _describe_untrained(names: list[str]) -> str:
    return f"{quote(names)}, which {'is' if len(names) == 1 else 'are'} not trained" if names else "none at all"


def _warn_of_others(model: nn.Module, pruned: list[str]) -> None:
    """Warn of matrices that stay dense, such as embeddings."""
    matrices = {name: p for name, p in select_matrices(model).items() if p.requires_grad and not is_lazy(p)}
    others = {name: p.numel() for name, p in matrices.items() if name not in pruned}
    total = sum(p.numel() for p in model.parameters() if not is_lazy(p))
    if sum(others.values()) > OTHERS * total:
        warn(
            f"{quote(others)} stays dense, {sum(others.values()) / total:.0%} of the parameters: by default only "
            f"matrices of layers are pruned, and none of embeddings. {mark('weights')} can name others."
        )


def _match(model: nn.Module, globs: list[str]) -> list[str]:
    try:
        return list(select_weights(model, *globs))
    except ArgumentError as error:
        raise error.change(argument="weights") from error


def _find_names(parameters: dict[str, nn.Parameter], items: list[object]) -> list[str]:
    wanted = {id(item) for item in items}
    names = [name for name, parameter in parameters.items() if id(parameter) in wanted]
    if not names or len(names) < len(wanted):
        raise ArgumentValueError("weights", "must be globs or parameters of the model", Phrase("some are neither"))
    return names
