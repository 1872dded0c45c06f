from __future__ import annotations

import gzip
from dataclasses import replace

import torch
from safetensors.torch import save

from spikeslab.paper.demo import load_digits
from spikeslab.paper.demo.digits import DigitsPreset, digits_table, run_digits

SHORT = replace(DigitsPreset(), dense_steps=60, prune_steps=30, collect_steps=20, samples=4)


def test_the_three_models() -> None:
    data, reports = load_digits(), []
    dense, sparse, average = run_digits(data, SHORT, seed=0, progress=reports.append)
    assert sum(reports) == SHORT.steps
    assert (dense.nonzeros, sparse.nonzeros) == (53_002, 5_300)
    assert average.nonzeros == 4 * 5_300
    assert sparse.size < dense.size / 5
    for result in (dense, sparse, average):
        assert torch.allclose(result.probabilities.sum(1), torch.ones(len(data.y_test)), atol=1e-5)
    table = digits_table(data, [dense, sparse, average], SHORT)
    assert [row["model"] for row in table.rows] == ["dense", "sparse, last sample", "sparse, average of 4"]
    assert all(row["accuracy"] > 60.0 for row in table.rows)


def test_settings_have_a_narrow_spike_and_shrink_on_demand() -> None:
    settings = DigitsPreset()
    assert 2.0 * settings.v0**2 < settings.v1
    assert settings.at_most(7).steps == 21
    assert settings.at_most(10**9) == settings


def test_the_size_is_that_of_a_gzipped_file() -> None:
    zeros = {"weight": torch.zeros(10_000)}
    assert len(gzip.compress(save(zeros), mtime=0)) < 500
