"""The callback in Lightning's own loop: pruned, sampled, evaluated, and continued to the same bits."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR
from torch.utils.data import DataLoader, TensorDataset

import spikeslab as ss
from spikeslab.errors import SpikeSlabWarning
from spikeslab.training import PosteriorEvaluation

lightning = pytest.importorskip("lightning")

from spikeslab.integrations.lightning import SpikeSlabCallback  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:.*:UserWarning:lightning", "ignore:.*:FutureWarning")

ROWS, BATCH = 64, 8


def data() -> tuple[Tensor, Tensor]:
    x = torch.randn(ROWS, 4, generator=torch.Generator().manual_seed(1))
    return x, (x[:, 0] + x[:, 1] > 0).long()


class Net(lightning.LightningModule):
    """A module as its user writes it."""

    def __init__(self, floor: float = 0.005, temperature: float = 1e-3, optimizer: str = "SGHMC") -> None:
        super().__init__()
        torch.manual_seed(3)
        self.network = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
        self.prior = ss.SpikeSlab(ss.select_weights(self.network, "*.weight"), v0=0.01, v1=1.0)
        self.floor, self.temperature, self.kind = floor, temperature, optimizer
        self.outputs: set[torch.dtype] = set()

    def training_step(self, batch: Any, index: int) -> Tensor:
        logits = self.network(batch[0])
        self.outputs.add(logits.dtype)
        return F.cross_entropy(logits, batch[1])

    def configure_optimizers(self) -> Any:
        if self.kind == "SGD":
            return torch.optim.SGD(self.parameters(), lr=0.05)
        steps = int(self.trainer.estimated_stepping_batches)
        options = {"temperature": self.temperature, "prior": self.prior, "seed": 0}
        sampler = ss.SGHMC(self.parameters(), lr=0.05, num_data=ROWS, **options)
        scheduler = CosineAnnealingLR(sampler, steps, eta_min=self.floor)
        return {"optimizer": sampler, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def callback(module: Net, folder: Path | None = None, steps: int = 16) -> SpikeSlabCallback:
    schedule = ss.cubic_sparsity(0.5, total=steps // 2)
    pruner = ss.Pruner(module.prior.weights, schedule, freeze_at=steps // 2, prior=module.prior)
    posterior = ss.Posterior(module.network, burn_in=steps // 2, thin=2, directory=folder)
    return SpikeSlabCallback(pruner, posterior, PosteriorEvaluation(posterior, *data()))


def train(module: Net, own: SpikeSlabCallback, epochs: int = 2, ckpt: Any = None, **options: Any) -> Any:
    loader = DataLoader(TensorDataset(*data()), batch_size=BATCH)
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False, "accelerator": "cpu"}
    quiet |= {"enable_checkpointing": False}
    trainer = lightning.Trainer(max_epochs=epochs, callbacks=[own], **quiet | options)
    trainer.fit(module, loader, ckpt_path=ckpt)
    return trainer


def test_it_prunes_collects_and_evaluates() -> None:
    module = Net()
    own = callback(module)
    trainer = train(module, own)
    posterior, sampler = own.chain.posterior, trainer.optimizers[0]
    assert (sampler.steps, posterior.steps, len(posterior)) == (16, 16, 4)
    zeros = sum(int((weight == 0).sum()) for weight in module.prior.weights.values())
    assert zeros == 48
    for index in range(4):
        sample = posterior.sample(index)
        assert sum(int((parameter == 0).sum()) for parameter in sample.parameters()) == 48
    assert posterior.records[-1].delta is not None, "the posterior knows the sampler that Lightning made"
    logged = {name: float(value) for name, value in trainer.callback_metrics.items()}
    assert logged["sparsity"] == pytest.approx(0.5)
    assert logged["samples"] == 4.0
    assert logged["posterior_accuracy"] == own.chain.last["accuracy"]
    expected = float((posterior.predict(data()[0]).argmax(1) == data()[1]).double().mean())
    assert logged["posterior_accuracy"] == pytest.approx(expected)


def test_accumulated_gradients_make_one_step() -> None:
    module = Net()
    own = callback(module, steps=8)
    trainer = train(module, own, accumulate_grad_batches=2)
    assert (trainer.optimizers[0].steps, own.chain.pruner.steps, own.chain.posterior.steps) == (8, 8, 8)
    assert len(own.chain.posterior) == 2


def test_bfloat16_is_for_the_forward_pass_alone() -> None:
    module = Net()
    train(module, callback(module), precision="bf16-mixed")
    assert module.outputs == {torch.bfloat16}
    assert {parameter.dtype for parameter in module.parameters()} == {torch.float32}


@pytest.mark.parametrize("on_disk", [False, True])
def test_a_checkpoint_holds_the_samples_and_goes_on_to_the_same_bits(tmp_path: Path, on_disk: bool) -> None:
    def folder(name: str) -> Path | None:
        return tmp_path / name if on_disk else None

    whole = Net()
    expected = callback(whole, folder("whole"), steps=24)
    train(whole, expected, epochs=3)

    class Stop(lightning.Callback):
        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            if trainer.global_step == 16:
                trainer.save_checkpoint(tmp_path / "stopped.ckpt")

    stopped = Net()
    first = callback(stopped, folder("stopped"), steps=24)
    loader = DataLoader(TensorDataset(*data()), batch_size=BATCH)
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False, "accelerator": "cpu"}
    trainer = lightning.Trainer(max_epochs=3, callbacks=[first, Stop()], enable_checkpointing=False, **quiet)
    trainer.fit(stopped, loader)
    again = Net()
    with torch.no_grad():
        again.network[0].weight.add_(1.0)  # the checkpoint has the weights
    own = callback(again, folder("again"), steps=24)
    train(again, own, epochs=3, ckpt=tmp_path / "stopped.ckpt")
    assert len(own.chain.posterior) == len(expected.chain.posterior) == 6
    assert [record.step for record in own.chain.posterior.records] == [14, 16, 18, 20, 22, 24]
    for index in range(6):
        one, other = own.chain.posterior.tensors(index), expected.chain.posterior.tensors(index)
        assert all(torch.equal(one[name], other[name]) for name in other)


def test_a_checkpoint_without_the_same_parts_is_refused(tmp_path: Path) -> None:
    module = Net()
    trainer = train(module, SpikeSlabCallback(callback(module).chain.pruner))
    trainer.save_checkpoint(tmp_path / "pruned.ckpt")
    with pytest.raises(ValueError) as caught:
        train(Net(), callback(Net()), epochs=3, ckpt=tmp_path / "pruned.ckpt")
    assert str(caught.value) == (
        "posterior must be given as when the checkpoint was made, with no posterior, but now there is one."
    )


def test_clipped_gradients_are_warned_of_unless_no_law_is_sampled() -> None:
    module = Net()
    with pytest.warns(SpikeSlabWarning) as caught:
        train(module, callback(module), gradient_clip_val=1.0)
    assert [str(each.message) for each in caught if each.category is SpikeSlabWarning] == [
        "Trainer(gradient_clip_val=1.0) clips gradients, and the samples of a chain with clipped gradients are not "
        "from the posterior: switch the clipping off, and lower the lr if the loss diverges without it."
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error", SpikeSlabWarning)
        train(cold := Net(temperature=0.0), callback(cold), gradient_clip_val=1.0)


def test_a_chain_that_stands_still_is_warned_of_once() -> None:
    module = Net(floor=0.0)
    own = callback(module)
    module.configure_optimizers = lambda: halting(module)
    with pytest.warns(SpikeSlabWarning) as caught:
        train(module, own)
    assert [str(each.message) for each in caught if each.category is SpikeSlabWarning] == [
        "The sample of step 12 was taken while the lr is 0, where a chain stands still: let the schedule end above 0."
    ]


def halting(module: Net) -> Any:
    sampler = ss.SGHMC(module.parameters(), lr=0.05, num_data=ROWS, temperature=1e-3, prior=module.prior, seed=0)
    scheduler = LinearLR(sampler, 1.0, 0.0, total_iters=11)
    return {"optimizer": sampler, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def test_another_optimizer_is_refused() -> None:
    module = Net(optimizer="SGD")
    with pytest.raises(TypeError, match=r"^optimizer must be a sampler such as spikeslab\.SGHMC, but got SGD\.$"):
        train(module, callback(module))


def test_an_evaluation_needs_a_posterior() -> None:
    with pytest.raises(ValueError, match=r"^evaluate must go with a posterior, but got none\.$"):
        SpikeSlabCallback(evaluate=dict)
    with pytest.raises(TypeError, match=r"^evaluate must be a function without arguments or None, but got 1\.$"):
        SpikeSlabCallback(evaluate=1)
