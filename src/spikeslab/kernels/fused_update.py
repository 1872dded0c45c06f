"""The sampler's side of the fused update: which parameters it moves, and when.

Everything that Python does for one tensor costs about as much as a thousand of its elements, so what does not change
from step to step is kept (:class:`~spikeslab.kernels.plan.Plan`), and all tensors of a dtype go to the kernels
together.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from spikeslab.functional.layout import FULL_PRECISION, is_dense
from spikeslab.kernels import threads as parallel
from spikeslab.kernels.plan import GRADIENT, WEIGHT, Move, Plan, Row
from spikeslab.kernels.protocol import FusedPrior, FusedTerms, LatentSums

CHECK_PIECE = 512  # blocks that a thread checks at once; of less than four times as many, one thread checks all


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
        return importlib.import_module("spikeslab.kernels.fused")
    except (ImportError, RuntimeError) as error:  # numba raises the latter where it can write its cache nowhere
        if fused is None:
            return None
        raise ImportError(
            f"fused must be False or None without a working numba, but got True: pip install spikeslab[fast] ({error})."
        ) from error


class FusedUpdate:
    """Moves all parameters that the kernels can move, in one pass over their memory.

    A step calls :meth:`gather`, which returns the parameters that are left to torch, then :meth:`finite` if it wants
    to know, and :meth:`run`.

    Args:
        kernels: :mod:`spikeslab.kernels.fused`.
        prior: The sampler's prior.
    """

    def __init__(self, kernels: ModuleType, prior: FusedPrior | None) -> None:
        self._kernels = kernels
        self._prior = prior
        self._key: list[int | bool] = []
        self._plans: list[Plan] = []
        self._rest: list[list[Tensor]] = []

    def gather(self, active: list[list[Tensor]], streams: Callable[[], dict[int, int]]) -> list[list[Tensor]]:
        """Take the parameters of each group that have a gradient; return those that torch must move.

        Args:
            active: The parameters of each group.
            streams: Gives the number of each parameter in the sampler, by id; asked when the parameters are others.
        """
        fusible = self._prior is None or self._prior.fusible  # a loaded state may take back what a step has allowed
        sizes, ids = [len(params) for params in active], [id(param) for params in active for param in params]
        key = [fusible, *sizes, *ids]
        fits = key == self._key and all(plan.fits() for plan in self._plans)
        if not fits or any(self._can_move(param) for params in self._rest for param in params):
            self._make_plans(active, streams())
            self._key = key
        for plan in self._plans:
            plan.set_gradients()
        return self._rest

    def _make_plans(self, active: list[list[Tensor]], streams: dict[int, int]) -> None:
        rows: dict[torch.dtype, list[Row]] = {}
        self._rest = []
        for group, params in enumerate(active):
            rest = []
            for param in params:
                if self._can_move(param):
                    sparse = self._prior is not None and param in self._prior
                    rows.setdefault(param.dtype, []).append(Row(group, streams[id(param)], param, sparse))
                else:
                    rest.append(param)
            self._rest.append(rest)
        self._plans = [Plan(self._kernels, dtype, of_dtype) for dtype, of_dtype in rows.items()]

    def _can_move(self, param: Tensor) -> bool:
        if self._prior is not None and not self._prior.fusible and param in self._prior:
            return False
        # A tensor without memory of its own, such as a wrapper around others, has no address.
        has_memory = param.is_cpu and (param.numel() == 0 or param.data_ptr() != 0)
        return has_memory and param.dtype in FULL_PRECISION and is_dense(param)

    def finite(self) -> bool:
        """Whether all gathered weights and gradients are finite.

        Weights that nobody, as far as torch knows, has written to since the last step were looked at when it did.
        """
        return all(self._column_finite(plan, GRADIENT) and self._weights_finite(plan) for plan in self._plans)

    def _weights_finite(self, plan: Plan) -> bool:
        known = plan.weights_finite()
        return self._column_finite(plan, WEIGHT) if known is None else known

    def _column_finite(self, plan: Plan, column: int) -> bool:
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
            plan.moving()
            plan.moved(finite=all(parallel.run(kernel, plan.blocks, threads)))
            plan.gradients = []
        return self._sums() if adapt else None

    def _terms(self, plan: Plan, groups: list[dict[str, Any]], step: int) -> list[FusedTerms]:
        terms: list[FusedTerms] = []
        for group, params in plan.sparse_groups:
            terms += cast(FusedPrior, self._prior).fused_terms(params, step, groups[group]["num_data"])
        return terms

    def _sums(self) -> list[LatentSums]:
        by_id = {}
        for plan in self._plans:
            of_plan = zip(plan.sparse, plan.sparse_sums(), strict=True)
            by_id.update({id(plan.params[index]): sums for index, sums in of_plan})
        return [by_id[id(weight)] for weight in cast(FusedPrior, self._prior).weights.values()]
