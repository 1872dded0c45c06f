"""Batches of CIFAR-10, and the dense network."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from small_cifar10 import DATA, ROWS

from spikeslab.paper.cifar10 import data as cifar10_data
from spikeslab.paper.cifar10.data import OrderedBatches, new_network, pretrain
from spikeslab.paper.images.augmentation import Augment


def test_training_images_are_erased_only_where_wanted() -> None:
    x = torch.full((200, 3, 8, 8), 255, dtype=torch.uint8)
    plain, erased = (Augment("cifar10", erasing)(x, torch.Generator().manual_seed(0)) for erasing in (False, True))
    assert plain.is_contiguous(memory_format=torch.channels_last)
    assert erased.is_contiguous(memory_format=torch.channels_last)
    filled = (erased != plain).flatten(1).any(dim=1).double().mean()
    assert 0.3 < filled < 0.7


def test_images_that_are_judged_come_in_order_and_normalised() -> None:
    batches = OrderedBatches(DATA.x_test, DATA.y_test, batch_size=10)
    assert len(batches) == 2
    x, y = (torch.cat(tensors) for tensors in zip(*batches, strict=True))
    assert torch.equal(y, DATA.y_test)
    mean, std = torch.tensor([0.4914, 0.4822, 0.4465]), torch.tensor([0.2023, 0.1994, 0.2010])
    expected = (DATA.x_test / 255 - mean[:, None, None]) / std[:, None, None]
    torch.testing.assert_close(x, expected)
    assert next(iter(batches))[0].is_contiguous(memory_format=torch.channels_last)


def test_pretraining_is_the_papers_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = cifar10_data.make_pretraining_sampler(new_network(), ROWS, 50_000, seed=0)
    group = sampler.param_groups[0]
    assert group["weight_decay"] == 5e-4
    assert group["temperature"] == pytest.approx(5e-5)
    made = pretrain(DATA, tmp_path, epochs=1, batch_size=8, held_out=8)
    assert not made.seen_all
    monkeypatch.setattr(cifar10_data, "Training", lambda *_, **__: pytest.fail("trained again"))
    again = pretrain(DATA, tmp_path, epochs=1, batch_size=8, held_out=8)
    assert again.digest == made.digest
    assert torch.equal(again.model.fc.weight, made.model.fc.weight)
