"""Splits, presets and stacked chains of the UCI regressions, on small data made here."""

from __future__ import annotations

import pytest
import torch

from spikeslab.paper.uci import UCIData
from spikeslab.paper.uci import sampling as uci


def small_data(rows: int = 60) -> UCIData:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, 3, dtype=torch.float64, generator=generator) * torch.tensor([1.0, 50.0, 0.0])
    y = 20.0 + 3.0 * x[:, 0] + 0.1 * torch.randn(rows, dtype=torch.float64, generator=generator)
    order = torch.stack([torch.randperm(rows, generator=generator) for _ in range(3)])
    return UCIData("yacht", x, y, order[:, 10:], order[:, :10])


def test_splits_are_standardised_by_their_own_training_rows():
    splits = uci.Splits.of(small_data())
    torch.testing.assert_close(splits.x_train.mean(1), torch.zeros(3, 3), rtol=0, atol=1e-5)
    torch.testing.assert_close(splits.x_train.std(1, correction=0)[:, :2], torch.ones(3, 2))
    assert not splits.x_train[:, :, 2].any()  # a constant feature


@pytest.mark.parametrize("method", uci.METHODS)
def test_the_default_preset_learns_the_line_and_its_noise(method):
    splits = uci.Splits.of(small_data())
    preset = uci.default_preset(method, 50, 200, uci.UCIDefaults(lr_end=1e-3, v0=0.2, batch_size=25))
    record = uci.sample_splits(splits, preset, standardise=True, epochs=200, seed=0)
    assert record["diverged"] == []
    assert sum(record["rmse"]) / 3 < 1.5  # the target's standard deviation is 3


def test_the_paper_preset_has_no_prior_for_plain_sghmc_and_the_papers_otherwise():
    assert uci.make_preset("paper", "boston", "SGHMC", 455, 200).prior == {}
    preset = uci.make_preset("paper", "energy-heating", "A-SGHMC-SA", 691, 200)
    assert preset.prior["kappa"] == (1e-4, 1e-4)
    assert preset.sampler["lr"] == pytest.approx(1e-5 * 691)
    assert preset.sampler["temperature"](2) == pytest.approx(10.0 / 1.003**2)


def test_a_split_that_diverges_is_counted_and_the_others_are_as_without_it():
    splits = uci.Splits.of(small_data())
    preset = uci.make_preset("paper", "yacht", "SGHMC-SA", 50, 4)
    fine = uci.sample_splits(splits, preset, standardise=False, epochs=4, seed=0)
    splits.y_train[1] *= 1e15
    record = uci.sample_splits(splits, preset, standardise=False, epochs=4, seed=0)
    assert record["diverged"] == [1]
    assert record["rmse"] == [fine["rmse"][0], None, fine["rmse"][2]]


def test_every_epoch_is_a_shuffle_of_each_chain_without_the_partial_batch():
    batches = list(uci._epoch(2, 7, 3, torch.Generator().manual_seed(0)))
    assert [tuple(batch.shape) for batch in batches] == [(2, 3), (2, 3)]
    rows = torch.cat(batches, dim=1)
    assert all(len(set(of_chain.tolist())) == 6 for of_chain in rows)
    assert not torch.equal(rows[0], rows[1])
