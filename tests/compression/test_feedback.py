"""Dynamic pruning with feedback against its definition."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from spikeslab.compression.feedback import FeedbackPruner
from spikeslab.pruning import Pruner
from spikeslab.schedules import cubic_sparsity


@pytest.mark.parametrize("every", [1, 3])
def test_the_gradient_at_the_pruned_network_moves_the_dense_weights(every: int) -> None:
    target = torch.randn(6, 5)
    layer = nn.Linear(5, 6, bias=False)
    dense = layer.weight.detach().clone()
    schedule = cubic_sparsity(0.6, total=8)
    pruner = FeedbackPruner([layer.weight], schedule, every=every)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    mask = torch.ones(6, 5)
    returned = 0
    for step in range(1, 13):
        optimizer.zero_grad()
        (0.5 * (layer.weight - target).square().sum()).backward()
        optimizer.step()
        pruner.step()
        dense = dense - 0.1 * (dense * mask - target)  # the definition, on a copy of our own
        if step == 1 or step % every == 0:
            smallest = dense.abs().flatten().argsort()[: round(schedule(step) * 30)]
            before, mask = mask, torch.ones(30).index_fill(0, smallest, 0.0).view(6, 5)
            returned += int(((before == 0) & (mask == 1)).sum())
        torch.testing.assert_close(layer.weight.detach(), dense * mask)
    assert returned, "a pruned weight has come back"
    pruner.freeze()
    smallest = dense.abs().flatten().argsort()[:18]
    assert (layer.weight.flatten() == 0).nonzero().flatten().tolist() == smallest.sort().values.tolist()
    with torch.no_grad():
        layer.weight.add_(5.0)
    pruner.step()
    assert int((layer.weight == 0).sum()) == 18, "frozen"


def test_a_state_goes_on_where_it_was() -> None:
    def moved(layer: nn.Linear, pruner: FeedbackPruner, steps: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for _ in range(steps):
            with torch.no_grad():
                layer.weight.add_(0.3 * torch.randn(6, 5, generator=generator))
            pruner.step()

    first, second = nn.Linear(5, 6), nn.Linear(5, 6)
    pruner = FeedbackPruner([first.weight], 0.5, every=4)
    moved(first, pruner, 5, seed=1)
    again = FeedbackPruner([second.weight], 0.5, every=4)
    again.load_state_dict(pruner.state_dict())
    second.load_state_dict(first.state_dict())
    moved(first, pruner, 6, seed=2)
    moved(second, again, 6, seed=2)
    assert torch.equal(first.weight, second.weight)


@pytest.mark.parametrize("scope", ["layer", "global", "erk"])
def test_zeros_are_shared_out_and_floors_held_as_by_any_pruner(scope: str) -> None:
    def layers() -> list[nn.Parameter]:
        generator = torch.Generator().manual_seed(0)
        return [nn.Parameter(s * torch.randn(4, n, generator=generator)) for s, n in ((0.01, 5), (1.0, 20), (1.0, 3))]

    ours, plain = layers(), layers()
    FeedbackPruner(ours, 0.7, scope=scope, floor=0.25).step()
    Pruner(plain, 0.7, scope=scope, floor=0.25).step()
    assert all(torch.equal(a, b) for a, b in zip(ours, plain, strict=True))
    assert int(ours[0].count_nonzero()) >= 5
