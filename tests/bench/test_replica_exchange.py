"""The target with two modes."""

from __future__ import annotations

import pytest
import torch

from spikeslab.bench import replica_exchange


def test_the_gradient_is_that_of_the_density():
    w = torch.tensor([-4.3, 0.1, 5.0], dtype=torch.float64, requires_grad=True)
    (-replica_exchange._log_densities(w).logsumexp(0).sum()).backward()
    torch.testing.assert_close(replica_exchange._gradient(w.detach()), w.grad)


def test_a_trace_is_summarised_by_the_nearer_mode():
    trace = [0.0] * replica_exchange.BURN_IN + [4.8, -4.0] * 40
    found = replica_exchange._summarize(trace)
    assert (found["upper"].mean, found["square"].mean) == (0.5, pytest.approx(0.5))
