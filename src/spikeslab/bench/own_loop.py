"""The loop of the README, copied with other networks and data: with the prior, with a pruner alone, and dense.

Networks start from random weights. All three have the same epochs, batches and learning rates; the pruner alone is
gradual magnitude pruning with SGD.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor
from torch.nn import functional as F

from spikeslab.bench.compression.grid import LENET, MLP
from spikeslab.bench.compression.networks import StudyData, StudyNetwork, load_problem
from spikeslab.bench.compression.scores import score_network, score_posterior
from spikeslab.bench.suites import BenchPlan, Findings
from spikeslab.likelihoods import GaussianLikelihood
from spikeslab.posterior import Posterior
from spikeslab.posterior.prediction import identity, probabilities
from spikeslab.priors import SpikeSlab
from spikeslab.pruning import Pruner
from spikeslab.report.tables import Cell, Column, Estimate, Table
from spikeslab.samplers import SGHMC
from spikeslab.schedules import cosine, cubic_sparsity
from spikeslab.training.randomness import preserve_randomness, seed_everything
from spikeslab.weights import select_weights

OURS, GMP, DENSE = KINDS = ("prior and pruner", "pruner alone", "dense")
NETWORKS = (LENET, MLP)
EPOCHS, LR, FINAL_LR, SPARSITY = {LENET: 10, MLP: 40}, 0.05, 0.005, 0.9
WEIGHT_DECAY, TEMPERATURE = 5e-4, 1e-3


class LoopResult(NamedTuple):
    """Scores of the last network, and of the posterior average if there is one."""

    single: dict[str, float]
    average: dict[str, float]


def run(plan: BenchPlan) -> Findings:
    """Run the loops of all networks for each seed, and tabulate their scores on the test rows."""
    found: dict[tuple[str, str], list[LoopResult]] = {}
    for seed in range(plan.seed, plan.seed + plan.repeats):
        for name in NETWORKS:
            network, data = load_problem(name, plan.study.data_dir, seed, plan.quick)
            epochs = 2 if plan.quick else EPOCHS[name]
            for kind in KINDS:
                found.setdefault((name, kind), []).append(run_loop(network, data, kind, epochs, seed))
        plan.tick(1)
    return Findings({"own-loop": tabulate(found, plan)})


def run_loop(network: StudyNetwork, data: StudyData, kind: str, epochs: int, seed: int) -> LoopResult:
    """Run the loop of the README, or what is left of it without the prior or the pruner."""
    with preserve_randomness():
        seed_everything(seed)
        model, loader = network.build(), data.train
        steps = epochs * len(loader)
        start, final = steps // 5, 6 * steps // 10
        weights = select_weights(model, "*.weight")
        prior = SpikeSlab(weights, steps=steps) if kind == OURS else None
        sampler = SGHMC(
            model.parameters(),
            lr=cosine(LR, steps, FINAL_LR),
            num_data=loader.rows,
            temperature=TEMPERATURE if kind == OURS else 0.0,
            prior=prior,
            weight_decay=WEIGHT_DECAY,
            seed=seed,
        )
        ramp = cubic_sparsity(SPARSITY, final, start)
        pruner = None if kind == DENSE else Pruner(weights, ramp, scope="global", freeze_at=final, prior=prior)
        regression = network.score == "rmse"
        posterior = Posterior(
            model, 3 * steps // 4, max(1, steps // 60), link=identity if regression else probabilities
        )
        loss = _make_loss(network, prior)
        for epoch in range(epochs):
            for batch in loader.epoch(epoch):
                x, y = batch
                sampler.zero_grad()
                output = model(x)
                loss(output.squeeze(1) if regression else output, y).backward()
                sampler.step()
                if pruner is not None:
                    pruner.step()
                posterior.collect()
        model.eval()
        return LoopResult(
            score_network(network, data, model).numbers, score_posterior(network, data, posterior).numbers
        )


def _make_loss(network: StudyNetwork, prior: SpikeSlab | None) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the cross-entropy, or for a regression the Gaussian likelihood, whose sigma stays 1 without a prior."""
    if network.score != "rmse":
        return F.cross_entropy
    return GaussianLikelihood(1.0 if prior is None else prior)


def tabulate(found: dict[tuple[str, str], list[LoopResult]], plan: BenchPlan) -> Table:
    """Return a row for each network and kind, with paired differences from the pruner alone."""
    columns = [
        Column("network", "network"),
        Column("kind", "loop with"),
        Column("single", "last network", ".4g"),
        Column("average", "posterior average", ".4g"),
        Column("difference", "average minus pruner alone", "+.3g"),
        Column("nll", "NLL of the average", ".4f"),
    ]
    rows: list[dict[str, Cell]] = []
    raw: dict[str, Any] = {}
    for (name, kind), results in found.items():
        score, scale = ("accuracy", 100.0) if name == LENET else ("rmse", 1.0)
        singles = [scale * each.single[score] for each in results]
        averages = [scale * each.average[score] for each in results]
        base = [scale * each.single[score] for each in found[name, GMP]]
        differences = None if kind != OURS else [a - b for a, b in zip(averages, base, strict=True)]
        rows.append(
            {
                "network": f"{name}, {'accuracy, %' if name == LENET else 'RMSE'}",
                "kind": kind,
                "single": Estimate.of(singles),
                "average": Estimate.of(averages),
                "difference": None if differences is None else Estimate.of(differences),
                "nll": Estimate.of([each.average["nll"] for each in results]),
            }
        )
        raw[f"{name}, {kind}"] = [each._asdict() for each in results]
    note = (
        f"{SPARSITY:.0%} zeros among the weights, {plan.repeats} seeds, from random weights: LeNet-5 on 12,000 images "
        f"of Fashion-MNIST, {EPOCHS[LENET]} epochs; a perceptron on bike rentals, {EPOCHS[MLP]} epochs. lr {LR:g} to "
        f"{FINAL_LR:g}, weight decay {WEIGHT_DECAY:g}, temperature {TEMPERATURE:g} with the prior and 0 without. Test "
        "rows; the difference is of the posterior average from the last network of the pruner alone, paired over seeds."
    )
    return Table("The loop of the README on other networks", columns, rows, [note], {"scores": raw})
