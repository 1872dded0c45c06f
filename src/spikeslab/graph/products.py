"""Products of a network's weights with their inputs, in the order in which a run computes them.

A dispatch mode sees every matrix product and convolution, whatever code computes it: layers, attention, recurrent
networks, ``x @ weight`` of the user's own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

MATRIX_PRODUCTS = {torch.ops.aten.mm.default: 0, torch.ops.aten.addmm.default: 1}
"""Products of two matrices, and the place of the first one among the arguments."""
CONVOLUTION = torch.ops.aten.convolution.default
CHUNK = 1 << 26
"""Bytes of inputs of a convolution that are laid out as rows at a time."""


class Window(NamedTuple):
    """Geometry of a convolution, for each dimension of the images."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int


class Product(NamedTuple):
    """Product of weights with inputs; a convolution in groups is one matrix for each of them.

    Attributes:
        name: Name of the parameter.
        weight: The parameter, or the part of it that is multiplied: a view of shape (outputs, inputs), or filters.
        inputs: Rows of inputs, (rows, inputs), or images.
        outputs: Result, (rows, outputs) or images, with a bias if the operation adds one.
        window: Geometry of a convolution; ``None`` for a matrix.
    """

    name: str
    weight: Tensor
    inputs: Tensor
    outputs: Tensor
    window: Window | None = None

    @property
    def key(self) -> tuple[Any, ...]:
        """Place of the weights in the parameter, the same in every run."""
        return self.name, self.weight.storage_offset(), *self.weight.shape, *self.weight.stride()

    def matrices(self) -> Tensor:
        """Return the weights as matrices (groups, outputs, inputs); inputs of a place in the window are neighbours."""
        groups = 1 if self.window is None else self.window.groups
        return self.weight.detach().movedim(1, -1).reshape(groups, len(self.weight) // groups, -1)

    def write(self, matrices: Tensor) -> None:
        """Write matrices of the shape of :meth:`matrices` into the parameter."""
        moved = self.weight.detach().movedim(1, -1)
        moved.copy_(matrices.reshape(moved.shape))

    def rows(self) -> Iterator[Tensor]:
        """Yield the inputs of the matrices, (groups, rows, inputs), some images at a time."""
        if self.window is None:
            yield self.inputs.unsqueeze(0)
            return
        places = math.prod(self.weight.shape[2:]) * self.inputs[0].numel() * self.inputs.element_size()
        for images in self.inputs.split(max(1, CHUNK // max(1, places))):
            yield _lay_out(images, self.window)


def _lay_out(images: Tensor, window: Window) -> Tensor:
    """Return the inputs of every place of a convolution as rows, (groups, rows, inputs of the window)."""
    x: Tensor = F.pad(images, [width for padding in reversed(window.padding) for width in (padding, padding)])
    for dimension, (size, stride, dilation) in enumerate(
        zip(window.size, window.stride, window.dilation, strict=True), start=2
    ):
        x = x.unfold(dimension, (size - 1) * dilation + 1, stride)[..., ::dilation]
    x = x.unflatten(1, (window.groups, -1)).movedim(2, -1).movedim(1, 0)  # groups, images, places, window, channels
    inputs = math.prod(window.size) * x.shape[-1]
    return x.reshape(window.groups, -1, inputs)


class ProductMode(TorchDispatchMode):
    """Mode in which a function is called with every product of the given parameters, after it was computed.

    Args:
        parameters: Parameters to look for, by name.
        observe: Function of a product.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], observe: Callable[[Product], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._names = {p.untyped_storage().data_ptr(): name for name, p in parameters.items()}
        self._observe = observe

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if (product := self._find(func, args, result)) is not None:
            self._observe(product)
        return result

    def _find(self, func: Any, args: Sequence[Any], result: Any) -> Product | None:
        if func is CONVOLUTION and not args[6] and (name := self._name(args[1])) is not None:
            weight = args[1]
            stride, padding, dilation = map(tuple, args[3:6])
            window = Window(tuple(weight.shape[2:]), stride, padding, dilation, args[8])
            return Product(name, weight, args[0], result, window)
        if func not in MATRIX_PRODUCTS:
            return None
        first = MATRIX_PRODUCTS[func]
        left, right = args[first], args[first + 1]
        if (name := self._name(right)) is not None:
            return Product(name, right.T, left, result)
        if (name := self._name(left)) is not None:
            return Product(name, left, right.T, result.T)
        return None

    def _name(self, tensor: Tensor) -> str | None:
        return self._names.get(tensor.untyped_storage().data_ptr())


@contextmanager
def plain_products(model: nn.Module) -> Iterator[None]:
    """Let attention and recurrent layers of a model compute product by product for a while, not in fused kernels."""
    fast, onednn = torch.backends.mha.get_fastpath_enabled(), torch._C._get_mkldnn_enabled()
    recurrent = any(isinstance(module, nn.RNNBase) for module in model.modules())
    torch.backends.mha.set_fastpath_enabled(False)
    # oneDNN computes a whole recurrent layer in one operation; convolutions are slow without it.
    torch._C._set_mkldnn_enabled(onednn and not recurrent)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        torch._C._set_mkldnn_enabled(onednn)
