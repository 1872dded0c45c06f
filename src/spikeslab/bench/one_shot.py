"""Pruning without training: ``prune_one_shot`` against magnitudes, Wanda, SparseGPT and Exact Optimal Brain Surgeon.

All are solvers of :func:`~spikeslab.compression.prune_one_shot`, so that they see the same inputs, prune the same
layers in the same order, and get the same correction of batch normalisation.

References:
    M. Sun, Z. Liu, A. Bair and J. Z. Kolter. A simple and effective pruning approach for large language models. ICLR
    2024.
    E. Frantar and D. Alistarh. SparseGPT: massive language models can be accurately pruned in one-shot. ICML 2023.
    E. Frantar, S. P. Singh and D. Alistarh. Optimal brain compression. NeurIPS 2022.
"""

from __future__ import annotations

import copy
import heapq
import itertools
import math
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from spikeslab.bench.compression.grid import ENCODER, LSTM, ONE_SHOT_NETWORKS, RESNET20, TRANSFORMER
from spikeslab.bench.compression.networks import STUDY_NETWORKS, Batch, dense_network, load_problem
from spikeslab.bench.suites import BenchPlan, Findings
from spikeslab.compression.one_shot import EXCHANGE, FAST, REFIT, Solver, prune_one_shot
from spikeslab.compression.sparse_file import DENSE, file_sizes, load_tensors_into, tensor_dict
from spikeslab.compression.sparse_format import decode, encode
from spikeslab.errors import ArgumentValueError, pluralize, quote
from spikeslab.functional.patterns import Pattern, keep_largest
from spikeslab.functional.reconstruction import Tableau, damp, refit
from spikeslab.posterior.eval_mode import eval_mode
from spikeslab.report.tables import Cell, Column, Estimate, Table

LEVELS: tuple[float | str, ...] = (0.5, 0.6, 0.7, 0.8, 0.9, "2:4")
BATCHES = {RESNET20: 4, TRANSFORMER: 8, ENCODER: 8, LSTM: 8}
"""Training batches whose inputs the layers are fitted to."""
TEST_ROWS = 2000
"""Test rows, the first ones, on which the pruned networks are compared with the dense one."""
INT8 = "int8"
BLOCK = 128
"""Columns of SparseGPT that share a threshold."""
DAMPING = 0.01
"""Damping of SparseGPT, its authors' default."""


def keep_magnitudes(dense: Tensor, gram: Tensor, pattern: Pattern) -> Tensor:
    """Keep the largest weights as they are."""
    return dense * keep_largest(dense, pattern)


def keep_wanda(dense: Tensor, gram: Tensor, pattern: Pattern) -> Tensor:
    """Keep the weights with the largest products with the norms of their inputs; the same number in every row."""
    scores = dense * gram.diagonal().sqrt()
    if pattern.group is not None:
        return dense * keep_largest(scores, pattern)
    rows, inputs = dense.shape
    return dense * keep_largest(scores, Pattern(round(pattern.keep / rows), group=inputs))


def solve_sparsegpt(dense: Tensor, gram: Tensor, pattern: Pattern) -> Tensor:
    """Go through the columns once: those that are pruned are made up for by the columns behind them.

    With U the upper Cholesky factor of the inverse Gram matrix, a weight of the column j costs :math:`w_j^2/U_{jj}^2`
    where no column before j may change. The threshold is that of a block of columns.
    """
    weights, inputs = dense.clone(), dense.shape[1]
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(damp(gram, DAMPING)))
    factor = torch.linalg.cholesky(inverse, upper=True)
    kept_share = pattern.keep / (pattern.group or dense.numel())
    for start in range(0, inputs, BLOCK):
        block = weights[:, start : start + BLOCK]
        corner = factor[start : start + BLOCK, start : start + BLOCK]
        errors = torch.zeros_like(block)
        count = Pattern(round(kept_share * block.numel()))
        kept = keep_largest(block / corner.diagonal(), count if pattern.group is None else pattern)
        for column in range(block.shape[1]):
            if pattern.group is not None and column % pattern.group == 0:  # chosen as late as possible
                group = slice(column, column + pattern.group)
                kept[:, group] = keep_largest(block[:, group] / corner.diagonal()[group], pattern)
            errors[:, column] = block[:, column] * ~kept[:, column] / corner[column, column]
            block[:, column:] -= torch.outer(errors[:, column], corner[column, column:])
            block[:, column] *= kept[:, column]
        weights[:, start + BLOCK :] -= errors @ factor[start : start + BLOCK, start + BLOCK :]
    return weights


def solve_exact_obs(dense: Tensor, gram: Tensor, pattern: Pattern) -> Tensor:
    """Remove one weight of a row after the other, always the one with the lowest cost, and refit after each.

    The rows stop where the costs of their next removals make up the wanted number of zeros at the lowest sum.
    """
    damped, (rows, inputs) = damp(gram), dense.shape
    traces = [_trace_removals(target, damped, pattern) for target in dense]
    if pattern.group is not None:
        counts = [len(trace) for trace in traces]
    else:
        counts = [0] * rows
        heap = [(trace[0][1], row) for row, trace in enumerate(traces)]
        heapq.heapify(heap)
        for _ in range(dense.numel() - pattern.keep):
            _, row = heapq.heappop(heap)
            counts[row] += 1
            if counts[row] < inputs:
                heapq.heappush(heap, (traces[row][counts[row]][1], row))
    support = torch.ones_like(dense, dtype=torch.bool)
    for row, (trace, count) in enumerate(zip(traces, counts, strict=True)):
        support[row, [index for index, _ in trace[:count]]] = False
    return refit(dense, damped, support)


def _trace_removals(target: Tensor, gram: Tensor, pattern: Pattern) -> list[tuple[int, float]]:
    """Return the inputs of a row in the order of their removal, with the costs, as far as the pattern allows."""
    tableau = Tableau(target, gram, torch.ones_like(target, dtype=torch.bool))
    trace: list[tuple[int, float]] = []
    allowed = tableau.support.clone()
    while allowed.any():
        cost, index = torch.where(allowed, tableau.changes, torch.inf).min(0)
        trace.append((int(index), float(cost)))
        tableau.sweep(int(index))
        allowed[index] = False
        if pattern.group is not None:
            first = int(index) // pattern.group * pattern.group
            group = slice(first, first + pattern.group)
            if int(tableau.support[group].sum()) == pattern.keep:
                allowed[group] = False
    return trace


SOLVERS: dict[str, str | Solver] = {
    "magnitude": keep_magnitudes,
    "Wanda": keep_wanda,
    "SparseGPT": solve_sparsegpt,
    "ExactOBS": solve_exact_obs,
    "spikeslab, fast": FAST,
    "spikeslab, refit": REFIT,
    "spikeslab": EXCHANGE,
}


class NetworkScores(NamedTuple):
    """NetworkScores of a network on the test rows.

    Attributes:
        divergence: Mean Kullback-Leibler divergence of its predictions from the dense network's.
        nll: Mean negative log-likelihood.
        accuracy: Share of right predictions.
    """

    divergence: float
    nll: float
    accuracy: float


class OneShotResult(NamedTuple):
    """NetworkScores of a pruned network, and the cost of pruning it.

    Attributes:
        scores: NetworkScores of the network.
        rounded: NetworkScores of the network with weights rounded to int8.
        smaller: Bytes of the dense network's file in units of the sparse file with these weights.
        error: Mean over the layers of the change of their outputs.
        solver_seconds: Time of the solvers alone.
        seconds: Time of the whole call.
    """

    scores: NetworkScores
    rounded: NetworkScores
    smaller: float
    error: float = 0.0
    solver_seconds: float = 0.0
    seconds: float = 0.0

    def as_dict(self) -> dict[str, float]:
        """Return all numbers by name."""
        rounded = {f"int8 {key}": value for key, value in self.rounded._asdict().items()}
        return {**self.scores._asdict(), **rounded, **dict(zip(self._fields[2:], self[2:], strict=True))}


def count_ticks(plan: BenchPlan) -> int:
    """Return the number of networks that are pruned."""
    return plan.repeats * len(choose_networks(plan)) * len(LEVELS) * len(SOLVERS)


def choose_networks(plan: BenchPlan) -> list[str]:
    """Return the names of the networks: all, or those of the plan.

    Raises:
        ValueError: If the plan has none of them.
    """
    wanted = plan.study.networks
    if not (found := [name for name in ONE_SHOT_NETWORKS if not wanted or name in wanted]):
        raise ArgumentValueError(
            "networks", f"must be one of {quote(ONE_SHOT_NETWORKS)} for this suite", ",".join(wanted)
        )
    return found


def run(plan: BenchPlan) -> Findings:
    """Prune the networks at every level by every solver, for several draws of training batches."""
    found: dict[tuple[str, str, str], list[OneShotResult]] = {}
    dense: dict[str, OneShotResult] = {}
    for name in choose_networks(plan):
        _, data = load_problem(name, plan.study.data_dir, plan.seed, plan.quick)
        model = dense_network(name, plan.study.data_dir, plan.seed, plan.quick, plan.study.folder)
        test = _cut(data.test, 64 if plan.quick else TEST_ROWS)
        logs = predict_logs(model, test)
        dense[name] = OneShotResult(*score(model, model, logs, test))
        for draw, level in itertools.product(range(plan.repeats), LEVELS):
            batches = [x for x, _ in itertools.islice(data.train.epoch(draw), BATCHES[name])]
            for title, solver in SOLVERS.items():
                start = time.process_time()
                share, pattern = (level, None) if isinstance(level, float) else (0.5, level)
                pruned = prune_one_shot(model, batches, share, pattern, solver=solver, progress=False)
                seconds = time.process_time() - start
                error = sum(fit.error for fit in pruned.layers) / len(pruned.layers)
                spent = sum(fit.seconds for fit in pruned.layers)
                result = OneShotResult(*score(pruned.model, model, logs, test), error, spent, seconds)
                found.setdefault((name, str(level), title), []).append(result)
                plan.tick(1)
    return Findings({"one-shot": tabulate(found, dense, plan)})


def _cut(batches: list[Batch], rows: int) -> list[Batch]:
    """Return the first rows of some batches."""
    kept: list[Batch] = []
    for x, y in batches:
        missing = rows - sum(len(each) for each, _ in kept)
        if missing <= 0:
            break
        kept.append((x[:missing], y[:missing]))
    return kept


@torch.no_grad()
def predict_logs(model: nn.Module, batches: list[Batch]) -> list[Tensor]:
    """Return the log-probabilities of each batch; classes are dimension 1."""
    with eval_mode(model):
        return [model(x).log_softmax(1) for x, _ in batches]


def score(
    model: nn.Module, dense: nn.Module, logs: list[Tensor], batches: list[Batch]
) -> tuple[NetworkScores, NetworkScores, float]:
    """Return the scores of a network and of its sparse file with int8 values, and how much smaller that file is."""
    tensors, rounded = tensor_dict(model), copy.deepcopy(model)
    sizes = file_sizes(tensors, tensor_dict(dense))
    load_tensors_into(rounded, decode(encode(tensors, INT8), INT8), INT8)
    own, of_rounded = (compare(predict_logs(each, batches), logs, batches) for each in (model, rounded))
    return own, of_rounded, sizes[DENSE] / sizes[f"sparse {INT8}"]


def compare(logs: list[Tensor], dense: list[Tensor], batches: list[Batch]) -> NetworkScores:
    """Return the scores of log-probabilities beside those of the dense network."""
    y = torch.cat([targets.flatten() for _, targets in batches])
    p, reference = (torch.cat([each.movedim(1, -1).flatten(0, -2) for each in parts]) for parts in (logs, dense))
    p, reference, y = p[y >= 0], reference[y >= 0], y[y >= 0]  # a masked text has targets at some places
    divergence = float((reference.exp() * (reference - p)).sum(1).double().mean())
    nll = -float(p.gather(1, y.unsqueeze(1)).double().mean())
    return NetworkScores(divergence, nll, float((p.argmax(1) == y).double().mean()))


def tabulate(
    found: Mapping[tuple[str, str, str], list[OneShotResult]], dense: Mapping[str, OneShotResult], plan: BenchPlan
) -> Table:
    """Return a row for each network, level and solver, after one for each dense network."""
    columns = [
        Column("network", "Network"),
        Column("level", "zeros"),
        Column("solver", "solver"),
        Column("error", "error of a layer %", ".2f"),
        Column("divergence", "KL from dense", ".4f"),
        Column("accuracy", "accuracy %", ".2f"),
        Column("perplexity", "perplexity", ".3f"),
        Column("int8", "KL in int8", ".4f"),
        Column("smaller", "int8 file x smaller", ".1f"),
        Column("solver_seconds", "solver s", ".1f"),
        Column("seconds", "s", ".1f"),
    ]
    rows: list[dict[str, Cell]] = []
    for name, reference in dense.items():
        series = {("0 %", "dense"): [reference]}
        for (network, level, solver), results in found.items():
            if network == name:
                series[level if ":" in level else f"{float(level):.0%}", solver] = results
        rows += [_describe(name, level, solver, results) for (level, solver), results in series.items()]
    raw: dict[str, Any] = {" ".join(key): [each.as_dict() for each in results] for key, results in found.items()}
    note = (
        "Every solver is one of prune_one_shot: the same layers, inputs and correction of batch normalisation. Inputs "
        f"of {BATCHES[RESNET20]} training batches for ResNet20 and {BATCHES[TRANSFORMER]} for the texts; layers "
        f"with fewer than 64 inputs stay dense; the first {TEST_ROWS:,} test rows. Zeros are those of every pruned "
        "layer. In int8 weights are rounded to 255 levels a row; the file is that of save_sparse beside that of the "
        "dense network. Seconds are processor time, of the solver on the clock. ± is the standard error over "
        f"{pluralize(plan.repeats, 'draw')} of batches."
    )
    return Table("Pruning without training, one solver beside another", columns, rows, [note], {"scores": raw})


def _describe(name: str, level: str, solver: str, results: list[OneShotResult]) -> dict[str, Cell]:
    estimate = Estimate.of
    is_text = STUDY_NETWORKS[name].score == "nll"
    return {
        "network": STUDY_NETWORKS[name].title,
        "level": level,
        "solver": solver,
        "error": estimate([100.0 * each.error for each in results]),
        "divergence": estimate([each.scores.divergence for each in results]),
        "accuracy": estimate([100.0 * each.scores.accuracy for each in results]),
        "perplexity": estimate([math.exp(each.scores.nll) for each in results]) if is_text else None,
        "int8": estimate([each.rounded.divergence for each in results]),
        "smaller": sum(each.smaller for each in results) / len(results),
        "solver_seconds": estimate([each.solver_seconds for each in results]),
        "seconds": estimate([each.seconds for each in results]),
    }
