"""The noise is a pure function of (seed, step, parameter, element)."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

import spikeslab as ss
from spikeslab.kernels.noise import Noise


def draw(seed: int, step: int, params: list[torch.Tensor]) -> list[torch.Tensor]:
    noise = Noise(seed)
    noise.start(step)
    return noise.draw(params)


def test_equal_seed_and_step_give_equal_noise_and_others_do_not() -> None:
    params = [torch.zeros(100)]
    assert torch.equal(draw(5, 7, params)[0], draw(5, 7, params)[0])
    assert not torch.equal(draw(5, 7, params)[0], draw(5, 8, params)[0])
    assert not torch.equal(draw(5, 7, params)[0], draw(6, 7, params)[0])


def test_noise_does_not_repeat_across_steps() -> None:
    noise = Noise(3)
    first_numbers = set()
    for step in range(1, 3001):
        noise.start(step)
        first_numbers.add(noise.draw([torch.zeros(1, dtype=torch.float64)])[0].item())
    assert len(first_numbers) == 3000


def test_parts_of_a_step_have_different_noise() -> None:
    noise = Noise(3)
    noise.start(1)
    # Valid until the next call, so copied.
    first, second = (part.clone() for part in noise.draw([torch.zeros(100), torch.zeros(100)]))
    third = noise.draw([torch.zeros(100)], [2])[0]
    for one, other in itertools.combinations((first, second, third), 2):
        assert not torch.equal(one, other)


class TestTheGlobalGenerator:
    def chain(self, disturb: bool) -> torch.Tensor:
        weight = nn.Parameter(torch.zeros(50))
        sampler = ss.SGHMC([weight], lr=0.1, num_data=10, seed=4)
        for _ in range(5):
            if disturb:
                torch.manual_seed(int(torch.randint(1000, ())))
                torch.randn(17)
            weight.grad = weight.detach().clone()
            sampler.step()
        return weight.detach()

    def test_does_not_change_the_chain(self) -> None:
        assert torch.equal(self.chain(disturb=False), self.chain(disturb=True))

    def test_is_not_changed_by_the_chain(self) -> None:
        before = torch.get_rng_state()
        self.chain(disturb=False)
        assert torch.equal(torch.get_rng_state(), before)

    def test_gives_the_seed_where_none_is_given(self) -> None:
        def seed() -> int:
            return ss.SGLD([nn.Parameter(torch.zeros(1))], lr=0.1, num_data=1).noise.seed

        torch.manual_seed(1)
        first = seed()
        second = seed()
        torch.manual_seed(1)
        assert seed() == first != second


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_noise_has_the_dtype_shape_and_strides_of_the_parameter(dtype) -> None:
    params = [
        torch.zeros((), dtype=dtype),
        torch.zeros(0, dtype=dtype),
        torch.zeros(5, 4, dtype=dtype),
        torch.zeros(2, 3, 4, 5, dtype=dtype).to(memory_format=torch.channels_last),
    ]
    for param, noise in zip(params, draw(0, 1, params), strict=True):
        assert (noise.dtype, noise.shape, noise.stride()) == (param.dtype, param.shape, param.stride())


def test_every_number_is_used_once_in_channels_last() -> None:
    param = torch.zeros(4, 3, 5, 5).to(memory_format=torch.channels_last)
    others = [torch.zeros(7)]
    first, second = draw(0, 1, [param, *others])
    assert len(set(first.flatten().tolist()) | set(second.tolist())) == 307


def test_other_parameters_of_a_step_do_not_matter() -> None:
    alone = draw(3, 1, [torch.zeros(10)])[0]
    assert torch.equal(draw(3, 1, [torch.zeros(10), torch.zeros(5000), torch.zeros(0)])[0], alone)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_torch_and_numba_draw_the_same(dtype) -> None:
    kernels = pytest.importorskip("spikeslab.kernels.philox_numba")
    filters = torch.zeros(4, 3, 5, 5, dtype=dtype).to(memory_format=torch.channels_last)
    params = [torch.zeros(3, 700, dtype=dtype), filters]
    drawn = []
    for noise in (Noise(7), Noise(7, kernels)):
        noise.start(9)
        drawn.append(noise.draw(params, [4, 1]))
    for one, other in zip(*drawn, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-15 if dtype == torch.float64 else 0.0, atol=0.0)


def test_a_state_of_another_kind_is_refused_and_changes_nothing() -> None:
    noise = Noise(3)
    message = r"noise of the kind 'philox', but got 'torch'\.$"
    with pytest.raises(ValueError, match=message):
        noise.load_state_dict({"kind": "torch", "seed": 9})
    assert noise.seed == 3
