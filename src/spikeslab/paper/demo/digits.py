"""Digits of the demo: train a small CNN, then sample it with SGHMC-SA while it is pruned to 90 %.

Dense training is SGHMC at temperature 0, which is SGD with momentum. The chain then starts from the dense network, with
a spike-and-slab prior on its two large layers, while the pruner sets more and more of the smallest weights to zero;
they may come back. At the target the mask is frozen, so that all samples of the posterior share it.
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
    """Hyper-parameters of the digits, chosen on the validation split; the test split gives the final numbers only.

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
        """Return the preset with no phase longer than ``steps``."""
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
    data: Digits, preset: DigitsPreset, *, seed: int = 0, progress: Callable[[int], None] = lambda steps: None
) -> list[DigitsResult]:
    """Train, prune and sample; return the dense network, the last sparse sample and the posterior average.

    ``progress`` is called now and then with the number of steps taken since the last call.
    """
    dense = train_dense(data, preset, seed, progress)
    model = copy.deepcopy(dense)
    posterior = sample_sparse(model, data, preset, seed, progress)
    members = [posterior.tensors(index) for index in range(len(posterior))]
    with torch.no_grad():
        probabilities = [network(data.x_test).softmax(dim=1) for network in (dense, model)]
    return [
        DigitsResult("dense", probabilities[0], *_footprint([dense.state_dict()])),
        DigitsResult("sparse, last sample", probabilities[1], *_footprint([model.state_dict()])),
        DigitsResult(f"sparse, average of {len(members)}", posterior.predict(data.x_test), *_footprint(members)),
    ]


def train_dense(
    data: Digits, preset: DigitsPreset, seed: int, progress: Callable[[int], None] = lambda steps: None
) -> DigitsCNN:
    """Train from scratch with momentum, no noise and no prior."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = DigitsCNN()
    lr, rows = cosine(preset.dense_lr, total=preset.dense_steps), len(data.x_train)
    sampler = SGHMC(model.parameters(), lr=lr, num_data=rows, temperature=0.0, weight_decay=preset.weight_decay)
    batches = TensorBatches(data.x_train, data.y_train, batch_size=preset.batch_size, seed=seed)
    Training(model, sampler, batches, callbacks=[ShowSteps(progress)]).run(steps=preset.dense_steps)
    return model


def sample_sparse(
    model: nn.Module, data: Digits, preset: DigitsPreset, seed: int, progress: Callable[[int], None]
) -> Posterior:
    """Sample ``model`` with SGHMC-SA while it is pruned, then freeze the mask and collect the posterior."""
    weights = select_weights(model, "conv2.weight", "fc1.weight")
    prior = SpikeSlab(
        weights,
        v0=preset.v0,
        v1=preset.v1,
        delta=1.0 - preset.sparsity,
        b=1.0,
        rho=1.0,  # all weights start in the slab; SA moves the small ones to the spike
        sigma_coupling="fixed",
        adapt=SA(polynomial(1.0, power=0.75, offset=1000)),
    )
    sampler = SGHMC(
        model.parameters(),
        lr=preset.lr,
        num_data=len(data.x_train),
        temperature=preset.temperature,
        weight_decay=preset.weight_decay,
        prior=prior,
        seed=seed,
    )
    ramp = cubic_sparsity(preset.sparsity, total=preset.prune_steps)
    pruner = Pruner(weights, ramp, network=model, freeze_at=preset.prune_steps)
    thin = max(1, preset.collect_steps // preset.samples)
    posterior = Posterior(model, burn_in=preset.prune_steps, thin=thin)
    batches = TensorBatches(data.x_train, data.y_train, batch_size=preset.batch_size, seed=seed + 1)
    callbacks = [Prune(pruner), Collect(posterior), ShowSteps(progress)]
    Training(model, sampler, batches, callbacks=callbacks).run(steps=preset.prune_steps + preset.collect_steps)
    return posterior


@dataclass
class ShowSteps(Callback):
    """Callback that reports progress every few steps."""

    progress: Callable[[int], None]

    def after_step(self, run: Training) -> None:
        """Report the steps since the last report."""
        if run.steps % REPORT_EVERY == 0:
            self.progress(REPORT_EVERY)


def _footprint(networks: Sequence[dict[str, Tensor]]) -> tuple[int, int]:
    """Return the number of non-zero parameters, and the bytes as gzipped safetensors files."""
    nonzeros = sum(int(tensor.count_nonzero()) for tensors in networks for tensor in tensors.values())
    return nonzeros, sum(len(gzip.compress(save(tensors), mtime=0)) for tensors in networks)


def digits_table(data: Digits, results: Sequence[DigitsResult], preset: DigitsPreset) -> Table:
    """Return a table of accuracy, calibration and size of the three."""
    y = data.y_test
    return Table.build(
        f"Digits, a CNN pruned to {preset.sparsity:.0%}",
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
