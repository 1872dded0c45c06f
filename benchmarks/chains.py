"""What many stacked chains cost beside one, and predictions of many samples beside one forward pass.

    python benchmarks/chains.py [--threads 1] [--repeats 9] [--out results/bench]

The network is that of the UCI regressions: 13 features, 50 hidden units, a batch of 50. All candidates run in one
process, in short turns, and each is given its best time of many: its CPU time, which a busy machine changes least.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

import spikeslab as ss
from spikeslab.likelihoods import StackedGaussianLikelihood
from spikeslab.models import MLP
from spikeslab.priors import StackedSpikeSlab
from spikeslab.report.tables import Column, Run, Table
from spikeslab.training.stacked import StackedModel

CHAINS, ROWS, FEATURES, NUM_DATA = 20, 50, 13, 455
PRIOR = {"v0": 0.1, "v1": 10.0, "sigma_coupling": "conjugate"}


def plain() -> nn.Module:
    """The same network without a stacked forward pass of its own."""
    return nn.Sequential(nn.Linear(FEATURES, 50), nn.ReLU(), nn.Linear(50, 1))


def one_chain(x: torch.Tensor, y: torch.Tensor) -> Callable[[], None]:
    model = MLP(FEATURES)
    prior = ss.SpikeSlab(ss.select_weights(model, "*.weight"), **PRIOR)
    likelihood = ss.GaussianLikelihood(prior)
    return training_step(model, prior, likelihood, x[0].clone(), y[0].clone(), fused=None)


def stacked_chains(build: Callable[[], nn.Module], x: torch.Tensor, y: torch.Tensor) -> Callable[[], None]:
    model = StackedModel([build() for _ in range(CHAINS)])
    prior = StackedSpikeSlab(ss.select_weights(model, "*.weight"), **PRIOR)
    return training_step(model, prior, StackedGaussianLikelihood(prior), x, y, fused=False)


def training_step(model, prior, likelihood, x, y, fused) -> Callable[[], None]:
    sampler = ss.SGHMC(model.parameters(), lr=1e-6, num_data=NUM_DATA, prior=prior, seed=0, fused=fused)

    def step() -> None:
        sampler.zero_grad()
        likelihood(model(x), y).backward()
        sampler.step()

    return step


def posterior_of(model: nn.Module, samples: int) -> ss.Posterior:
    posterior = ss.Posterior(model, link=lambda outputs: outputs)
    for _ in range(samples):
        for parameter in model.parameters():
            nn.init.normal_(parameter)
        posterior.collect()
    return posterior


def best_times(candidates: dict[str, Callable[[], object]], repeats: int, seconds: float) -> dict[str, float]:
    """Best mean time of each candidate over ``repeats`` rounds in turns, each of about ``seconds``."""
    counts = {}
    for name, run in candidates.items():
        run()
        start = time.process_time()
        run()
        counts[name] = max(1, round(seconds / (time.process_time() - start)))
    best = dict.fromkeys(candidates, float("inf"))
    for _ in range(repeats):
        for name, run in candidates.items():
            start = time.process_time()
            for _ in range(counts[name]):
                run()
            best[name] = min(best[name], (time.process_time() - start) / counts[name])
    return best


def measure(repeats: int) -> dict[str, tuple[float, float]]:
    """Time and ratio of each candidate."""
    torch.manual_seed(0)
    x, y = torch.randn(CHAINS, ROWS, FEATURES), torch.randn(CHAINS, ROWS, 1)
    steps = best_times(
        {
            "SGHMC-SA step, one chain": one_chain(x, y),
            f"SGHMC-SA step, {CHAINS} stacked chains, MLP": stacked_chains(lambda: MLP(FEATURES), x, y),
            f"SGHMC-SA step, {CHAINS} stacked chains, torch.vmap": stacked_chains(plain, x, y),
        },
        repeats,
        seconds=0.1,
    )
    results = ratios(steps)
    for rows in (ROWS, 1000):
        inputs, model = torch.randn(rows, FEATURES), MLP(FEATURES)
        posterior, single = posterior_of(MLP(FEATURES), CHAINS), posterior_of(MLP(FEATURES), 1)
        results |= ratios(
            best_times(
                {
                    f"one forward pass, {rows} rows": torch.no_grad()(lambda m=model, i=inputs: m(i)),
                    f"predict, 1 sample, {rows} rows": lambda p=single, i=inputs: p.predict(i),
                    f"predict, {CHAINS} samples, {rows} rows": lambda p=posterior, i=inputs: p.predict(i),
                },
                repeats,
                seconds=0.05,
            )
        )
    return results


def ratios(times: dict[str, float]) -> dict[str, tuple[float, float]]:
    first = next(iter(times.values()))
    return {name: (seconds, seconds / first) for name, seconds in times.items()}


def table(results: dict[str, tuple[float, float]], threads: int) -> Table:
    rows = [{"what": what, "time": 1e6 * seconds, "ratio": ratio} for what, (seconds, ratio) in results.items()]
    title = f"{CHAINS} chains and samples of the UCI network, {threads} thread{'s' if threads > 1 else ''}"
    notes = ["Each block is in units of its first row. CPU time, best of interleaved repeats in one process."]
    return Table(title, [Column("what", ""), Column("time", "µs", ".0f"), Column("ratio", "ratio", ".2f")], rows, notes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    measured = table(measure(arguments.repeats), arguments.threads)
    print(measured.markdown())
    if arguments.out:
        arguments.out.mkdir(parents=True, exist_ok=True)
        command = f"python benchmarks/chains.py --threads {arguments.threads} --repeats {arguments.repeats}"
        measured.write(arguments.out / f"chains-{arguments.threads}", Run(command, seed=0))


if __name__ == "__main__":
    main()
