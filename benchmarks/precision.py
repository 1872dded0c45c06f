"""What a training step of ResNet20 costs in bfloat16, and with the dense network as a teacher.

    python benchmarks/precision.py [--threads 1] [--rounds 30] [--out results/bench]

A step is that of `spikeslab compress`: our loop, forward, backward and SGHMC-SA, on a batch that lies ready. All
candidates run in one process and take turns. bfloat16 pays where the processor multiplies such numbers itself, and a
note says whether this one does. The images are random.
"""

from __future__ import annotations

import argparse
import copy
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import spikeslab as ss
from spikeslab.bench.timing import HOW, Plan, Times, measure
from spikeslab.compression.tasks import softened_divergence
from spikeslab.errors import pluralize
from spikeslab.paper.cifar10 import resnet20
from spikeslab.report.tables import Column, Provenance, Table
from spikeslab.training import Training

BATCH, ROWS, SECONDS = 128, 50_000, 0.5
FLOAT32 = "float32"

Loss = Callable[[nn.Module, tuple[Tensor, Tensor]], Tensor]


def alone(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def taught(dense: nn.Module) -> Loss:
    teacher = copy.deepcopy(dense).eval().requires_grad_(False)

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        x, y = batch
        logits = model(x)
        with torch.no_grad():
            told = teacher(x)
        return 0.8 * F.cross_entropy(logits, y) + 0.2 * softened_divergence(logits, told, 4.0)

    return loss


def step(precision: str, loss_of: Callable[[nn.Module], Loss]) -> Callable[[], object]:
    torch.manual_seed(0)
    model = resnet20().to(memory_format=torch.channels_last)
    x = torch.randn(BATCH, 3, 32, 32).contiguous(memory_format=torch.channels_last)
    prior = ss.SpikeSlab(
        ss.select_weights(model, "layer*.conv*.weight"), v0=0.005, v1=0.1, adapt=ss.SA(ss.schedules.constant(1e-4))
    )
    sampler = ss.SGHMC(model.parameters(), lr=1e-3, momentum=0.9, num_data=ROWS, temperature=1e-3, prior=prior, seed=0)
    batches = [(x, torch.randint(10, (BATCH,)))]
    training = Training(model, sampler, batches, loss_of(model), precision=precision)
    return lambda: training.run(steps=training.steps + 1)


def candidates() -> dict[str, Callable[[], object]]:
    return {
        FLOAT32: step("float32", lambda _: alone),
        "control: float32 again": step("float32", lambda _: alone),
        "bfloat16": step("bfloat16", lambda _: alone),
        "float32, taught": step("float32", taught),
        "bfloat16, taught": step("bfloat16", taught),
    }


def table(times: Times, plan: Plan) -> Table:
    rows = [
        {"what": name, "ratio": times.ratio(name, FLOAT32), "median": times.median_ratio(name, FLOAT32)}
        for name in times.seconds
    ]
    columns = [Column("what", ""), Column("ratio", "ratio", ".3f"), Column("median", "median", ".3f")]
    own = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    notes = (
        f"Batch {BATCH}, channels last. The processor {'multiplies' if own else 'does not multiply'} bfloat16 itself. "
        f"{HOW} The ratio is that of the least times, the median that of {pluralize(plan.repeats, 'round')}; the "
        "control is the same as the first, and its distance from 1 the error of the others.",
    )
    return Table(f"A training step of ResNet20, in units of float32, {plan.words}", columns, rows, notes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    warnings.simplefilter("ignore", ss.SpikeSlabWarning)
    plan = Plan(arguments.rounds, arguments.threads)
    ratios = table(measure(candidates(), plan, SECONDS), plan)
    print(ratios.markdown())
    if arguments.out:
        arguments.out.mkdir(parents=True, exist_ok=True)
        run = Provenance(
            f"python benchmarks/precision.py --threads {arguments.threads} --rounds {arguments.rounds}", seed=0
        )
        ratios.write(arguments.out / "precision", run)


if __name__ == "__main__":
    main()
