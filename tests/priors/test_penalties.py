"""L1 and L2 are what their names say, in units of the mean loss."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import spikeslab as ss


@pytest.mark.parametrize("num_data", [1, 50])
@pytest.mark.parametrize(
    ("cls", "penalty"), [(ss.L1, lambda w: w.abs().sum()), (ss.L2, lambda w: 0.5 * w.square().sum())]
)
def test_gradient_is_autograd_of_the_penalty_whatever_num_data_is(cls, penalty, num_data: int) -> None:
    params = [nn.Parameter(torch.randn(4, 3)), nn.Parameter(torch.randn(5))]
    prior = cls(params, strength=0.3)
    total = 0.3 * sum(penalty(param) for param in params)
    grads = torch.autograd.grad(total, params)
    outs = [torch.ones_like(param) for param in params]
    prior.add_gradient_(params, outs, num_data)
    torch.testing.assert_close(outs, [1 + grad for grad in grads])
    assert prior.penalty(num_data) == pytest.approx(float(total.detach()), rel=1e-6)


def test_l2_in_a_sampler_is_weight_decay() -> None:
    chains = []
    for use_prior in (True, False):
        torch.manual_seed(0)
        weight = nn.Parameter(torch.randn(20))
        prior = ss.L2([weight], 0.2) if use_prior else None
        sampler = ss.SGHMC([weight], lr=0.1, num_data=10, seed=1, prior=prior, weight_decay=0.0 if use_prior else 0.2)
        for _ in range(10):
            weight.grad = torch.ones(20)
            sampler.step()
        chains.append(weight.detach())
    torch.testing.assert_close(*chains)


def test_weight_decay_spares_the_weights_of_the_prior() -> None:
    inside, outside = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
    sampler = ss.SGLD(
        [inside, outside], lr=0.1, num_data=10, temperature=0.0, prior=ss.L1([inside], 0.0), weight_decay=0.5
    )
    inside.grad, outside.grad = torch.zeros(3), torch.zeros(3)
    sampler.step()
    assert inside.tolist() == [1.0] * 3
    assert outside.tolist() == pytest.approx([0.95] * 3)


@pytest.mark.parametrize("cls", [ss.L1, ss.L2])
def test_a_negative_strength_is_refused(cls) -> None:
    with pytest.raises(ValueError, match=r"^strength must be a number >= 0, but got -1\.$|got -1\.0\.$"):
        cls([nn.Parameter(torch.ones(2))], strength=-1.0)


@pytest.mark.parametrize("cls", [ss.L1, ss.L2])
def test_state_round_trip_and_refusal_of_another_prior(cls) -> None:
    weight = [nn.Parameter(torch.ones(2))]
    cls(weight, 0.1).load_state_dict(cls(weight, 0.1).state_dict())
    with pytest.raises(ValueError, match=f"state of a {cls.__name__} prior"):
        cls(weight, 0.1).load_state_dict(ss.SpikeSlab(weight, v0=0.1, v1=1.0).state_dict())
