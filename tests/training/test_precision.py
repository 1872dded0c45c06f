"""Training in bfloat16: the loss is computed in it, and nothing else is."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from runs import EPOCHS, training
from torch import nn

import spikeslab as ss
from spikeslab.training import Checkpoints, TensorBatches, Training


def linear(precision: str) -> Training:
    """A sampler of a linear model, at its start."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))
    x = torch.randn(64, 8)
    sampler = ss.SGHMC(model.parameters(), lr=0.05, num_data=64, temperature=1e-3, seed=0)
    data = TensorBatches(x, (x[:, 0] > 0).long(), batch_size=16)
    return Training(model, sampler, data, precision=precision)


def test_products_are_in_bfloat16_and_the_state_is_in_float32() -> None:
    run = linear("bfloat16")
    seen: list[torch.dtype] = []
    run.model[0].register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    run.run(steps=3)
    assert seen == 3 * [torch.bfloat16]
    tensors = [*run.model.state_dict().values(), *(p.grad for p in run.model.parameters())]
    assert {tensor.dtype for tensor in tensors if tensor.is_floating_point()} == {torch.float32}
    assert {buf.dtype for state in run.sampler.state.values() for buf in state.values()} == {torch.float32}


def test_it_learns_what_float32_learns() -> None:
    whole, half = linear("float32"), linear("bfloat16")
    for run in (whole, half):
        run.run(epochs=30)
    assert half.take_loss() == pytest.approx(whole.take_loss(), rel=0.02)
    for ours, theirs in zip(half.model.parameters(), whole.model.parameters(), strict=True):
        assert not torch.equal(ours, theirs), "nothing was rounded"


def test_a_run_in_bfloat16_continues_bit_for_bit(tmp_path: Path) -> None:
    def make() -> Training:
        made = training(None)
        made.precision = "bfloat16"
        return made

    whole = make()
    whole.run(epochs=EPOCHS)
    first = make()  # anew, since it seeds the generator of the dropout
    first.run(steps=17)
    Checkpoints(tmp_path).save(17, first.state_dict())
    second = make()
    second.load_state_dict(Checkpoints(tmp_path).latest().state)
    second.run(epochs=EPOCHS)
    for ours, theirs in zip(second.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_another_precision_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^precision must be one of 'float32', 'bfloat16', but got 'float16'\.$"):
        linear("float16")
