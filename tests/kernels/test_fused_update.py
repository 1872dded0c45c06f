"""The fused update against the torch path with the same noise, and what a user sees of it."""

from __future__ import annotations

import copy
import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import spikeslab as ss

pytest.importorskip("numba")

from spikeslab.kernels.noise import Noise
from spikeslab.kernels.protocol import FusedPrior

SAMPLERS = [ss.SGHMC, ss.SGLD]
every_sampler = pytest.mark.parametrize("cls", SAMPLERS)
SCHEDULE = ss.polynomial(1.0, power=0.75, offset=3)
PRIORS: dict[str, Callable[[Any], ss.priors.Prior | None]] = {
    "none": lambda weights: None,
    "L1": lambda weights: ss.L1(weights, 0.1),
    "L2": lambda weights: ss.L2(weights, 0.1),
    "Fixed": lambda weights: ss.SpikeSlab(weights, v0=0.02, v1=1.0, adapt=ss.Fixed()),
    "SA": lambda weights: ss.SpikeSlab(weights, v0=0.02, v1=1.0, adapt=ss.SA(SCHEDULE), sigma_coupling="conjugate"),
    "SA, sigma fixed": lambda weights: ss.SpikeSlab(
        weights, v0=0.02, v1=1.0, adapt=ss.SA(SCHEDULE), sigma_coupling="fixed", learn_delta=False
    ),
    "EM": lambda weights: ss.SpikeSlab(weights, v0=0.02, v1=1.0, adapt=ss.EM(), sigma_coupling="conjugate"),
    "Gaussian": lambda weights: ss.priors.SpikeSlabGaussian(
        weights, v0=0.02, v1=1.0, adapt=ss.SA(SCHEDULE), sigma_coupling="conjugate"
    ),
    "Marginal": lambda weights: ss.SpikeSlab(
        weights, v0=0.02, v1=1.0, adapt=ss.Marginal(SCHEDULE), sigma_coupling="conjugate"
    ),
}


@pytest.fixture
def two_threads() -> Iterator[None]:
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


def parameters(dtype: torch.dtype) -> dict[str, nn.Parameter]:
    """One of each kind: odd sizes, more than a block, no dimensions, no elements, and every layout."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=dtype)

    return {
        name: nn.Parameter(tensor)
        for name, tensor in {
            "odd.weight": normal(7),
            "bias": normal(33),
            "large.weight": normal(43, 71),
            "channels_last.weight": normal(12, 5, 3, 3).to(memory_format=torch.channels_last),
            "one_channel.weight": normal(12, 1, 3, 3).to(memory_format=torch.channels_last),
            "transposed.weight": normal(30, 20).t(),
            "empty.weight": normal(0, 3),
            "scalar": normal(),
            "not_dense": torch.empty(10, 6, dtype=dtype).copy_(normal(10, 6))[:, ::2],
        }.items()
    }


def sampler_of(cls, params: dict[str, nn.Parameter], prior: str, **options: object) -> ss.samplers.Sampler:
    settings = {"lr": 0.05, "num_data": 100, "weight_decay": 0.1, "seed": 3} | options
    sparse = {name: param for name, param in params.items() if name.endswith("weight")}
    return cls(params.items(), prior=PRIORS[prior](sparse), **settings)


def give_gradients(params: dict[str, nn.Parameter], step: int) -> None:
    """Gradients that depend on the weights; those of one parameter are in another layout."""
    for param in params.values():
        param.grad = param.detach().cos() * step
    params["transposed.weight"].grad = params["transposed.weight"].grad.contiguous()


def numbers(sampler: ss.samplers.Sampler) -> list[Tensor]:
    """All that a sampler has moved."""
    owned = [param for group in sampler.param_groups for param in group["params"]]
    params = [param.detach().clone() for param in owned]
    buffers = [t.clone() for param in owned for t in sampler.state.get(param, {}).values()]
    if sampler.prior is None:
        return params + buffers
    state = sampler.prior.state_dict()
    latents = [t.clone() for kind in ("rho", "rho_bar") for t in state.get(kind, [])]
    scalars = torch.tensor([state.get("sigma", 0.0), *state.get("delta", [])], dtype=torch.float64)
    return params + buffers + latents + [scalars]


def chain(sampler: ss.samplers.Sampler, params: dict[str, nn.Parameter], steps: int = 6) -> list[Tensor]:
    for step in range(1, steps + 1):
        give_gradients(params, step)
        sampler.step()
    return numbers(sampler)


@every_sampler
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_it_agrees_with_the_torch_path_given_the_same_noise(cls, dtype, prior, temperature) -> None:
    results = []
    for fused in (True, False):
        params = parameters(dtype)
        sampler = sampler_of(cls, params, prior, fused=fused, temperature=temperature)
        assert (sampler._fused is not None) == fused
        results.append(chain(sampler, params))
    tolerance = 1e-11 if dtype == torch.float64 else 2e-4
    torch.testing.assert_close(*results, rtol=tolerance, atol=tolerance)


@every_sampler
def test_without_a_prior_it_agrees_to_the_bit(cls) -> None:
    results = []
    for fused in (True, False):
        params = parameters(torch.float32)
        sampler = sampler_of(cls, params, "none", fused=fused)
        results.append(chain(sampler, params))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@every_sampler
@pytest.mark.parametrize("prior", ["none", "SA"])
def test_a_second_thread_does_not_change_a_bit(cls, prior, two_threads) -> None:
    results = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        torch.manual_seed(0)
        params = {"0.weight": nn.Parameter(torch.randn(400, 501)), "1.bias": nn.Parameter(torch.randn(77_777))}
        sampler = sampler_of(cls, params, prior, fused=True)
        for step in range(1, 4):
            for param in params.values():
                param.grad = torch.full_like(param, 0.1 * step)
            sampler.step()
        results.append(numbers(sampler))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@every_sampler
@pytest.mark.parametrize("prior", ["none", "SA", "EM", "Marginal"])
def test_a_resumed_chain_is_the_same_to_the_bit(cls, prior) -> None:
    params = parameters(torch.float32)
    whole = sampler_of(cls, params, prior, fused=True)
    chain(whole, params, 3)
    state = copy.deepcopy(whole.state_dict())
    copies = {name: nn.Parameter(param.detach().clone()) for name, param in params.items()}
    expected = chain(whole, params, 3)
    resumed = sampler_of(cls, copies, prior, fused=True, seed=99)
    resumed.load_state_dict(state)
    assert all(torch.equal(a, b) for a, b in zip(chain(resumed, copies, 3), expected, strict=True))


@every_sampler
def test_a_prior_that_a_loaded_state_makes_unfusible_is_left_to_torch(cls) -> None:
    params = parameters(torch.float32)
    sampler = sampler_of(cls, params, "Marginal", fused=True)
    chain(sampler, params, 2)
    state = copy.deepcopy(sampler.state_dict())
    start = {name: param.detach().clone() for name, param in params.items()}
    expected = chain(sampler, params, 2)
    with torch.no_grad():
        params["large.weight"][0] = 0.0
    sampler.prior.condition_on_zeros()
    chain(sampler, params, 1)
    with torch.no_grad():
        for name, param in params.items():
            param.copy_(start[name])
    sampler.load_state_dict(state)
    assert all(torch.equal(a, b) for a, b in zip(chain(sampler, params, 2), expected, strict=True))


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("frozen", [False, True])
def test_a_step_asks_for_omega_once(fused, frozen) -> None:
    asked: list[int] = []

    def schedule(step: int) -> float:
        asked.append(step)
        return 0.0 if step == 2 else 0.5

    weights = {name: nn.Parameter(torch.ones(5)) for name in "ab"}
    prior = ss.SpikeSlab(weights, v0=0.02, v1=1.0, adapt=ss.SA(schedule))
    sampler = ss.SGHMC(weights.values(), lr=0.1, num_data=10, prior=prior, fused=fused)
    for _ in range(3):
        for weight in weights.values():
            weight.grad = torch.ones(5)
        if frozen:  # its latents move all the same, and torch moves those of all weights
            weights["b"].grad = None
        sampler.step()
    assert asked == [1, 2, 3]


def test_priors_take_part_by_the_protocol_alone() -> None:
    weights = [nn.Parameter(torch.ones(2, 2))]
    assert not hasattr(ss.priors.Prior, "fusible")
    assert isinstance(ss.L1(weights, 0.1), FusedPrior)
    assert isinstance(ss.SpikeSlab(weights, v0=0.02, v1=1.0), FusedPrior)
    assert not isinstance(ss.priors.StackedSpikeSlab(weights, v0=0.02, v1=1.0), FusedPrior)


def test_equal_seeds_draw_equal_noise_and_each_parameter_its_own() -> None:
    """As on the ranks of DDP; the noise of a parameter does not depend on which others have a gradient."""
    moves = []
    for active in ((0, 1, 2), (1, 2), (0, 1, 2)):
        params = [nn.Parameter(torch.zeros(1500)) for _ in range(3)]
        sampler = ss.SGLD(params, lr=0.1, num_data=1, seed=7, fused=True)
        for index in active:
            params[index].grad = torch.zeros(1500)
        sampler.step()
        moves.append([param.detach() for param in params])
    assert all(torch.equal(a, b) for a, b in zip(moves[0], moves[2], strict=True))
    assert all(torch.equal(a, b) for a, b in zip(moves[0][1:], moves[1][1:], strict=True))
    assert not moves[1][0].any()
    assert not torch.equal(moves[0][0], moves[0][1])


def test_psgld_and_half_precision_use_the_same_noise() -> None:
    noise = Noise(4)
    noise.start(1)
    param = nn.Parameter(torch.zeros(3000))
    sampler = ss.PSGLD([nn.Parameter(torch.zeros(1)), param], lr=0.5, num_data=1, eps=1.0, seed=4, fused=True)
    param.grad = torch.zeros(3000)
    sampler.step()
    torch.testing.assert_close(param.detach(), noise.draw([param], [1])[0])
    half = noise.draw([param.detach().half()], [1])[0]
    assert torch.equal(half, noise.draw([param], [1])[0].half())


@every_sampler
@pytest.mark.parametrize("where", ["gradient", "weight"])
def test_nothing_has_moved_when_a_number_is_not_finite(cls, where) -> None:
    params = parameters(torch.float32)
    sampler = sampler_of(cls, params, "SA", fused=True)
    chain(sampler, params, 2)
    give_gradients(params, 3)
    target = params["scalar"] if where == "weight" else params["channels_last.weight"].grad
    with torch.no_grad():
        target[(0,) * target.ndim] = math.nan
    before = numbers(sampler)
    with pytest.raises(ss.NonFiniteError, match=f"the {where} of"):
        sampler.step()
    torch.testing.assert_close(numbers(sampler), before, rtol=0, atol=0, equal_nan=True)
    assert sampler.steps == 2


@every_sampler
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_weight_that_overflows_stops_the_next_step(cls, dtype) -> None:
    params = [nn.Parameter(torch.ones(100_000, dtype=other)) for other in (torch.float32, torch.float64)]
    (param,) = (candidate for candidate in params if candidate.dtype is dtype)
    sampler = cls(params, lr=100.0, num_data=10, temperature=0.0, seed=0, fused=True)
    for each in params:
        each.grad = torch.zeros_like(each)
    param.grad[-1] = torch.finfo(dtype).max
    sampler.step()
    assert param[-1] == -math.inf
    param.grad[-1] = 0.0
    with pytest.raises(ss.NonFiniteError):
        sampler.step()
    assert sampler.steps == 1
    with torch.no_grad():
        param[-1] = 0.0  # whoever repairs it may go on
    sampler.step()
    assert sampler.steps == 2


@every_sampler
def test_weights_are_looked_at_after_a_step_that_was_broken_off(cls, monkeypatch) -> None:
    param = nn.Parameter(torch.ones(3000))
    sampler = cls([param], lr=0.1, num_data=10, seed=0, fused=True)
    param.grad = torch.zeros(3000)
    sampler.step()

    def interrupted(work, count, threads, piece=0) -> list[bool]:
        if piece:  # the check before the step
            return [True]
        param.data[7] = math.nan
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("spikeslab.kernels._threads.run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            sampler.step()
    with pytest.raises(ss.NonFiniteError):
        sampler.step()


@every_sampler
def test_parameters_made_in_inference_mode_have_no_version_and_still_move(cls) -> None:
    with torch.inference_mode():
        param = nn.Parameter(torch.ones(3000), requires_grad=False)
        sampler = cls([param], lr=0.1, num_data=10, temperature=0.0, seed=0, fused=True)
        for _ in range(3):
            param.grad = torch.ones(3000)
            sampler.step()
        assert param.max() < 1.0
        param[5] = math.nan
        with pytest.raises(ss.NonFiniteError):
            sampler.step()


@every_sampler
@pytest.mark.parametrize("how", ["copy_", "data", "another memory"])
def test_a_weight_that_was_overwritten_is_looked_at_again(cls, how) -> None:
    param = nn.Parameter(torch.ones(3000))
    sampler = cls([param], lr=0.1, num_data=10, seed=0, fused=True)
    param.grad = torch.zeros(3000)
    sampler.step()
    broken = torch.full((3000,), math.nan)
    if how == "copy_":
        with torch.no_grad():
            param.copy_(broken)
    elif how == "data":
        param.data.copy_(broken)
    else:
        param.data = broken
    if how == "data":
        sampler.step()  # which nothing tells, but the weights that it writes are looked at
    with pytest.raises(ss.NonFiniteError):
        sampler.step()


def test_latents_of_a_frozen_weight_still_move() -> None:
    results = []
    for fused in (True, False):
        params = parameters(torch.float64)
        sampler = sampler_of(ss.SGHMC, params, "SA", fused=fused)
        for step in range(1, 5):
            give_gradients(params, step)
            if step > 1:
                params["large.weight"].grad = None
            sampler.step()
        results.append(numbers(sampler))
    torch.testing.assert_close(*results, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("change", ["memory format", "dtype"])
def test_a_model_may_change_its_format_between_steps(change) -> None:
    results = []
    for fused in (True, False):
        torch.manual_seed(0)
        model = nn.Conv2d(4, 6, 3)
        sampler = sampler_of(ss.SGHMC, dict(model.named_parameters()), "SA", fused=fused, temperature=0.0)
        for step in range(1, 7):
            if step == 4:
                model.to(memory_format=torch.channels_last) if change == "memory format" else model.double()
            for param in model.parameters():
                param.grad = param.detach().cos()
            if change == "dtype" and step >= 4 and not fused:
                break
            sampler.step()
        results.append([param.detach().double() for param in model.parameters()])
    if change == "dtype":
        assert all(bool(param.isfinite().all()) for param in results[0])
    else:
        torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)


@every_sampler
@pytest.mark.parametrize("size", [1000, 3000])
def test_a_parameter_of_another_size_is_not_moved_past_its_end(cls, size) -> None:
    memory = torch.zeros(4000)
    param = nn.Parameter(torch.zeros(2000))
    sampler = cls([param], lr=0.1, num_data=10, seed=0, fused=True)
    param.grad = torch.ones(2000)
    sampler.step()
    param.grad, param.data = None, memory[:size]
    param.grad = torch.ones(size)
    if cls is ss.SGLD:
        sampler.step()
        assert param.count_nonzero() == size
    else:  # its buffer no longer fits
        with pytest.raises(ValueError, match=rf"^a parameter must keep its shape \(2000,\), but got \({size},\): "):
            sampler.step()
        assert not param.any()
    assert not memory[size:].any()


def test_autograd_notices_that_a_saved_weight_has_moved() -> None:
    weight = nn.Parameter(torch.ones(3))
    sampler = ss.SGLD([weight], lr=0.1, num_data=10, fused=True)
    loss = weight.square().sum()
    weight.grad = torch.ones(3)
    sampler.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_at_most_three_tensors_are_kept_for_a_sparse_weight() -> None:
    params = {"weight": nn.Parameter(torch.randn(100_000))}
    sampler = sampler_of(ss.SGHMC, params, "SA", fused=True)
    params["weight"].grad = torch.ones(100_000)
    sampler.step()
    state = sampler.prior.state_dict()
    kept = [*sampler.state[params["weight"]].values(), *state["rho"], *state["rho_bar"]]
    assert sum(tensor.numel() for tensor in kept) == 300_000
    assert not sampler.noise._buffers


@pytest.mark.parametrize("cls", [ss.SGLD, ss.SGHMC, ss.PSGLD])
def test_stationary_variance(cls) -> None:
    """As in test_laws, with the numbers of Noise in float64 too."""
    size, lr, num_data = 1_000_000, 0.5, 10
    options: dict[str, object] = {"momentum": 0.0} if cls is ss.SGHMC else {}
    if cls is ss.PSGLD:
        options = {"alpha": 1.0, "eps": 1.0}
    variance = 1 / num_data * 2 / (2 - lr)
    for dtype in (torch.float32, torch.float64):
        weight = nn.Parameter(math.sqrt(variance) * torch.randn(size, dtype=dtype))
        sampler = cls([weight], lr=lr, num_data=num_data, seed=1, fused=True, **options)
        for _ in range(8):
            weight.grad = weight.detach().clone()
            sampler.step()
        assert float(weight.detach().double().square().mean()) / variance == pytest.approx(
            1, abs=5 * math.sqrt(2 / size)
        )


class TestWhoDecides:
    def test_none_takes_it_where_it_can(self) -> None:
        weight = nn.Parameter(torch.ones(2))
        assert ss.SGLD([weight], lr=0.1, num_data=1)._fused is not None
        assert ss.SGLD([weight], lr=0.1, num_data=1, fused=False)._fused is None
        assert ss.SGLD([weight], lr=0.1, num_data=1, compile=True)._fused is None
        assert ss.SGLD([weight.detach().bfloat16()], lr=0.1, num_data=1)._fused is None

    def refused(self, error: type[Exception], message: str, param: Tensor, **options: object) -> None:
        with pytest.raises(error) as raised:
            ss.SGHMC([("layer.weight", param)], lr=0.1, num_data=1, **options)
        assert str(raised.value) == message

    def test_true_is_refused_where_it_cannot(self) -> None:
        self.refused(
            ValueError,
            "fused must be False or None unless all parameters are float32 or float64 on the CPU, but got True and "
            "layer.weight is torch.bfloat16 on cpu.",
            torch.ones(2, dtype=torch.bfloat16),
            fused=True,
        )
        message = "fused must be False or None with compile=True, but got True."
        self.refused(ValueError, message, torch.ones(2), fused=True, compile=True)
        self.refused(TypeError, "fused must be True, False or None, but got 1.", torch.ones(2), fused=1)

    def test_a_state_of_the_other_path_continues_the_chain(self) -> None:
        def run(fused: list[bool]) -> Tensor:
            weight, state = nn.Parameter(torch.ones(2000)), None
            for choice in fused:
                sampler = ss.SGLD([weight], lr=0.1, num_data=1, seed=1, fused=choice)
                if state is not None:
                    sampler.load_state_dict(state)
                weight.grad = weight.detach().clone()
                sampler.step()
                state = sampler.state_dict()
            return weight.detach()

        torch.testing.assert_close(run([True, False, True]), run([False, False, False]))

    def test_without_numba(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("fused", "philox_numba"):
            monkeypatch.delitem(sys.modules, f"spikeslab.kernels.{name}")
        monkeypatch.setitem(sys.modules, "numba", None)
        weight = nn.Parameter(torch.ones(2))
        sampler = ss.SGHMC([weight], lr=0.1, num_data=1)
        weight.grad = torch.ones(2)
        sampler.step()
        assert sampler._fused is None
        with pytest.raises(ImportError, match=r"^fused must be False or None without a working numba"):
            ss.SGHMC([weight], lr=0.1, num_data=1, fused=True)

    def test_the_package_does_not_import_numba(self) -> None:
        code = "import sys, spikeslab; sys.exit('numba' in sys.modules)"
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
