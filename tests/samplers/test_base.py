"""What a user of torch.optim expects of an optimizer, and what these add to it."""

from __future__ import annotations

import copy
import io
import math
import pickle
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

import spikeslab as ss
from spikeslab.errors import ArgumentValueError

SAMPLERS = [ss.SGLD, ss.SGHMC, ss.PSGLD]
every_sampler = pytest.mark.parametrize("cls", SAMPLERS)


def clone(params) -> list[Tensor]:
    return [param.detach().clone() for param in params]


def equal(first: list[Tensor], second: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def same_state(first: Any, second: Any) -> bool:
    """Exact equality of nested states."""
    if isinstance(first, Tensor):
        return isinstance(second, Tensor) and torch.equal(first, second)
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(same_state(first[key], second[key]) for key in first)
    if isinstance(first, (list, tuple)):
        return len(first) == len(second) and all(same_state(a, b) for a, b in zip(first, second, strict=True))
    return bool(first == second)


def loss_of(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return functional.cross_entropy(model(batch[0]), batch[1])


def step(sampler: ss.samplers.Sampler, model: nn.Module, batch: tuple[Tensor, Tensor]) -> None:
    sampler.zero_grad()
    loss_of(model, batch).backward()
    sampler.step()


# ---- groups, names, parameters without gradient ----------------------------------------------------------------------


@every_sampler
def test_groups_have_their_own_settings(cls, model, batch) -> None:
    bias, other = [], []
    for name, param in model.named_parameters():
        (bias if "bias" in name else other).append(param)
    sampler = cls([{"params": bias, "lr": 0.0}, {"params": other}], lr=0.1, num_data=100, seed=0)
    before = clone(bias), clone(other)
    step(sampler, model, batch)
    assert equal(before[0], clone(bias))
    assert not any(torch.equal(a, b) for a, b in zip(before[1], clone(other), strict=True))


def test_each_group_has_its_own_schedule_and_temperature() -> None:
    hot, cold = nn.Parameter(torch.zeros(1000)), nn.Parameter(torch.zeros(1000))
    sampler = ss.SGLD(
        [{"params": [hot]}, {"params": [cold], "temperature": 0.0, "lr": ss.schedules.geometric(1.0, 0.5)}],
        lr=0.1,
        num_data=10,
        seed=0,
    )
    for expected in (1.0, 0.5, 0.25):
        hot.grad, cold.grad = torch.zeros(1000), torch.ones(1000)
        sampler.step()
        assert [group["lr"] for group in sampler.param_groups] == [0.1, expected]
    assert cold.tolist() == [-1.75] * 1000
    assert float(hot.detach().std()) == pytest.approx(math.sqrt(3 * 2 * 0.1 / 10), rel=0.1)


def test_a_group_can_be_added_later_and_is_checked() -> None:
    first, second = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    sampler = ss.SGHMC([first], lr=0.1, num_data=10, temperature=0.0)
    for call, error, message in (
        (
            lambda: sampler.add_param_group({"params": [second], "lr": -1.0}),
            ValueError,
            r"^lr must be a number >= 0, but got -1\.0\.$",
        ),
        (lambda: sampler.add_param_group({"params": [torch.ones(2, dtype=torch.long)]}), TypeError, "floating-point"),
    ):
        with pytest.raises(error, match=message):
            call()
    assert len(sampler.param_groups) == 1
    sampler.add_param_group({"params": [second], "lr": 0.5})
    first.grad, second.grad = torch.ones(2), torch.ones(2)
    sampler.step()
    assert first.tolist() == pytest.approx([0.9, 0.9])
    assert second.tolist() == [0.5, 0.5]


def test_a_group_of_another_size_is_refused_beside_a_prior() -> None:
    first, second = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    sampler = ss.SGLD([first], lr=0.1, num_data=10, prior=ss.L1([first], 0.1))
    message = r"^num_data must be the same in all groups if there is a prior, but got \[10, 99\]\.$"
    with pytest.raises(ValueError, match=message):
        sampler.add_param_group({"params": [second], "num_data": 99})
    assert len(sampler.param_groups) == 1
    sampler.add_param_group({"params": [second]})


WRONG = [("lr", -0.1), ("lr", math.nan), ("temperature", -1.0), ("weight_decay", -1.0), ("num_data", 0)]


@pytest.mark.usefixtures("either_path")
@every_sampler
@pytest.mark.parametrize(("key", "value"), WRONG)
def test_a_number_written_into_a_group_is_checked_before_anything_moves(cls, key: str, value: float) -> None:
    first, second = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    sampler = cls([{"params": [first]}, {"params": [second]}], lr=0.1, num_data=10, seed=0)
    for _ in range(2):
        first.grad, second.grad = torch.ones(2), torch.ones(2)
        sampler.step()
    before = clone([first, second])
    right, sampler.param_groups[1][key] = sampler.param_groups[1][key], value
    for _ in range(2):
        with pytest.raises(ValueError, match=rf"^param_groups\[1\]\['{key}'\] must be .* but got {value}\.$"):
            sampler.step()
    assert equal(before, clone([first, second]))
    assert sampler.steps == 2
    sampler.param_groups[1][key] = right
    sampler.step()


def test_the_number_of_data_of_one_group_may_not_change_alone_if_there_is_a_prior() -> None:
    first, second = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    sampler = ss.SGLD([{"params": [first]}, {"params": [second]}], lr=0.1, num_data=10, prior=ss.L1([first], 0.1))
    sampler.param_groups[1]["num_data"] = 20
    with pytest.raises(ValueError, match=r"^num_data must be the same in all groups if there is a prior"):
        sampler.step()


@every_sampler
def test_an_lr_of_zero_may_be_written_into_a_group(cls) -> None:
    weight = nn.Parameter(torch.ones(2))
    sampler = cls([weight], lr=ss.schedules.constant(0.1), num_data=10, temperature=0.0)
    other = cls([weight], lr=0.1, num_data=10, temperature=0.0)
    other.param_groups[0]["lr"] = 0.0
    weight.grad = torch.ones(2)
    other.step()
    assert weight.tolist() == [1.0, 1.0]
    sampler.step()
    assert weight.tolist() != [1.0, 1.0]


@every_sampler
def test_an_empty_group_and_empty_tensors_do_no_harm(cls) -> None:
    weight, empty = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(0, 3))
    sampler = cls([{"params": []}, {"params": [weight, empty]}, {"params": [empty.new_ones(0)]}], lr=0.1, num_data=10)
    weight.grad, empty.grad = torch.ones(2), torch.ones(0, 3)
    sampler.step()
    assert sampler.steps == 1
    assert weight.tolist() != [1.0, 1.0]


@pytest.mark.usefixtures("either_path")
@every_sampler
def test_parameters_without_gradient_are_untouched(cls, model, batch, make_prior) -> None:
    model[0].weight.requires_grad_(False)
    sampler = cls(model.parameters(), lr=0.1, num_data=100, prior=make_prior(model), weight_decay=0.1, seed=0)
    frozen = model[0].weight.clone()
    for _ in range(3):
        step(sampler, model, batch)
    assert torch.equal(model[0].weight, frozen)
    assert model[0].weight not in sampler.state


@pytest.mark.usefixtures("either_path")
@every_sampler
def test_a_gradient_is_never_changed(cls, model, batch, make_prior) -> None:
    sampler = cls(model.parameters(), lr=0.1, num_data=100, prior=make_prior(model), weight_decay=0.1, seed=0)
    for _ in range(3):
        sampler.zero_grad()
        loss_of(model, batch).backward()
        grads = [(param.grad, param.grad.clone()) for param in model.parameters()]
        sampler.step()
        for param, (same, before) in zip(model.parameters(), grads, strict=True):
            assert param.grad is same
            assert torch.equal(param.grad, before)


@every_sampler
def test_named_parameters_are_accepted_and_named_in_errors(cls, model) -> None:
    sampler = cls(model.named_parameters(), lr=0.1, num_data=100)
    for param in model.parameters():
        param.grad = torch.ones_like(param)
    model[2].bias.grad[1] = math.nan
    with pytest.raises(ss.NonFiniteError, match=re.escape("the gradient of 2.bias must be finite")):
        sampler.step()


def test_weight_decay_with_sparse_weights_only(make_prior) -> None:
    model = nn.Linear(3, 2, bias=False)
    sampler = ss.SGLD(
        model.parameters(), lr=0.1, num_data=10, temperature=0.0, prior=make_prior(model), weight_decay=0.5
    )
    model.weight.grad = torch.zeros(2, 3)
    sampler.step()
    assert sampler.steps == 1


# ---- closures, accumulation ------------------------------------------------------------------------------------------


@every_sampler
def test_a_closure_runs_with_gradients_and_its_loss_is_returned(cls, model, batch) -> None:
    plain, closed = copy.deepcopy(model), copy.deepcopy(model)
    first = cls(plain.parameters(), lr=0.1, num_data=100, seed=0)
    second = cls(closed.parameters(), lr=0.1, num_data=100, seed=0)
    losses = []

    def closure() -> Tensor:
        assert torch.is_grad_enabled()
        second.zero_grad()
        loss = loss_of(closed, batch)
        loss.backward()
        losses.append(loss)
        return loss

    for _ in range(3):
        step(first, plain, batch)
        with torch.no_grad():  # a trainer may have turned gradients off around the step
            assert second.step(closure) is losses[-1]
    assert len(losses) == 3
    assert equal(clone(plain.parameters()), clone(closed.parameters()))
    assert first.step() is None


def test_parameters_keep_requiring_gradients_and_no_graph_grows(model, batch, make_prior) -> None:
    sampler = ss.SGHMC(model.parameters(), lr=0.1, num_data=100, prior=make_prior(model))
    for _ in range(2):
        step(sampler, model, batch)
    assert all(param.requires_grad and param.grad_fn is None for param in model.parameters())
    tensors = [t for state in sampler.state.values() for t in state.values()]
    tensors += [*sampler.prior.state_dict()["rho"], *sampler.prior.state_dict()["rho_bar"]]
    assert tensors
    assert not any(tensor.requires_grad for tensor in tensors)


@every_sampler
def test_accumulated_micro_batches_equal_one_big_batch(cls, make_prior) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 2, dtype=torch.float64)
    x, y = torch.randn(12, 4, dtype=torch.float64), torch.randn(12, 2, dtype=torch.float64)
    results = []
    for parts in (1, 3):
        net = copy.deepcopy(model)
        prior = make_prior(net)
        likelihood = ss.GaussianLikelihood(prior)
        sampler = cls(net.parameters(), lr=0.05, num_data=100, prior=prior, seed=0)
        for _ in range(5):
            sampler.zero_grad()
            for xs, ys in zip(x.chunk(parts), y.chunk(parts), strict=True):
                (likelihood(net(xs), ys) / parts).backward()
            sampler.step()
        results.append(([*clone(net.parameters())], prior.sigma, list(prior.delta.values())))
    torch.testing.assert_close(results[0][0], results[1][0], rtol=1e-10, atol=1e-12)
    assert results[0][1] == pytest.approx(results[1][1], rel=1e-12)
    assert results[0][2] == pytest.approx(results[1][2], rel=1e-12)


# ---- AMP -------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("either_path")
def test_a_step_skipped_by_a_grad_scaler_advances_nothing(tmp_path) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    weights = ss.select_weights(model, "weight")
    prior = ss.SpikeSlab(weights, v0=0.02, v1=1.0, adapt=ss.SA(ss.schedules.constant(0.3)))
    likelihood = ss.GaussianLikelihood(prior)
    sampler = ss.SGHMC(
        model.parameters(),
        lr=ss.schedules.geometric(0.1, 0.9),
        temperature=ss.schedules.geometric(1.0, 0.9),
        num_data=100,
        prior=prior,
        seed=0,
    )
    pruner = ss.Pruner(weights, ss.exponential_sparsity(0.9, every=10), sampler=sampler)
    posterior = ss.Posterior(model, likelihood=likelihood, sampler=sampler)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=1000)

    def iteration(overflow: bool) -> None:
        x, y = torch.ones(5, 4), torch.zeros(5, 3)
        sampler.zero_grad()
        scaler.scale(likelihood(model(x) * (math.inf if overflow else 1.0), y)).backward()
        scaler.step(sampler)
        scaler.update()
        pruner.step()
        posterior.collect()

    iteration(overflow=False)
    before = copy.deepcopy(sampler.state_dict()), clone(model.parameters()), pruner.state_dict(), len(posterior)
    lr = sampler.param_groups[0]["lr"]
    iteration(overflow=True)
    assert scaler.get_scale() == 4.0  # the step was indeed skipped
    assert same_state(before[0], sampler.state_dict())
    assert equal(before[1], clone(model.parameters()))
    assert (pruner.steps, len(posterior), posterior.steps) == (before[2]["steps"], before[3], 1)
    assert (sampler.steps, sampler.param_groups[0]["lr"]) == (1, lr)

    # The chain goes on as if nothing had been: the infinite residuals are gone too.
    iteration(overflow=False)
    skipped = clone(model.parameters()), prior.sigma
    assert math.isfinite(prior.sigma)
    assert (sampler.steps, pruner.steps, posterior.steps, len(posterior)) == (2, 2, 2, 2)

    with torch.no_grad():
        for param, old in zip(model.parameters(), before[1], strict=True):
            param.copy_(old)
    sampler.load_state_dict(before[0])
    iteration(overflow=False)
    assert equal(skipped[0], clone(model.parameters()))
    assert prior.sigma == skipped[1]


def test_a_grad_scaler_does_not_change_the_chain(model, batch) -> None:
    chains = []
    for scaled in (False, True):
        net = copy.deepcopy(model)
        sampler = ss.SGHMC(net.parameters(), lr=0.1, num_data=100, seed=0)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=scaled)
        for _ in range(5):
            sampler.zero_grad()
            scaler.scale(loss_of(net, batch)).backward()
            scaler.step(sampler)
            scaler.update()
        chains.append(clone(net.parameters()))
    torch.testing.assert_close(*chains, rtol=1e-5, atol=1e-6)


# ---- paths and dtypes ------------------------------------------------------------------------------------------------


def chain(cls, model: nn.Module, batch, make_prior, steps: int = 10, **options: object) -> list[Tensor]:
    net = copy.deepcopy(model)
    sampler = cls(net.parameters(), **{"lr": 0.05} | options, num_data=100, prior=make_prior(net), seed=0)
    for _ in range(steps):
        step(sampler, net, batch)
    return clone(net.parameters())


@every_sampler
def test_foreach_and_single_tensor_paths_agree(cls, model, batch, make_prior) -> None:
    paths = [
        chain(
            cls,
            model,
            batch,
            make_prior,
            lr=ss.schedules.geometric(0.05, 0.9),
            fused=False,
            foreach=foreach,
            weight_decay=0.1,
        )
        for foreach in (True, False)
    ]
    torch.testing.assert_close(*paths, rtol=1e-6, atol=1e-7)


needs_compiler = pytest.mark.skipif(
    not any(shutil.which(name) for name in ("g++", "c++", "clang++")),
    reason="torch.compile on a CPU needs a C++ compiler, and there is none",
)


@needs_compiler
@every_sampler
def test_compiled_path_agrees(cls, model, batch, make_prior) -> None:
    """In double precision: the preconditioner of PSGLD magnifies what the compiler rounds otherwise."""
    model, batch = model.double(), (batch[0].double(), batch[1])
    torch._dynamo.reset()
    plain = chain(cls, model, batch, make_prior, fused=False)
    compiled = chain(cls, model, batch, make_prior, compile=True)
    torch.testing.assert_close(compiled, plain, rtol=1e-10, atol=1e-12)


@needs_compiler
def test_compiled_numbers_are_as_precise_as_the_weights() -> None:
    torch._dynamo.reset()
    weight = nn.Parameter(torch.zeros(3, dtype=torch.float64))
    weight.grad = torch.ones_like(weight)
    ss.SGLD([weight], lr=0.1, num_data=10, temperature=0.0, compile=True).step()
    assert weight.tolist() == [-0.1] * 3


@needs_compiler
@every_sampler
def test_a_changing_lr_and_temperature_do_not_compile_anew(cls, model, batch, make_prior) -> None:
    """A Python float is a constant to the compiler: after eight of them it would give up and run uncompiled."""
    options = {"lr": ss.schedules.geometric(0.05, 0.9), "temperature": ss.schedules.geometric(1.0, 0.9), "steps": 12}
    model, batch = model.double(), (batch[0].double(), batch[1])
    plain = chain(cls, model, batch, make_prior, fused=False, **options)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiled = chain(cls, model, batch, make_prior, compile=True, **options)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 2
    torch.testing.assert_close(compiled, plain, rtol=1e-10, atol=1e-12)


@needs_compiler
def test_a_compiled_training_step_may_contain_the_samplers_step(model, batch, make_prior) -> None:
    torch._dynamo.reset()
    plain = chain(ss.SGHMC, model, batch, make_prior, steps=4)
    net = copy.deepcopy(model)
    sampler = ss.SGHMC(net.parameters(), lr=0.05, num_data=100, prior=make_prior(net), seed=0)

    @torch.compile
    def train_step(x: Tensor, y: Tensor) -> Tensor:
        sampler.zero_grad()
        loss = functional.cross_entropy(net(x), y)
        loss.backward()
        sampler.step()
        return loss

    for _ in range(4):
        train_step(*batch)
    assert sampler.steps == 4
    torch.testing.assert_close(clone(net.parameters()), plain, rtol=1e-4, atol=1e-5)


@every_sampler
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_dtypes_stay_what_they_are_and_follow_float32(cls, dtype, make_prior) -> None:
    finals = []
    for kind in (torch.float32, dtype):
        torch.manual_seed(0)
        net = nn.Linear(5, 4).to(kind)
        sampler = cls(net.parameters(), lr=0.02, num_data=10**6, prior=make_prior(net), seed=0, temperature=0.0)
        for _ in range(5):
            for param in net.parameters():
                param.grad = 0.1 * torch.ones_like(param)
            sampler.step()
        assert all(param.dtype == kind for param in net.parameters())
        finals.append([param.double() for param in clone(net.parameters())])
    tolerance = 0.02 if dtype in (torch.float16, torch.bfloat16) else 1e-5
    torch.testing.assert_close(*finals, rtol=tolerance, atol=tolerance)


def test_mixed_dtypes_in_one_group() -> None:
    params = [nn.Parameter(torch.ones(3, dtype=d)) for d in (torch.float32, torch.bfloat16, torch.float64)]
    prior = ss.SpikeSlab(params, v0=0.02, v1=1.0)
    sampler = ss.SGHMC(params, lr=0.1, num_data=10, prior=prior, seed=0)
    for _ in range(2):
        for param in params:
            param.grad = torch.ones_like(param)
        sampler.step()
    assert [param.dtype for param in params] == [torch.float32, torch.bfloat16, torch.float64]
    assert all(param.isfinite().all() for param in params)


layouts = st.sampled_from(["contiguous", "transposed", "channels_last", "strided", "scalar", "empty"])


def parameter_of(layout: str) -> nn.Parameter:
    generator = torch.Generator().manual_seed(7)
    tensor = {
        "contiguous": lambda: torch.randn(3, 4, generator=generator),
        "transposed": lambda: torch.randn(3, 4, generator=generator).t(),
        "channels_last": lambda: torch.randn(2, 3, 4, 5, generator=generator).to(memory_format=torch.channels_last),
        "strided": lambda: torch.randn(4, 6, generator=generator)[:, ::2],
        "scalar": lambda: torch.randn((), generator=generator),
        "empty": lambda: torch.randn(2, 0, generator=generator),
    }[layout]()
    return nn.Parameter(tensor)


@settings(max_examples=15)
@given(
    kinds=st.lists(layouts, min_size=1, max_size=4),
    foreach=st.booleans(),
    lr=st.sampled_from([1e-30, 1e-3, 1.0]),
    temperature=st.sampled_from([0.0, 1e-20, 1.0, 1e6]),
    num_data=st.sampled_from([1, 10**12]),
)
@every_sampler
def test_any_shape_and_layout_steps_and_keeps_its_layout(cls, kinds, foreach, lr, temperature, num_data) -> None:
    params = [parameter_of(kind) for kind in kinds]
    strides = [param.stride() for param in params]
    sparse = [param for param in params if param.numel()]
    prior = ss.SpikeSlab(sparse, v0=1e-6, v1=1e6, adapt=ss.EM()) if sparse else None
    sampler = cls(
        params, lr=lr, num_data=num_data, temperature=temperature, prior=prior, foreach=foreach, seed=0, weight_decay=1
    )
    for _ in range(2):
        for param in params:
            param.grad = torch.ones_like(param)
        sampler.step()
    assert [param.stride() for param in params] == strides
    assert all(param.isfinite().all() for param in params)


# ---- not finite ------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("either_path")
@every_sampler
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("what", ["gradient", "weight"])
def test_nan_or_inf_stops_before_anything_moves(cls, value, what, model, batch, make_prior) -> None:
    sampler = cls(
        model.parameters(), lr=ss.schedules.geometric(0.1, 0.5), num_data=100, prior=make_prior(model), seed=0
    )
    step(sampler, model, batch)
    loss_of(model, batch).backward()
    with torch.no_grad():
        (model[2].weight.grad if what == "gradient" else model[2].weight)[1, 2] = value
    state, weights = copy.deepcopy(sampler.state_dict()), clone(model.parameters())
    with pytest.raises(ss.NonFiniteError) as error:
        sampler.step()
    assert str(error.value) == (
        f"the {what} of 2.weight must be finite, but got NaN or Inf at step 2: try a lower lr, or look for the first "
        "layer whose output is not finite."
    )
    assert same_state(state, sampler.state_dict())
    assert torch.equal(weights[0], model[0].weight)


def test_an_unnamed_parameter_is_told_by_its_place_and_shape() -> None:
    first, second = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(3, 2))
    sampler = ss.SGLD([{"params": [first]}, {"params": [second]}], lr=0.1, num_data=10)
    first.grad, second.grad = torch.ones(2), torch.full((3, 2), math.nan)
    with pytest.raises(ss.NonFiniteError, match=re.escape("parameter 0 of group 1 (shape (3, 2))")):
        sampler.step()


def test_gradients_whose_norm_overflows_are_finite() -> None:
    weight = nn.Parameter(torch.ones(4))
    sampler = ss.SGLD([weight], lr=1e-30, num_data=10, temperature=0.0)
    weight.grad = torch.full((4,), 1e30)
    sampler.step()
    assert weight.tolist() == pytest.approx([0.0] * 4, abs=1e-6)


def test_the_check_can_be_switched_off() -> None:
    weight = nn.Parameter(torch.ones(2))
    sampler = ss.SGLD([weight], lr=0.1, num_data=10, check_finite=False)
    weight.grad = torch.full((2,), math.nan)
    sampler.step()
    assert sampler.steps == 1


# ---- state and resume ------------------------------------------------------------------------------------------------


class Run:
    """A regression with everything that has a state: schedules, prior, pruner, momentum."""

    def __init__(self, cls, mode: str = "masked", adapt: ss.SA | ss.Marginal | None = None, seed: int = 0) -> None:
        torch.manual_seed(1)
        self.model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
        weights = ss.select_weights(self.model, "*.weight")
        adapt = ss.SA(ss.polynomial(1.0, power=0.6, offset=5)) if adapt is None else adapt
        self.prior = ss.SpikeSlab(weights, v0=0.02, v1=1.0, delta=0.3, adapt=adapt, sigma_coupling="conjugate")
        self.likelihood = ss.GaussianLikelihood(self.prior)
        self.sampler = cls(
            [{"params": self.model[0].parameters()}, {"params": self.model[2].parameters(), "weight_decay": 0.1}],
            lr=ss.polynomial(0.05, power=0.3),
            temperature=ss.schedules.geometric(1.0, 0.97, every=3),
            num_data=50,
            prior=self.prior,
            seed=seed,
        )
        self.pruner = ss.Pruner(weights, ss.exponential_sparsity(0.7, every=5, total=20), mode=mode, scope="global")

    def advance(self, first: int, last: int) -> None:
        for k in range(first, last + 1):
            generator = torch.Generator().manual_seed(k)
            x = torch.randn(8, 4, generator=generator)
            self.sampler.zero_grad()
            self.likelihood(self.model(x), x[:, :2]).backward()
            self.sampler.step()
            self.pruner.step()

    def state(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "sampler": self.sampler.state_dict(),
            "pruner": self.pruner.state_dict(),
        }

    def load(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.sampler.load_state_dict(state["sampler"])
        self.pruner.load_state_dict(state["pruner"])


def through_a_file(state: dict[str, Any]) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.usefixtures("either_path")
@every_sampler
@pytest.mark.parametrize("copied", [through_a_file, copy.deepcopy], ids=["torch.save", "deepcopy"])
def test_resume_is_bit_exact_at_random_interruption_points(cls, copied: Callable[[Any], Any]) -> None:
    total = 25
    whole = Run(cls)
    whole.advance(1, total)
    for point in [0, *random.Random(0).sample(range(1, total), 4)]:
        first = Run(cls)
        first.advance(1, point)
        state = copied(first.state())
        first.advance(point + 1, total)  # what happens to the saved run is of no consequence
        second = Run(cls, seed=999)
        second.advance(1, 3)  # nor is what the new one has done before
        second.load(state)
        second.advance(point + 1, total)
        assert same_state(second.state(), whole.state()), f"interrupted after step {point}"
        assert same_state(first.state(), whole.state())


@pytest.mark.usefixtures("either_path")
@every_sampler
def test_one_state_can_be_loaded_twice(cls) -> None:
    run = Run(cls)
    run.advance(1, 5)
    state = copy.deepcopy(run.state())
    kept = copy.deepcopy(state)
    for _ in range(2):
        run.load(state)
        run.advance(6, 9)
    assert same_state(state, kept)


@pytest.mark.usefixtures("either_path")
@pytest.mark.parametrize("adapt", [ss.EM(), ss.Marginal(ss.schedules.constant(0.2)), ss.Fixed()])
@pytest.mark.parametrize("mode", ["masked", "projected"])
def test_resume_is_bit_exact_for_other_adaptations_and_pruning(adapt, mode: str) -> None:
    whole, first, second = (Run(ss.SGHMC, mode, adapt) for _ in range(3))
    whole.advance(1, 20)
    first.advance(1, 9)
    second.load(through_a_file(first.state()))
    second.advance(10, 20)
    assert same_state(second.state(), whole.state())


def test_state_holds_kind_seed_and_step_of_the_noise() -> None:
    run = Run(ss.SGHMC, seed=17)
    run.advance(1, 3)
    state = run.sampler.state_dict()["sampler"]
    assert (state["kind"], state["steps"], state["noise"]) == ("SGHMC", 3, {"kind": "philox", "seed": 17})


def refused(run: Run, state: dict[str, Any], message: str) -> None:
    before, weights = copy.deepcopy(run.state()), clone(run.model.parameters())
    with pytest.raises(ArgumentValueError) as error:
        run.sampler.load_state_dict(state)
    assert str(error.value) == message
    assert same_state(before, run.state())
    assert equal(weights, clone(run.model.parameters()))


class TestForeignStatesAreRefusedAndChangeNothing:
    def run(self) -> Run:
        run = Run(ss.SGHMC)
        run.advance(1, 2)
        return run

    def test_of_another_sampler(self) -> None:
        other = Run(ss.SGLD)
        other.advance(1, 5)
        refused(self.run(), other.sampler.state_dict(), "state_dict must hold the state of SGHMC, but got 'SGLD'.")

    def test_of_a_torch_optimizer(self) -> None:
        run = self.run()
        state = torch.optim.SGD(run.model.parameters(), lr=0.1).state_dict()
        refused(run, state, "state_dict must hold the state of SGHMC, but got None.")

    def test_with_another_kind_of_noise(self) -> None:
        run = self.run()
        state = copy.deepcopy(run.sampler.state_dict())
        state["sampler"]["noise"]["kind"] = "other"
        state["sampler"]["steps"] = 77
        message = "state_dict must have noise of the kind 'philox', but got 'other'."
        refused(run, state, message)

    def test_without_a_prior(self) -> None:
        run = self.run()
        bare = ss.SGHMC(
            [{"params": run.model[0].parameters()}, {"params": run.model[2].parameters()}], lr=0.1, num_data=50
        )
        message = "state_dict must be of a sampler with a prior, but it has none."
        refused(run, bare.state_dict(), message)

    def test_with_a_prior_for_a_sampler_without(self) -> None:
        run = self.run()
        bare = ss.SGHMC(
            [{"params": run.model[0].parameters()}, {"params": run.model[2].parameters()}], lr=0.1, num_data=50
        )
        with pytest.raises(ValueError, match=r"^state_dict must be of a sampler without a prior, but it has one"):
            bare.load_state_dict(run.sampler.state_dict())
        assert bare.steps == 0

    def test_of_other_groups(self) -> None:
        run = self.run()
        other = ss.SGHMC(run.model.parameters(), lr=0.1, num_data=50, prior=run.prior)
        message = "state_dict must have groups of [2, 2] parameters, but got [4]."
        refused(run, other.state_dict(), message)

    def test_of_a_model_of_other_shapes(self) -> None:
        run = self.run()
        other = nn.Sequential(nn.Linear(4, 7), nn.Tanh(), nn.Linear(7, 2))
        prior = ss.SpikeSlab(ss.select_weights(other, "*.weight"), v0=0.02, v1=1.0)
        sampler = ss.SGHMC(
            [{"params": other[0].parameters()}, {"params": other[2].parameters()}], lr=0.1, num_data=50, prior=prior
        )
        message = "state_dict must be of a model whose 0.weight has the shape (6, 4), but got (7, 4)."
        refused(run, sampler.state_dict(), message)
        prior.update(1, 50)
        message = "state_dict must hold rho of the shapes [(6, 4), (2, 6)], but got [(7, 4), (2, 7)]."
        refused(run, sampler.state_dict(), message)

    @every_sampler
    def test_of_another_model_even_without_tensors_in_the_state(self, cls) -> None:
        sampler = cls([nn.Parameter(torch.ones(2, 3))], lr=0.1, num_data=10, seed=3)
        other = cls([nn.Parameter(torch.ones(6))], lr=0.1, num_data=10, seed=4)
        with pytest.raises(ArgumentValueError) as error:
            sampler.load_state_dict(other.state_dict())
        assert str(error.value) == (
            "state_dict must be of a model whose parameter 0 of group 0 (shape (2, 3)) has the shape (2, 3), "
            "but got (6,)."
        )
        assert sampler.noise.seed == 3

    def test_with_a_prior_on_other_weights(self) -> None:
        run = self.run()
        prior = ss.SpikeSlab(ss.select_weights(run.model, "0.weight"), v0=0.02, v1=1.0)
        other = ss.SGHMC(
            [{"params": run.model[0].parameters()}, {"params": run.model[2].parameters()}],
            lr=0.1,
            num_data=50,
            prior=prior,
        )
        message = "state_dict must be for the weights '0.weight', '2.weight', but got '0.weight'."
        refused(run, other.state_dict(), message)


@pytest.fixture
def mesh(tmp_path):
    """A mesh of this process alone."""
    distributed = pytest.importorskip("torch.distributed")
    if not distributed.is_available():
        pytest.skip("this torch was built without torch.distributed")
    from torch.distributed.device_mesh import init_device_mesh

    distributed.init_process_group(
        "gloo", store=distributed.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1
    )
    yield init_device_mesh("cpu", (1,))
    distributed.destroy_process_group()


def test_sums_that_are_still_to_be_added_up_are_refused(mesh) -> None:
    from torch.distributed.tensor import DTensor, Partial

    sharded = nn.Parameter(DTensor.from_local(torch.ones(4), mesh, [Partial()]))
    with pytest.raises(TypeError, match=r"^params must be sharded or replicated, but layer\.weight is a DTensor"):
        ss.SGHMC([("layer.weight", sharded)], lr=0.1, num_data=10)


@pytest.mark.parametrize("version", ["2.12.1", "2.6.0+cpu", "2.13.0"])
def test_sharding_wants_a_torch_with_which_it_was_tested(mesh, monkeypatch, version) -> None:
    from torch.distributed.tensor import Shard, distribute_tensor

    old = torch.torch_version.TorchVersion(version)
    sharded = nn.Parameter(distribute_tensor(torch.ones(4), mesh, [Shard(0)]))
    whole = nn.Parameter(torch.ones(4))
    monkeypatch.setattr(torch, "__version__", old)
    sampler = ss.SGHMC([whole], lr=0.1, num_data=10, seed=0)
    if version == "2.13.0":
        ss.SGHMC([sharded], lr=0.1, num_data=10, seed=0)
        return
    message = (
        "Sharded parameters need torch 2.13 or later, the first version with which they were tested, but this is "
        f"{version}: update torch, or keep the model whole."
    )
    with pytest.raises(RuntimeError) as refused:
        ss.SGHMC([sharded], lr=0.1, num_data=10, seed=0)
    assert str(refused.value) == message
    with pytest.raises(RuntimeError):
        sampler.add_param_group({"params": [sharded]})
    assert len(sampler.param_groups) == 1


def test_parameters_without_memory_are_refused() -> None:
    weight = nn.Parameter(torch.ones(2, device="meta"))
    with pytest.raises(ValueError, match=r"^params must have memory, but layer\.weight is on the meta device: "):
        ss.SGHMC([("layer.weight", weight)], lr=0.1, num_data=10)


def test_ranks_must_choose_their_seed(monkeypatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    with pytest.raises(ValueError, match=r"^seed must be an integer when torch\.distributed runs"):
        ss.SGLD([nn.Parameter(torch.ones(1))], lr=0.1, num_data=1)
    ss.SGLD([nn.Parameter(torch.ones(1))], lr=0.1, num_data=1, seed=5)


def test_sparse_gradients_are_refused_before_anything_moves() -> None:
    model = nn.Embedding(5, 2, sparse=True)
    sampler = ss.SGLD(model.parameters(), lr=0.1, num_data=10)
    model(torch.tensor([1])).sum().backward()
    with pytest.raises(TypeError, match="set sparse=False in the embedding"):
        sampler.step()
    assert sampler.steps == 0


def test_the_prior_moves_after_the_weights_and_sees_the_new_ones(model, batch, make_prior) -> None:
    """Appendix B: beta(k+1) from theta(k), then theta(k+1) from beta(k+1)."""
    prior = make_prior(model, adapt=ss.EM(), sigma_coupling="fixed", learn_delta=False)
    sampler = ss.SGLD(model.parameters(), lr=0.1, num_data=100, prior=prior, seed=0)
    step(sampler, model, batch)
    marginal = make_prior(model, adapt=ss.Marginal())
    for name, rho in prior.rho.items():
        torch.testing.assert_close(rho, marginal.rho[name])


def test_samplers_with_a_shared_parameter_move_it_once() -> None:
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    model[1].weight = model[0].weight
    prior = ss.SpikeSlab([("a", model[0].weight), ("b", model[1].weight)], v0=0.02, v1=1.0)
    assert list(prior.weights) == ["a"]
    sampler = ss.SGLD(model.parameters(), lr=0.5, num_data=10, temperature=0.0, prior=prior)
    before = model[0].weight.detach().clone()
    model[0].weight.grad = torch.ones(3, 3)
    expected = [torch.ones(3, 3)]
    prior.add_gradient_([model[0].weight], expected, 10)
    sampler.step()
    torch.testing.assert_close(model[1].weight.detach(), before - 0.5 * expected[0])


@pytest.mark.parametrize("copying", [copy.copy, pickle.dumps], ids=["copy", "pickle"])
def test_a_sampler_refuses_to_be_pickled(copying) -> None:
    sampler = ss.SGLD([nn.Parameter(torch.zeros(2))], lr=0.1, num_data=10, seed=0)
    with pytest.raises(TypeError, match=r"^SGLD cannot be pickled or copied alone: save its state_dict\(\)"):
        copying(sampler)


@pytest.mark.usefixtures("either_path")
@every_sampler
@pytest.mark.parametrize("adapt", [None, ss.Marginal(ss.schedules.constant(0.2))])
def test_a_deep_copy_is_a_chain_of_its_own(cls, adapt) -> None:
    whole, first = Run(cls, adapt=adapt), Run(cls, adapt=adapt)
    whole.advance(1, 9)
    first.advance(1, 4)
    second = copy.deepcopy(first)
    assert second.sampler.prior is second.prior
    assert all(param in second.prior for param in (second.model[0].weight, second.model[2].weight))
    assert not any(param in first.prior for param in second.model.parameters())
    first.advance(5, 6)
    second.advance(5, 9)
    assert same_state(second.state(), whole.state())
    first.advance(7, 9)
    assert same_state(first.state(), whole.state())


def test_a_deep_copy_does_not_step_the_original_through_a_wrapped_step(model, batch) -> None:
    sampler = ss.SGHMC(model.parameters(), lr=0.1, num_data=100, seed=0)
    torch.optim.lr_scheduler.StepLR(sampler, 1)  # wraps sampler.step
    twin_model, twin = copy.deepcopy((model, sampler))
    before = clone(model.parameters())
    step(twin, twin_model, batch)
    assert (sampler.steps, twin.steps) == (0, 1)
    assert equal(before, clone(model.parameters()))


# ---- switches --------------------------------------------------------------------------------------------------------


@every_sampler
def test_num_data_is_required(cls) -> None:
    with pytest.raises(TypeError, match="missing 1 required keyword-only argument: 'num_data'"):
        cls([nn.Parameter(torch.zeros(2))], lr=0.1)


@every_sampler
def test_switches_are_in_the_groups(cls) -> None:
    first, second = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    sampler = cls([{"params": [first]}, {"params": [second], "foreach": False}], lr=0.1, num_data=10, fused=False)
    assert {name: sampler.defaults[name] for name in ("fused", "foreach", "compile", "check_finite")} == {
        "fused": False,
        "foreach": True,
        "compile": False,
        "check_finite": True,
    }
    assert [group["foreach"] for group in sampler.param_groups] == [True, False]
    with pytest.raises(ValueError, match=r"^fused must be the same in all groups, but got"):
        sampler.add_param_group({"params": [nn.Parameter(torch.ones(2))], "fused": True})


@pytest.mark.usefixtures("either_path")
@every_sampler
def test_the_check_of_one_group_can_be_switched_off(cls) -> None:
    first, second = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    sampler = cls([{"params": [first]}, {"params": [second], "check_finite": False}], lr=0.1, num_data=10)
    first.grad, second.grad = torch.ones(2), torch.full((2,), math.nan)
    sampler.step()
    first.grad = torch.full((2,), math.inf)
    with pytest.raises(ss.NonFiniteError, match="parameter 0 of group 0"):
        sampler.step()


def test_a_state_does_not_bring_its_switches_along() -> None:
    weight = nn.Parameter(torch.ones(2))
    saved = ss.SGLD([weight], lr=0.5, num_data=10, seed=0, fused=False, check_finite=False).state_dict()
    sampler = ss.SGLD([weight], lr=0.1, num_data=10, fused=False, foreach=False)
    for name in ("fused", "compile"):  # a state of an earlier version has none
        del saved["param_groups"][0][name]
    sampler.load_state_dict(saved)
    (group,) = sampler.param_groups
    assert (group["lr"], group["fused"], group["foreach"], group["compile"], group["check_finite"]) == (
        0.5,
        False,
        False,
        False,
        True,
    )


def test_a_seed_beyond_64_bits_is_refused() -> None:
    with pytest.raises(ValueError, match="seed must be an integer below 2\\*\\*64, but got 18446744073709551616"):
        ss.SGLD([nn.Parameter(torch.zeros(2))], lr=0.1, num_data=10, seed=2**64)


def test_importing_the_package_imports_neither_numba_nor_the_compiler() -> None:
    script = "import sys, spikeslab; print({'numba', 'torch._dynamo'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
