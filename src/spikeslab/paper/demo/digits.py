"""Digits of the demo: train a small CNN, then sample it with SGHMC-SA while it is pruned to 90 %.

Dense training is SGHMC at temperature 0, which is SGD with momentum. The chain then starts from the dense network, with
a spike-and-slab prior on its two large layers, while the pruner sets more and more of the smallest weights to zero;
they may come back. At the target the mask is frozen, so that all samples of the posterior share it. The settings were
chosen on the validation split; the test split gives the final numbers only.
"""

from __future__ import annotations

import copy
import gzip
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from safetensors.torch import save
from torch import Tensor, nn

from spikeslab.metrics import accuracy, expected_calibration_error, negative_log_likelihood
from spikeslab.paper.demo.data import Digits, DigitsCNN
from spikeslab.posterior import Posterior
from spikeslab.priors import SA, SpikeSlab
from spikeslab.pruning import Pruner
from spikeslab.report.tables import Column, Table
from spikeslab.samplers import SGHMC
from spikeslab.schedules import cosine, cubic_sparsity, polynomial
from spikeslab.training import Callback, Collect, Prune, TensorBatches, Training
from spikeslab.weights import select_weights

REPORT_EVERY = 10


@dataclass(frozen=True)
class DigitsPreset:
    """Settings of the digits experiment, chosen on the validation split.

    Dense training has an lr that falls from ``dense_lr`` to zero along a cosine. The sparsity, a share of the whole
    network, rises over ``prune_steps``; then the mask is frozen and ``samples`` are spread over ``collect_steps``.
    Weight decay acts on what the prior does not cover, and on all weights in dense training.
    """

    sparsity: float = 0.9
    batch_size: int = 64
    dense_steps: int = 640
    dense_lr: float = 0.1
    prune_steps: int = 480
    collect_steps: int = 640
    samples: int = 8
    lr: float = 0.05
    temperature: float = 0.01
    v0: float = 0.005
    v1: float = 1.0
    weight_decay: float = 1e-3

    @property
    def steps(self) -> int:
        """Steps of all three phases."""
        return self.dense_steps + self.prune_steps + self.collect_steps

    def at_most(self, steps: int) -> DigitsPreset:
        """Return the settings with no phase longer than ``steps``."""
        phases = ("dense_steps", "prune_steps", "collect_steps")
        return replace(self, **{name: min(getattr(self, name), steps) for name in phases})


@dataclass(frozen=True)
class DigitsResult:
    """Dense network, sparse network or posterior average, with its probabilities of the test rows.

    Non-zero parameters are counted in all its networks; ``size`` is the bytes of their gzipped safetensors files.
    """

    name: str
    probabilities: Tensor
    nonzeros: int
    size: int


def run_digits(
    data: Digits, settings: DigitsPreset, *, seed: int = 0, progress: Callable[[int], None] = lambda steps: None
) -> list[DigitsResult]:
    """Train, prune and sample; return the dense network, the last sparse sample and the posterior average.

    ``progress`` is called now and then with the number of steps taken since the last call.
    """
    dense = train_dense(data, settings, seed, ReportSteps(progress))
    model = copy.deepcopy(dense)
    posterior = sample_sparse(model, data, settings, seed, ReportSteps(progress))
    members = [posterior.tensors(index) for index in range(len(posterior))]
    return [
        DigitsResult("dense", _predict(dense, data.x_test), *_footprint([dense.state_dict()])),
        DigitsResult("sparse, last sample", _predict(model, data.x_test), *_footprint([model.state_dict()])),
        DigitsResult(f"sparse, average of {len(members)}", posterior.predict(data.x_test), *_footprint(members)),
    ]


def train_dense(data: Digits, settings: DigitsPreset, seed: int, report: Callback) -> DigitsCNN:
    """Train from scratch with momentum, no noise and no prior."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = DigitsCNN()
    sampler = SGHMC(
        model.parameters(),
        lr=cosine(settings.dense_lr, total=settings.dense_steps),
        num_data=len(data.x_train),
        temperature=0.0,
        weight_decay=settings.weight_decay,
    )
    batches = TensorBatches(data.x_train, data.y_train, batch_size=settings.batch_size, seed=seed)
    Training(model, sampler, batches, callbacks=[report]).run(steps=settings.dense_steps)
    return model


def sample_sparse(model: nn.Module, data: Digits, settings: DigitsPreset, seed: int, report: Callback) -> Posterior:
    """Sample ``model`` with SGHMC-SA while it is pruned, then freeze the mask and collect the posterior."""
    weights = select_weights(model, "conv2.weight", "fc1.weight")
    prior = SpikeSlab(
        weights,
        v0=settings.v0,
        v1=settings.v1,
        delta=1.0 - settings.sparsity,
        b=1.0,
        rho=1.0,  # all weights start in the slab; SA moves the small ones to the spike
        sigma_coupling="fixed",
        adapt=SA(polynomial(1.0, power=0.75, offset=1000)),
    )
    sampler = SGHMC(
        model.parameters(),
        lr=settings.lr,
        num_data=len(data.x_train),
        temperature=settings.temperature,
        weight_decay=settings.weight_decay,
        prior=prior,
        seed=seed,
    )
    pruner = Pruner(weights, cubic_sparsity(settings.sparsity, total=settings.prune_steps), network=model)
    thin = max(1, settings.collect_steps // settings.samples)
    posterior = Posterior(model, burn_in=settings.prune_steps, thin=thin)
    batches = TensorBatches(data.x_train, data.y_train, batch_size=settings.batch_size, seed=seed + 1)
    callbacks = [Prune(pruner, freeze_at=settings.prune_steps), Collect(posterior), report]
    Training(model, sampler, batches, callbacks=callbacks).run(steps=settings.prune_steps + settings.collect_steps)
    return posterior


class ReportSteps(Callback):
    """Callback that reports progress every few steps."""

    def __init__(self, progress: Callable[[int], None]) -> None:
        self.progress = progress

    def after_step(self, run: Training) -> None:
        """Report the steps since the last report."""
        if run.steps % REPORT_EVERY == 0:
            self.progress(REPORT_EVERY)


@torch.no_grad()
def _predict(model: nn.Module, x: Tensor) -> Tensor:
    probabilities: Tensor = model(x).softmax(dim=1)
    return probabilities


def _footprint(networks: Sequence[dict[str, Tensor]]) -> tuple[int, int]:
    """Return the number of non-zero parameters, and the bytes as gzipped safetensors files."""
    nonzeros = sum(int(tensor.count_nonzero()) for tensors in networks for tensor in tensors.values())
    return nonzeros, sum(len(gzip.compress(save(tensors), mtime=0)) for tensors in networks)


def digits_table(data: Digits, results: Sequence[DigitsResult], settings: DigitsPreset) -> Table:
    """Return a table of accuracy, calibration and size of the three."""
    y = data.y_test
    return Table.build(
        f"Digits, a CNN pruned to {settings.sparsity:.0%}",
        results,
        {
            Column("model", "Model"): lambda own: own.name,
            Column("accuracy", "accuracy %", ".1f"): lambda own: 100.0 * accuracy(own.probabilities, y),
            Column("nll", "NLL", ".3f"): lambda own: negative_log_likelihood(own.probabilities, y),
            Column("ece", "ECE %", ".1f"): lambda own: 100.0 * expected_calibration_error(own.probabilities, y),
            Column("nonzeros", "non-zeros", ","): lambda own: own.nonzeros,
            Column("kilobytes", "size kB", ".0f"): lambda own: own.size / 1000.0,
        },
        notes=[
            f"{len(data.y_test)} test images, one of which is {100 / len(data.y_test):.2f} points of accuracy. "
            "Sparsity counts all parameters of the network. The size is that of gzipped safetensors files; for the "
            "average it is that of all samples together, which share one mask."
        ],
    )
