"""Forward passes with the tensors of samples in place of the model's own, many samples at once where possible.

For a small model it costs more to start an operation than to run it, so samples are stacked and run as one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.utils._pytree import tree_flatten, tree_unflatten

from spikeslab.errors import check_count
from spikeslab.forward_pass import Forward, map_tensors
from spikeslab.posterior.eval_mode import uncompiled_eval_mode
from spikeslab.posterior.prediction import check_classes, identity, probabilities, softmax, token_probabilities
from spikeslab.posterior.samples import Tensors, named_tensors
from spikeslab.shards import local

BUDGET = 1 << 23
"""Bytes of weights and activations in one pass."""
KEPT = 1 << 26
"""Bytes of stacked samples kept between predictions."""
PROBE = 32
"""Rows on which a model is tried before its inputs are split."""
STACKED_ROWS = 256
"""Fewest rows of a pass into which an input is split so that more samples fit."""
LAYERS = (nn.Linear, nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Identity, nn.Dropout)
"""Linear layers and functions of each element, which may run with stacked tensors as they are."""


class Split(NamedTuple):
    """Rows of a large input to run at once, ``None`` for all, and whether weights of images are ``channels_last``."""

    rows: int | None = None
    channels_last: bool = False


class Slot(NamedTuple):
    """Place of a tensor in the model, ``where[leaf]``, with the tensor itself and the stacked ones of the samples."""

    where: dict[str, Tensor | None]
    leaf: str
    own: Tensor
    stacked: Tensor

    def fits(self) -> bool:
        """Return True if the model still holds this tensor, on the device and in the dtype of the stacked ones."""
        own, stacked = self.own, self.stacked
        return self.where.get(self.leaf) is own and own.dtype is stacked.dtype and own.device == stacked.device


class Stack(NamedTuple):
    """Stacked samples.

    Attributes:
        tensors: Stacked tensors, under all their names.
        samples: Number of samples.
        size: Bytes in all.
        modules: All modules of the model.
        slots: Places of the tensors in the model.
    """

    tensors: Tensors
    samples: int
    size: int
    modules: list[nn.Module]
    slots: list[Slot]

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Put the stacked tensors into the model for a while; ``functional_call`` takes longer than a small network."""
        for slot in self.slots:
            slot.where[slot.leaf] = slot.stacked
        try:
            yield
        finally:
            for slot in self.slots:
                slot.where[slot.leaf] = slot.own


class SampleForward:
    """Forward passes of a model with the tensors of samples in place of its own, as many at once as a budget allows.

    Uses the model's method ``stacked_forward`` if it has one (see ``StackedModel``), else ``torch.vmap``; a model that
    supports neither runs one sample at a time. Stacked samples are kept, within a budget of their own, because stacking
    those of a small network takes longer than running it.

    Args:
        model: The model.
        link: Function from its outputs to the values that are averaged.
        forward: Forward pass from inputs to a tensor of outputs.
    """

    def __init__(self, model: nn.Module, link: Callable[[Tensor], Tensor], forward: Forward | None = None) -> None:
        self.model = model
        self.link = link
        self.forward = forward or Forward()
        self._caller = _Caller(model, self.forward)
        self.possible = True
        self._counts: dict[tuple[Any, ...], int] = {}
        self._splits: dict[tuple[Any, ...], Split] = {}
        self._stacks: dict[tuple[int, ...], Stack] = {}

    def forget(self) -> None:
        """Drop the stacked samples after one of them has changed."""
        self._stacks.clear()

    def chunks(
        self, steps: Sequence[int], read: Callable[[int], Tensors], inputs: tuple[Any, ...], batch_size: int | None
    ) -> Iterator[Tensor]:
        """Yield predictions after the link, of shape (samples, batch, ...), some samples at a time.

        Args:
            steps: Steps of the samples.
            read: Function from a step to the tensors of its sample.
            inputs: Arguments of the model; a single one may be a mapping or a tuple of them.
            batch_size: Size of the batches into which tensors among them are split; ``None`` chooses it for one tensor.
        """
        inputs = self._caller.flatten(inputs)
        split = Split(batch_size)
        if batch_size is None:
            with torch.no_grad(), uncompiled_eval_mode(self.model):
                split = self.choose_split(inputs, len(steps))
        batches = list(_batches(inputs, split.rows))
        start = 0
        while start < len(steps):
            with torch.no_grad(), uncompiled_eval_mode(self.model) as modules:
                count = self.choose_count(len(steps), batches[0])
                values = self._run_together(steps[start : start + count], read, batches, modules)
                if values is None:
                    outputs = self._run_one(read(steps[start]), batches, split.channels_last)
                    values = self.link(torch.cat(outputs)).unsqueeze(0)
                    self.possible &= min(count, len(steps) - start) == 1  # one sample proves nothing
            yield values
            start += len(values)

    def shared_chunks(
        self, steps: Sequence[int], read: Callable[[int], Tensors], inputs: tuple[Any, ...], batch_size: int | None
    ) -> Iterator[Tensor]:
        """Yield predictions as :meth:`chunks`, one sample at a time, with a model that ranks share.

        All of them must call it with equally many batches. ``read`` returns this rank's parts of the tensors.
        """
        batches = list(_batches(self._caller.flatten(inputs), batch_size))
        for step in steps:
            with torch.no_grad(), uncompiled_eval_mode(self.model), _replaced(self.model, read(step)):
                outputs = [self._caller.call({}, batch) for batch in batches]
                values = self.link(torch.cat(outputs)).unsqueeze(0)
            yield values

    def _run_together(
        self,
        steps: Sequence[int],
        read: Callable[[int], Tensors],
        batches: list[tuple[Any, ...]],
        modules: list[nn.Module],
    ) -> Tensor | None:
        """Run the samples of some steps in one pass; return ``None`` for one sample or if the model cannot do it."""
        if len(steps) == 1:
            return None
        stack = self._stack(steps, read, modules)
        try:
            outputs = [self._run(stack, batch) for batch in batches]
            return self._link_each(outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1))
        # Raised by vmap where it cannot, and by a stacked_forward whose layers were changed.
        except (RuntimeError, ValueError, TypeError, AttributeError, IndexError):
            return None

    def _link_each(self, outputs: Tensor) -> Tensor:
        """Apply the link to outputs of shape (samples, batch, ...), without vmap where the link is a known one."""
        if self.link is identity:
            return outputs
        if self.link is probabilities:
            check_classes(outputs.shape[1:])
            return softmax(outputs, dim=2)
        if self.link is token_probabilities:
            return token_probabilities(outputs)
        return torch.vmap(self.link)(outputs)

    def choose_count(self, samples: int, inputs: tuple[Any, ...]) -> int:
        """Return how many of ``samples`` to run at once, in passes of nearly equal size.

        The first call for inputs of some shape runs the model once to measure its memory.
        """
        if not self.possible or not all(isinstance(item, Tensor) for item in inputs):
            return 1
        key = (BUDGET, *((item.shape, item.dtype) for item in inputs))
        if key not in self._counts:
            weights = sum(tensor.nbytes for _, tensor in named_tensors(self.model))
            self._counts = {key: max(1, BUDGET // max(1, weights + self._measure(inputs)[0]))}
        passes = -(-samples // self._counts[key])
        return -(-samples // passes)

    def choose_split(self, inputs: tuple[Any, ...], samples: int) -> Split:
        """Return how to run a large input.

        A few MB of activations for each thread are faster than many. So that they are those of many samples, fewer rows
        are run at once if the model has no convolution: those of several samples take longer together than in turn. A
        model is split only if two halves of some rows give what these rows give together. On a CPU, convolutions and
        pooling are faster with the channels last; this is used only if the model gives the same with it.
        """
        if len(inputs) != 1 or not isinstance(inputs[0], Tensor) or not inputs[0].ndim or len(inputs[0]) <= PROBE:
            return Split()
        (x,) = inputs
        key = (BUDGET, torch.get_num_threads(), x.shape, x.dtype, samples, *self.model.modules())
        if key not in self._splits:
            self._splits = {key: self._find_split(x, samples)}
        return self._splits[key]

    def _find_split(self, x: Tensor, samples: int) -> Split:
        try:
            size, whole = self._measure((x[:PROBE],))
            halves = torch.cat([self._measure((half,))[1] for half in x[:PROBE].split(PROBE // 2)])
            if not _agree(halves, whole):
                return Split()
        except Exception:  # a model may refuse a batch of this size in any way
            return Split()
        convolutions = any(isinstance(module, _ConvNd) for module in self.model.modules())
        of_row = max(1, size) / PROBE
        fitting = max(PROBE, int(2 * torch.get_num_threads() * BUDGET / of_row))
        if self.possible and not convolutions:
            weights = sum(tensor.nbytes for _, tensor in named_tensors(self.model))
            fitting = min(fitting, max(STACKED_ROWS, int((BUDGET / samples - weights) / of_row)))
        passes = -(-len(x) // fitting)
        rows = None if passes == 1 else -(-len(x) // passes)
        return Split(rows, convolutions and x.is_cpu and self._may_put_channels_last(x[:PROBE], whole))

    def _may_put_channels_last(self, x: Tensor, outputs: Tensor) -> bool:
        """Return True if the model gives these outputs with the channels last too; a ``view`` may need them first."""
        try:
            own = {name: tensor.detach().clone() for name, tensor in named_tensors(self.model)}  # it may count passes
            (changed,) = self._run_one(own, [(x,)], channels_last=True)
            return _agree(changed, outputs)
        except Exception:  # a model may refuse in any way
            return False

    def _stack(self, keys: Sequence[int], read: Callable[[int], Tensors], modules: list[nn.Module]) -> Stack:
        """Stack samples along a new first dimension, in the device and dtype of the model's tensors."""
        stack = self._stacks.pop(tuple(keys), None)
        if stack is None or stack.modules != modules or not all(slot.fits() for slot in stack.slots):
            stack = self._new_stack([read(key) for key in keys], modules)
        if stack.size + sum(other.size for other in self._stacks.values()) <= KEPT:
            self._stacks[tuple(keys)] = stack
        return stack

    def _new_stack(self, samples: list[Tensors], modules: list[nn.Module]) -> Stack:
        places = _places(self.model)
        joined = {
            id(own): torch.stack([sample[name] for sample in samples]).to(own.device, own.dtype)
            for alias, (name, own) in places.items()
            if alias == name
        }
        tensors = {alias: joined[id(own)] for alias, (_, own) in places.items()}
        slots = [
            Slot(where, leaf, own, joined[id(own)])
            for module in modules
            for where in (cast(dict[str, Any], module._parameters), cast(dict[str, Any], module._buffers))
            for leaf, own in where.items()
            if own is not None
        ]
        return Stack(tensors, len(samples), sum(tensor.nbytes for tensor in joined.values()), modules, slots)

    def _run(self, stack: Stack, inputs: tuple[Tensor, ...]) -> Tensor:
        """Return the outputs of all samples, of shape (samples, batch, ...)."""
        plain = self._caller.is_plain
        quick = stacked_forward(self.model, stack.modules) if plain else None
        if plain and quick is None and len(inputs) == 1 and inputs[0].ndim == 2 and _is_perceptron(stack.modules):
            quick = partial(_run_layers, cast(nn.Sequential, self.model))
        if quick is not None:
            with stack.in_place():
                return quick(*(item.expand(stack.samples, *item.shape) for item in inputs))
        return torch.vmap(lambda tensors: self._caller.call(tensors, inputs), randomness="different")(stack.tensors)

    def _run_one(self, sample: Tensors, batches: list[tuple[Any, ...]], channels_last: bool) -> list[Tensor]:
        """Return the outputs of one sample for each batch, of shape (batch, ...)."""
        places = _places(self.model).items()
        tensors = {alias: sample[name].to(own.device, own.dtype) for alias, (name, own) in places}
        if channels_last:
            tensors = {name: _put_channels_last(tensor) for name, tensor in tensors.items()}
        # A link may need the channels first.
        return [self._caller.call(tensors, batch).contiguous() for batch in batches]

    def _measure(self, inputs: tuple[Any, ...]) -> tuple[int, Tensor]:
        """Return the bytes of all modules' outputs, an upper bound of the memory alive at any time, and the output."""
        total = 0

        def count(module: nn.Module, _: Any, outputs: Any) -> None:
            nonlocal total
            total += outputs.nbytes if isinstance(outputs, Tensor) else 0

        handles = [module.register_forward_hook(count) for module in self.model.modules()]
        try:
            # With copies of the buffers: a model may count its passes.
            tensors = {name: own.clone() for name, own in self.model.named_buffers()}
            output = self._caller.call(tensors, inputs, tie_weights=True)
        finally:
            for handle in handles:
                handle.remove()
        return total, output


class _Caller(nn.Module):
    """Calls of a model with other tensors in place of its own, and with arguments in a flat tuple.

    Args:
        model: The model.
        forward: Forward pass from inputs to a tensor of outputs.

    Attributes:
        is_plain: True if the arguments are in order, and nothing but the model decides the outputs.
    """

    def __init__(self, model: nn.Module, forward: Forward) -> None:
        super().__init__()
        self.model = model
        self.pass_inputs = forward
        self.is_plain = forward.is_default
        self._rebuild: Callable[[tuple[Any, ...]], Any] = tuple

    def flatten(self, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the arguments in a flat tuple, which later calls take."""
        whole = inputs[0] if len(inputs) == 1 else inputs
        nested = isinstance(whole, Mapping) or (isinstance(whole, tuple) and whole is inputs[0])
        self.is_plain = self.pass_inputs.is_default and not nested
        if not nested:
            single = len(inputs) == 1
            self._rebuild = lambda items: items[0] if single else items
            return inputs
        # Mappings become dicts, which torch knows.
        leaves, structure = tree_flatten(map_tensors(lambda tensor: tensor, whole))
        self._rebuild = lambda items: tree_unflatten(list(items), structure)
        return tuple(leaves)

    def forward(self, *inputs: Any) -> Tensor:
        """Return the outputs for arguments in a flat tuple."""
        return self.pass_inputs(self.model, self._rebuild(inputs))

    def call(self, tensors: Tensors, inputs: tuple[Any, ...], tie_weights: bool = False) -> Tensor:
        """Return the outputs with ``tensors`` in place of the model's.

        Where all names of shared tensors are given, torch need not look for them at every call.
        """
        if self.is_plain:
            return self.pass_inputs.read(
                torch.func.functional_call(self.model, tensors, inputs, tie_weights=tie_weights)
            )
        own = {f"model.{name}": tensor for name, tensor in tensors.items()}
        outputs: Tensor = torch.func.functional_call(self, own, inputs, tie_weights=tie_weights)
        return outputs


@contextmanager
def _replaced(model: nn.Module, parts: Tensors) -> Iterator[None]:
    """Put this rank's parts of other tensors into a model for a while."""
    _reshard(model)
    own = {name: local(tensor.detach()) for name, tensor in named_tensors(model)}
    kept = {name: part.clone() for name, part in own.items()}
    try:
        for name, part in own.items():
            part.copy_(parts[name])
        yield
    finally:
        _reshard(model)  # otherwise FSDP2 would keep the gathered tensors of the sample
        for name, part in own.items():
            part.copy_(kept[name])


def _reshard(model: nn.Module) -> None:
    """Let go of the whole tensors that FSDP2 has gathered."""
    for module in model.modules():
        reshard = getattr(module, "reshard", None)
        if callable(reshard):
            reshard()


def _agree(outputs: Tensor, others: Tensor) -> bool:
    """Return True if outputs are the same up to rounding."""
    scale = float(others.detach().abs().max())
    return outputs.shape == others.shape and torch.allclose(outputs, others, rtol=1e-3, atol=1e-5 * scale)


def _put_channels_last(tensor: Tensor) -> Tensor:
    """Return a tensor of four dimensions with the channels last; ``contiguous`` would leave one channel as it is."""
    return tensor.to(memory_format=torch.channels_last) if tensor.ndim == 4 else tensor


def stacked_forward(model: nn.Module, modules: Iterable[nn.Module]) -> Callable[..., Tensor] | None:
    """Return the model's method ``stacked_forward``, or ``None`` if it may differ from ``forward``.

    It may differ if a subclass overrides ``forward``, if a module has hooks, or if tensors are parametrised.
    """
    if not _knows_stacks(type(model).__mro__) or _is_changed(model, modules):
        return None
    return cast(Callable[..., Tensor], model.stacked_forward)


def _is_changed(model: nn.Module, modules: Iterable[nn.Module]) -> bool:
    """Return True if a forward pass does more or less than the classes of the modules say."""
    return "forward" in vars(model) or any(
        module._forward_hooks or module._forward_pre_hooks or "parametrizations" in module._modules
        for module in modules
    )


def _is_perceptron(modules: list[nn.Module]) -> bool:
    """Return True for a plain ``nn.Sequential`` of linear layers and functions of each element."""
    model, *layers = modules
    known = type(model) is nn.Sequential and all(type(layer) in LAYERS for layer in layers)
    return known and not _is_changed(model, modules)


def _run_layers(layers: nn.Sequential, x: Tensor) -> Tensor:
    """Run layers with stacked tensors; the bias comes with the product, where ``vmap`` adds it in a pass of its own."""
    for layer in layers:
        if not isinstance(layer, nn.Linear):
            x = layer(x)
            continue
        bias: Tensor | None = layer.bias
        product = x, layer.weight.mT
        x = torch.bmm(*product) if bias is None else torch.baddbmm(bias.unsqueeze(1), *product)
    return x


@cache
def _knows_stacks(kinds: tuple[type, ...]) -> bool:
    """Return True if the first class in the order that has either method defines ``stacked_forward``."""
    first = next(vars(kind) for kind in kinds if {"forward", "stacked_forward"} & vars(kind).keys())
    return "stacked_forward" in first


def _places(model: nn.Module) -> dict[str, tuple[str, Tensor]]:
    """Map every name of a tensor to its name in a sample, where a shared tensor has one name, and to the tensor."""
    names: dict[int, str] = {}
    return {alias: (names.setdefault(id(own), alias), own) for alias, own in named_tensors(model, all_names=True)}


def _batches(inputs: tuple[Any, ...], size: int | None) -> Iterator[tuple[Any, ...]]:
    if size is None:
        yield inputs
        return
    rows = next(len(item) for item in inputs if isinstance(item, Tensor))
    for start in range(0, rows, check_count("batch_size", size)):
        yield tuple(item[start : start + size] if isinstance(item, Tensor) else item for item in inputs)
