"""Scores for pruning: size, smoothed rho, saliency and odds, with and without regrowth, on held-out rows.

Size is also the score under the prior of saliency and odds, to tell the effect of the ranking from that of the prior.

All runs start from the same dense network, with SGHMC at temperature 0 and a ``SpikeSlab`` prior at its defaults. The
share of zeros among all parameters rises along a cubic until 60 % of the steps, with one ranking over all layers at
every fourth step, and the zeros are frozen after 70 %. Until then, zeros may come back in projected mode. Test rows are
not read.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from spikeslab.bench.compression.grid import LENET, MLP
from spikeslab.bench.compression.networks import (
    STUDY_NETWORKS,
    Batch,
    StudyData,
    StudyNetwork,
    load_problem,
    predict,
    train_dense,
)
from spikeslab.bench.compression.rivals import count_zeros, find_matrices
from spikeslab.bench.compression.scores import score_classes, score_regression
from spikeslab.bench.suites import BenchPlan, Findings
from spikeslab.likelihoods import GaussianLikelihood
from spikeslab.priors import SpikeSlab
from spikeslab.pruning import Pruner
from spikeslab.report.tables import Cell, Column, Estimate, Table
from spikeslab.samplers import SGHMC
from spikeslab.schedules import cosine, cubic_sparsity
from spikeslab.training.batches import repeat_epochs
from spikeslab.training.randomness import preserve_randomness, seed_everything

NETWORKS = (LENET, MLP)
SPARSITIES, QUICK_SPARSITIES = (0.95, 0.98), (0.5,)
SIZE, RHO, CURVED_SIZE, SALIENCY, ODDS = SCORES = ("size", "smoothed rho", "size, curvature prior", "saliency", "odds")
CURVED = (CURVED_SIZE, SALIENCY, ODDS)
"""Scores of the runs whose prior has ``evidence="curvature"``."""
PROJECTED, MASKED = "projected", "masked"
LR, WEIGHT_DECAY, MOMENTUM = 0.05, 5e-4, 0.9
EVERY, RISE, FREEZE = 4, 0.6, 0.7
"""Steps between two rankings; shares of the steps after which the sparsity stands and the zeros are frozen."""


class Run(NamedTuple):
    """One pruned network: what was run, its scores on held-out rows, and its zeros."""

    network: str
    sparsity: float
    score: str
    mode: str
    seed: int
    numbers: dict[str, float]
    zeros: int


class RhoRankPruner(Pruner):
    """Pruner that zeroes the weights with the smallest rho of the prior; equal ones go by size.

    With ``evidence="curvature"`` it ranks by the log odds, which tell weights apart whose rho is rounded to 1.
    """

    def _prune_in_memory(self) -> bool:
        return False

    def _importances(self) -> list[Tensor]:
        assert self._prior is not None
        sizes = [weight.detach().abs().double() for weight in self.weights.values()]
        tie = 1e-10 / max(float(size.max()) for size in sizes)  # far below the spacing of float32 near 1
        scores = zip((self._prior.log_odds or self._prior.rho).values(), sizes, strict=True)
        return [(score.double() + tie * size).masked_fill(size == 0, -torch.inf) for score, size in scores]


def run(plan: BenchPlan) -> Findings:
    """Prune each network with every score, with and without regrowth, for each of ``plan.repeats`` seeds."""
    found: list[Run] = []
    dense: list[Run] = []
    for seed in range(plan.seed, plan.seed + plan.repeats):
        for name in NETWORKS:
            network, data = load_problem(name, plan.study.data_dir, seed, plan.quick)
            model = train_dense(network, data, seed)
            dense.append(Run(name, 0.0, "dense", "", seed, score_held_out(network, data, model), count_zeros(model)))
            for sparsity in QUICK_SPARSITIES if plan.quick else SPARSITIES:
                for score, mode in itertools.product(SCORES, (PROJECTED, MASKED)):
                    found.append(prune(name, network, data, model, sparsity, score, mode, seed))
        plan.tick(1)
    return Findings({"evidence": tabulate(found, dense)})


def prune(
    name: str,
    network: StudyNetwork,
    data: StudyData,
    dense: nn.Module,
    sparsity: float,
    score: str,
    mode: str,
    seed: int,
) -> Run:
    """Prune a copy of a dense network to a share of zeros among all parameters, and score it on the held-out rows."""
    model = copy.deepcopy(dense).train()
    steps = network.epochs * len(data.train)
    loss, scale = choose_loss(network, data, dense)
    zeros = round(sparsity * sum(parameter.numel() for parameter in model.parameters()))
    matrices = {id(layer.weight) for layer in find_matrices(model, zeros)}
    weights = {key: parameter for key, parameter in model.named_parameters() if id(parameter) in matrices}
    evidence: dict[str, Any] = {"evidence": "curvature", "batch_size": data.train.batch_size}
    settings = evidence if score in CURVED else {}
    with preserve_randomness():
        seed_everything(seed)
        prior = SpikeSlab(weights, steps=steps, sigma_coupling="fixed", **settings)
        sampler = SGHMC(
            model.parameters(),
            lr=cosine(scale * LR, steps),
            momentum=MOMENTUM,
            num_data=len(data.train.tensors[0]),
            temperature=0.0,
            weight_decay=WEIGHT_DECAY,
            prior=prior,
            seed=seed,
        )
        pruner = (RhoRankPruner if score in (RHO, ODDS) else Pruner)(
            weights,
            cubic_sparsity(sparsity, total=round(RISE * steps)),
            scope="global",
            mode=mode,
            every=EVERY,
            freeze_at=round(FREEZE * steps),
            prior=prior,
            rank="saliency" if score == SALIENCY else "magnitude",
            network=model,
        )
        for batch in itertools.islice(repeat_epochs(data.train), steps):
            sampler.zero_grad()
            loss(model, batch).backward()
            sampler.step()
            pruner.step()
    return Run(name, sparsity, score, mode, seed, score_held_out(network, data, model), count_zeros(model))


def choose_loss(
    network: StudyNetwork, data: StudyData, dense: nn.Module
) -> tuple[Callable[[nn.Module, Batch], Tensor], float]:
    """Return a mean negative log-likelihood, and the factor of the lr with it.

    A regression has a normal law with the variance of the dense network's residuals on the training rows. Times twice
    that variance, an lr makes the same step as with the mean squared error.
    """
    if network.score != "rmse":
        return network.training_loss, 1.0
    x, y = data.train.tensors
    variance = score_regression(predict(dense, dense, [(x, y)]), y).numbers["rmse"] ** 2
    likelihood = GaussianLikelihood(math.sqrt(variance))
    return lambda model, batch: likelihood(model(batch[0]).squeeze(1), batch[1]), 2.0 * variance


def score_held_out(network: StudyNetwork, data: StudyData, model: nn.Module) -> dict[str, float]:
    """Return the scores on the held-out rows alone."""
    outputs, target = predict(model, model, data.held_out), torch.cat([y for _, y in data.held_out])
    if network.score == "rmse":
        return score_regression(outputs, target).numbers
    return score_classes(outputs.double().softmax(dim=1), target).numbers


def tabulate(found: Sequence[Run], dense: Sequence[Run]) -> Table:
    """Return means over seeds, and differences from size with regrowth, the default, paired by seed."""
    columns = [
        Column("network", "network"),
        Column("zeros", "zeros %", "g"),
        Column("score", "ranked by"),
        Column("regrowth", "regrowth"),
        Column("value", "accuracy % or RMSE, held out"),
        Column("difference", "against size with regrowth"),
        Column("nll", "NLL", ".4f"),
    ]
    rows: list[dict[str, Cell]] = []
    for name in dict.fromkeys(each.network for each in found):
        key, unit, spec = (
            ("accuracy", 100.0, ".2f") if STUDY_NETWORKS[name].score == "accuracy" else ("rmse", 1.0, ".4f")
        )

        def values(runs: Sequence[Run], key: str = key, unit: float = unit) -> list[float]:
            return [unit * each.numbers[key] for each in runs]

        own = [each for each in found if each.network == name]
        groups = {
            part: [each for each in own if each[1:4] == part] for part in dict.fromkeys(each[1:4] for each in own)
        }
        title, whole = STUDY_NETWORKS[name].title, [each for each in dense if each.network == name]
        nll = Estimate.of([each.numbers["nll"] for each in whole])
        empty: dict[str, Cell] = dict.fromkeys(("zeros", "regrowth", "difference"))
        value = format(Estimate.of(values(whole)), spec)
        rows.append({**empty, "network": title, "score": "dense", "value": value, "nll": nll})
        for (sparsity, score, mode), runs in groups.items():
            base = values(groups[sparsity, SIZE, PROJECTED])
            differences = [one - other for one, other in zip(values(runs), base, strict=True)]
            default = score == SIZE and mode == PROJECTED
            rows.append(
                {
                    "network": title,
                    "zeros": 100.0 * sparsity,
                    "score": score,
                    "regrowth": "yes" if mode == PROJECTED else "no",
                    "value": format(Estimate.of(values(runs)), spec),
                    "difference": None if default else format(Estimate.of(differences), f"+{spec}"),
                    "nll": Estimate.of([each.numbers["nll"] for each in runs]),
                }
            )
    notes = [
        "Mean and standard error over seeds, on rows that are neither trained on nor in the test set; differences are "
        "paired by seed. All runs have SGHMC at temperature 0 with a cosine lr from 0.05, the prior at its defaults "
        "and the same exact number of zeros among all parameters. *size* is |w|, *smoothed rho* eq. 12 averaged along "
        'the chain; *saliency* is `Pruner(rank="saliency")` with `SpikeSlab(evidence="curvature")`, *odds* are the log '
        "odds of that prior, and *size, curvature prior* is |w| under it. Without regrowth a zero stays zero; with it, "
        "it may come back until 70 % of the steps.",
    ]
    raw = [each._asdict() for each in (*dense, *found)]
    return Table("Pruning by size, smoothed rho, saliency and odds of inclusion", columns, rows, notes, {"runs": raw})
