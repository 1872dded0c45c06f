"""A network as a graph: which operation follows which, on tensors of which shape.

``torch.fx`` runs ``forward`` once on symbols and writes down the calls; one run on random numbers of the shape of an
example then gives the shapes, and shows that the graph computes what the network computes.
"""

from __future__ import annotations

import copy
import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_leaves

from spikeslab.graph.example_input import ExampleInput, arguments
from spikeslab.graph.shift import Shift


class UntraceableError(RuntimeError):
    """A network of which no faithful graph can be had; the message is a sentence that says why."""


@dataclass
class Traced:
    """A network, its graph, and what one run on an example showed.

    Attributes:
        model: The network, in evaluation mode.
        graph: Its operations in the order of execution.
        shapes: Shape of each tensor.
        types: Its dtype and device.
        overwritten: For every operation in place, the earlier nodes that hold its result from then on and are still
            read; there may be none.
        rewritten: Nodes that stand for a ``view`` with a fixed size, which does not fit a narrower network.
    """

    model: nn.Module
    graph: fx.Graph
    shapes: dict[fx.Node, tuple[int, ...]]
    types: dict[fx.Node, tuple[torch.dtype, torch.device]]
    overwritten: dict[fx.Node, list[fx.Node]]
    rewritten: list[fx.Node] = field(default_factory=list)

    def module(self, node: fx.Node) -> nn.Module | None:
        """The module that a node calls."""
        return self.model.get_submodule(str(node.target)) if node.op == "call_module" else None

    def owned(self, node: fx.Node) -> bool:
        """Whether the module of a node may change: called once, sharing no parameter, without hooks."""
        return str(node.target) in self._owned

    def bypass(self, node: fx.Node, other: fx.Node) -> None:
        """Let another node stand for a node, which goes."""
        for nodes in self.overwritten.values():
            nodes[:] = [other if stale is node else stale for stale in nodes]
        node.replace_all_uses_with(other)
        self.graph.erase_node(node)

    def insert(self, before: fx.Node, name: str, module: nn.Module, source: fx.Node) -> fx.Node:
        """A node in front of another that applies a new module to a tensor and keeps its shape."""
        while hasattr(self.model, name):
            name += "_"
        self.model.add_module(name, module.eval())
        with self.graph.inserting_before(before):
            node = self.graph.call_module(name, (source,))
        self.shapes[node], self.types[node] = self.shapes[source], self.types[source]
        self._owned.add(name)
        return node

    def __post_init__(self) -> None:
        calls = Counter(id(self.module(node)) for node in self.graph.nodes if node.op == "call_module")
        holders = Counter(id(parameter) for module in self.model.modules() for parameter in module._parameters.values())
        reads = {str(node.target) for node in self.graph.nodes if node.op == "get_attr"}
        self._owned = {
            name
            for name, module in self.model.named_modules(remove_duplicate=False)
            if calls[id(module)] == 1
            and not has_hooks(module)
            and all(holders[id(parameter)] == 1 for parameter in module._parameters.values() if parameter is not None)
            and not any(read.startswith(f"{name}.") for read in reads)
        }


def has_hooks(module: nn.Module) -> bool:
    """Whether someone may see or change what the module takes or returns."""
    return bool(module._forward_hooks or module._forward_pre_hooks)


def evaluation_copy(model: object) -> nn.Module:
    """A deep copy of a network in evaluation mode.

    Raises:
        TypeError: If ``model`` is not a module.
        ValueError: If it cannot be copied, as while ``torch.nn.utils.prune`` computes its weights.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, but got {type(model).__name__}.")
    try:
        return copy.deepcopy(model).eval()
    except RuntimeError as error:
        reason = str(error).strip().partition("\n")[0].partition(".")[0]
        raise ValueError(
            f"model must be a module that copy.deepcopy copies (after torch.nn.utils.prune.remove), but got: {reason}."
        ) from error


@torch.no_grad()
def outputs(model: nn.Module, example_input: ExampleInput) -> list[Tensor]:
    """The tensors that a network returns for an example.

    Raises:
        ValueError: If the network fails on the example.
    """
    inputs = arguments(example_input)
    try:
        result = model(*(entry.clone() for entry in inputs))
    except Exception as error:
        shapes = ", ".join(str(tuple(entry.shape)) for entry in inputs)
        reason = str(error).strip().partition("\n")[0].rstrip(".")
        raise ValueError(
            f"example_input must be what the model takes, but got the shape {shapes}, on which it fails: {reason}."
        ) from error
    return [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]


def agree(first: list[Tensor], second: list[Tensor]) -> bool:
    """Whether outputs are equal up to rounding, which adds up over the layers."""
    return len(first) == len(second) and all(
        a.shape == b.shape
        and a.dtype == b.dtype
        and bool(torch.isclose(a, b, rtol=0.0, atol=_rounding(a), equal_nan=True).all())
        for a, b in zip(first, second, strict=True)
    )


def _rounding(values: Tensor) -> float:
    if not values.is_floating_point():
        return 0.0
    finite = values[values.isfinite()]
    largest = float(finite.abs().max()) if finite.numel() else 0.0
    # Of numbers of 16 bits that would be more than the outputs themselves.
    return min(1e4 * torch.finfo(values.dtype).eps, 0.25) * largest


def probe(model: nn.Module, example_input: ExampleInput) -> tuple[Tensor, ...]:
    """Random numbers in place of the floats of an example, if the network takes them: zeros would hide differences."""
    inputs, generator = arguments(example_input), torch.Generator().manual_seed(0)
    drawn = tuple(
        torch.randn(entry.shape, generator=generator).to(entry) if entry.is_floating_point() else entry
        for entry in inputs
    )
    try:
        outputs(model, drawn)
    except ValueError:
        return inputs
    return drawn


def trace(model: nn.Module, example_input: ExampleInput) -> Traced:
    """The graph of a network in evaluation mode, with every ``view`` that flattens written as ``flatten``.

    Raises:
        UntraceableError: If the network cannot be traced, or computes something else than its trace.
    """
    inputs = probe(model, example_input)
    expected = outputs(model, inputs)
    name = type(model).__name__
    try:
        graph = _Tracer().trace(model)
        for node in graph.nodes:
            node.type = None  # an annotation, which may be a string that a pickled graph could not import
        recorder = _Recorder(model, graph)
        with torch.no_grad():
            result = recorder.run(*(entry.clone() for entry in inputs))
    except Exception as error:  # tracing runs the user's code on symbols, where anything may be raised
        reason = str(error).strip().partition("\n")[0].rstrip(".")
        raise UntraceableError(f"{name} cannot be traced by torch.fx: {reason}.") from error
    if not agree(expected, [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]):
        raise UntraceableError(f"{name} computes something else than its trace, as after an assignment in place.")
    shapes = {node: tuple(tensor.shape) for node, tensor in recorder.tensors.items()}
    types = {node: (tensor.dtype, tensor.device) for node, tensor in recorder.tensors.items()}
    traced = Traced(model, graph, shapes, types, recorder.overwritten)
    _write_views_as_flatten(traced)
    return traced


class _Tracer(fx.Tracer):
    """One that looks into all modules but those of torch and the shifts of a network that was compacted before."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, Shift) or super().is_leaf_module(m, module_qualified_name)


class _Recorder(fx.Interpreter):
    """Runs a graph and keeps every tensor, so that tensors that share memory can be told."""

    def __init__(self, model: nn.Module, graph: fx.Graph) -> None:
        super().__init__(model, garbage_collect_values=False, graph=graph)
        self.tensors: dict[fx.Node, Tensor] = {}
        self.overwritten: dict[fx.Node, list[fx.Node]] = {}
        self._order = {node: position for position, node in enumerate(graph.nodes)}

    def run_node(self, n: fx.Node) -> Any:
        read = [self.tensors[node] for node in n.all_input_nodes if node in self.tensors]
        versions = [tensor._version for tensor in read]
        result = super().run_node(n)
        for tensor, version in zip(read, versions, strict=True):
            if tensor._version != version:
                self.overwritten[n] = self._still_read(tensor, n)
        if isinstance(result, Tensor) and n.op != "output":
            self.tensors[n] = result
        return result

    def _still_read(self, tensor: Tensor, writer: fx.Node) -> list[fx.Node]:
        memory, now = tensor.untyped_storage().data_ptr(), self._order[writer]
        return [
            node
            for node, other in self.tensors.items()
            if other.untyped_storage().data_ptr() == memory and any(self._order[user] > now for user in node.users)
        ]


def _write_views_as_flatten(traced: Traced) -> None:
    for node in list(traced.graph.nodes):
        if not (node.op == "call_method" and node.target in ("view", "reshape")) and node.target is not torch.reshape:
            continue
        source, sizes = node.args[0], node.args[1:]
        start = _flattens_from(traced.shapes.get(source, ()), traced.shapes.get(node, ()))
        if start is None or node.kwargs:
            continue
        with traced.graph.inserting_before(node):
            flatten = traced.graph.call_function(torch.flatten, (source, start))
        traced.shapes[flatten], traced.types[flatten] = traced.shapes[node], traced.types[node]
        inputs = node.all_input_nodes
        traced.bypass(node, flatten)
        if start != 1 or len(sizes) != 2 or sizes[-1] != -1:
            traced.rewritten.append(flatten)
        _erase_unread_sizes(traced.graph, inputs)


def _flattens_from(before: tuple[int, ...], after: tuple[int, ...]) -> int | None:
    """First of the dimensions that became one; ``None`` where more than that happened."""
    start = len(after) - 1
    if start < 1 or len(before) < len(after) or before[:start] != after[:start]:
        return None
    return start if math.prod(before[start:]) == after[start] else None


def _erase_unread_sizes(graph: fx.Graph, nodes: list[fx.Node]) -> None:
    """Erase nodes that compute sizes which nothing reads any more."""
    for node in nodes:
        arithmetic = node.op == "call_function" and getattr(node.target, "__module__", None) == "_operator"
        if not node.users and (arithmetic or node.target in ("size", getattr)):
            inputs = node.all_input_nodes
            graph.erase_node(node)
            _erase_unread_sizes(graph, inputs)
