"""Hugging Face: a callback for ``Trainer`` that prunes, collects and saves samples, and a sampler for any model.

.. code-block:: python

    sampler = create_optimizer(model, num_data=len(train), steps=steps, lr=0.02, temperature=1e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(sampler, steps, eta_min=0.002)  # the default ends at 0
    pruner = ss.Pruner(sampler.prior.weights, ss.cubic_sparsity(0.8, steps // 2), freeze_at=steps // 2)
    posterior = ss.Posterior(model, burn_in=3 * steps // 4, thin=50)
    trainer = Trainer(
        model,
        TrainingArguments(max_grad_norm=0.0, ...),  # clipped gradients are not those of the posterior
        train_dataset=train,
        optimizers=(sampler, scheduler),
        callbacks=[SpikeSlabTrainerCallback(pruner, posterior)],
    )
    trainer.train()
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer

from spikeslab.compression.layers import Chosen, weight_names
from spikeslab.errors import ArgumentValueError, MissingExtraError, Phrase, check_count, mark
from spikeslab.integrations._chain import AnyPruner, Evaluate, ForeignChain
from spikeslab.posterior import Posterior
from spikeslab.priors import SpikeSlab
from spikeslab.priors.base import Prior
from spikeslab.samplers import SGHMC
from spikeslab.samplers.base import Sampler
from spikeslab.training.checkpoints import Checkpoints

try:
    from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
except ImportError as error:
    raise MissingExtraError(
        "spikeslab.integrations.huggingface needs transformers: pip install 'spikeslab[huggingface]'."
    ) from error

FOLDER = "spikeslab"
"""Folder of the samples in a checkpoint of the trainer."""


def create_optimizer(
    model: nn.Module,
    *,
    num_data: int,
    steps: int,
    lr: float,
    weight_decay: float = 0.0,
    weights: Chosen = None,
    prior: Callable[..., Prior] | None = SpikeSlab,
    sampler: Callable[..., Sampler] = SGHMC,
    **options: Any,
) -> Sampler:
    """Return a sampler of all trained parameters, with a prior on the matrices of the layers.

    As in the optimizers of Hugging Face, biases and the parameters of normalisations have no weight decay.

    >>> model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 2))
    >>> sampler = create_optimizer(model, num_data=1000, steps=500, lr=0.01, weight_decay=1e-3)
    >>> list(sampler.prior.weights), [len(group["params"]) for group in sampler.param_groups]
    (['0.weight', '2.weight'], [2, 4])

    Args:
        model: The model.
        num_data: Number of training examples.
        steps: Steps of the run, over which the prior learns its latents.
        lr: Learning rate, in units of SGD.
        weight_decay: Weight decay of the matrices that have no prior, such as embeddings.
        weights: Weights under the prior, as for :func:`~spikeslab.compress`.
        prior: Class of the prior, or a function from the weights by name and ``steps=`` to a prior; ``None`` for none.
        sampler: Class of the sampler.
        **options: Further arguments of the sampler, such as ``temperature`` and ``momentum``.
    """
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    groups = [
        {"params": [p for p in parameters.values() if p.ndim > 1], "weight_decay": weight_decay},
        {"params": [p for p in parameters.values() if p.ndim < 2], "weight_decay": 0.0},
    ]
    own = None
    if prior is not None:
        own = prior(
            {name: parameters[name] for name in weight_names(model, weights)}, steps=check_count("steps", steps)
        )
    return sampler([group for group in groups if group["params"]], lr=lr, num_data=num_data, prior=own, **options)


class SpikeSlabTrainerCallback(TrainerCallback):
    """Callback of ``transformers.Trainer`` for a sampler among its ``optimizers``.

    After every step of the sampler it prunes and collects; accumulated gradients make one step. An evaluation of the
    trainer gets sparsity, the number of samples and, once there are any, ``eval_posterior_accuracy`` and so on. Every
    checkpoint holds the state of the pruner and all samples in the folder ``spikeslab``, as safetensors and JSON, and
    ``train(resume_from_checkpoint=...)`` continues with them.

    Args:
        pruner: Pruner of weights of the model, or ``None``.
        posterior: Posterior of the model, or ``None``.
        evaluate: Function that returns numbers by name, such as
            :class:`~spikeslab.training.PosteriorEvaluation`.
        resume: Checkpoint of the trainer to continue from, if it is not in the ``output_dir``.
    """

    def __init__(
        self,
        pruner: AnyPruner | None = None,
        posterior: Posterior | None = None,
        evaluate: Evaluate | None = None,
        *,
        resume: str | os.PathLike[str] | None = None,
    ) -> None:
        self.chain = ForeignChain(pruner, posterior, evaluate)
        self.resume = None if resume is None else Path(resume)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any
    ) -> None:
        """Follow the sampler, and load the samples of the checkpoint from which the trainer continues."""
        if state.global_step:
            self._load(self.resume or _checkpoint(args, state))
        clip = args.max_grad_norm
        own = f"TrainingArguments(max_grad_norm={clip})" if clip else None
        self.chain.begin(_unwrap_optimizer(given.get("optimizer")), own)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any) -> None:
        """Prune and collect."""
        self.chain.after_step()

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, float] | None = None,
        **given: Any,
    ) -> None:
        """Add the numbers of the posterior to those of the trainer."""
        numbers = {f"eval_{name}": value for name, value in self.chain.numbers().items()}
        if metrics is not None:
            metrics |= numbers
        if state.log_history:
            state.log_history[-1] |= numbers

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any) -> None:
        """Write the state of the pruner and the samples into the checkpoint."""
        Checkpoints(_checkpoint(args, state) / FOLDER).save(state.global_step, self.chain.state_dict())

    def _load(self, checkpoint: Path) -> None:
        found = Checkpoints(checkpoint / FOLDER).latest()
        if found is None:
            raise ArgumentValueError(
                "resume",
                "must be a checkpoint that was made with this callback",
                Phrase(f"{checkpoint} has no folder {FOLDER}"),
                f"name the one from which the trainer continues with {mark('resume')}",
            )
        self.chain.load_state_dict(found.state)


def _checkpoint(args: TrainingArguments, state: TrainerState) -> Path:
    return Path(str(args.output_dir)) / f"checkpoint-{state.global_step}"


def _unwrap_optimizer(optimizer: Optimizer | None) -> Optimizer | None:
    """Return the optimizer inside the wrapper of accelerate."""
    inner = getattr(optimizer, "optimizer", None)
    return _unwrap_optimizer(inner) if isinstance(inner, Optimizer) else optimizer
