"""Operations of an update in torch, without the fused kernel, and the memory that they read and write.

That is what an accelerator runs: there an update is as fast as memory is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from spikeslab.bench.optimizers import SGD_NAME
from spikeslab.bench.scale.candidates import OURS, PLAIN, build_optimizer
from spikeslab.bench.suites import BenchPlan
from spikeslab.report.tables import Cell, Column, Table

SIZE = 1 << 14
"""Weights that are drawn for in one piece on a CPU too."""
FUSED = {SGD_NAME: None, PLAIN: 24, OURS: 40}
"""Bytes of a weight that the fused kernel reads and writes: the check of the gradient, which it reads again, weight and
momentum both ways, and rho and its smoothed copy both ways."""


class Operations(TorchDispatchMode):
    """Count operations on elements and the bytes of the tensors that they read and write; views do neither.

    Attributes:
        calls: Number of operations.
        moved: Bytes.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls = self.moved = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count an operation, and run it."""
        found = func(*args, **(kwargs or {}))
        read, written = _tensors((args, kwargs)), _tensors(found)
        if func._schema.name.endswith("_"):  # in place; those on lists return nothing
            written = _tensors(args[0])
        own = {tensor.data_ptr() for tensor in read}
        is_view = not func._schema.name.endswith("_") and all(tensor.data_ptr() in own for tensor in written)
        if written and not is_view and "empty" not in func.__name__:
            self.calls += 1
            self.moved += sum(tensor.nbytes for tensor in (*read, *written))
        return found


def _tensors(value: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


def count_operations(kind: str, seed: int) -> Operations:
    """Count the operations of an update of one tensor, after one that allocates."""
    params: dict[str, Tensor] = {"weight": nn.Parameter(torch.full((SIZE,), 0.01))}
    params["weight"].grad = torch.full((SIZE,), 1e-3)
    optimizer = build_optimizer(kind, params, params, seed, fused=False)
    optimizer.step()
    operations = Operations()
    with operations:
        optimizer.step()
    return operations


def operation_table(plan: BenchPlan) -> Table:
    """Count the operations of an update of each optimizer."""
    counted = {kind: count_operations(kind, plan.seed) for kind in (SGD_NAME, PLAIN, OURS)}
    plan.tick(plan.repeats)
    columns: dict[Column, Callable[[str], Cell]] = {
        Column("what", ""): str,
        Column("calls", "operations", "d"): lambda kind: counted[kind].calls,
        Column("bytes", "bytes a weight", ".0f"): lambda kind: counted[kind].moved / SIZE,
        Column("fused", "fused, bytes a weight", "d"): FUSED.get,
    }
    note = (
        f"One tensor of {SIZE:,} weights in float32, torch's eager operations: how many write anything, and the bytes "
        "of all tensors that they read and write. Most are those of the noise, Philox in integers, which "
        "`compile=True` fuses. The last column is what the fused kernel of the CPU reads and writes."
    )
    return Table.build("Operations of an update", list(counted), columns, [note])
