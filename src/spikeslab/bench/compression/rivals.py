"""Methods of the study: ``compress``, torch's pruning with fine-tuning, and torchao's pruning-aware training.

All start from the same dense network, see the same batches in the same order for the same number of epochs, and end on
the same number of zeros, a share of all parameters. ``compress`` chooses the weights that it prunes; the others prune
the weights of all convolutions and linear layers, ranked together.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import prune

from spikeslab.bench.compression.grid import BUDGET, GMP, L2, LASSO, OURS, PAT, TORCH_PRUNE, Setting
from spikeslab.bench.compression.networks import (
    Batch,
    StudyData,
    StudyNetwork,
    cosine_factor,
    make_optimizer,
)
from spikeslab.compression import Settings, compress
from spikeslab.errors import ArgumentValueError, MissingExtraError
from spikeslab.posterior import Posterior
from spikeslab.training.batches import repeat_epochs
from spikeslab.training.loop import FLOAT32, autocast
from spikeslab.training.randomness import preserve_randomness, seed_everything

ROUNDS = 4
"""Rounds of torch's pruning, each with a quarter of the epochs."""
SGD_LR, ADAM_LR = 0.01, 1e-3
PAT_LR, PAT_DECAY, PAT_LAMBDA, PAT_WARMUP = 0.1, 1e-4, 2e-4, 10
"""Settings of the example in the README of ``torchao.prototype.pat``."""
HEAL_FROM = 0.75
"""Share of the steps after which the zeros of pruning-aware training are final."""


class Outcome(NamedTuple):
    """Sparse network, its posterior if there is one, and the settings that it was made with."""

    model: nn.Module
    posterior: Posterior | None
    settings: dict[str, Any]


class Assignment(NamedTuple):
    """Input of a method: the dense network, its data, the number of zeros, and changes of its defaults."""

    network: StudyNetwork
    data: StudyData
    dense: nn.Module
    sparsity: float
    seed: int
    setting: Setting

    @property
    def zeros(self) -> int:
        """Zeros among all parameters."""
        return round(self.sparsity * sum(parameter.numel() for parameter in self.dense.parameters()))

    @property
    def steps(self) -> int:
        """Steps of every method."""
        return self.network.epochs * len(self.data.train)


def count_zeros(model: nn.Module) -> int:
    """Return the number of parameters that are zero."""
    return sum(parameter.numel() - int(parameter.count_nonzero()) for parameter in model.parameters())


def find_matrices(model: nn.Module, zeros: int) -> list[nn.Linear | nn.Conv2d]:
    """Return the convolutions and linear layers, whose weights may become zero.

    Raises:
        ArgumentValueError: If there are not as many weights as zeros are wanted.
    """
    layers = [module for module in model.modules() if isinstance(module, nn.Linear | nn.Conv2d)]
    weights = sum(layer.weight.numel() for layer in layers)
    if zeros >= weights:
        highest = weights / sum(parameter.numel() for parameter in model.parameters())
        raise ArgumentValueError("sparsities", f"must be numbers below {highest:.4f} here", zeros)
    return layers


def _compress(method: str | None, task: Assignment) -> Outcome:
    setting = dict(task.setting)
    changes: dict[str, Any] = {} if method is None else {"method": method}
    if "lr" in setting:
        changes["lr"] = setting.pop("lr")
    if task.network.precision != FLOAT32:
        setting["precision"] = task.network.precision
    if setting:
        changes["settings"] = Settings(**setting)  # type: ignore[arg-type]
    if task.network.loss is not None:
        changes["loss"] = task.network.loss
    result = compress(
        task.dense,
        task.data.train,
        task.data.held_out,
        sparsity=task.sparsity,
        epochs=task.network.epochs,
        seed=task.seed,
        progress=False,
        report=False,
        **changes,
    )
    return Outcome(result.model, result.posterior, {"method": result.report["method"], **result.report["settings"]})


def compress_by_default(task: Assignment) -> Outcome:
    """Call ``compress(model, loader, val_loader, sparsity=, epochs=)``, with a loss if the network has its own."""
    return _compress(None, task)


def prune_gradually(task: Assignment) -> Outcome:
    """Call ``compress`` with ``method="gmp"``; its only network counts, as that of any gradual pruning."""
    return _compress("gmp", task)._replace(posterior=None)


def penalise(task: Assignment) -> Outcome:
    """Call ``compress`` with ``method="l2"``, one fixed strength."""
    return _compress("l2", task)._replace(posterior=None)


def prune_in_rounds(task: Assignment) -> Outcome:
    """Prune the smallest weights of all layers by ``torch.nn.utils.prune``, in rounds with fine-tuning after each.

    Every round leaves the same share of what the one before left.
    """
    setting = {"lr": ADAM_LR if task.network.adam else SGD_LR, "schedule": "constant", **task.setting}
    model = copy.deepcopy(task.dense).train()
    layers = [(layer, "weight") for layer in find_matrices(model, task.zeros)]
    weights = sum(layer.weight.numel() for layer, _ in layers)
    left = 1.0 - task.zeros / weights
    targets = [round(weights * (1.0 - left ** (number / ROUNDS))) for number in range(1, ROUNDS)] + [task.zeros]
    ends = [task.steps * number // ROUNDS for number in range(ROUNDS + 1)]
    batches = repeat_epochs(task.data.train)
    for before, zeros, (begin, end) in zip([0, *targets], targets, itertools.pairwise(ends), strict=False):
        prune.global_unstructured(layers, pruning_method=prune.L1Unstructured, amount=zeros - before)
        optimizer = make_optimizer(task.network, model.parameters(), float(setting["lr"]), 0.0)
        for step, batch in enumerate(itertools.islice(batches, end - begin)):
            if setting["schedule"] == "cosine":
                for group in optimizer.param_groups:
                    group["lr"] = float(setting["lr"]) * cosine_factor(step, end - begin)
            _step(task, model, optimizer, batch)
    for layer, name in layers:
        prune.remove(layer, name)
    return Outcome(model.eval(), None, {"rounds": ROUNDS, **setting})


def train_proximally(task: Assignment) -> Outcome:
    """Train with ``torchao.prototype.pat``: a proximal map after each step of SGD or AdamW, then frozen zeros.

    With ``prox="lasso"`` the map is the soft threshold of each weight, with the settings of the example in its README;
    with ``"budget"`` it keeps the largest weights of all layers, as many as a cubic schedule says. After three quarters
    of the steps the smallest weights are cut to the exact number of zeros, and the rest is trained on ("healing").

    Raises:
        MissingExtraError: If torchao is not installed.
    """
    optimizer_class = import_pat()
    defaults: Setting = {"lr": ADAM_LR if task.network.adam else PAT_LR, "prox": LASSO, "reg_lambda": PAT_LAMBDA}
    setting = {**defaults, **task.setting}
    model = copy.deepcopy(task.dense).train()
    weights = [layer.weight for layer in find_matrices(model, task.zeros)]
    chosen = {id(weight) for weight in weights}
    pruned: dict[str, Any] = {"params": weights, "group_type": "ElemGrouper", "prox_type": "ProxLasso"}
    if setting["prox"] == BUDGET:
        share = task.zeros / sum(weight.numel() for weight in weights)
        budget = {"min_sparsity": share, "min_sparsity_schedule": True}
        names = {"group_type": "KElementGrouper", "prox_type": "GlobalMinSparsityConstraint"}
        pruned |= {**names, "k": 1, **budget}
    groups = [pruned, {"params": [each for each in model.parameters() if id(each) not in chosen]}]
    base = make_optimizer(task.network, groups, float(setting["lr"]), PAT_DECAY)
    healing = max(2, round(HEAL_FROM * task.steps))
    warmup = min(PAT_WARMUP, healing - 1)
    optimizer = optimizer_class(base, warmup, healing, float(setting["reg_lambda"]))
    for step, batch in enumerate(itertools.islice(repeat_epochs(task.data.train), task.steps), start=1):
        _step(task, model, optimizer, batch)
        if step == healing:
            cut_exactly(weights, [optimizer.state[weight]["latent"] for weight in weights], task.zeros)
    facts = {"warmup_steps": warmup, "healing_start_step": healing, "weight_decay": PAT_DECAY, "momentum": 0.9}
    return Outcome(model.eval(), None, {**setting, **facts})


@torch.no_grad()
def cut_exactly(weights: list[Tensor], latents: list[Tensor], zeros: int) -> None:
    """Set the weights with the smallest latents to zero, as many as ``zeros``; others that are zero take their latent.

    >>> weight = torch.tensor([0.0, 0.0, 0.5, -1.0])
    >>> cut_exactly([weight], [torch.tensor([0.1, -0.2, 0.6, -1.1])], zeros=1)
    >>> weight
    tensor([ 0.0000, -0.2000,  0.5000, -1.0000])
    """
    sizes = torch.cat([latent.abs().flatten() for latent in latents])
    keep = torch.ones(len(sizes), dtype=torch.bool)
    keep[sizes.argsort(stable=True)[:zeros]] = False
    for weight, latent, kept in zip(weights, latents, keep.split([each.numel() for each in weights]), strict=True):
        value = torch.where(weight == 0.0, latent, weight)
        weight.copy_(value.masked_fill(~kept.view_as(weight), 0.0))


def import_pat() -> Callable[..., torch.optim.Optimizer]:
    """Return the optimizer of torchao's pruning-aware training.

    Raises:
        MissingExtraError: If torchao is not installed, or has no such part.
    """
    try:
        from torchao.prototype.pat.optim import PruneOptimizer
    except ImportError as error:
        raise MissingExtraError(
            "The method pat needs torchao with torchao.prototype.pat: pip install 'spikeslab[bench]'."
        ) from error
    optimizer: Callable[..., torch.optim.Optimizer] = PruneOptimizer
    return optimizer


def _step(task: Assignment, model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch) -> None:
    optimizer.zero_grad()
    with autocast(model, task.network.precision):
        loss = task.network.training_loss(model, batch)
    loss.backward()
    optimizer.step()


RUNNERS: dict[str, Callable[[Assignment], Outcome]] = {
    OURS: compress_by_default,
    GMP: prune_gradually,
    TORCH_PRUNE: prune_in_rounds,
    L2: penalise,
    PAT: train_proximally,
}


def run_method(method: str, task: Assignment) -> Outcome:
    """Run a method with a seed; the global generators are afterwards as they were."""
    with preserve_randomness():
        seed_everything(task.seed)
        return RUNNERS[method](task)
