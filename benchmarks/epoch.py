"""What an epoch of MNIST costs beside a bare loop: forward, backward, SGD on floats that lie ready in memory.

    python benchmarks/epoch.py [--threads 1] [--rounds 60] [--json] [--out results/bench]

Ours is all that a step of a run does: rows in a new order cut out of bytes, augmentation, normalisation, the loop with
its checks, and SGHMC with a prior that adapts. What a run does between steps, now and then, is not in it: samples,
evaluations, the log and checkpoints. Candidates in between show where the rest goes. All candidates run in one process
and take turns, a step of each in every round, so that a machine whose speed drifts hurts them alike; every round begins
with another one, so that none always follows the same. Each is the median of its ratios to the bare step of the same
round. The control is the bare loop a second time: as far as it is from 1, no other number here means anything. 60
rounds are an epoch of 60,000 images. The images are random bytes.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
import torch.nn.functional as F

import spikeslab as ss
from spikeslab.paper.images import CNN
from spikeslab.paper.images.augmentation import NORMALIZE, Augment
from spikeslab.report.tables import Column, Provenance, Table
from spikeslab.training import TensorBatches, Training

ROWS, BATCH = 60_000, 1000
BARE = "bare loop: forward, backward, SGD on ready floats"

Step = Callable[[], None]
Times = dict[str, list[tuple[float, float]]]


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    return CNN().to(memory_format=torch.channels_last)


def sgd(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, foreach=True)


def sghmc_sa(model: torch.nn.Module) -> ss.SGHMC:
    prior = ss.SpikeSlab(
        ss.select_weights(model, "fc1.weight"),
        v0=0.05,
        v1=0.04,
        adapt=ss.SA(ss.polynomial(1.0, power=0.75, offset=1000)),
    )
    return ss.SGHMC(model.parameters(), lr=1e-3, momentum=0.9, num_data=ROWS, temperature=1e-3, prior=prior, seed=0)


def bare(x: torch.Tensor, y: torch.Tensor, optimizer_of: Callable[[torch.nn.Module], torch.optim.Optimizer]) -> Step:
    """The loop that anyone would write, on batches that are cut already."""
    model = network()
    optimizer, position = optimizer_of(model), 0

    def step() -> None:
        nonlocal position
        part = slice(position, position + BATCH)
        optimizer.zero_grad()
        F.cross_entropy(model(x[part]), y[part]).backward()
        optimizer.step()
        position = (position + BATCH) % ROWS

    return step


def looped(batches: TensorBatches) -> Step:
    """A step of our loop with SGHMC-SA."""
    model = network()
    training = Training(model, sghmc_sa(model), batches)
    return lambda: training.run(steps=training.steps + 1)


def candidates() -> dict[str, Step]:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (ROWS, 1, 28, 28), generator=generator, dtype=torch.uint8)
    labels = torch.randint(10, (ROWS,), generator=generator)
    normalize = NORMALIZE["mnist"]
    floats = normalize(images)

    def cut(transform: object) -> TensorBatches:
        return TensorBatches(images, labels, batch_size=BATCH, transform=transform)

    return {
        BARE: bare(floats, labels, sgd),
        "control: the bare loop again": bare(floats, labels, sgd),
        "the same with SGHMC-SA": bare(floats, labels, sghmc_sa),
        "our loop, batches cut from bytes": looped(cut(normalize)),
        "our loop, augmentation: all of a step": looped(cut(Augment("mnist"))),
    }


def measure(steps: dict[str, Step], rounds: int) -> Times:
    """Seconds of each step, on the clock and of the processor."""
    times: Times = {name: [] for name in steps}
    for step in steps.values():  # compiles what is compiled, once
        step()
    names = list(steps)
    for turn in range(rounds):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            wall, processor = time.perf_counter(), time.process_time()
            steps[name]()
            times[name].append((time.perf_counter() - wall, time.process_time() - processor))
    return times


def table(times: Times, threads: int) -> Table:
    def ratio(name: str, clock: int) -> float:
        return median(own[clock] / base[clock] for own, base in zip(times[name], times[BARE], strict=True))

    rows = [
        {
            "what": name,
            "ratio": ratio(name, 0),
            "processor": ratio(name, 1),
            "best": min(one[1] for one in taken) / min(one[1] for one in times[BARE]),
            "seconds": median(one[1] for one in taken) * ROWS / BATCH,
        }
        for name, taken in times.items()
    ]
    columns = [
        Column("what", ""),
        Column("ratio", "time", ".3f"),
        Column("processor", "CPU time", ".3f"),
        Column("best", "least CPU time", ".3f"),
        Column("seconds", "CPU s of an epoch", ".1f"),
    ]
    title = f"An epoch of MNIST, in units of a bare loop, {threads} thread{'s' if threads > 1 else ''}"
    notes = (
        f"2-Conv-2-FC CNN with 681,506 parameters, prior on 627,200, batch {BATCH}, channels last. Medians over "
        f"{len(times[BARE])} rounds, in which each takes one step in turn, of the ratio to the bare step of the same "
        "round; the last but one column has the ratio of the least times instead. The control is the same loop as the "
        "first: its distance from 1 is the error of the others. Samples, evaluations, log and checkpoints are no part "
        "of it.",
    )
    return Table(title, columns, rows, notes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=ROWS // BATCH)
    parser.add_argument("--json", action="store_true", help="print JSON instead of Markdown")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    warnings.simplefilter("ignore", ss.SpikeSlabWarning)
    ratios = table(measure(candidates(), arguments.rounds), arguments.threads)
    run = Provenance(f"python benchmarks/epoch.py --threads {arguments.threads} --rounds {arguments.rounds}", seed=0)
    print(ratios.json(run) if arguments.json else ratios.markdown())
    if arguments.out:
        arguments.out.mkdir(parents=True, exist_ok=True)
        ratios.write(arguments.out / "epoch", run)


if __name__ == "__main__":
    main()
