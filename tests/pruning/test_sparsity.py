"""Counts of zeros, over the sparse layers and over the network."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from weights import zeros

import spikeslab as ss


def test_sparsity_can_be_that_of_the_whole_network() -> None:
    model = nn.Sequential(nn.Linear(10, 10), nn.Linear(10, 5))
    with torch.no_grad():
        for param in model.parameters():
            param.copy_(param.abs() + 0.1)
    total = 110 + 55
    pruner = ss.Pruner(ss.select_weights(model, "0.weight"), 0.5, network=model)
    pruner.step()
    sparsity = pruner.sparsity()
    assert sparsity.network_zeros == zeros(model[0].weight) == round(0.5 * total)
    assert sparsity.network_total == total
    assert sparsity.network == pytest.approx(0.5, abs=1 / total)
    assert sparsity.sparse == zeros(model[0].weight) / 100
    assert sparsity.layers == {"0.weight": zeros(model[0].weight) / 100}


def test_a_shared_parameter_is_pruned_and_counted_once() -> None:
    model = nn.Sequential(nn.Linear(10, 10, bias=False), nn.Linear(10, 10, bias=False))
    model[1].weight = model[0].weight
    pruner = ss.Pruner([model[0].weight, model[1].weight], 0.5, network=model)
    pruner.step()
    assert (pruner.sparsity().sparse_total, pruner.sparsity().network_total) == (100, 100)
    assert zeros(model[1].weight) == 50


def test_the_network_is_counted_only_if_it_is_given() -> None:
    sparsity = ss.measure_sparsity({"a": torch.tensor([0.0, 1.0]), "b": torch.zeros(2)})
    assert (sparsity.layers, sparsity.sparse) == ({"a": 0.5, "b": 1.0}, 0.75)
    assert sparsity.network is sparsity.network_zeros is sparsity.network_total is None
