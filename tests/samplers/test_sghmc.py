"""SGHMC: at temperature 0 it is SGD with momentum, whatever the lr does."""

from __future__ import annotations

import math

import pytest
import torch
from sgd_limits import assert_equal_to_rounding, network, train
from torch import nn

import spikeslab as ss

pytestmark = pytest.mark.usefixtures("either_path")


@pytest.mark.parametrize("foreach", [True, False])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
def test_sghmc_at_temperature_zero_is_sgd_with_momentum(foreach: bool, momentum: float, weight_decay: float) -> None:
    ours, theirs = network(), network()
    sampler = ss.SGHMC(
        ours.parameters(),
        lr=0.1,
        momentum=momentum,
        weight_decay=weight_decay,
        num_data=100,
        temperature=0.0,
        foreach=foreach,
    )
    sgd = torch.optim.SGD(theirs.parameters(), lr=0.1, momentum=momentum, weight_decay=weight_decay)
    assert_equal_to_rounding(train(ours, sampler), train(theirs, sgd))


SCHEDULERS = {
    "step": lambda o: torch.optim.lr_scheduler.StepLR(o, 10, 0.5),
    "one-cycle": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.2, total_steps=101, cycle_momentum=False),
    "one-cycle with momentum": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.2, total_steps=101),
    "cosine": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 100),
    "lambda": lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda k: 1 + 0.5 * math.sin(k)),
}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_sghmc_at_temperature_zero_is_sgd_under_any_lr_scheduler(name: str) -> None:
    results = []
    for make in (
        lambda params: ss.SGHMC(params, lr=0.1, momentum=0.9, num_data=100, temperature=0.0),
        lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
    ):
        model = network()
        optimizer = make(model.parameters())
        scheduler = SCHEDULERS[name](optimizer)
        results.append(train(model, optimizer, after=lambda _, s=scheduler: s.step()))
    assert_equal_to_rounding(*results)


def test_sghmc_with_its_own_lr_schedule_is_sgd_with_that_lr() -> None:
    schedule = ss.cosine(0.2, total=100, final=0.001, warmup=10)
    ours, theirs = network(), network()
    sampler = ss.SGHMC(ours.parameters(), lr=schedule, num_data=100, temperature=0.0)
    sgd = torch.optim.SGD(theirs.parameters(), lr=schedule(1), momentum=0.9)

    def next_lr(step: int) -> None:
        sgd.param_groups[0]["lr"] = schedule(step + 2)

    assert_equal_to_rounding(train(ours, sampler), train(theirs, sgd, after=next_lr))


def test_momentum_of_a_checkpoint_follows_the_memory_format_of_the_weights() -> None:
    weight = nn.Parameter(torch.randn(4, 8, 3, 3).to(memory_format=torch.channels_last))
    weight.grad = torch.ones_like(weight)
    sampler = ss.SGHMC([weight], lr=0.1, num_data=10, seed=0, fused=False)
    sampler.step()
    state = sampler.state_dict()
    state["state"][0]["momentum_buffer"] = state["state"][0]["momentum_buffer"].contiguous()
    sampler.load_state_dict(state)
    expected = sampler.state[weight]["momentum_buffer"].clone()
    sampler._state_tensors([weight], "momentum_buffer")
    assert sampler.state[weight]["momentum_buffer"].stride() == weight.stride()
    assert torch.equal(sampler.state[weight]["momentum_buffer"], expected)


@pytest.mark.parametrize(("key", "value"), [("momentum", 1.0), ("momentum", -0.1), ("gradient_noise", -1.0)])
def test_its_own_numbers_are_checked_when_they_are_written_into_a_group(key: str, value: float) -> None:
    weight = nn.Parameter(torch.ones(2))
    sampler = ss.SGHMC([weight], lr=0.1, num_data=10)
    sampler.param_groups[0][key] = value
    weight.grad = torch.ones(2)
    with pytest.raises(ValueError, match=rf"^param_groups\[0\]\['{key}'\] must be a number .*, but got {value}\.$"):
        sampler.step()
    assert weight.tolist() == [1.0, 1.0]
