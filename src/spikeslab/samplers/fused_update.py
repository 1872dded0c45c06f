"""The sampler's side of the fused update: which parameters it moves, and their table for the kernels.

Everything that Python does for one tensor costs about as much as a thousand of its elements, so what does not change
from step to step is kept (:class:`_Plan`), and all tensors of a dtype go to the kernels together.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from operator import attrgetter
from types import ModuleType
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from spikeslab.functional import parallel
from spikeslab.functional.layout import aligned, is_dense
from spikeslab.priors.base import FULL_PRECISION, FusedTerms, LatentSums, Prior

# Columns of the kernels' tables.
WEIGHT, GRADIENT, BUFFER, RHO, RHO_BAR, SIZE, STREAM, FIRST_BLOCK = range(8)
ELASTIC_NET = 3
NO_LATENTS = (0.0,) * 4
CHECK_PIECE = 512  # blocks that a thread checks at once: 50 microseconds of work, less than it takes to wake another
NUMPY = {torch.float32: np.float32, torch.float64: np.float64}


class Move(NamedTuple):
    """How the kernels move the parameters of a group.

    Attributes:
        lr: Learning rate of this step.
        noise_std: Standard deviation of the noise, in the buffer or without one in the weight.
        momentum: Momentum of SGHMC.
        buffer: Name of the buffer in the sampler's state; ``None`` is SGLD.
    """

    lr: float
    noise_std: float
    momentum: float = 0.0
    buffer: str | None = None


class _Row(NamedTuple):
    group: int
    stream: int
    param: Tensor
    sparse: bool


def load_kernels(fused: bool | None, *, compile: bool, params: dict[str, Tensor]) -> ModuleType | None:  # noqa: A002
    """The module of the kernels, or ``None`` where torch is to do the update.

    Args:
        fused: What the user asked for; ``None`` takes the kernels wherever they run.
        compile: Whether the user wants the torch path compiled.
        params: All parameters by name.

    Raises:
        TypeError: If ``fused`` is not a bool or ``None``.
        ValueError: If ``fused`` is ``True`` and there is no way.
        ImportError: If ``fused`` is ``True`` and numba is missing.
    """
    if fused is not None and not isinstance(fused, bool):
        raise TypeError(f"fused must be True, False or None, but got {fused!r}.")
    if fused is False:
        return None
    other = [name for name, p in params.items() if p.device.type != "cpu" or p.dtype not in FULL_PRECISION]
    if fused is None and (compile or other):
        return None
    if compile:
        raise ValueError("fused must be False or None with compile=True, but got True.")
    if other:
        param = params[other[0]]
        raise ValueError(
            f"fused must be False or None unless all parameters are float32 or float64 on the CPU, but got True and "
            f"{other[0]} is {param.dtype} on {param.device}."
        )
    try:
        return importlib.import_module("spikeslab.functional.fused")
    except (ImportError, RuntimeError) as error:  # numba raises the latter where it can write its cache nowhere
        if fused is None:
            return None
        raise ImportError(
            f"fused must be False or None without a working numba, but got True: pip install spikeslab[fast] ({error})."
        ) from error


class _Plan:
    """The parameters of one dtype and what the kernels need to know of them."""

    def __init__(self, kernels: ModuleType, dtype: torch.dtype, rows: Sequence[_Row]) -> None:
        self.dtype = dtype
        self.like = np.empty(0, NUMPY[dtype])
        self.groups = np.array([row.group for row in rows])
        self.params = [row.param for row in rows]
        self.layouts = [(param.shape, param.stride()) for param in self.params]
        self.sparse = [index for index, row in enumerate(rows) if row.sparse]
        self.sparse_rows = np.array(self.sparse, dtype=np.intp)
        # The rows are in the order of the groups.
        self.sparse_groups = [
            (group, [row.param for row in of_group])
            for group, of_group in groupby((row for row in rows if row.sparse), key=attrgetter("group"))
        ]
        sizes = np.array([param.numel() for param in self.params], dtype=np.int64)
        blocks = -(-sizes * self.like.itemsize // kernels.BLOCK_BYTES)
        first_blocks = np.cumsum(blocks) - blocks
        self.blocks = int(blocks.sum())
        self.sparse_blocks = [slice(first_blocks[i], first_blocks[i] + blocks[i]) for i in self.sparse]
        self.table = np.zeros((len(rows), len(kernels.TABLE)), dtype=np.int64)
        self.table[:, SIZE] = sizes
        self.table[:, STREAM] = [row.stream for row in rows]
        self.table[:, FIRST_BLOCK] = first_blocks
        self.factors = np.zeros((len(rows), len(kernels.FACTORS)))
        self.all_sums = np.zeros((self.blocks, len(kernels.SUMS)))
        self.rho_sums = np.zeros((self.blocks, 1))
        self.sums = self.all_sums
        self.numbers: list[tuple[float, ...]] = []
        self.buffers: list[Tensor | None] = [None] * len(rows)
        self.gradients: list[Tensor] = []  # keeps their memory alive until the kernels have run
        self.addresses: list[int] = []
        self.latents: list[tuple[int, int]] = []
        self._moved: list[int] = []
        self._finite = False

    def fits(self) -> bool:
        """Whether the parameters still lie in memory as they did: a model may be moved or change its format."""
        return all(
            (param.shape, param.stride()) == layout and param.dtype is self.dtype and param.is_cpu
            for param, layout in zip(self.params, self.layouts, strict=True)
        )

    def set_gradients(self) -> None:
        """Write the addresses of weights and gradients."""
        self.gradients = [aligned(cast(Tensor, param.grad), param) for param in self.params]
        addresses = [param.data_ptr() for param in self.params]
        if addresses != self.addresses:
            self.table[:, WEIGHT] = self.addresses = addresses
            self._moved = []
        self.table[:, GRADIENT] = [grad.data_ptr() for grad in self.gradients]

    def moved(self, finite: bool) -> None:
        """Tell autograd that what it may have saved for a backward pass is gone, and note whether all is finite."""
        _increment_versions(self.params)
        self._moved, self._finite = [param._version for param in self.params], finite

    def weights_finite(self) -> bool | None:
        """Whether the weights are finite, as the last step left them; ``None`` if somebody has changed them since."""
        return self._finite if [param._version for param in self.params] == self._moved else None

    def set_moves(self, moves: list[Move], weight_decays: list[float], state: Any) -> None:
        """Write what the groups say, and the addresses of the buffers, which are zero at first."""
        numbers: list[tuple[float, ...]] = [
            (m.lr, m.momentum, m.noise_std, 0, 0, d, 0) for m, d in zip(moves, weight_decays, strict=True)
        ]
        if numbers != self.numbers:
            self.factors[:, : len(numbers[0])] = np.array(numbers)[self.groups]
            self.numbers = numbers
        if moves[0].buffer is None:
            return
        for index, param in enumerate(self.params):
            own = state[param]
            buffer = own.get(moves[0].buffer)
            if buffer is None or buffer is not self.buffers[index]:
                buffer = torch.zeros_like(param, requires_grad=False) if buffer is None else aligned(buffer, param)
                own[moves[0].buffer] = self.buffers[index] = buffer
        self.table[:, BUFFER] = [cast(Tensor, buffer).data_ptr() for buffer in self.buffers]

    def set_terms(self, terms: list[FusedTerms], adapt: bool) -> None:
        """Write the prior's part for the sparse parameters."""
        if not terms:
            return
        latents = [t.latents if adapt else None for t in terms]
        self.sums = self.all_sums if any(x is not None and x.sums for x in latents) else self.rho_sums
        addresses = [
            (0 if x is None else x.rho.data_ptr(), 0 if t.smoothed is None else t.smoothed.data_ptr())
            for t, x in zip(terms, latents, strict=True)
        ]
        if addresses != self.latents:
            self.table[self.sparse_rows, RHO : RHO_BAR + 1] = self.latents = addresses
        self.factors[self.sparse_rows, ELASTIC_NET:] = [
            (*t.l1, *t.l2, *(NO_LATENTS if x is None else (*x.log_odds, x.omega)))
            for t, x in zip(terms, latents, strict=True)
        ]

    def sparse_sums(self) -> list[LatentSums]:
        """Sums over each sparse parameter."""
        rows = [self.sums[blocks].sum(axis=0).tolist() for blocks in self.sparse_blocks]
        return [LatentSums(*row) if len(row) > 1 else LatentSums(rho=row[0]) for row in rows]


def _increment_versions(params: list[Tensor]) -> None:
    try:
        increment_version(params)
    except TypeError:  # older versions of torch take one at a time
        for param in params:
            increment_version(param)


class FusedUpdate:
    """Moves all parameters that the kernels can move, in one pass over their memory.

    A step calls :meth:`gather`, which returns the parameters that are left to torch, then :meth:`finite` if it wants
    to know, and :meth:`run`.

    Args:
        kernels: :mod:`spikeslab.functional.fused`.
        prior: The sampler's prior.
    """

    def __init__(self, kernels: ModuleType, prior: Prior | None) -> None:
        self._kernels = kernels
        self._prior = prior
        self._key: list[int] = []
        self._plans: list[_Plan] = []
        self._rest: list[list[Tensor]] = []

    def gather(self, active: list[list[Tensor]], streams: Callable[[], dict[int, int]]) -> list[list[Tensor]]:
        """Take the parameters of each group that have a gradient; return those that torch must move.

        Args:
            active: The parameters of each group.
            streams: Gives the number of each parameter in the sampler, by id; asked when the parameters are others.
        """
        key = [len(params) for params in active] + [id(param) for params in active for param in params]
        fits = key == self._key and all(plan.fits() for plan in self._plans)
        if not fits or any(self._can_move(param) for params in self._rest for param in params):
            self._make_plans(active, streams())
            self._key = key
        for plan in self._plans:
            plan.set_gradients()
        return self._rest

    def _make_plans(self, active: list[list[Tensor]], streams: dict[int, int]) -> None:
        rows: dict[torch.dtype, list[_Row]] = {}
        self._rest = []
        for group, params in enumerate(active):
            rest = []
            for param in params:
                if self._can_move(param):
                    sparse = self._prior is not None and param in self._prior
                    rows.setdefault(param.dtype, []).append(_Row(group, streams[id(param)], param, sparse))
                else:
                    rest.append(param)
            self._rest.append(rest)
        self._plans = [_Plan(self._kernels, dtype, of_dtype) for dtype, of_dtype in rows.items()]

    def _can_move(self, param: Tensor) -> bool:
        if self._prior is not None and not self._prior.fusible and param in self._prior:
            return False
        # A tensor without memory of its own, such as a wrapper around others, has no address.
        has_memory = param.is_cpu and (param.numel() == 0 or param.data_ptr() != 0)
        return has_memory and param.dtype in FULL_PRECISION and is_dense(param)

    def finite(self) -> bool:
        """Whether all gathered weights and gradients are finite.

        Weights that nobody has written to since the last step were looked at when it wrote them.
        """
        return all(self._finite(plan, GRADIENT) and self._weights_finite(plan) for plan in self._plans)

    def _weights_finite(self, plan: _Plan) -> bool:
        known = plan.weights_finite()
        return self._finite(plan, WEIGHT) if known is None else known

    def _finite(self, plan: _Plan, column: int) -> bool:
        kernel = partial(self._kernels.finite, plan.like, plan.table, column)
        return all(parallel.run(kernel, plan.blocks, torch.get_num_threads(), CHECK_PIECE))

    def run(
        self, groups: list[dict[str, Any]], moves: list[Move], state: Any, seed: int, step: int
    ) -> list[LatentSums] | None:
        """Take the step with the gathered parameters.

        Args:
            groups: The sampler's groups.
            moves: How to move each of them.
            state: The sampler's state of each parameter, where the buffers are.
            seed: Seed of the noise.
            step: Number of the step.

        Returns:
            The sums for the prior's :meth:`~spikeslab.priors.base.Prior.update_from_sums`, if the latents of all its
            weights have moved, and ``None`` otherwise.
        """
        terms = [self._terms(plan, groups, step) for plan in self._plans]
        # Sigma needs the sums over all weights: if torch has to move one of them, it moves the latents of all.
        complete = self._prior is not None and sum(map(len, terms)) == len(self._prior.weights)
        adapt = complete and all(t.latents is not None for of_plan in terms for t in of_plan)
        threads, weight_decays = torch.get_num_threads(), [group["weight_decay"] for group in groups]
        for plan, of_plan in zip(self._plans, terms, strict=True):
            plan.set_moves(moves, weight_decays, state)
            plan.set_terms(of_plan, adapt)
            kernel = partial(
                self._kernels.update, plan.like, plan.table, plan.factors, plan.sums, np.uint64(seed), np.uint64(step)
            )
            plan.moved(finite=all(parallel.run(kernel, plan.blocks, threads)))
            plan.gradients = []
        return self._sums() if adapt else None

    def _terms(self, plan: _Plan, groups: list[dict[str, Any]], step: int) -> list[FusedTerms]:
        terms: list[FusedTerms] = []
        for group, params in plan.sparse_groups:
            terms += cast(Prior, self._prior).fused_terms(params, step, groups[group]["num_data"])
        return terms

    def _sums(self) -> list[LatentSums]:
        by_id = {}
        for plan in self._plans:
            of_plan = zip(plan.sparse, plan.sparse_sums(), strict=True)
            by_id.update({id(plan.params[index]): sums for index, sums in of_plan})
        return [by_id[id(weight)] for weight in cast(Prior, self._prior).weights.values()]
