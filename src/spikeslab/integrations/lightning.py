"""Lightning: a callback that prunes, collects samples, evaluates their average and puts them into the checkpoints.

The sampler is the optimizer of the module, with any scheduler of torch:

.. code-block:: python

    class Net(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.network = torch.nn.Sequential(...)
            self.prior = ss.SpikeSlab(ss.select_weights(self.network, "*.weight"), steps=steps)

        def training_step(self, batch, index):
            x, y = batch
            return torch.nn.functional.cross_entropy(self.network(x), y)

        def configure_optimizers(self):
            sampler = ss.SGHMC(self.parameters(), lr=0.05, num_data=50_000, temperature=1e-3, prior=self.prior)
            scheduler = CosineAnnealingLR(sampler, steps, eta_min=0.005)
            return {"optimizer": sampler, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


    module = Net()
    callback = SpikeSlabCallback(
        ss.Pruner(module.prior.weights, ss.cubic_sparsity(0.9, steps // 2), freeze_at=steps // 2, prior=module.prior),
        ss.Posterior(module.network, burn_in=3 * steps // 4, thin=50),
    )
    lightning.Trainer(max_epochs=10, callbacks=[callback]).fit(module, loader)
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from spikeslab.errors import MissingExtraError
from spikeslab.integrations._chain import AnyPruner, Evaluate, ForeignChain
from spikeslab.posterior import Posterior

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError as error:
    raise MissingExtraError(
        "spikeslab.integrations.lightning needs lightning: pip install 'spikeslab[lightning]'."
    ) from error


class SpikeSlabCallback(Callback):
    """Lightning callback for a module whose optimizer is a sampler.

    After every step of the sampler it prunes and collects; accumulated gradients make one step. At the end of every
    epoch it logs sparsity, the number of samples and, once there are any, the evaluation of the posterior as
    ``posterior_accuracy`` and so on. A checkpoint of the trainer holds the state of the pruner and all samples, and
    ``fit(..., ckpt_path=...)`` continues with them.

    Args:
        pruner: Pruner of weights of the module, or ``None``.
        posterior: Posterior of the module or a part of it, or ``None``.
        evaluate: Function that returns numbers by name, such as
            :class:`~spikeslab.training.PosteriorEvaluation`.
    """

    def __init__(
        self, pruner: AnyPruner | None = None, posterior: Posterior | None = None, evaluate: Evaluate | None = None
    ) -> None:
        self.chain = ForeignChain(pruner, posterior, evaluate)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Follow the sampler; warn if the trainer clips gradients."""
        clip = trainer.gradient_clip_val
        self.chain.begin(trainer.optimizers[0], f"Trainer(gradient_clip_val={clip})" if clip else None)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Tensor | dict[str, Any], batch: Any, batch_idx: int
    ) -> None:
        """Prune and collect after a step."""
        self.chain.after_step()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Evaluate and log."""
        pl_module.log_dict(self.chain.numbers())

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the pruner and the posterior, for the checkpoint of the trainer."""
        return self.chain.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a checkpoint."""
        self.chain.load_state_dict(state_dict)
