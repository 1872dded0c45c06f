"""Replica exchange keeps the law of every rung, finds modes that a single chain misses, and can be continued.

The laws of swaps alone are tested on draws that are exactly from the law of each rung, new ones for every attempt, so
that the variance over n independent numbers has the relative standard error sqrt(2/n).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from two_modes import SECOND_MODE, energy, gradient, mode_weight

import spikeslab as ss
from spikeslab.errors import ArgumentValueError
from spikeslab.parallel import replica_exchange
from spikeslab.parallel.replica_exchange import ReplicaExchange

N = 10
SIZE = 4
LADDER = [1.0, 2.0, 4.0]
ERRORS = 5
NOISE = 0.8


def make_samplers(
    count: int = 3, cls: type = ss.SGLD, strengths: tuple[float, ...] = (), **options
) -> list[ss.samplers.Sampler]:
    weights = [nn.Parameter(torch.zeros(SIZE, dtype=torch.float64)) for _ in range(count)]
    priors = [ss.L2([w], strength=s) for w, s in zip(weights, strengths, strict=True)] if strengths else [None] * count
    options = {"lr": 1.0, "num_data": N, "check_finite": False} | options
    return [cls([w], prior=prior, seed=i, **options) for i, (w, prior) in enumerate(zip(weights, priors, strict=True))]


def weight_of(sampler: ss.samplers.Sampler) -> Tensor:
    return sampler.param_groups[0]["params"][0].detach()


class Squares:
    """Sums of squares by key, and the test of their law."""

    def __init__(self) -> None:
        self.sums: dict[object, list[float]] = {}

    def add(self, key: object, values: Tensor, variance: float) -> None:
        total = self.sums.setdefault(key, [0.0, 0.0])
        total[0] += float(values.square().sum()) / variance
        total[1] += values.numel()

    def scores(self) -> dict[object, float]:
        """How many standard errors each variance is off."""
        return {key: (s / n - 1) / math.sqrt(2 / n) for key, (s, n) in self.sums.items()}


def swap_exact_draws(
    exchange: ReplicaExchange,
    samplers: list[ss.samplers.Sampler],
    draws: int,
    losses: Callable[[Tensor], Tensor] = lambda clean: clean,
    curvatures: tuple[float, ...] = (1.0, 1.0, 1.0),
    burn_in: int = 0,
) -> dict[object, float]:
    """Draw all replicas from exp(-N curvature w^2 / 2T), swap even and odd pairs, and score (replica, rung)."""
    generator, squares = torch.Generator().manual_seed(7), Squares()
    for draw in range(burn_in + draws):
        for replica, sampler in enumerate(samplers):
            temperature = exchange.temperatures[exchange.rung(replica)]
            std = math.sqrt(temperature / (N * curvatures[replica]))
            weight_of(sampler).copy_(std * torch.randn(SIZE, generator=generator, dtype=torch.float64))
        for _ in range(2):
            exchange.step(lambda replica: losses(0.5 * weight_of(samplers[replica]).square().sum()))
        for replica, sampler in enumerate(samplers if draw >= burn_in else ()):
            rung = exchange.rung(replica)
            key = (replica, rung) if len(set(curvatures)) > 1 else rung
            squares.add(key, weight_of(sampler), exchange.temperatures[rung] / (N * curvatures[replica]))
    return squares.scores()


@pytest.mark.parametrize("latents", ["carried", "frozen"])
def test_exact_energies_keep_the_law_of_every_rung(latents: str) -> None:
    samplers = make_samplers()
    exchange = ReplicaExchange(samplers, LADDER, seed=0, latents=latents)
    scores = swap_exact_draws(exchange, samplers, 2500)
    assert max(map(abs, scores.values())) < ERRORS, scores
    # For two rungs of a d-dimensional normal law the rate is a ratio of Gamma functions; here 0.40 for d = 4, ratio 2.
    rates = exchange.statistics().rates
    assert all(0.3 < rate < 0.7 for rate in rates), rates
    assert exchange.statistics().noise == (0.0, 0.0)
    assert exchange.statistics().round_trips > 50


class Noisy:
    """Losses of four mini-batches: the clean one and normal noise."""

    def __init__(self, std: float) -> None:
        self.std, self.generator = std, torch.Generator().manual_seed(3)

    def __call__(self, clean: Tensor) -> Tensor:
        return clean + self.std * torch.randn(4, generator=self.generator, dtype=torch.float64)


@pytest.mark.parametrize("latents", ["carried", "frozen"])
def test_the_corrected_swap_keeps_the_law_under_noise(latents: str) -> None:
    samplers = make_samplers()
    exchange = ReplicaExchange(samplers, LADDER, seed=0, latents=latents)
    scores = swap_exact_draws(exchange, samplers, 2500, Noisy(NOISE), burn_in=150)
    assert max(map(abs, scores.values())) < ERRORS, scores
    # Of the pair (0, 1): two energies with standard deviation N * NOISE / sqrt(4), times 1/1 - 1/2; the frozen swap
    # evaluates each of them twice, with weights 1/1 and 1/2.
    std = math.sqrt(2) * N * NOISE / 2
    expected = {"carried": std * 0.5, "frozen": std * math.sqrt(1 + 0.25)}
    assert exchange.statistics().noise[0] == pytest.approx(expected[latents], rel=0.2)


def test_the_uncorrected_swap_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_exchange, "log_acceptance", lambda estimate, variance: min(0.0, estimate))
    samplers = make_samplers()
    exchange = ReplicaExchange(samplers, LADDER, seed=0)
    scores = swap_exact_draws(exchange, samplers, 2500, Noisy(NOISE), burn_in=150)
    assert scores[0] > 2 * ERRORS, "the coldest rung is too warm"
    assert scores[2] < -ERRORS, "and the hottest too cold"


def test_frozen_latents_stay_with_the_rung_and_so_does_its_law() -> None:
    """The strengths of an L2 prior stand for latents: rung r has the curvature 1 + strength[r], whoever is there."""
    strengths = (0.0, 0.5, 2.0)
    samplers = make_samplers(strengths=strengths)
    exchange = ReplicaExchange(samplers, LADDER, seed=0, latents="frozen")
    scores = swap_exact_draws(exchange, samplers, 2500, curvatures=tuple(1 + s for s in strengths))
    assert len(scores) == 3
    assert max(map(abs, scores.values())) < ERRORS, scores
    assert sum(exchange.statistics().accepted) > 1000


def test_carried_latents_stay_with_the_weights_and_so_does_their_law() -> None:
    strengths = (0.0, 0.5, 2.0)
    samplers = make_samplers(strengths=strengths)
    exchange = ReplicaExchange(samplers, LADDER, seed=0, latents="carried")
    scores = swap_exact_draws(exchange, samplers, 2500, curvatures=tuple(1 + s for s in strengths))
    assert len(scores) == 9, "every replica has been at every rung"
    assert max(map(abs, scores.values())) < ERRORS, scores


@pytest.mark.parametrize("latents", ["carried", "frozen"])
def test_sampler_and_swaps_together_keep_the_law(latents: str) -> None:
    """At lr = 1/curvature SGLD forgets all in a step and draws from N(0, 2T/N), the law of half the energy."""
    samplers, squares = make_samplers(), Squares()
    exchange = ReplicaExchange(samplers, LADDER, seed=0, latents=latents, every=2)
    for _ in range(2000):
        for sampler in samplers:
            weight = sampler.param_groups[0]["params"][0]
            weight.grad = weight.detach().clone()
            sampler.step()
        exchange.step(lambda replica: 0.25 * weight_of(samplers[replica]).square().sum())
        for replica, sampler in enumerate(samplers):
            rung = exchange.rung(replica)
            squares.add(rung, weight_of(sampler), 2 * LADDER[rung] / N)
    assert max(map(abs, squares.scores().values())) < ERRORS, squares.scores()
    assert exchange.statistics().attempts == (500, 500)


def test_a_carried_momentum_is_brought_to_its_new_temperature() -> None:
    samplers = make_samplers(2, ss.SGHMC, lr=0.1)
    exchange = ReplicaExchange(samplers, [1.0, 4.0], seed=0)
    for sampler in samplers:
        weight = sampler.param_groups[0]["params"][0]
        weight.grad = torch.ones_like(weight)
        sampler.step()
    buffers = [s.state[s.param_groups[0]["params"][0]]["momentum_buffer"] for s in samplers]
    before = [buffer.clone() for buffer in buffers]
    # Certain: the hot replica has by far the lower energy.
    exchange.step(lambda replica: torch.tensor([1e3, 0.0][replica]))
    assert exchange.statistics().accepted == (1,)
    assert [exchange.rung(replica) for replica in (0, 1)] == [1, 0]
    assert [s.param_groups[0]["temperature"] for s in samplers] == [4.0, 1.0]
    assert torch.equal(buffers[0], before[0] * 2.0)
    assert torch.equal(buffers[1], before[1] * 0.5)


@pytest.mark.parametrize("latents", ["carried", "frozen"])
def test_swaps_keep_the_law_of_the_momentum(latents: str) -> None:
    """Its variance is proportional to the temperature, and it is independent of the weights."""
    samplers, generator, squares = make_samplers(2, ss.SGHMC), torch.Generator().manual_seed(1), Squares()
    exchange = ReplicaExchange(samplers, LADDER[:2], seed=0, latents=latents)
    for _ in range(2500):
        for replica, sampler in enumerate(samplers):
            draws = torch.randn(2, SIZE, generator=generator, dtype=torch.float64)
            draws *= math.sqrt(LADDER[exchange.rung(replica)] / N)
            weight_of(sampler).copy_(draws[0])
            sampler.state[sampler.param_groups[0]["params"][0]]["momentum_buffer"] = draws[1]
        exchange.step(lambda replica: 0.5 * weight_of(samplers[replica]).square().sum())
        for replica, sampler in enumerate(samplers):
            rung = exchange.rung(replica)
            buffer = sampler.state[sampler.param_groups[0]["params"][0]]["momentum_buffer"]
            squares.add(rung, buffer, LADDER[rung] / N)
            squares.add((rung, "sum"), weight_of(sampler) + buffer, 2 * LADDER[rung] / N)
    assert max(map(abs, squares.scores().values())) < ERRORS, squares.scores()


def test_a_frozen_swap_moves_the_weights_and_nothing_else() -> None:
    samplers = make_samplers(2, ss.SGHMC, lr=0.1)
    exchange = ReplicaExchange(samplers, [1.0, 4.0], seed=0, latents="frozen")
    for value, sampler in enumerate(samplers):
        weight_of(sampler).fill_(float(value))
        sampler.param_groups[0]["params"][0].grad = torch.zeros(SIZE, dtype=torch.float64)
        sampler.step()
    kept = [weight_of(s).clone() for s in samplers]
    buffers = [s.state[s.param_groups[0]["params"][0]]["momentum_buffer"].clone() for s in samplers]
    seen: list[tuple[int, float]] = []

    def loss(replica: int) -> Tensor:
        seen.append((replica, float(weight_of(samplers[replica])[0])))
        return (weight_of(samplers[replica]) - kept[1]).square().sum()  # replica 1's weights are better

    exchange.step(loss)
    assert [replica for replica, _ in seen] == [0, 1, 0, 1]
    assert torch.equal(weight_of(samplers[0]), kept[1])
    assert torch.equal(weight_of(samplers[1]), kept[0])
    assert [s.param_groups[0]["temperature"] for s in samplers] == [1.0, 4.0]
    for sampler, buffer in zip(samplers, buffers, strict=True):
        assert torch.equal(sampler.state[sampler.param_groups[0]["params"][0]]["momentum_buffer"], buffer)
    before = [weight_of(s).clone() for s in samplers]
    with pytest.raises(ZeroDivisionError):
        exchange.step(lambda replica: 1 / 0 if torch.equal(weight_of(samplers[0]), before[1]) else loss(replica))
    assert all(torch.equal(weight_of(s), b) for s, b in zip(samplers, before, strict=True)), "an error changes nothing"


def test_the_energy_is_the_loss_the_prior_and_weight_decay_of_all_data(model, make_prior) -> None:
    prior = make_prior(model)
    sampler = ss.SGHMC(model.parameters(), lr=0.01, num_data=50, prior=prior, weight_decay=0.3, seed=0)
    model(torch.randn(4, 6)).square().mean().backward()
    sampler.step()  # the latents have moved
    other = ss.SGHMC(nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).parameters(), 0.1, num_data=50, seed=1)
    exchange = ReplicaExchange([sampler, other], [1.0, 2.0], seed=0)
    energy = exchange._replicas.energy(0, torch.tensor([1.0, 2.0]))
    decay = 0.5 * 0.3 * sum(float(p.detach().square().sum()) for n, p in model.named_parameters() if "bias" in n)
    expected = 50 * (torch.tensor([1.0, 2.0]).double() + decay) + prior.penalty()
    assert torch.allclose(energy, expected, rtol=1e-6)


def two_mode_samplers(temperatures: list[float]) -> Iterator[ss.samplers.Sampler]:
    for seed, temperature in enumerate(temperatures):
        weight = nn.Parameter(torch.full((1,), -SECOND_MODE, dtype=torch.float64))
        yield ss.SGLD([weight], lr=0.04, num_data=1, temperature=temperature, seed=seed, check_finite=False)


def move(sampler: ss.samplers.Sampler) -> float:
    weight = sampler.param_groups[0]["params"][0]
    weight.grad = gradient(weight.detach())
    sampler.step()
    return float(weight.detach())


def sample_two_modes(latents: str, steps: int) -> tuple[float, float, float]:
    """Share of the upper mode at the coldest rung, its standard error and the exact share."""
    ladder = [1.0, 4.0, 16.0]
    samplers = list(two_mode_samplers(ladder))
    exchange = ReplicaExchange(samplers, ladder, seed=0, every=2, latents=latents)
    cold = []
    for _ in range(steps):
        for sampler in samplers:
            move(sampler)
        exchange.step(lambda replica: energy(weight_of(samplers[replica])).sum())
        cold.append(float(weight_of(samplers[exchange.replica(0)])))
    weight, error, exact = mode_weight(cold)
    print(f"{latents}, {steps} steps: {weight:.4f} +- {error:.4f}, exact {exact}; {exchange.statistics()}")
    return weight, error, exact


@pytest.mark.parametrize("latents", ["carried", "frozen"])
def test_it_finds_both_modes_with_their_weights(latents: str) -> None:
    weight, error, exact = sample_two_modes(latents, 4_000)
    assert 0.0 < error < 0.15
    assert abs(weight - exact) < 4 * error, (weight, error, exact)


def test_a_single_chain_stays_in_one_mode() -> None:
    (single,) = two_mode_samplers([1.0])
    assert max(move(single) for _ in range(6_000)) < 0.0


@pytest.mark.slow
@pytest.mark.parametrize("latents", ["carried", "frozen"])
def test_the_weights_of_the_modes_are_right_in_a_long_run(latents: str) -> None:
    weight, error, exact = sample_two_modes(latents, 60_000)
    assert error < 0.03  # 0.016 is expected, and an error from ten batches is itself uncertain by a quarter
    assert abs(weight - exact) < 4 * error, (weight, error, exact)


def test_it_continues_exactly_from_a_state() -> None:
    def run(exchange: ReplicaExchange, samplers: list[ss.samplers.Sampler], start: int, stop: int) -> None:
        for step in range(start, stop):
            for sampler in samplers:
                weight = sampler.param_groups[0]["params"][0]
                weight.grad = weight.detach().clone()
                sampler.step()
            noise = torch.randn(3, generator=torch.Generator().manual_seed(step))
            exchange.step(lambda replica, noise=noise: 0.5 * weight_of(samplers[replica]).square().sum() + 0.1 * noise)

    def fresh() -> tuple[ReplicaExchange, list[ss.samplers.Sampler]]:
        samplers = make_samplers(cls=ss.SGHMC, lr=0.3)
        return ReplicaExchange(samplers, LADDER, seed=5, every=2), samplers

    whole, whole_samplers = fresh()
    run(whole, whole_samplers, 0, 101)
    first, samplers = fresh()
    run(first, samplers, 0, 51)
    states = [first.state_dict(), *(s.state_dict() for s in samplers)]
    weights = [weight_of(s).clone() for s in samplers]
    second, others = fresh()
    second.load_state_dict(states[0])
    for sampler, state, weight in zip(others, states[1:], weights, strict=True):
        sampler.load_state_dict(state)
        weight_of(sampler).copy_(weight)
    run(second, others, 51, 101)
    assert second.statistics() == whole.statistics()
    assert second.state_dict() == whole.state_dict()
    assert sum(whole.statistics().accepted) > 10
    assert all(torch.equal(weight_of(a), weight_of(b)) for a, b in zip(others, whole_samplers, strict=True))


def test_a_state_of_another_ladder_is_refused() -> None:
    exchange = ReplicaExchange(make_samplers(2), [1.0, 2.0], seed=0)
    state = ReplicaExchange(make_samplers(2), [1.0, 3.0], seed=1).state_dict()
    with pytest.raises(ArgumentValueError) as error:
        exchange.load_state_dict(state)
    assert str(error.value) == ("state_dict must be of a ladder with temperatures [1.0, 2.0], but got [1.0, 3.0].")
    assert exchange.seed == 0


def test_a_temperature_changed_from_outside_is_noticed() -> None:
    samplers = make_samplers(2)
    exchange = ReplicaExchange(samplers, [1.0, 2.0], seed=0)
    samplers[1].param_groups[0]["temperature"] = 3.0
    with pytest.raises(RuntimeError, match=r"^the temperature of replica 1 must be that of its rung, 2\.0, but got"):
        exchange.step(lambda replica: torch.tensor(0.0))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: ReplicaExchange(make_samplers(2), [2.0, 1.0], seed=0),
            "temperatures must be at least two rising numbers, but got [2.0, 1.0].",
        ),
        (
            lambda: ReplicaExchange(make_samplers(2), LADDER, seed=0),
            "temperatures must be one for each of 2 replicas, but got 3.",
        ),
        (
            lambda: ReplicaExchange(make_samplers(2), [1.0, 2.0], seed=0, latents="moved"),
            "latents must be one of 'carried', 'frozen', but got 'moved'.",
        ),
        (
            lambda: ReplicaExchange(make_samplers(1) * 2, [1.0, 2.0], seed=0),
            "samplers must have different seeds, but two have the same and would draw equal noise: use "
            "ranks.seed(base) on ranks.",
        ),
        (
            lambda: ReplicaExchange([*make_samplers(1), *make_samplers(2, num_data=9)[1:]], [1.0, 2.0], seed=0),
            "samplers must be of equal models and num_data, but they differ.",
        ),
        (
            lambda: ReplicaExchange(make_samplers(2, temperature=ss.schedules.geometric(1.0, 0.9)), [1.0, 2.0], seed=0),
            "temperature must be a number to be changed from outside, but got a schedule.",
        ),
    ],
)
def test_bad_ladders_are_refused(make, message: str) -> None:
    with pytest.raises(ArgumentValueError) as error:
        make()
    assert str(error.value) == message


@pytest.mark.parametrize("shape", [(1,), (2, 2)])
def test_losses_of_another_shape_are_refused(shape) -> None:
    exchange = ReplicaExchange(make_samplers(2), [1.0, 2.0], seed=0)
    with pytest.raises(ArgumentValueError) as error:
        exchange.step(lambda replica: torch.zeros(shape))
    assert str(error.value) == (
        "loss must return one number for all data or at least two of mini-batches in one dimension, "
        f"but got the shape {shape}."
    )
    with pytest.raises(ValueError, match=r"^loss must return as many numbers for all replicas, but got \[2, 3\]\.$"):
        exchange.step(lambda replica: torch.zeros(2 + replica))


@pytest.mark.parametrize("latents", ["carried", "frozen"])
def test_a_loss_that_is_not_finite_stops_the_ladder_and_changes_nothing(latents: str) -> None:
    samplers = make_samplers()
    exchange = ReplicaExchange(samplers, LADDER, seed=0, latents=latents)
    with pytest.raises(ss.NonFiniteError) as error:
        exchange.step(lambda replica: torch.tensor(math.nan if replica == 1 else 0.0))
    assert str(error.value) == (
        "the loss of replica 1 must be finite, but got NaN or Inf at the temperature 2: try a lower lr or a lower "
        "highest temperature."
    )
    assert exchange.statistics().attempts == (0, 0)
