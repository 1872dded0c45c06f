"""Recordings: the operations of one run on an example, where ``torch.fx`` cannot run ``forward`` on symbols.

Transformers of Hugging Face ask for shapes, types and settings as they go. A recording runs the network on real
tensors and notes each call of a function of torch and of a leaf module, with all sizes as numbers. So it holds for one
shape of the input only: enough to learn which channels belong together, while ``forward`` itself is left as it is.

A network whose path depends on the values of the inputs has no recording.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

CONSTANT = "constant:"
"""Beginning of the target of a node that reads a tensor which is no parameter, buffer or input."""
VALUES = ("__bool__", "__int__", "__float__", "__index__", "item", "tolist")
"""Methods that turn a tensor into numbers, on which the path of ``forward`` may depend."""


class ValueReadError(RuntimeError):
    """The path of ``forward`` depends on the values of the inputs."""


class Recorder(TorchFunctionMode):
    """Mode that notes the calls of functions of torch in a graph.

    Args:
        model: The network.
        is_leaf: Function of a module that is True if its call is one node.

    Attributes:
        graph: The calls so far.
        constants: Tensors that no call has made, by the target of their node.
    """

    def __init__(self, model: nn.Module, is_leaf: Callable[[nn.Module], bool]) -> None:
        super().__init__()
        self.graph = fx.Graph()
        self.constants: dict[str, Tensor] = {}
        self.is_leaf = is_leaf
        self._names = {id(module): name for name, module in model.named_modules()}
        self._nodes: dict[int, fx.Node] = {}
        self._alive: list[Any] = []  # an id means a tensor only while it is there
        self._inside = False
        self._callers: list[tuple[str, type]] = []
        self._smooth: set[fx.Node] = set()
        self._stored = {id(tensor): name for name, tensor in (*model.named_parameters(), *model.named_buffers())}

    def begin(self, inputs: Sequence[Tensor]) -> None:
        """Note the inputs."""
        for place, tensor in enumerate(inputs):
            self._keep(tensor, self.graph.placeholder(f"input_{place}"))

    def end(self, outputs: Sequence[Tensor]) -> None:
        """Note what the network returns."""
        self.graph.output(tuple(self._map(outputs)))

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if name in VALUES and self._nodes.get(id(args[0])) in self._smooth:
            raise ValueReadError("its path depends on the values of the inputs")
        if any(isinstance(leaf, Tensor) for leaf in tree_leaves(result)) and name != "__set__":
            owner = getattr(func, "__self__", None)
            if name == "__get__" and owner is not None:  # a property, such as T
                func, args = getattr, (args[0], owner.__name__)
            self._note(self.graph.call_function, func, args, kwargs or {}, result)
        return result

    @contextmanager
    def enter(self, module: nn.Module) -> Iterator[None]:
        """Note in every node that the module calls it."""
        self._callers.append((self._names.get(id(module), ""), type(module)))
        try:
            yield
        finally:
            self._callers.pop()

    def call(self, run: Callable[..., Any], module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a leaf module without a look into it, and note the call."""
        self._inside = True
        try:
            with torch._C.DisableTorchFunction():
                result = run(module, *args, **kwargs)
        finally:
            self._inside = False
        self._note(self.graph.call_module, self._names[id(module)], args, kwargs, result)
        return result

    def knows(self, module: nn.Module) -> bool:
        """Return True if a module is a part of the network whose call is one node."""
        return not self._inside and id(module) in self._names and self.is_leaf(module)

    def _note(self, add: Callable[..., fx.Node], target: Any, args: Any, kwargs: Any, result: Any) -> None:
        node = add(target, tuple(self._map(args)), self._map(kwargs))
        node.meta["nn_module_stack"] = {name: (name, kind) for name, kind in self._callers}
        if isinstance(result, Tensor):
            self._keep(result, node)
            return
        for place, part in enumerate(result if isinstance(result, (tuple, list)) else ()):
            if isinstance(part, Tensor):
                self._keep(part, self.graph.call_function(_get_item, (node, place)))

    def _keep(self, tensor: Tensor, node: fx.Node) -> None:
        self._alive.append(tensor)
        self._nodes[id(tensor)] = node
        if tensor.is_floating_point() or not self._smooth.isdisjoint(node.all_input_nodes):
            self._smooth.add(node)

    def _map(self, values: Any) -> Any:
        return tree_map(lambda leaf: self._find(leaf) if isinstance(leaf, Tensor) else leaf, values)

    def _find(self, tensor: Tensor) -> fx.Node:
        if id(tensor) in self._nodes:
            return self._nodes[id(tensor)]
        if tensor.grad_fn is not None:
            raise ValueReadError("it computes something that no function of torch returns")
        target = self._stored.get(id(tensor), f"{CONSTANT}{len(self.constants)}")
        if target.startswith(CONSTANT):
            self.constants[target] = tensor
        with self.graph.inserting_after(None):  # at the beginning
            node = self.graph.create_node("get_attr", target)
        self._alive.append(tensor)
        self._nodes[id(tensor)] = node
        return node


def _get_item(values: Any, place: int) -> Any:
    return values[place]


_get_item.__module__, _get_item.__name__ = "_operator", "getitem"


@contextmanager
def leaf_calls(recorder: Recorder) -> Iterator[None]:
    """Let calls of leaf modules go to a recorder for a while."""
    call = nn.Module.__call__

    def record(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if not recorder.knows(module):
            with recorder.enter(module):
                return call(module, *args, **kwargs)
        return recorder.call(call, module, args, kwargs)

    nn.Module.__call__ = record  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module.__call__ = call  # type: ignore[method-assign]


def record(
    model: nn.Module,
    inputs: Sequence[Tensor],
    is_leaf: Callable[[nn.Module], bool],
    read: Callable[[object], list[Tensor]],
) -> tuple[fx.Graph, dict[str, Tensor]]:
    """Return the graph of one run, and the tensors that its nodes for constants read.

    Args:
        model: The network, in evaluation mode.
        inputs: Its inputs.
        is_leaf: Function of a module that is True if its call is one node.
        read: Function from what the network returns to its tensors.

    Raises:
        ValueReadError: If the path depends on the values of the inputs.
    """
    recorder = Recorder(model, is_leaf)
    inputs = [entry.clone() for entry in inputs]
    recorder.begin(inputs)
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with leaf_calls(recorder), recorder:
            result = model(*inputs)
        recorder.end(read(result))
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
    _erase_unread(recorder.graph)
    return recorder.graph, recorder.constants


def _erase_unread(graph: fx.Graph) -> None:
    """Erase what nothing reads, such as the masks that a transformed function made, but for changes in place."""
    for node in reversed(graph.nodes):
        in_place = str(getattr(node.target, "__name__", "")).endswith("_")
        if not node.users and node.op in ("call_function", "get_attr") and not in_place:
            graph.erase_node(node)
