"""Traced networks: the graph of operations, and the shapes of the tensors between them.

``torch.fx`` runs ``forward`` once on symbols and records the calls; where it cannot,
:mod:`~spikeslab.graph.recording` runs it on the example. With an example input, one run on random numbers of its shape
gives the shapes of all tensors, and checks that the graph computes what the network computes.
"""

from __future__ import annotations

import copy
import inspect
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_leaves

from spikeslab.errors import ArgumentTypeError, ArgumentValueError, Phrase, first_line, quote
from spikeslab.forward_pass import read_output
from spikeslab.graph.layers import ChannelBias, is_transposed
from spikeslab.graph.recording import CONSTANT, record

ExampleInput: TypeAlias = Tensor | tuple[Tensor, ...] | Mapping[str, Tensor]
"""Batch, or tuple or mapping of batches, on which a network is traced, counted or timed."""


class UntraceableError(RuntimeError):
    """A network has no faithful graph.

    Attributes:
        note: Sentence that says why, and that the network stays as it is.
    """

    def __init__(self, model: nn.Module, reason: str) -> None:
        super().__init__(f"{type(model).__name__} {reason}.")
        self.note = f"{self} It stays as it is."


COMPOSITES = (
    nn.Sequential, nn.Transformer, nn.TransformerEncoder, nn.TransformerDecoder, nn.TransformerEncoderLayer,
    nn.TransformerDecoderLayer,
)  # fmt: skip
"""Modules of torch that are made of others."""


@dataclass
class TracedModel:
    """A network, its graph, and the tensors of one run on an example.

    Attributes:
        model: The network.
        graph: Its operations in the order of execution.
        shapes: Shape of each tensor; empty without an example.
        types: Dtype and device of each tensor; empty without an example.
        values: Results that are no tensors, such as sizes; empty without an example.
        overwritten: For every operation in place, the earlier nodes that hold its result from then on and are still
            read; there may be none.
        constants: Tensors that are no part of the network, by the target of the node that reads them.
        rewritable: True if the graph can take the place of ``forward``; a recording holds for one shape of the input.
        fixed_views: Nodes that replace a ``view`` with a fixed size, which does not fit a narrower network.
        inputs: Random numbers in the shape of the example, if the network takes them, or else the example.
        outputs: Tensors that the network returns for them.
    """

    model: nn.Module
    graph: fx.Graph
    shapes: dict[fx.Node, tuple[int, ...]] = field(default_factory=dict)
    types: dict[fx.Node, tuple[torch.dtype, torch.device]] = field(default_factory=dict)
    values: dict[fx.Node, Any] = field(default_factory=dict)
    overwritten: dict[fx.Node, list[fx.Node]] = field(default_factory=dict)
    constants: dict[str, Tensor] = field(default_factory=dict)
    rewritable: bool = True
    fixed_views: list[fx.Node] = field(default_factory=list)
    inputs: tuple[Tensor, ...] = ()
    outputs: list[Tensor] = field(default_factory=list)

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

    def module(self, node: fx.Node) -> nn.Module | None:
        """Return the module that a node calls."""
        return self.model.get_submodule(str(node.target)) if node.op == "call_module" else None

    def scalar(self, node: fx.Node) -> Tensor | None:
        """Return the parameter or buffer that a node reads, if it has one entry, in double precision."""
        if node.op != "get_attr":
            return None
        owner, _, name = str(node.target).rpartition(".")
        constant = str(node.target).startswith(CONSTANT)
        value = self.constants[str(node.target)] if constant else getattr(self.model.get_submodule(owner), name)
        return value.detach().cpu().double().reshape(()) if isinstance(value, Tensor) and value.numel() == 1 else None

    def is_owned(self, node: fx.Node) -> bool:
        """Return True if the module of a node may change: called once, sharing no parameter, without hooks."""
        return str(node.target) in self._owned

    def replace(self, node: fx.Node, other: fx.Node) -> None:
        """Let the readers of a node read another one, and erase the node."""
        for nodes in self.overwritten.values():
            nodes[:] = [other if stale is node else stale for stale in nodes]
        node.replace_all_uses_with(other)
        self.graph.erase_node(node)

    def insert(self, before: fx.Node, name: str, module: nn.Module, source: fx.Node) -> fx.Node:
        """Add a module that keeps the shape of ``source``, and return the node that applies it."""
        while hasattr(self.model, name):
            name += "_"
        self.model.add_module(name, module.eval())
        with self.graph.inserting_before(before):
            node = self.graph.call_module(name, (source,))
        self.shapes[node], self.types[node] = self.shapes[source], self.types[source]
        self._owned.add(name)
        return node


def has_hooks(module: nn.Module) -> bool:
    """Return True if hooks may see or change what the module takes or returns."""
    return bool(module._forward_hooks or module._forward_pre_hooks)


def check_example_input(example_input: ExampleInput) -> tuple[Tensor, ...]:
    """Return the arguments of a forward pass: tensors whose first dimension is the batch."""
    tensors = (example_input,) if isinstance(example_input, Tensor) else example_input
    tensors = tuple(tensors.values()) if isinstance(tensors, Mapping) else tensors
    if not isinstance(tensors, tuple) or not tensors or not all(isinstance(t, Tensor) and t.ndim for t in tensors):
        kind = Phrase(f"got {type(example_input).__name__}")
        raise ArgumentTypeError("example_input", "must be a batch, or a tuple or mapping of batches", kind)
    if any(len(tensor) != len(tensors[0]) or len(tensor) == 0 for tensor in tensors):
        rows = [len(tensor) for tensor in tensors]
        raise ArgumentValueError("example_input", "must have rows, as many in each part", rows)
    return tensors


def order_inputs(model: nn.Module, example_input: ExampleInput) -> tuple[Tensor, ...]:
    """Return the arguments of a forward pass in the order of the model's parameters.

    >>> order_inputs(nn.MultiheadAttention(2, 1), {"value": Tensor([3]), "query": Tensor([1]), "key": Tensor([2])})
    (tensor([1.]), tensor([2.]), tensor([3.]))

    Raises:
        ArgumentValueError: If the model takes no arguments of these names, or others before them.
    """
    tensors = check_example_input(example_input)
    if not isinstance(example_input, Mapping):
        return tensors
    order = [
        name
        for name, parameter in inspect.signature(model.forward).parameters.items()
        if parameter.kind is parameter.POSITIONAL_OR_KEYWORD
    ][: len(example_input)]
    if set(order) != set(example_input):
        given = Phrase(f"got {quote(example_input)} for a model whose first arguments are {quote(order) or 'none'}")
        raise ArgumentValueError("example_input", "must name the first arguments of the model", given)
    return tuple(example_input[name] for name in order)


def check_module(model: object) -> nn.Module:
    """Return ``model`` if it is a module."""
    if not isinstance(model, nn.Module):
        raise ArgumentTypeError("model", "must be a torch.nn.Module", Phrase(f"got {type(model).__name__}"))
    return model


def copy_model(model: object) -> nn.Module:
    """Return a deep copy of a network; none can be made while ``torch.nn.utils.prune`` computes its weights."""
    module = check_module(model)
    try:
        return copy.deepcopy(module)
    except Exception as error:  # of torch for tensors that are computed, or of the module's own __deepcopy__
        raise ArgumentValueError(
            "model",
            "must be a module that copy.deepcopy can copy",
            Phrase(f"it failed with {first_line(error)!r}"),
            "spikeslab.compression.finalize(model) removes torch's masks and parametrizations",
        ) from error


@torch.no_grad()
def compute_outputs(model: nn.Module, example_input: ExampleInput) -> list[Tensor]:
    """Return the tensors that a network returns for an example; one on which it fails is refused."""
    inputs = order_inputs(model, example_input)
    try:
        result = model(*(entry.clone() for entry in inputs))
    except Exception as error:
        shapes = ", ".join(str(tuple(entry.shape)) for entry in inputs)
        raise ArgumentValueError(
            "example_input",
            "must be what the model takes",
            Phrase(f"got the shape {shapes}, on which it fails: {first_line(error)}"),
        ) from error
    return _tensors_in(result)


def _tensors_in(result: object) -> list[Tensor]:
    leaves = tree_leaves(result)
    if len(leaves) == 1 and leaves[0] is result:  # an object that torch does not know as a container
        return [read_output(result)]
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)]


def agree(first: list[Tensor], second: list[Tensor]) -> bool:
    """Return True if outputs are equal up to rounding, which adds up over the layers."""
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
    # 1e4 eps of a 16-bit type would be more than the outputs themselves.
    return min(1e4 * torch.finfo(values.dtype).eps, 0.25) * largest


def _run_on_noise(model: nn.Module, example_input: ExampleInput) -> tuple[tuple[Tensor, ...], list[Tensor]]:
    """Return inputs and outputs with noise in place of the floats of an example, if the network takes it."""
    # An example of zeros would hide differences.
    inputs, generator = order_inputs(model, example_input), torch.Generator().manual_seed(0)
    drawn = tuple(
        torch.randn(entry.shape, generator=generator).to(entry) if entry.is_floating_point() else entry
        for entry in inputs
    )
    try:
        return drawn, compute_outputs(model, drawn)
    except ValueError:
        return inputs, compute_outputs(model, inputs)


def trace(model: nn.Module, example_input: ExampleInput | None = None) -> TracedModel:
    """Trace a network, and write every ``view`` that flattens as ``flatten``.

    Args:
        model: The network; with an example, in evaluation mode.
        example_input: Batch, or tuple of batches. Without one the shapes are unknown, and every ``view`` to two
            dimensions is taken to flatten all but the batch.

    Raises:
        ValueError: If the network fails on the example.
        UntraceableError: If the network cannot be traced, or computes something else than its trace.
    """
    inputs, outputs = ((), []) if example_input is None else _run_on_noise(model, example_input)
    graph, constants, rewritable = _find_graph(model, inputs)
    try:
        observer = _Observer(model, graph, constants)
        with torch.no_grad():
            result = observer.run(*(entry.clone() for entry in inputs)) if inputs else []
    except Exception as error:  # the user's code may raise anything
        raise UntraceableError(model, f"cannot be traced by torch.fx: {first_line(error)}") from error
    if not agree(outputs, _tensors_in(result)):
        raise UntraceableError(model, "computes something else than its trace, as after an assignment in place")
    traced = TracedModel(
        model,
        graph,
        shapes={node: tuple(tensor.shape) for node, tensor in observer.tensors.items()},
        types={node: (tensor.dtype, tensor.device) for node, tensor in observer.tensors.items()},
        values=observer.values,
        overwritten=observer.overwritten,
        constants=constants,
        rewritable=rewritable,
        inputs=inputs,
        outputs=outputs,
    )
    if rewritable:
        _write_views_as_flatten(traced)
    return traced


def _find_graph(model: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[fx.Graph, dict[str, Tensor], bool]:
    """Return the graph of a network, its constants, and True if it holds for inputs of all sizes."""
    try:
        graph = _Tracer().trace(model)
    except Exception as error:  # tracing runs the user's code on symbols, where anything may be raised
        reason = UntraceableError(model, f"cannot be traced by torch.fx: {first_line(error)}")
        if not inputs:
            raise reason from error
        try:
            return *record(model, inputs, _is_leaf, _tensors_in), False
        except Exception:  # what stopped torch.fx tells a user more
            raise reason from error
    for node in graph.nodes:
        node.type = None  # an annotation, which may be a string that a pickled graph could not import
    return graph, {}, True


def _is_leaf(module: nn.Module) -> bool:
    """Return True if the call of a module is one node: those of torch, and the layers that torch does not have."""
    kind = type(module)
    if issubclass(kind, (ChannelBias, nn.MultiheadAttention)) or is_transposed(module):
        return True
    return kind.__module__.startswith("torch.nn.") and not issubclass(kind, COMPOSITES)


class _Tracer(fx.Tracer):
    """Tracer that looks into all modules but those that are one node."""

    proxy_buffer_attributes = True  # a mask may be cut to the size of the input

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return _is_leaf(m)


class _Observer(fx.Interpreter):
    """Interpreter that keeps every tensor, to find those that share memory."""

    def __init__(self, model: nn.Module, graph: fx.Graph, constants: dict[str, Tensor]) -> None:
        super().__init__(model, garbage_collect_values=False, graph=graph)
        self.tensors: dict[fx.Node, Tensor] = {}
        self.values: dict[fx.Node, Any] = {}
        self.overwritten: dict[fx.Node, list[fx.Node]] = {}
        self._constants = constants
        self._order = {node: position for position, node in enumerate(graph.nodes)}

    def fetch_attr(self, target: str) -> Any:
        return self._constants[target] if target in self._constants else super().fetch_attr(target)

    def run_node(self, n: fx.Node) -> Any:
        read = [self.tensors[node] for node in n.all_input_nodes if node in self.tensors]
        versions = [tensor._version for tensor in read]
        result = super().run_node(n)
        for tensor, version in zip(read, versions, strict=True):
            if tensor._version != version:
                self.overwritten[n] = self._still_read(tensor, n)
        if isinstance(result, Tensor) and n.op != "output":
            self.tensors[n] = result
        elif not any(isinstance(leaf, Tensor) for leaf in tree_leaves(result)):
            self.values[n] = result
        return result

    def _still_read(self, tensor: Tensor, writer: fx.Node) -> list[fx.Node]:
        memory, now = tensor.untyped_storage().data_ptr(), self._order[writer]
        return [
            node
            for node, other in self.tensors.items()
            if other.untyped_storage().data_ptr() == memory and any(self._order[user] > now for user in node.users)
        ]


def _write_views_as_flatten(traced: TracedModel) -> None:
    for node in list(traced.graph.nodes):
        method = node.op == "call_method" and node.target in ("view", "reshape")
        if not (method or node.target is torch.reshape) or not node.args or node.kwargs:
            continue
        source, *sizes = node.args
        sizes = list(sizes[0]) if sizes and isinstance(sizes[0], (list, tuple)) else sizes
        start = _find_flattened_dim(traced, node, source, sizes)
        if start is None:
            continue
        with traced.graph.inserting_before(node):
            flatten = traced.graph.call_function(torch.flatten, (source, start))
        if node in traced.shapes:
            traced.shapes[flatten], traced.types[flatten] = traced.shapes[node], traced.types[node]
        inputs = node.all_input_nodes
        traced.replace(node, flatten)
        if start != 1 or len(sizes) != 2 or sizes[-1] != -1:
            traced.fixed_views.append(flatten)
        _erase_unread_sizes(traced.graph, inputs)


def _find_flattened_dim(traced: TracedModel, node: fx.Node, source: fx.Node, sizes: list[Any]) -> int | None:
    """Return the first of the dimensions that a view makes one; ``None`` if it does more than that."""
    if not traced.shapes:
        return 1 if len(sizes) == 2 and isinstance(sizes[1], int) else None
    before, after = traced.shapes.get(source, ()), traced.shapes.get(node, ())
    start = len(after) - 1
    if start < 1 or len(before) < len(after) or before[:start] != after[:start]:
        return None
    return start if math.prod(before[start:]) == after[start] else None


def _erase_unread_sizes(graph: fx.Graph, nodes: list[fx.Node]) -> None:
    """Erase nodes that compute sizes, if nothing reads them any more."""
    for node in nodes:
        arithmetic = node.op == "call_function" and getattr(node.target, "__module__", None) == "_operator"
        if not node.users and (arithmetic or node.target in ("size", getattr)):
            inputs = node.all_input_nodes
            graph.erase_node(node)
            _erase_unread_sizes(graph, inputs)
