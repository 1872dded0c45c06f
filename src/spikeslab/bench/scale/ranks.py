"""A step of a transformer that FSDP2 shards over some ranks of one machine: time, memory and bytes on the wire."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch import distributed as dist
from torch.optim import Optimizer

from spikeslab.bench.optimizers import SGD_NAME
from spikeslab.bench.scale.candidates import OURS, build_optimizer
from spikeslab.bench.scale.processes import PeakMemory, run_ranks
from spikeslab.bench.scale.traffic import Traffic, count_received
from spikeslab.bench.suites import BenchPlan
from spikeslab.parallel.distributed import Ranks
from spikeslab.report.tables import Cell, Column, Table
from spikeslab.weights import select_weights

WORLDS, QUICK_WORLDS, BATCH = (1, 2, 3, 4), (2,), 32
REPEATED = 100
"""Updates whose bytes are counted together, so that those of a barrier are few."""


class Shape(NamedTuple):
    """Size of the transformer: layers, width, tokens of an example and of the vocabulary."""

    layers: int = 8
    width: int = 320
    length: int = 32
    tokens: int = 256


class Transformer(nn.Module):
    """Network that says the next token."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embed = nn.Embedding(shape.tokens, shape.width)
        self.place = nn.Parameter(torch.zeros(shape.length, shape.width))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(shape.width, 8, 4 * shape.width, dropout=0.0, batch_first=True)
            for _ in range(shape.layers)
        )
        self.head = nn.Linear(shape.width, shape.tokens)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits (batch, tokens of the vocabulary, length)."""
        hidden = self.embed(tokens) + self.place
        for layer in self.layers:
            hidden = layer(hidden)
        logits: Tensor = self.head(hidden)
        return logits.transpose(1, 2).contiguous()  # FSDP2 warns of views


class _TimedChain:
    """Transformer of this rank, its optimizer and a batch."""

    def __init__(self, kind: str, shape: Shape, seed: int) -> None:
        torch.manual_seed(seed)
        ranks = Ranks.create()
        self.model = Transformer(shape)
        self.parameters = sum(param.numel() for param in self.model.parameters())
        ranks.fully_shard(self.model, self.model.layers)
        sparse = select_weights(self.model, "layers.*weight")
        self.sparse = len(sparse)
        self.optimizer: Optimizer = build_optimizer(kind, dict(self.model.named_parameters()), sparse, seed)
        tokens = torch.randint(shape.tokens, (BATCH // ranks.data_size, 2, shape.length))
        self._x, self._y = tokens.unbind(1)

    def backward(self) -> None:
        """Compute the gradient."""
        self.optimizer.zero_grad()
        F.cross_entropy(self.model(self._x), self._y).backward()

    def step(self) -> None:
        """Take a step."""
        self.backward()
        self.optimizer.step()


def measure_steps(shape: Sequence[int], repeats: int, seed: int) -> dict[str, Any]:
    """Let SGD and SGHMC-SA take turns; return clock and processor seconds of their steps, and the bytes of one."""
    chains = {kind: _TimedChain(kind, Shape(*shape), seed) for kind in (SGD_NAME, OURS)}
    kinds = list(chains)
    for chain in chains.values():
        chain.step()
    seconds: dict[str, list[tuple[float, float]]] = {kind: [] for kind in kinds}
    for turn in range(repeats):
        for kind in kinds[turn % 2 :] + kinds[: turn % 2]:
            dist.barrier()
            wall, cpu = time.perf_counter(), time.process_time()
            chains[kind].step()
            dist.barrier()
            seconds[kind].append((time.perf_counter() - wall, time.process_time() - cpu))
    chain = chains[OURS]
    received = _receive(chain.backward), _receive(chain.optimizer.step, times=REPEATED)
    with Traffic() as of_gradients:
        chain.backward()
    with Traffic() as of_update:
        chain.optimizer.step()
    return {
        "seconds": seconds,
        "received": received,
        "exchanged": [dict(traffic.sizes) for traffic in (of_gradients, of_update)],
        "parameters": chain.parameters,
        "sparse": chain.sparse,
    }


def _receive(action: Callable[[], object], times: int = 1) -> float | None:
    """Return the bytes that this rank receives during an action of all ranks, with those of a barrier."""
    dist.barrier()
    before = count_received()
    for _ in range(times):
        action()
    dist.barrier()
    after = count_received()
    return None if before is None or after is None else (after - before) / times


def measure_memory(kind: str, shape: Sequence[int], seed: int) -> dict[str, int]:
    """Return the peak memory of three steps on this rank."""
    small = _TimedChain(kind, Shape(1, 16, 4, 8), seed)
    small.step()  # what torch, gloo and the kernels keep does not count
    peak = PeakMemory()
    chain = _TimedChain(kind, Shape(*shape), seed)
    peak.forget()  # the whole model, which was there before its parts
    for _ in range(3):
        chain.step()
    return {"bytes": peak.read()}


def _measure_memory(world: int, kind: str, shape: Shape, seed: int) -> int:
    """Return the peak memory of the rank that takes most."""
    found = run_ranks("ranks:measure_memory", world, kind=kind, shape=shape, seed=seed)
    return max(int(rank["bytes"]) for rank in found)


def rank_table(plan: BenchPlan) -> Table:
    """Compare a sharded step of SGHMC-SA with one of torch's SGD, and count what the ranks exchange."""
    shape = Shape(2, 64, 8, 64) if plan.quick else Shape()
    found, memory = {}, {}
    for world in QUICK_WORLDS if plan.quick else WORLDS:
        found[world] = run_ranks("ranks:measure_steps", world, shape=shape, repeats=plan.repeats, seed=plan.seed)
        memory[world] = {kind: _measure_memory(world, kind, shape, plan.seed) for kind in (SGD_NAME, OURS)}
        plan.tick(plan.repeats)
    rows = [_row(world, found[world], memory[world]) for world in found]
    columns = [
        Column("ranks", "ranks", "d"),
        Column("step", "step", ".3f"),
        Column("median", "median", ".3f"),
        Column("cpu", "processor", ".3f"),
        Column("gradients", "FSDP exchanges, MB", ".1f"),
        Column("received", "arrives, MB", ".1f"),
        Column("update", "the sampler exchanges, B", "d"),
        Column("update received", "arrives, B", "d"),
        Column("sgd memory", "MB a rank, SGD", ".0f"),
        Column("memory", "MB a rank", ".0f"),
    ]
    first = found[min(found)][0]
    notes = [
        f"Transformer with {first['parameters']:,} parameters, batch {BATCH} x {shape.length} tokens shared by the "
        "ranks (30 by three), sharded by FSDP2 and gloo; on one rank it is whole. SpikeSlab on "
        f"{first['sparse']} weights. Step of SGHMC-SA in units of torch's SGD with momentum under the same sharding, "
        "in turns: least times, median ratio, and median ratio of the processor time of all ranks; "
        f"{plan.repeats} rounds. Bytes of one step of one rank: of the whole tensors given to collective operations, "
        "and of what arrives on its sockets. MB a rank: peak resident memory of three steps in fresh processes, beyond "
        "what they take before the model."
    ]
    raw = {"ranks": {f"{world}": of_world for world, of_world in found.items()}}
    return Table(f"A sharded step against the number of ranks, {plan.words}", columns, rows, notes, raw)


def _row(world: int, found: list[dict[str, Any]], memory: Mapping[str, int]) -> dict[str, Cell]:
    def seconds(kind: str, column: int) -> list[float]:
        return [max(turn) if column == 0 else sum(turn) for turn in zip(*_column(found, kind, column), strict=True)]

    walls, cpus = ({kind: seconds(kind, column) for kind in (SGD_NAME, OURS)} for column in (0, 1))
    gradients, update = ([sum(rank["exchanged"][part].values()) for rank in found] for part in (0, 1))
    arrived = [[rank["received"][part] for rank in found] for part in (0, 1)]
    known = all(value is not None for part in arrived for value in part)
    return {
        "ranks": world,
        "step": min(walls[OURS]) / min(walls[SGD_NAME]),
        "median": median(own / other for own, other in zip(walls[OURS], walls[SGD_NAME], strict=True)),
        "cpu": median(own / other for own, other in zip(cpus[OURS], cpus[SGD_NAME], strict=True)),
        "gradients": max(gradients) / 1e6,
        "received": max(arrived[0]) / 1e6 if known else None,
        "update": max(update),
        "update received": round(max(arrived[1])) if known else None,
        "sgd memory": memory[SGD_NAME] / 1e6,
        "memory": memory[OURS] / 1e6,
    }


def _column(found: list[dict[str, Any]], kind: str, column: int) -> list[list[float]]:
    return [[turn[column] for turn in rank["seconds"][kind]] for rank in found]
