"""The noise is a pure function of (kind, seed, step)."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import spikeslab as ss
from spikeslab.kernels.noise import TorchNoise, step_seed


def draw(seed: int, step: int, params: list[torch.Tensor]) -> list[torch.Tensor]:
    noise = TorchNoise(seed)
    noise.start(step)
    return noise.draw(params)


def test_equal_seed_and_step_give_equal_noise_and_others_do_not() -> None:
    params = [torch.zeros(100)]
    assert torch.equal(draw(5, 7, params)[0], draw(5, 7, params)[0])
    assert not torch.equal(draw(5, 7, params)[0], draw(5, 8, params)[0])
    assert not torch.equal(draw(5, 7, params)[0], draw(6, 7, params)[0])


def test_noise_does_not_repeat_across_steps() -> None:
    noise = TorchNoise(3)
    first_numbers = set()
    for step in range(1, 3001):
        noise.start(step)
        first_numbers.add(noise.draw([torch.zeros(1, dtype=torch.float64)])[0].item())
    assert len(first_numbers) == 3000


def test_parts_of_a_step_have_different_noise() -> None:
    noise = TorchNoise(3)
    noise.start(1)
    # Valid until the next call, so copied.
    first, second = (part.clone() for part in noise.draw([torch.zeros(100), torch.zeros(100)]))
    third = noise.draw([torch.zeros(100)])[0]
    for one, other in itertools.combinations((first, second, third), 2):
        assert not torch.equal(one, other)


@pytest.mark.parametrize("seed", [0, 1, 12345, 2**63 - 1])
def test_step_seeds_are_all_different_and_fit_32_bits(seed: int) -> None:
    steps = range(1, 200_001)
    seeds = {step_seed(seed, step) for step in steps}
    assert len(seeds) == len(steps)
    assert max(seeds) < 2**32
    # A random 32-bit hash would repeat about 4.7 times over so many steps.


@given(seed=st.integers(0, 2**64 - 1), steps=st.lists(st.integers(0, 2**32 - 1), unique=True, min_size=2))
def test_step_seed_is_injective_far_out(seed: int, steps: list[int]) -> None:
    assert len({step_seed(seed, step) for step in steps}) == len(steps)


def test_neighbouring_runs_share_no_stretch_of_step_seeds() -> None:
    runs = [{step_seed(seed, step) for step in range(1, 1001)} for seed in range(20)]
    # 190 pairs of a thousand 32-bit numbers: 0.04 common ones are expected, an overlapping stretch would be many.
    assert sum(len(a & b) for a, b in itertools.combinations(runs, 2)) <= 2


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


@given(
    sizes=st.lists(st.sampled_from([0, 1, 3, 15, 16, 17, 200]), min_size=1, max_size=6),
    seed=st.integers(0, 2**64 - 1),
)
def test_split_of_parameters_into_tensors_does_not_matter_to_the_stream(sizes: list[int], seed: int) -> None:
    together = draw(seed, 1, [torch.zeros(sum(sizes))])[0]
    assert torch.equal(torch.cat(draw(seed, 1, [torch.zeros(size) for size in sizes])), together)


def test_a_state_of_another_kind_is_refused_and_changes_nothing() -> None:
    noise = TorchNoise(3)
    message = r"noise of the kind 'torch', but got 'philox': create the sampler with fused=True\.$"
    with pytest.raises(ValueError, match=message):
        noise.load_state_dict({"kind": "philox", "seed": 9})
    assert noise.seed == 3
