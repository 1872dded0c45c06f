"""Sizes that ``forward`` fixes: which do not fit a narrower network, and how to make them fit.

A size comes from a number in the code or from an attribute of a module, such as its number of heads. An attribute is
changed where the network then computes the same as before; a number in the code only in a graph that takes the place of
``forward``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import combinations
from typing import Any, TypeAlias

import torch
from torch import Tensor, fx, nn

from spikeslab.graph.dependency import DependencyGraph
from spikeslab.graph.moves import MOVES, SPLITS, ChannelLayout, as_rows, refit
from spikeslab.graph.operations import operation_name
from spikeslab.graph.tracing import TracedModel, agree, compute_outputs

Misfits: TypeAlias = dict[fx.Node, tuple[Any, ...]]
"""Operations whose arguments behind the tensor do not fit, with arguments that do."""
Change: TypeAlias = tuple[nn.Module, str, int]
"""Module, name of an attribute, and its new value."""
MOST_ATTRIBUTES = 4
"""Number of attributes of which all combinations are tried."""


def find_misfits(graph: DependencyGraph, stays: Callable[[Tensor], Tensor]) -> Misfits:
    """Return the operations that do not fit if only some channels stay."""
    found = {node: _find_misfit(graph, node, stays) for node in graph.layouts}
    return {node: arguments for node, arguments in found.items() if arguments is not None}


def _find_misfit(graph: DependencyGraph, node: fx.Node, stays: Callable[[Tensor], Tensor]) -> tuple[Any, ...] | None:
    source = next(iter(node.all_input_nodes), None)
    before = None if source is None else graph.layout(source)
    if source is None or before is None or operation_name(node) not in MOVES:
        return None
    after = graph.layout(node)
    kept_after = {} if after is None else _find_kept(after, stays)
    return refit(node, len(graph.traced.shapes[source]), _find_kept(before, stays), kept_after)


def _find_kept(layout: ChannelLayout, stays: Callable[[Tensor], Tensor]) -> dict[int, Tensor]:
    """Return which places stay, for each dimension of which not all do."""
    living = {axis: as_rows(stays(layout.numbers), [place]).any(1) for place, axis in enumerate(layout.axes)}
    return {axis: places for axis, places in living.items() if not places.all()}


def pin_fixed_channels(graph: DependencyGraph) -> None:
    """Pin the channels whose number an operation fixes, since it would not fit without one of them."""
    for node in graph.layouts:
        source = next(iter(node.all_input_nodes), None)
        layout = None if source is None else graph.layout(source)
        if source is None or layout is None:
            continue
        roots = graph.groups.find_roots()
        free = layout.numbers[~graph.groups.find_pinned()[layout.numbers]]
        if free.numel():
            stays = roots != roots[free.flatten()[-1]]
            if _find_misfit(graph, node, stays.__getitem__) is not None:
                graph.keep([source], f"forward fixes their number in the operation '{node.name}'")


def rewrite(misfits: Misfits) -> None:
    """Give operations of a graph arguments that fit."""
    for node, arguments in misfits.items():
        if operation_name(node) in SPLITS:  # chunks of different sizes are no chunks
            node.target = "split" if node.op == "call_method" else torch.split
        node.args, node.kwargs = (node.args[0], *arguments), {}


def fit_attributes(traced: TracedModel, misfits: Misfits) -> bool:
    """Change attributes of modules so that the narrower network computes the same; return True if one set does.

    An attribute is tried if it is a number that equals a size which a call in its module gives and which no longer
    fits.
    """
    changes = _find_changes(traced, misfits)
    if not changes:
        return False
    for keys in _choices(list(changes)):
        chosen = [change for key in keys for change in changes[key]]
        before = [(module, name, getattr(module, name)) for module, name, _ in chosen]
        _set(chosen)
        with suppress(ValueError):
            if agree(traced.outputs, compute_outputs(traced.model, traced.inputs)):
                return True
        _set(before)
    return False


def _set(changes: list[Change]) -> None:
    for module, name, value in changes:
        setattr(module, name, value)


def _choices(keys: list[tuple[type, str]]) -> Iterator[tuple[tuple[type, str], ...]]:
    """Yield combinations of attributes, few of them first; of many only single ones and all together."""
    counts = range(1, len(keys) + 1) if len(keys) <= MOST_ATTRIBUTES else (1, len(keys))
    for count in counts:
        yield from combinations(keys, count)


def _find_changes(traced: TracedModel, misfits: Misfits) -> Mapping[tuple[type, str], list[Change]]:
    """Return the attributes that may have given sizes that do not fit, by class and name."""
    sizes: dict[nn.Module, dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
    for node, arguments in misfits.items():
        stack = node.meta.get("nn_module_stack") or {"": ("", None)}
        caller = traced.model.get_submodule(list(stack.values())[-1][0])
        for old, new in _compare(node, arguments):
            sizes[caller][old].add(new)
    changes: dict[tuple[type, str], list[Change]] = defaultdict(list)
    for module, pairs in sizes.items():
        for name, value in vars(module).items():
            if type(value) is int and len(fitting := pairs.get(value, set())) == 1:
                changes[type(module), name].append((module, name, next(iter(fitting))))
    return changes


def _compare(node: fx.Node, arguments: tuple[Any, ...]) -> Iterator[tuple[int, int]]:
    """Yield the numbers among the arguments of a node that change, with the new ones."""
    old, new = node.args[1:], arguments
    if operation_name(node) == "split" and isinstance(old[0], int):
        old, new = old[:1], tuple(set(arguments[0]))
    elif len(new) == 1 and isinstance(new[0], list):
        new = tuple(new[0])
        old = tuple(old[0]) if len(old) == 1 and isinstance(old[0], (list, tuple)) else old
    if len(old) == len(new):
        yield from ((a, b) for a, b in zip(old, new, strict=True) if type(a) is int and type(b) is int and a != b)
