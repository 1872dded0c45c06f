"""Fused update of a sampler: the tables that the kernels read, and one step with them.

Python's work for one tensor costs about as much as a thousand of its elements. So everything that stays the same from
step to step is kept in a :class:`KernelPlan`, and all tensors of a dtype go to the kernels together.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable, Container, Sequence
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from spikeslab.errors import ArgumentTypeError, ArgumentValueError, MissingExtraError, Phrase, first_line, mark
from spikeslab.functional.tensors import FULL_PRECISION, align, is_dense
from spikeslab.kernels import _threads
from spikeslab.kernels.philox import count_blocks
from spikeslab.kernels.protocol import FusedLatents, FusedPenalty, FusedPrior, LatentSums, Move
from spikeslab.shards import local, locate, wrap

CHECK_PIECE = 512  # blocks that a thread checks at once; of less than four times as many, one thread checks all

# Columns of the kernels' tables.
WEIGHT, GRADIENT, BUFFER, RHO, RHO_BAR, SIZE, STREAM, FIRST_BLOCK, OFFSET = range(9)
ELASTIC_NET, LOG_ODDS = 3, 7
NO_LATENTS = (0.0,) * 4
NUMPY = {torch.float32: np.float32, torch.float64: np.float64}


def load_kernels(fused: bool | None, *, compile: bool, params: dict[str, Tensor]) -> ModuleType | None:  # noqa: A002
    """Return the module of the kernels, or ``None`` if torch does the update.

    Args:
        fused: The user's choice; ``None`` takes the kernels wherever they run.
        compile: If True, the user wants torch's update compiled.
        params: All parameters by name.

    Raises:
        ArgumentTypeError: If ``fused`` is not a bool or ``None``.
        ArgumentValueError: If ``fused`` is ``True`` and the kernels cannot move these parameters.
        MissingExtraError: If ``fused`` is ``True`` and numba is missing.
    """
    if fused is not None and not isinstance(fused, bool):
        raise ArgumentTypeError("fused", "must be True, False or None", fused)
    if fused is False:
        return None
    other = [name for name, p in params.items() if p.device.type != "cpu" or p.dtype not in FULL_PRECISION]
    if fused is None and (compile or other):
        return None
    if compile:
        raise ArgumentValueError("fused", f"must be False or None with {mark('compile', True)}", True)
    if other:
        param = params[other[0]]
        raise ArgumentValueError(
            "fused",
            "must be False or None unless all parameters are float32 or float64 on the CPU",
            Phrase(f"got True and {other[0]} is {param.dtype} on {param.device}"),
        )
    try:
        return importlib.import_module("spikeslab.kernels.fused")
    except (ImportError, RuntimeError) as error:  # numba raises the latter if it can write its cache nowhere
        if fused is None:
            return None
        raise MissingExtraError(
            "fused must be False or None without a working numba, but got True: pip install spikeslab[fast] "
            f"({first_line(error)})."
        ) from error


class FusedUpdate:
    """Update of all parameters that the kernels can move, in one pass over their memory.

    A step calls :meth:`gather`, which returns the parameters that are left to torch, then :meth:`is_finite` if it
    checks, and :meth:`run`.

    Args:
        kernels: :mod:`spikeslab.kernels.fused`.
        prior: The sampler's prior; the weights of one that is no :class:`FusedPrior` are left to torch.
    """

    def __init__(self, kernels: ModuleType, prior: Container[object] | None) -> None:
        self._kernels = kernels
        self._prior = prior
        self._partner = prior if isinstance(prior, FusedPrior) else None  # once: a protocol is slow to check
        self._key: list[int | bool] = []
        self._plans: list[KernelPlan] = []
        self._rest: list[list[Tensor]] = []

    @property
    def _fused_prior(self) -> FusedPrior | None:
        """The prior, if it takes part in this step: a loaded state may change that."""
        return self._partner if self._partner is not None and self._partner.fusible else None

    def gather(self, active: list[list[Tensor]], streams: Callable[[], dict[int, int]]) -> list[list[Tensor]]:
        """Take the parameters of each group that have a gradient, and return those that torch must move.

        Args:
            active: The parameters of each group.
            streams: Returns the number of each parameter in the sampler by id; called if the parameters have changed.
        """
        sizes, ids = [len(params) for params in active], [id(param) for params in active for param in params]
        key = [self._fused_prior is not None, *sizes, *ids]
        fits = key == self._key and all(plan.fits() for plan in self._plans)
        if not fits or any(self._can_move(param) for params in self._rest for param in params):
            self._make_plans(active, streams())
            self._key = key
        for plan in self._plans:
            plan.set_gradients()
        return self._rest

    def _make_plans(self, active: list[list[Tensor]], streams: dict[int, int]) -> None:
        prior = self._fused_prior
        indices = {} if prior is None else {id(weight): index for index, weight in enumerate(prior.weights.values())}
        entries: dict[torch.dtype, list[PlanEntry]] = {}
        self._rest = []
        for group, params in enumerate(active):
            rest = []
            for param in params:
                if self._can_move(param):
                    entry = PlanEntry(group, streams[id(param)], param, indices.get(id(param)))
                    entries.setdefault(param.dtype, []).append(entry)
                else:
                    rest.append(param)
            self._rest.append(rest)
        self._plans = [KernelPlan(self._kernels, dtype, of_dtype) for dtype, of_dtype in entries.items()]
        for dtype in entries:
            self._kernels.load(NUMPY[dtype])

    def _can_move(self, param: Tensor) -> bool:
        if self._prior is not None and param in self._prior and self._fused_prior is None:
            return False
        part = local(param)
        # A tensor without memory of its own, such as a wrapper around others, has no address.
        has_memory = part.is_cpu and (part.numel() == 0 or part.data_ptr() != 0)
        return has_memory and part.dtype in FULL_PRECISION and is_dense(part) and isinstance(locate(param), int)

    def is_finite(self) -> bool:
        """Return True if all gathered weights and gradients are finite.

        Weights that, as far as torch knows, nobody has written to since the last step were checked by that step.
        """
        return all(
            self._is_column_finite(plan, GRADIENT) and (plan.was_left_finite() or self._is_column_finite(plan, WEIGHT))
            for plan in self._plans
        )

    def _is_column_finite(self, plan: KernelPlan, column: int) -> bool:
        kernel = partial(self._kernels.are_finite, plan.like, plan.table, column)
        return all(_threads.run(kernel, plan.blocks, torch.get_num_threads(), CHECK_PIECE))

    def run(self, groups: list[dict[str, Any]], moves: list[Move], state: Any, seed: int, step: int) -> bool:
        """Take the step with the gathered parameters: prior's terms, kernels, prior's sums.

        Args:
            groups: The sampler's groups.
            moves: Move of each group.
            state: The sampler's state of each parameter, where the buffers are.
            seed: Seed of the noise.
            step: Number of the step.

        Returns:
            True if the prior has adapted to the new weights. It has not if torch has yet to move one of its weights:
            sigma needs the sums over all of them, so torch then moves all latents.
        """
        prior, num_data = self._fused_prior, groups[0]["num_data"]
        latents: FusedLatents | None = None
        if prior is not None and sum(len(plan.weights) for plan in self._plans) == len(prior.weights):
            latents = prior.fused_latents(step)
        for plan in self._plans:
            plan.set_moves(moves, [group["weight_decay"] for group in groups], state)
            if prior is not None and plan.weights:
                plan.set_prior(prior.fused_penalty(plan.sparse_params, num_data), latents)
        for plan in self._plans:
            kernel = partial(
                self._kernels.update, plan.like, plan.table, plan.factors, plan.sums, np.uint64(seed), np.uint64(step)
            )
            plan.left = None  # after a step that is broken off nothing is known of the weights
            plan.note_end(finite=all(_threads.run(kernel, plan.blocks, torch.get_num_threads())))
        if prior is None or latents is None:
            return False
        prior.update_from_sums(latents.omega, num_data, self._sums(len(prior.weights)) if latents.omega else [])
        return True

    def _sums(self, count: int) -> list[LatentSums]:
        sums = [LatentSums()] * count
        for plan in self._plans:
            for index, of_weight in zip(plan.weights, plan.sparse_sums(), strict=True):
                sums[index] = of_weight
        return sums

    def __deepcopy__(self, memo: dict[int, Any]) -> FusedUpdate:
        """Return an update without plans, which hold addresses, for the copy of the prior."""
        return FusedUpdate(self._kernels, copy.deepcopy(self._prior, memo))


class PlanEntry(NamedTuple):
    """Parameter, the numbers of its group and of its noise, and that among the prior's weights if it is one."""

    group: int
    stream: int
    param: Tensor
    weight: int | None


class KernelPlan:
    """Tables of the parameters of one dtype, most of which stay from step to step."""

    def __init__(self, kernels: ModuleType, dtype: torch.dtype, entries: Sequence[PlanEntry]) -> None:
        self.dtype = dtype
        self.like = np.empty(0, NUMPY[dtype])
        self.groups = np.array([entry.group for entry in entries])
        self.owners = [entry.param for entry in entries]
        self.params = [local(owner) for owner in self.owners]
        self.layouts = [(param.shape, param.stride()) for param in self.params]
        sparse = [row for row, entry in enumerate(entries) if entry.weight is not None]
        self.sparse_params = [self.owners[row] for row in sparse]
        self.weights = [cast(int, entries[row].weight) for row in sparse]
        self.sparse_rows = np.array(sparse, dtype=np.intp)
        sizes = np.array([param.numel() for param in self.params], dtype=np.int64)
        offsets = [cast(int, locate(owner)) for owner in self.owners]
        itemsize = self.like.itemsize
        blocks = np.array([count_blocks(o, int(n), itemsize) for o, n in zip(offsets, sizes, strict=True)], np.int64)
        first_blocks = np.cumsum(blocks) - blocks
        self.blocks = int(blocks.sum())
        # Most weights of a deep network are one block, whose sums need no adding up.
        self.single_blocks = [first_blocks[row] for row in sparse if blocks[row] == 1]
        self.sparse_blocks = [
            None if blocks[row] == 1 else slice(first_blocks[row], first_blocks[row] + blocks[row]) for row in sparse
        ]
        self.table = np.zeros((len(entries), len(kernels.TABLE)), dtype=np.int64)
        self.table[:, SIZE] = sizes
        self.table[:, STREAM] = [entry.stream for entry in entries]
        self.table[:, FIRST_BLOCK] = first_blocks
        self.table[:, OFFSET] = offsets
        self.factors = np.zeros((len(entries), len(kernels.FACTORS)))
        self.all_sums = np.zeros((self.blocks, len(kernels.SUMS)))
        self.rho_sums = np.zeros((self.blocks, 1))
        self.sums = self.all_sums
        self.numbers: list[tuple[float, ...]] = []
        self.buffers: list[Tensor | None] = [None] * len(entries)
        self.gradients: list[Tensor] = []  # keeps their memory alive until the kernels have run
        self.addresses: list[int] = []
        self.latents: list[tuple[int, int]] = []
        self.left: list[int] | None = None  # versions of the parameters after a step that left them finite

    def fits(self) -> bool:
        """Return True if the parameters still lie in memory as they did: a model may be moved or change its format."""
        self.params = [local(owner) for owner in self.owners]
        return all(
            (param.shape, param.stride()) == layout and param.dtype is self.dtype and param.is_cpu
            for param, layout in zip(self.params, self.layouts, strict=True)
        )

    def set_gradients(self) -> None:
        """Write the addresses of weights and gradients."""
        self.gradients = [
            align(local(cast(Tensor, owner.grad)), param) for owner, param in zip(self.owners, self.params, strict=True)
        ]
        addresses = [param.data_ptr() for param in self.params]
        if addresses != self.addresses:
            self.table[:, WEIGHT] = self.addresses = addresses
            self.left = None
        self.table[:, GRADIENT] = [grad.data_ptr() for grad in self.gradients]

    def note_end(self, finite: bool) -> None:
        """Tell autograd that the weights it may have saved are gone, and note if the new ones are finite."""
        self.gradients = []
        increment_version(self.params)
        if finite and not any(param.is_inference() for param in self.params):  # these have no version
            self.left = [param._version for param in self.params]

    def was_left_finite(self) -> bool:
        """Return True if the last step left the weights finite and nobody has written to them since."""
        return self.left is not None and self.left == [param._version for param in self.params]

    def set_moves(self, moves: list[Move], weight_decays: list[float], state: Any) -> None:
        """Write the numbers of the groups and the addresses of the buffers, which are zero at first.

        A group whose move has no buffer leaves its buffers as they are.
        """
        numbers: list[tuple[float, ...]] = [
            (m.lr, m.momentum, m.noise_std, 0, 0, d, 0) for m, d in zip(moves, weight_decays, strict=True)
        ]
        if numbers != self.numbers:
            self.factors[:, : len(numbers[0])] = np.array(numbers)[self.groups]
            self.numbers = numbers
        for index, (owner, param, group) in enumerate(zip(self.owners, self.params, self.groups, strict=True)):
            name = moves[group].buffer
            if name is None:
                self.buffers[index] = None
                continue
            own = state[owner]
            buffer = own.get(name)
            if buffer is None or buffer is not self.buffers[index]:
                part = torch.zeros_like(param, requires_grad=False) if buffer is None else align(local(buffer), param)
                own[name] = self.buffers[index] = wrap(part, owner)
        self.table[:, BUFFER] = [0 if buffer is None else local(buffer).data_ptr() for buffer in self.buffers]

    def set_prior(self, penalty: FusedPenalty, latents: FusedLatents | None) -> None:
        """Write the prior's terms for the sparse parameters; ``latents`` are those of all the prior's weights."""
        moving = None if latents is None or latents.omega == 0.0 else latents
        self.sums = self.rho_sums if moving is None or not moving.all_sums else self.all_sums
        rho = [0 if moving is None else moving.rho[index].data_ptr() for index in self.weights]
        smoothed = [0] * len(rho) if penalty.smoothed is None else [s.data_ptr() for s in penalty.smoothed]
        addresses = list(zip(rho, smoothed, strict=True))
        if addresses != self.latents:
            self.table[self.sparse_rows, RHO : RHO_BAR + 1] = self.latents = addresses
        self.factors[self.sparse_rows, ELASTIC_NET:LOG_ODDS] = (*penalty.l1, *penalty.l2)
        self.factors[self.sparse_rows, LOG_ODDS:] = (
            NO_LATENTS if moving is None else [(*moving.log_odds[index], moving.omega) for index in self.weights]
        )

    def sparse_sums(self) -> list[LatentSums]:
        """Return the sums over each sparse parameter, added in an order that depends on its number of blocks alone."""
        single = iter(self.sums[self.single_blocks].tolist() if self.single_blocks else [])
        rows: list[list[float]] = [
            next(single) if blocks is None else self.sums[blocks].sum(axis=0).tolist() for blocks in self.sparse_blocks
        ]
        if self.sums is self.rho_sums:
            return [LatentSums(0.0, 0.0, 0.0, 0.0, rho) for (rho,) in rows]
        return list(map(LatentSums._make, rows))
