r"""Pruning without training: every layer is regressed on itself, with zeros, from a few hundred inputs.

The layers are pruned in the order in which they run, each with the inputs that the pruned layers below give it, by the
sparse regression of :mod:`spikeslab.functional.reconstruction`. Then the statistics of batch normalisation are moved by
the difference that pruning made on the same inputs:

.. math:: \mu \leftarrow \mu + \bar x_{\text{pruned}} - \bar x_{\text{dense}}, \qquad
    \sigma^2 \leftarrow \sigma^2\, s^2_{\text{pruned}} / s^2_{\text{dense}}.

Statistics of a few hundred inputs in their place would harm even the dense network.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from spikeslab.compression.layers import Chosen, weight_names
from spikeslab.errors import (
    ArgumentTypeError,
    ArgumentValueError,
    Phrase,
    check_choice,
    check_number,
    mark,
    quote,
)
from spikeslab.forward_pass import RunForward, run, split_batch, to_device_of
from spikeslab.functional.patterns import Pattern, keep_largest, parse_pattern
from spikeslab.functional.reconstruction import (
    damp,
    exchange,
    find_support,
    inclusion_probabilities,
    reconstruction_error,
    refit,
)
from spikeslab.graph.products import Product, ProductMode, plain_products
from spikeslab.graph.tracing import check_module, copy_model
from spikeslab.posterior.eval_mode import uncompiled_eval_mode
from spikeslab.report.progress import Progress
from spikeslab.report.tables import Column, Table
from spikeslab.weights import select_matrices, unwrap

Solver: TypeAlias = Callable[[Tensor, Tensor, Pattern], Tensor]

EXCHANGE, REFIT, FAST, DIAGONAL = "exchange", "refit", "fast", "diagonal"
EXCHANGED_INPUTS = 1024
"""Most inputs of a layer whose weights are exchanged by default."""
LEAST_INPUTS = 64
"""Inputs below which a layer stays dense by default: too few are left to make up for those that go."""
FAST_STEPS = 15
"""Steps of the alternating direction method where it shall be fast."""
COPIES = 8
"""Matrices of the size of a Gram matrix that the regression of a layer takes."""
STAGE = "Pruning"
TOO_FEW = "must give a layer as many rows as it has inputs"


def solve_by_refit(dense: Tensor, gram: Tensor, pattern: Pattern) -> Tensor:
    """Return sparse weights whose support is found by the alternating direction method."""
    damped = damp(gram)
    return refit(dense, damped, find_support(dense, damped, pattern))


def solve_fast(dense: Tensor, gram: Tensor, pattern: Pattern) -> Tensor:
    """Return sparse weights whose support is found by a few steps of the alternating direction method."""
    damped = damp(gram)
    return refit(dense, damped, find_support(dense, damped, pattern, FAST_STEPS))


def solve_by_exchange(dense: Tensor, gram: Tensor, pattern: Pattern) -> Tensor:
    """Return sparse weights whose support is found by the alternating direction method, then by exchanges."""
    damped = damp(gram)
    return refit(dense, damped, exchange(dense, damped, find_support(dense, damped, pattern), pattern))


SOLVERS: dict[str, Solver] = {EXCHANGE: solve_by_exchange, REFIT: solve_by_refit, FAST: solve_fast}


class LayerFit(NamedTuple):
    """Pruned layer, or a part of it that has inputs of its own.

    Attributes:
        name: Name of the parameter.
        weights: Number of its weights.
        zeros: Number of those that are zero.
        inputs: Inputs of each output.
        rows: Rows of inputs that it was fitted to.
        error: Change of its outputs, as a share of the sum of their squares.
        solver: Solver that pruned it.
        seconds: Time that the solver took.
    """

    name: str
    weights: int
    zeros: int
    inputs: int
    rows: int
    error: float
    solver: str
    seconds: float


@dataclass(frozen=True)
class OneShot:
    """Pruned network.

    Attributes:
        model: The network.
        layers: Its pruned layers in the order in which they ran.
        dense: Names of the weights that stayed dense.
        inclusion: Inclusion probabilities of the weights of each pruned parameter, if they were asked for; NaN where a
            part of it stayed dense.
    """

    model: nn.Module
    layers: list[LayerFit]
    dense: list[str]
    inclusion: dict[str, Tensor] = field(default_factory=dict)

    @property
    def sparsity(self) -> float:
        """Share of zeros among all parameters."""
        return sum(fit.zeros for fit in self.layers) / sum(p.numel() for p in self.model.parameters())

    def table(self) -> Table:
        """Return a table of the layers."""
        total = sum(p.numel() for p in self.model.parameters())
        return Table(
            "Layers pruned without training",
            (
                Column("layer", "Layer"),
                Column("weights", "weights", ","),
                Column("zeros", "zeros %", ".1f"),
                Column("inputs", "inputs", ","),
                Column("rows", "rows", ","),
                Column("error", "error %", ".2f"),
                Column("solver", "solver"),
                Column("seconds", "s", ".2f"),
            ),
            [
                {
                    "layer": fit.name,
                    "weights": fit.weights,
                    "zeros": 100.0 * fit.zeros / fit.weights,
                    "inputs": fit.inputs,
                    "rows": fit.rows,
                    "error": 100.0 * fit.error,
                    "solver": fit.solver,
                    "seconds": fit.seconds,
                }
                for fit in self.layers
            ],
            [
                f"{100.0 * self.sparsity:.1f} % of the {total:,} parameters are zero. The error is the change of a "
                "layer's outputs, as a share of the sum of their squares."
            ],
        )


def prune_one_shot(
    model: nn.Module,
    batches: Iterable[Any],
    sparsity: float = 0.5,
    pattern: str | None = None,
    *,
    weights: Chosen = None,
    solver: str | Solver | None = None,
    inclusion: bool = False,
    forward: RunForward | None = None,
    inplace: bool = False,
    progress: bool = True,
) -> OneShot:
    """Prune a trained network in seconds, from a few hundred inputs, without labels, gradients or training.

    >>> torch.manual_seed(0)  # doctest: +ELLIPSIS
    <torch...>
    >>> model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    >>> pruned = prune_one_shot(model, [torch.randn(500, 64)], sparsity=0.5, progress=False)
    >>> [(fit.name, fit.zeros, fit.error < 0.2) for fit in pruned.layers]
    [('0.weight', 2048, True), ('2.weight', 320, True)]

    Args:
        model: The trained network; any module. It stays as it is unless ``inplace`` is True.
        batches: Inputs, tuples that end with targets, or mappings of arguments of the network, as
            :func:`~spikeslab.forward_pass.split_batch` reads them; a list or a loader that can be read again. A layer
            needs as many rows of inputs as it has inputs; a convolution has a row for each place.
        sparsity: Share of zeros of every pruned layer, in (0, 1). With a pattern it is the pattern's.
        pattern: ``"N:M"`` keeps N of every M neighbouring inputs, those of channels in a convolution, as ``"2:4"``.
        weights: Weights to prune: globs over parameter names, or parameters. By default all that are multiplied with at
            least 64 inputs, but those that an embedding shares.
        solver: ``"exchange"`` finds which weights to keep, exchanges them in pairs and refits them; ``"refit"`` leaves
            out the exchanges; ``"fast"`` also looks less long for the weights to keep; ``"diagonal"`` keeps the largest
            weights, each times the norm of its input, and needs no Gram matrix. ``None`` exchanges in layers of up to
            1,024 inputs and refits in larger ones. Or a function from dense weights (outputs, inputs), Gram matrix and
            :class:`Pattern` to sparse weights.
        inclusion: If True, also compute the inclusion probability of each weight: how hard it is to replace by the
            other inputs of its output (:func:`~spikeslab.functional.reconstruction.inclusion_probabilities`).
        forward: Function from (network, inputs) to what the network returns, for inputs that it does not take as they
            are.
        inplace: If True, prune the network itself in place of a copy.
        progress: If True, show a progress bar or, without a terminal, lines.

    Raises:
        ValueError, TypeError: If an argument is wrong, a layer has too few inputs or some that are not finite, or its
            Gram matrix does not fit in memory.
    """
    check_module(model)
    if iter(batches) is batches:
        expectation = "must be a list or a loader that can be read again"
        raise ArgumentTypeError("batches", expectation, Phrase("got an iterator"))
    if solver is not None and not callable(solver):
        check_choice("solver", solver, (*SOLVERS, DIAGONAL))
    keep = read_pattern(pattern, check_number("sparsity", sparsity, "(0, 1)"))
    original = unwrap(model)
    chosen = None if weights is None else weight_names(original, weights)
    found = _Pruning(copy_model(original), batches, keep, chosen, solver, inclusion, forward or run).run(progress)
    if not inplace:
        return found
    original.load_state_dict(found.model.state_dict())  # at the end: an error leaves it as it was
    return replace(found, model=model)


def read_pattern(pattern: str | None, sparsity: float) -> Callable[[int, int], Pattern]:
    """Return the function from the outputs and inputs of a matrix to what it keeps.

    Raises:
        ValueError: If the pattern is none, or does not have the sparsity.
    """
    if pattern is None:
        return lambda outputs, inputs: Pattern(outputs * inputs - round(sparsity * outputs * inputs))
    parsed = parse_pattern(pattern)
    if sparsity not in (0.5, parsed.sparsity):
        expectation = f"must be {parsed.sparsity:g} with {mark('pattern', pattern)}"
        raise ArgumentValueError("sparsity", expectation, sparsity)
    return lambda outputs, inputs: parsed


class _Cut(Exception):  # noqa: N818
    """Ends a forward pass after the product that is looked at."""


Step: TypeAlias = tuple[Any, ...]
"""Place of a product in a run: its key, and the outputs and inputs of its matrices."""


def _step(product: Product) -> Step:
    return *product.key, *product.matrices().shape[-2:]


@dataclass
class _Moments:
    """Sums over the inputs of a batch normalisation, for each channel."""

    count: int = 0
    total: Tensor | float = 0.0
    squares: Tensor | float = 0.0

    def add(self, x: Tensor) -> None:
        dimensions = [dimension for dimension in range(x.ndim) if dimension != 1]
        self.count += x.numel() // x.shape[1]
        self.total = self.total + x.double().sum(dimensions)
        self.squares = self.squares + x.double().square().sum(dimensions)

    def compute(self) -> tuple[Tensor, Tensor]:
        mean = torch.as_tensor(self.total) / self.count
        return mean, (torch.as_tensor(self.squares) / self.count - mean.square()).clamp_min(0.0)


@dataclass
class _Inputs:
    """Sums over the rows of inputs of a product, of each group: of the inputs, and of their products or squares."""

    product: Product
    sums: Tensor
    gram: Tensor
    outputs: _Moments = field(default_factory=_Moments)
    rows: int = 0

    @classmethod
    def start(cls, product: Product, diagonal: bool) -> _Inputs:
        """Return empty sums."""
        groups, _, inputs = product.matrices().shape
        sums = product.weight.new_zeros(groups, inputs, dtype=torch.float32)
        gram = sums.clone() if diagonal else sums.new_zeros(groups, inputs, inputs)
        return cls(product._replace(inputs=product.inputs[:0], outputs=product.outputs[:0]), sums, gram)

    def add(self, product: Product) -> None:
        """Add the rows of a product of the same weights."""
        for part in product.rows():
            x = part.float()
            self.sums += x.sum(1)
            self.gram += x.square().sum(1) if self.gram.ndim == 2 else x.mT @ x
            self.rows += x.shape[1]
        self.outputs.add(product.outputs)

    def predict_outputs(self, before: Tensor, after: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and variance that each output has with other weights; ``before`` are those that were seen."""
        center = self.sums.double() / self.rows
        mean = torch.einsum("goi,gi->go", after.double(), center)
        square = ((after.double() @ (self.gram.double() / self.rows)) * after).sum(-1)
        moved = torch.einsum("goi,gi->go", (after - before).double(), center).flatten()
        return self.outputs.compute()[0] + moved, (square - mean.square()).clamp_min(0.0).flatten()


@dataclass
class _Pruning:
    """Run through the layers of a network.

    Attributes:
        network: The network, which is changed.
        batches: Inputs.
        pattern: Function from the outputs and inputs of a matrix to what it keeps.
        chosen: Names of the weights to prune; ``None`` chooses.
        solver: Solver of every layer; ``None`` chooses.
        weighs: If True, compute inclusion probabilities.
        run_forward: Function from the network and its inputs to what it returns.
    """

    network: nn.Module
    batches: Iterable[Any]
    pattern: Callable[[int, int], Pattern]
    chosen: list[str] | None
    solver: str | Solver | None
    weighs: bool
    run_forward: RunForward = run
    fits: list[LayerFit] = field(default_factory=list)
    inclusion: dict[str, Tensor] = field(default_factory=dict)
    _parameters: dict[str, nn.Parameter] = field(default_factory=dict)
    _moments: dict[_BatchNorm, _Moments] = field(default_factory=dict)
    _followers: dict[Step, _BatchNorm] = field(default_factory=dict)
    _corrected: set[_BatchNorm] = field(default_factory=set)

    def run(self, progress: bool) -> OneShot:
        """Prune layer by layer."""
        self._parameters = select_matrices(self.network)
        with torch.no_grad(), uncompiled_eval_mode(self.network), plain_products(self.network), ExitStack() as stack:
            order = self._look()
            uses = Counter(step for step in order if isinstance(step, tuple))
            steps = [step for step in dict.fromkeys(order) if isinstance(step, _BatchNorm) or self._is_pruned(step)]
            self._check_chosen({step[0] for step in steps if isinstance(step, tuple)})
            bar = stack.enter_context(Progress({STAGE: len(steps)}, unit="layers")) if progress else None
            for step in steps:
                if isinstance(step, tuple):
                    self._prune(step, uses[step])
                elif self.fits and step not in self._corrected:
                    self._correct(step, self._measure(step).compute())
                if bar is not None:
                    bar.advance(STAGE)
        pruned = {fit.name for fit in self.fits}
        stayed = [name for name in self._parameters if name not in pruned]
        return OneShot(self.network, self.fits, stayed, self.inclusion)

    def _look(self) -> list[Step | _BatchNorm]:
        """Return the products of the first batch and the normalisations in their order, and measure the latter."""
        norms = [m for m in self.network.modules() if isinstance(m, _BatchNorm) and m.running_mean is not None]
        self._moments = {norm: _Moments() for norm in norms}
        order: list[Step | _BatchNorm] = []
        last: Product | None = None
        first = True

        def note(product: Product) -> None:
            nonlocal last
            order.append(_step(product))
            last = product

        def add(norm: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            if not isinstance(norm, _BatchNorm):
                return
            self._moments[norm].add(inputs[0])
            if first:
                order.append(norm)
                if last is not None and _is_same(inputs[0], last.outputs):
                    self._followers[_step(last)] = norm

        handles = [norm.register_forward_pre_hook(add) for norm in norms]
        try:
            for batch in self._inputs():
                with ProductMode(self._parameters, note) if first else torch.no_grad():
                    batch()
                first = False
                if not norms:
                    break
        finally:
            for handle in handles:
                handle.remove()
        if first:
            raise ArgumentValueError("batches", "must hold at least one batch of inputs", Phrase("got none"))
        return order

    def _inputs(self) -> Iterator[Callable[[], Any]]:
        """Yield a forward pass of each batch."""
        for batch in self.batches:
            yield partial(self.run_forward, self.network, to_device_of(self.network, split_batch(batch)[0]))

    def _is_pruned(self, step: Step) -> bool:
        if self.chosen is not None:
            return step[0] in self.chosen
        shared = {id(m.weight) for m in self.network.modules() if isinstance(m, nn.Embedding)}
        return step[-1] >= LEAST_INPUTS and id(dict(self.network.named_parameters())[step[0]]) not in shared

    def _check_chosen(self, found: set[str]) -> None:
        if missing := [name for name in self.chosen or () if name not in found]:
            expectation = "must be multiplied with inputs in a run of the model"
            raise ArgumentValueError("weights", expectation, Phrase(f"{quote(missing)} never was"))
        if not found:
            expectation = f"must have a layer with at least {LEAST_INPUTS} inputs"
            raise ArgumentValueError("model", expectation, Phrase("it has none"), f"{mark('weights')} can name others")

    def _measure(self, norm: _BatchNorm) -> _Moments:
        """Return the moments of the inputs that a normalisation has now."""
        found = _Moments()

        def add(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            found.add(inputs[0])
            raise _Cut

        handle = norm.register_forward_pre_hook(add)
        try:
            for batch in self._inputs():
                with suppress(_Cut):
                    batch()
        finally:
            handle.remove()
        return found

    def _correct(self, norm: _BatchNorm, moments: tuple[Tensor, Tensor]) -> None:
        """Move the statistics of a normalisation by the difference that pruning made to mean and variance."""
        self._corrected.add(norm)
        if norm.running_mean is None or norm.running_var is None:
            return
        (mean, var), (dense_mean, dense_var) = moments, self._moments[norm].compute()
        norm.running_mean += (mean - dense_mean).to(norm.running_mean)
        norm.running_var *= torch.where(dense_var > 0.0, var / dense_var, 1.0).to(norm.running_var)

    def _observe(self, step: Step, uses: int, diagonal: bool) -> _Inputs:
        """Return the inputs that a product has now."""
        name, inputs = step[0], step[-1]
        found: _Inputs | None = None
        seen = 0

        def add(product: Product) -> None:
            nonlocal found, seen
            if _step(product) != step:
                return
            if found is None:
                if not diagonal:
                    _check_memory(name, inputs, product.weight)
                found = _Inputs.start(product, diagonal)
            found.add(product)
            seen += 1
            if seen == uses:  # nothing behind it is needed
                raise _Cut

        for batch in self._inputs():
            seen = 0
            with suppress(_Cut), ProductMode({name: self._parameters[name]}, add):
                batch()
        if found is None or not torch.isfinite(found.gram).all():
            raise ArgumentValueError("batches", "must hold finite inputs", Phrase(f"those of {name!r} are not"))
        if not diagonal and found.rows < inputs:
            message = Phrase(f"{name!r} has {inputs:,} inputs, and there are {found.rows:,} rows of them")
            raise ArgumentValueError("batches", "must give a layer as many rows as it has inputs", message)
        return found

    def _prune(self, step: Step, uses: int) -> None:
        """Prune the weights of one place in a run, and correct the normalisation behind it."""
        name, inputs = step[0], step[-1]
        solver = self.solver or (EXCHANGE if inputs <= EXCHANGED_INPUTS else REFIT)
        seen = self._observe(step, uses, solver == DIAGONAL)
        start, dense = time.perf_counter(), seen.product.matrices()
        results = [self._solve(*pair, solver, name) for pair in zip(dense.float(), seen.gram, strict=True)]
        pruned = torch.stack([weights for weights, _ in results])
        seconds = time.perf_counter() - start
        if uses == 1 and solver != DIAGONAL and step in self._followers:
            self._correct(self._followers[step], seen.predict_outputs(dense.float(), pruned))
        if self.weighs:
            self._weigh(seen, dense.float(), pruned)
        seen.product.write(pruned.to(dense.dtype))
        zeros = pruned.numel() - int(pruned.count_nonzero())
        error = sum(error for _, error in results) / len(results)
        title = solver if isinstance(solver, str) else getattr(solver, "__name__", "function")
        self.fits.append(LayerFit(name, pruned.numel(), zeros, inputs, seen.rows, error, title, seconds))

    def _weigh(self, seen: _Inputs, dense: Tensor, pruned: Tensor) -> None:
        """Note the inclusion probabilities of the weights of a product, in the shape of their parameter."""
        name, part = seen.product.name, seen.product.weight
        if name not in self.inclusion:
            self.inclusion[name] = torch.full_like(self._parameters[name], torch.nan, dtype=torch.float32)
        grams = seen.gram if seen.gram.ndim == 2 else [damp(gram) for gram in seen.gram]
        found = [inclusion_probabilities(*each) for each in zip(dense, grams, pruned != 0, strict=True)]
        view = self.inclusion[name].as_strided(part.shape, part.stride(), part.storage_offset())
        seen.product._replace(weight=view).write(torch.stack(found))

    def _solve(self, dense: Tensor, gram: Tensor, solver: str | Solver, name: str) -> tuple[Tensor, float]:
        """Return the sparse weights of a matrix, and their error."""
        pattern = self.pattern(*dense.shape)
        if pattern.group is not None and dense.shape[1] % pattern.group:
            message = Phrase(f"{name!r} has {dense.shape[1]:,}")
            raise ArgumentValueError("pattern", "must divide the inputs of every layer", message)
        if solver == DIAGONAL:
            kept = dense * keep_largest(dense * gram.sqrt(), pattern)
            return kept, reconstruction_error(kept, dense, torch.diag(gram))
        weights = (solver if callable(solver) else SOLVERS[solver])(dense, gram, pattern)
        return weights, reconstruction_error(weights, dense, gram)


def _is_same(tensor: Tensor, other: Tensor) -> bool:
    return tensor.shape == other.shape and tensor.data_ptr() == other.data_ptr()


def _check_memory(name: str, inputs: int, weight: Tensor) -> None:
    """Raise if the Gram matrix of a layer, with what its regression takes, does not fit in the memory of a machine."""
    needed = 4 * COPIES * inputs**2
    if weight.is_cpu and needed > (memory := os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")):
        raise ArgumentValueError(
            "weights",
            "must have Gram matrices that fit in memory",
            Phrase(f"{name!r} has {inputs:,} inputs and would take {needed / 2**30:,.0f} of {memory / 2**30:,.0f} GB"),
            f"leave it out, or give {mark('solver', DIAGONAL)}",
        )
