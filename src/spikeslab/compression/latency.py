"""Latency: the time of a forward pass, for variants of a model in turn and in one process.

The speed of a machine drifts by more than many variants differ, so each round measures every one of them, in an order
that rotates. A turn begins with a pass that is not timed, since the threads of the variant before may still be waiting.
Every other pass is timed by itself. The median hardly changes if another process interrupts a pass.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from statistics import median

import torch
from torch import nn

from spikeslab.compression.compact import compact
from spikeslab.compression.finalize import finalize
from spikeslab.compression.onnx import OnnxNetwork
from spikeslab.compression.sparse_file import COMPACTED, DENSE
from spikeslab.errors import check_count, warn
from spikeslab.forward_pass import iterate_tensors, map_tensors, run
from spikeslab.graph.folding import fold_batch_norm
from spikeslab.graph.layers import BATCH_NORMS
from spikeslab.graph.tracing import ExampleInput, check_example_input
from spikeslab.posterior.eval_mode import eval_mode

ENOUGH = 0.5
"""Share of a processor below which times say more about other programs than about the model."""
SHORTEST = 0.005
"""Seconds for which a variant runs at least in each round, in several passes if it is fast."""
FOLDED, FINALISED = "BN folded", "finalised"
ONNX = "{} in onnxruntime"


@dataclass(frozen=True)
class Latency:
    """Median time in seconds of the forward pass of a variant, for a whole batch of so many rows."""

    variant: str
    batch: int
    seconds: float


def network_variants(
    dense: nn.Module, sparse: nn.Module, example_input: ExampleInput, *, onnx: bool = False
) -> dict[str, nn.Module]:
    """Return the forms of a network that are worth timing, by name; all but ``dense`` itself are copies.

    The dense network with batch normalisation folded, if it has any, shows how much of the gain of the compacted one
    comes from folding.

    >>> list(network_variants(nn.Linear(4, 2), nn.Linear(4, 2), torch.zeros(1, 4)))
    ['dense', 'finalised', 'compacted']

    With ``onnx=True`` the dense and the compacted network are also there in onnxruntime.
    """
    variants = {DENSE: dense}
    if any(isinstance(module, BATCH_NORMS) for module in dense.modules()):
        variants[FOLDED] = fold_batch_norm(dense, example_input)
    plain = finalize(sparse)
    variants |= {FINALISED: plain, COMPACTED: compact(plain, example_input).model}
    if onnx:
        variants |= {ONNX.format(name): OnnxNetwork(variants[name], example_input) for name in (DENSE, COMPACTED)}
    return variants


@torch.inference_mode()
def measure_latency(
    variants: Mapping[str, nn.Module], example_input: ExampleInput, batches: Sequence[int] = (1, 64), rounds: int = 11
) -> list[Latency]:
    """Time every variant at every batch size, in evaluation mode, with the threads that torch has now.

    The rows of the example are repeated or cut to the size of a batch; each variant has ``rounds`` turns.
    """
    check_count("rounds", rounds)
    examples = check_example_input(example_input)
    found = []
    with ExitStack() as modes:
        for model in variants.values():
            modes.enter_context(eval_mode(model))
        for batch in batches:
            rows = torch.arange(check_count("batches", batch)) % len(examples[0])
            inputs = map_tensors(partial(torch.index_select, dim=0, index=rows), example_input)
            begun = time.perf_counter(), time.process_time()
            seconds = _time_in_turn(variants, inputs, rounds)
            wall, used = time.perf_counter() - begun[0], time.process_time() - begun[1]
            if examples[0].is_cpu and used < ENOUGH * wall:
                warn(
                    f"Other programs had the processor for {1.0 - used / wall:.0%} of the time of these measurements: "
                    "measure again when they are done."
                )
            found += [Latency(name, batch, median(times)) for name, times in seconds.items()]
    return found


def _time_in_turn(variants: Mapping[str, nn.Module], inputs: ExampleInput, rounds: int) -> dict[str, list[float]]:
    passes = {}
    for name, model in variants.items():
        _time(model, inputs)  # the first pass also allocates memory
        passes[name] = 1 + int(SHORTEST / _time(model, inputs))
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    order = list(variants)
    for _ in range(rounds):
        for name in order:
            _time(variants[name], inputs)
            seconds[name] += [_time(variants[name], inputs) for _ in range(passes[name])]
        order = order[1:] + order[:1]
    return seconds


def _time(model: nn.Module, inputs: ExampleInput) -> float:
    device = next(iterate_tensors(inputs)).device
    _wait(device)
    begun = time.perf_counter()
    run(model, inputs)
    _wait(device)
    return time.perf_counter() - begun


def _wait(device: torch.device) -> None:
    """Wait until the device is done: an accelerator goes on after the call returns."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
