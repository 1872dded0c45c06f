"""The network of the UCI regressions."""

from __future__ import annotations

import torch

from spikeslab.paper.uci import MLP
from spikeslab.parallel.stacked import StackedModel

CHAINS = 3


def test_the_networks_own_stacked_forward_is_what_vmap_does():
    models = [MLP(4, hidden=(6, 5), outputs=2).double() for _ in range(CHAINS)]
    model, x = StackedModel(models), torch.randn(CHAINS, 7, 4, dtype=torch.float64)
    torch.testing.assert_close(model(x), torch.stack([single(x[chain]) for chain, single in enumerate(models)]))
