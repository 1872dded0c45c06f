"""Patterns of zeros in a matrix."""

from __future__ import annotations

import pytest
import torch

from spikeslab.functional.patterns import Pattern, keep_largest


@pytest.mark.parametrize("keep", [0, 1, 5, 12])
def test_ties_do_not_change_the_number_that_is_kept(keep):
    scores = torch.zeros(3, 4)
    scores[0, 1] = -2.0
    kept = keep_largest(scores, Pattern(keep))
    assert int(kept.sum()) == keep
    assert bool(kept[0, 1]) == (keep > 0)


def test_groups_lie_along_the_inputs():
    kept = keep_largest(torch.randn(5, 12, generator=torch.manual_seed(0)), Pattern(2, group=4))
    assert kept.view(5, 3, 4).sum(2).eq(2).all()
