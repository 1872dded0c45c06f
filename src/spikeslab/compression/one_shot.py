r"""Pruning without training: every layer is regressed on itself, with zeros, from a few hundred inputs.

The layers are pruned in the order in which they run, each with the inputs that the pruned layers below give it, by the
sparse regression of :mod:`spikeslab.functional.reconstruction`. Then the statistics of batch normalisation are moved by
the difference that pruning made on the same inputs:

.. math:: \mu \leftarrow \bar x_{\text{pruned}} + (\mu - \bar x_{\text{dense}})\, r, \qquad
    \sigma^2 \leftarrow \sigma^2\, r^2, \qquad r = s_{\text{pruned}} / s_{\text{dense}}.

Statistics of a few hundred inputs in their place would harm even the dense network.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, NoReturn, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from spikeslab.compression.layers import EMBEDDINGS, Chosen, weight_names
from spikeslab.errors import (
    ArgumentTypeError,
    ArgumentValueError,
    Phrase,
    check_choice,
    check_number,
    mark,
    quote,
    warn,
)
from spikeslab.forward_pass import RunForward, run, split_batch, to_device_of
from spikeslab.functional.patterns import Pattern, keep_largest, parse_pattern
from spikeslab.functional.reconstruction import (
    damp,
    exchange,
    find_support,
    inclusion_probabilities,
    refit,
    row_errors,
)
from spikeslab.graph.products import Product, ProductMode, plain_products
from spikeslab.graph.tracing import check_module, copy_model
from spikeslab.memory import available_memory
from spikeslab.posterior.eval_mode import uncompiled_eval_mode
from spikeslab.report.progress import Progress
from spikeslab.report.tables import Column, Table
from spikeslab.weights import select_matrices, unwrap

Solver: TypeAlias = Callable[[Tensor, Tensor, Pattern], Tensor]

EXCHANGE, REFIT, FAST, DIAGONAL = "exchange", "refit", "fast", "diagonal"
EXCHANGED_INPUTS = 1024
"""Most inputs of a layer whose weights are exchanged by default."""
SPARSITY = 0.5
"""Share of zeros by default."""
LEAST_INPUTS = 64
"""Least inputs of a layer that is pruned by default: with fewer, too few are left to make up for a zero."""
FAST_STEPS = 15
"""Steps of the alternating direction method in the fast solver."""
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
    start = find_support(dense, damped, pattern)
    before, after = (refit(dense, damped, each) for each in (start, exchange(dense, damped, start, pattern)))
    # Rounding can lead the exchanges astray where the inputs are of low rank.
    better = row_errors(after, dense, damped) < row_errors(before, dense, damped)
    return torch.where(better.unsqueeze(1), after, before)


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
    sparsity: float | None = None,
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
        sparsity: Share of zeros of every pruned layer, in (0, 1); ``None`` is the share of the pattern, or a half. No
            layer is emptied.
        pattern: ``"N:M"`` keeps N of every M neighbouring inputs, those of channels in a convolution, as ``"2:4"``.
        weights: Weights to prune: globs over parameter names, or parameters. By default all that are multiplied with at
            least 64 inputs, but those that an embedding shares.
        solver: ``"exchange"`` finds which weights to keep, exchanges them in pairs and refits them; ``"refit"`` leaves
            out the exchanges; ``"fast"`` also takes fewer steps to find them; ``"diagonal"`` keeps the largest
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
    readable = "must be a list or a loader that can be read again"
    if not hasattr(batches, "__iter__") and not hasattr(batches, "__getitem__"):
        raise ArgumentTypeError("batches", readable, batches)
    if iter(batches) is batches:
        raise ArgumentTypeError("batches", readable, Phrase("got an iterator"))
    if solver is not None and not callable(solver):
        check_choice("solver", solver, (*SOLVERS, DIAGONAL))
    keep = read_pattern(pattern, sparsity)
    original = unwrap(model)
    if odd := [name for name, parameter in original.named_parameters() if not parameter.isfinite().all()]:
        raise ArgumentValueError("model", "must have finite parameters", Phrase(f"{quote(odd)} has NaN or Inf"))
    chosen = None if weights is None else weight_names(original, weights, trained=False)
    found = _Pruning(copy_model(original), batches, keep, chosen, solver, inclusion, forward or run).run(progress)
    if not inplace:
        return found
    original.load_state_dict(found.model.state_dict())  # at the end: an error leaves it as it was
    return replace(found, model=model)


def read_pattern(pattern: str | None, sparsity: float | None) -> Callable[[int, int], Pattern]:
    """Return the function from the outputs and inputs of a matrix to what it keeps; no matrix is emptied.

    Raises:
        ValueError: If there is no such pattern, or it does not have the sparsity.
    """
    if sparsity is not None:
        check_number("sparsity", sparsity, "(0, 1)")
    if pattern is None:
        share = SPARSITY if sparsity is None else sparsity
        return lambda outputs, inputs: Pattern(max(1, outputs * inputs - round(share * outputs * inputs)))
    parsed = parse_pattern(pattern)
    if sparsity is not None and not math.isclose(sparsity, parsed.sparsity, abs_tol=1e-6):
        expectation = f"must be {parsed.sparsity:g} with {mark('pattern', pattern)}"
        raise ArgumentValueError("sparsity", expectation, sparsity)
    return lambda outputs, inputs: parsed


LAYERS = (nn.Linear, nn.modules.conv._ConvNd)
"""Layers that multiply their weights with inputs if they run."""


class _Cut(BaseException):
    """Ends a forward pass after the product that is looked at; no handler of the network's own catches it."""


class Step(NamedTuple):
    """Place of a product in a run.

    Attributes:
        name: Name of the parameter.
        key: Place of the weights in it.
        outputs: Outputs of each matrix.
        inputs: Inputs of each matrix.
        neighbours: Neighbouring inputs that a pattern divides: those of a place in a window, if there is one.
    """

    name: str
    key: tuple[Any, ...]
    outputs: int
    inputs: int
    neighbours: int

    @classmethod
    def of(cls, product: Product) -> Step:
        """Return the place of a product."""
        outputs, inputs = product.matrices().shape[-2:]
        return cls(
            product.name, product.key, outputs, inputs, inputs if product.window is None else product.weight.shape[1]
        )

    @property
    def storage(self) -> tuple[Any, ...]:
        """Place of the weights whatever their orientation: a transposed matrix has the same."""
        return self.name, self.key[1], self.outputs * self.inputs


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
    outputs: _Moments | None = None
    rows: int = 0

    @classmethod
    def start(cls, product: Product, diagonal: bool, with_outputs: bool) -> _Inputs:
        """Return empty sums."""
        groups, _, inputs = product.matrices().shape
        sums = product.weight.new_zeros(groups, inputs, dtype=torch.float32)
        gram = sums.clone() if diagonal else sums.new_zeros(groups, inputs, inputs)
        outputs = _Moments() if with_outputs else None
        return cls(product._replace(inputs=product.inputs[:0], outputs=product.outputs[:0]), sums, gram, outputs)

    def add(self, product: Product) -> None:
        """Add the rows of a product of the same weights."""
        for part in product.rows():
            x = part.float()
            self.sums += x.sum(1)
            self.gram += x.square().sum(1) if self.gram.ndim == 2 else x.mT @ x
            self.rows += x.shape[1]
        if self.outputs is not None:
            self.outputs.add(product.outputs)

    def predict_outputs(self, outputs: _Moments, before: Tensor, after: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and variance of each output with the weights ``after``, given those with ``before``."""
        center = self.sums.double() / self.rows
        mean = torch.einsum("goi,gi->go", after.double(), center)
        square = ((after.double() @ (self.gram.double() / self.rows)) * after).sum(-1)
        moved = torch.einsum("goi,gi->go", (after - before).double(), center).flatten()
        return outputs.compute()[0] + moved, (square - mean.square()).clamp_min(0.0).flatten()


@dataclass
class _Pruning:
    """Run through the layers of a network.

    Attributes:
        network: The network, which is changed.
        batches: Inputs.
        pattern: Function from the outputs and inputs of a matrix to what it keeps.
        chosen: Names of the weights to prune; ``None`` chooses.
        solver: Solver of every layer; ``None`` chooses.
        with_inclusion: If True, compute inclusion probabilities.
        run_forward: Function from the network and its inputs to what it returns.
    """

    network: nn.Module
    batches: Iterable[Any]
    pattern: Callable[[int, int], Pattern]
    chosen: list[str] | None
    solver: str | Solver | None
    with_inclusion: bool
    run_forward: RunForward = run
    fits: list[LayerFit] = field(default_factory=list)
    inclusion: dict[str, Tensor] = field(default_factory=dict)
    _parameters: dict[str, nn.Parameter] = field(default_factory=dict)
    _moments: dict[_BatchNorm, _Moments] = field(default_factory=dict)
    _norm_uses: Counter[_BatchNorm] = field(default_factory=Counter)
    _followers: dict[Step, _BatchNorm] = field(default_factory=dict)
    _corrected: set[_BatchNorm] = field(default_factory=set)

    def run(self, progress: bool) -> OneShot:
        """Prune layer by layer."""
        self._parameters = select_matrices(self.network)
        with torch.no_grad(), uncompiled_eval_mode(self.network), plain_products(self.network), ExitStack() as stack:
            order = self._trace()
            uses = Counter(step for step in order if isinstance(step, Step))
            steps = self._choose(order)
            bar = stack.enter_context(Progress({STAGE: len(steps)}, unit="layers")) if progress else None
            for step in steps:
                if isinstance(step, Step):
                    self._prune(step, uses[step])
                elif self.fits and step not in self._corrected:
                    self._correct(step, self._measure(step).compute())
                if bar is not None:
                    bar.advance(STAGE)
        pruned = {fit.name for fit in self.fits}
        stayed = [name for name in self._parameters if name not in pruned]
        return OneShot(self.network, self.fits, stayed, self.inclusion)

    def _trace(self) -> list[Step | _BatchNorm]:
        """Return products and normalisations in the order in which they run, and measure the normalisations.

        What only later batches use comes last.
        """
        norms = [m for m in self.network.modules() if isinstance(m, _BatchNorm) and m.running_mean is not None]
        self._moments = {norm: _Moments() for norm in norms}
        order: list[Step | _BatchNorm] = []
        known: set[Step | _BatchNorm] = set()
        passed: list[Step | _BatchNorm] = []
        last: tuple[Step, Tensor, int] | None = None
        has_batches = False

        def note(product: Product) -> None:
            nonlocal last
            last = Step.of(product), product.outputs, product.outputs._version
            passed.append(last[0])

        def add(norm: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            if not isinstance(norm, _BatchNorm):
                return
            self._moments[norm].add(inputs[0])
            passed.append(norm)
            if last is not None and _is_same(inputs[0], *last[1:]):
                self._followers.setdefault(last[0], norm)

        handles = [norm.register_forward_pre_hook(add) for norm in norms]
        try:
            for batch in self._inputs():
                has_batches = True
                passed.clear()
                with ProductMode(self._parameters, note):
                    batch()
                self._norm_uses |= Counter(step for step in passed if isinstance(step, _BatchNorm))
                order += [step for step in passed if step not in known]
                known |= set(passed)
        finally:
            for handle in handles:
                handle.remove()
        if not has_batches:
            raise ArgumentValueError("batches", "must hold at least one batch of inputs", Phrase("got none"))
        return order

    def _inputs(self) -> Iterator[Callable[[], Any]]:
        """Yield a forward pass of each batch."""
        for batch in self.batches:
            yield partial(self.run_forward, self.network, to_device_of(self.network, split_batch(batch)[0]))

    def _choose(self, order: Sequence[Step | _BatchNorm]) -> list[Step | _BatchNorm]:
        """Return the products to prune and the normalisations, each once, and check the products."""
        products = {step.storage: step for step in reversed(order) if isinstance(step, Step)}
        if self.chosen is None:
            parameters = dict(self.network.named_parameters())
            shared = {id(m.weight) for m in self.network.modules() if isinstance(m, EMBEDDINGS)}
            large = [step for step in products.values() if step.inputs >= LEAST_INPUTS]
            pruned = {step for step in large if id(parameters[step.name]) not in shared and self._fits(step)}
            if not pruned:
                self._refuse(len(products), len(large))
            self._warn_of_unseen({step.name for step in products.values()})
        else:
            pruned = {step for step in products.values() if step.name in self.chosen}
            if missing := [name for name in self.chosen if name not in {step.name for step in pruned}]:
                expectation = "must be multiplied with inputs in a run of the model"
                raise ArgumentValueError("weights", expectation, Phrase(f"{quote(missing)} never was"))
            for step in pruned:
                if not self._fits(step):
                    message = Phrase(f"{step.name!r} has {step.neighbours:,}")
                    raise ArgumentValueError("pattern", "must divide the inputs of every layer", message)
        return [step for step in dict.fromkeys(order) if isinstance(step, _BatchNorm) or step in pruned]

    def _warn_of_unseen(self, seen: set[str]) -> None:
        """Warn of layers whose weights no product has, such as one that never ran."""
        modules = self.network.named_modules()
        names = [f"{name}.weight".lstrip(".") for name, module in modules if isinstance(module, LAYERS)]
        if unseen := [name for name in names if name in self._parameters and name not in seen]:
            warn(f"{quote(unseen)} stay dense: no run of the model multiplied them with inputs.")

    def _fits(self, step: Step) -> bool:
        group = self.pattern(step.outputs, step.inputs).group
        return group is None or step.neighbours % group == 0

    def _refuse(self, products: int, large: int) -> NoReturn:
        """Raise since no layer can be pruned."""
        if large:
            raise ArgumentValueError("pattern", "must divide the inputs of a layer", Phrase("it divides none"))
        if products:
            expectation, got = f"must have a layer with at least {LEAST_INPUTS} inputs", Phrase("it has none")
            raise ArgumentValueError("model", expectation, got, f"{mark('weights')} can name others")
        expectation = "must multiply parameters with inputs"
        got = Phrase("no product was seen: transposed convolutions, autocast and weights that are computed are not")
        raise ArgumentValueError("model", expectation, got)

    def _measure(self, norm: _BatchNorm) -> _Moments:
        """Return the moments of the inputs that a normalisation has now."""
        found = _Moments()
        seen = 0

        def add(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            nonlocal seen
            found.add(inputs[0])
            seen += 1
            if seen == self._norm_uses[norm]:
                raise _Cut

        handle = norm.register_forward_pre_hook(add)
        try:
            for batch in self._inputs():
                seen = 0
                with suppress(_Cut):
                    batch()
        finally:
            handle.remove()
        return found

    def _correct(self, norm: _BatchNorm, moments: tuple[Tensor, Tensor]) -> None:
        """Move the statistics of a normalisation by the difference that pruning made to mean and variance.

        What the running mean differs by from the mean of the batches shrinks with the scale of the outputs.
        """
        self._corrected.add(norm)
        if norm.running_mean is None or norm.running_var is None:
            return
        (mean, var), (dense_mean, dense_var) = moments, self._moments[norm].compute()
        ratio = torch.where(dense_var > 0.0, var / dense_var, 1.0)
        norm.running_mean.copy_(mean + (norm.running_mean - dense_mean) * ratio.sqrt())
        norm.running_var.copy_(norm.running_var * ratio)

    def _observe(self, step: Step, uses: int, diagonal: bool) -> _Inputs:
        """Return the inputs that a product has now."""
        name, inputs = step.name, step.inputs
        found: _Inputs | None = None
        seen = 0

        def add(product: Product) -> None:
            nonlocal found, seen
            if Step.of(product) != step:
                return
            if found is None:
                if not diagonal:
                    _check_memory(name, inputs, product)
                found = _Inputs.start(product, diagonal, self._follower(step, uses) is not None)
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
            raise ArgumentValueError("batches", TOO_FEW, message)
        return found

    def _prune(self, step: Step, uses: int) -> None:
        """Prune the weights of one place in a run, and correct the normalisation behind it."""
        name, inputs = step.name, step.inputs
        solver = self.solver or (EXCHANGE if inputs <= EXCHANGED_INPUTS else REFIT)
        seen = self._observe(step, uses, solver == DIAGONAL)
        start, dense = time.perf_counter(), seen.product.matrices().float().clone()  # of what is written to below
        pairs = list(zip(dense, seen.gram, strict=True))
        pruned = torch.stack([self._solve(*pair, solver, name) for pair in pairs])
        seconds = time.perf_counter() - start
        if seen.outputs is not None and solver != DIAGONAL and (norm := self._follower(step, uses)) is not None:
            self._correct(norm, seen.predict_outputs(seen.outputs, dense, pruned))
        if self.with_inclusion:
            self._compute_inclusion(seen, dense, pruned)
        seen.product.write(pruned)
        zeros = pruned.numel() - int(pruned.count_nonzero())
        change = sum(float(row_errors(weights, *pair).sum()) for weights, pair in zip(pruned, pairs, strict=True))
        whole = sum(float(row_errors(torch.zeros_like(each), each, gram).sum()) for each, gram in pairs)
        error = change / whole if whole > 0.0 else 0.0
        title = solver if isinstance(solver, str) else getattr(solver, "__name__", "function")
        self.fits.append(LayerFit(name, pruned.numel(), zeros, inputs, seen.rows, error, title, seconds))

    def _compute_inclusion(self, seen: _Inputs, dense: Tensor, pruned: Tensor) -> None:
        """Compute the inclusion probabilities of the weights of a product, in the shape of their parameter."""
        name, part = seen.product.name, seen.product.weight
        if name not in self.inclusion:
            self.inclusion[name] = torch.full_like(self._parameters[name], torch.nan, dtype=torch.float32)
        grams = seen.gram if seen.gram.ndim == 2 else [damp(gram) for gram in seen.gram]
        found = [inclusion_probabilities(*each) for each in zip(dense, grams, pruned != 0, strict=True)]
        view = self.inclusion[name].as_strided(part.shape, part.stride(), part.storage_offset())
        seen.product._replace(weight=view).write(torch.stack(found))

    def _follower(self, step: Step, uses: int) -> _BatchNorm | None:
        """Return the normalisation that gets the outputs of a product and nothing else, or ``None``."""
        norm = self._followers.get(step)
        return norm if norm is not None and uses == self._norm_uses[norm] == 1 else None

    def _solve(self, dense: Tensor, gram: Tensor, solver: str | Solver, name: str) -> Tensor:
        """Return the sparse weights of a matrix."""
        pattern = self.pattern(*dense.shape)
        if solver == DIAGONAL:
            return dense * keep_largest(dense * gram.sqrt(), pattern)
        found = (solver if callable(solver) else SOLVERS[solver])(dense, gram, pattern)
        shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        if shape != tuple(dense.shape) or not torch.isfinite(found).all():
            expectation = f"must return finite weights of the shape {tuple(dense.shape)} for {name!r}"
            raise ArgumentValueError("solver", expectation, Phrase(f"got {shape}"))
        return found


def _is_same(tensor: Tensor, other: Tensor, version: int) -> bool:
    """Return True if a tensor is another one as it was at a version: nothing was added to it in place."""
    same = tensor.shape == other.shape and tensor.data_ptr() == other.data_ptr()
    return same and tensor._version == version


def _check_memory(name: str, inputs: int, product: Product) -> None:
    """Raise if the Gram matrices of a layer, with what its regression takes, do not fit in the free memory."""
    groups = product.matrices().shape[0]
    needed = 4 * (COPIES + groups - 1) * inputs**2
    if product.weight.is_cpu and needed > (memory := available_memory()):
        raise ArgumentValueError(
            "weights",
            "must have Gram matrices that fit in memory",
            Phrase(f"{name!r} has {inputs:,} inputs and would take {needed / 2**30:,.1f} of {memory / 2**30:,.1f} GB"),
            f"leave it out, or give {mark('solver', DIAGONAL)}",
        )
