"""The step size of each way to adapt, and latents that move at every k-th step only."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import spikeslab as ss

SCHEDULE = ss.polynomial(1.0, power=0.75, offset=20)


def test_sa_clips_its_schedule_to_the_unit_interval() -> None:
    assert ss.SA(ss.polynomial(10.0, power=1.0)).omega(1) == 1.0
    assert ss.SA(ss.polynomial(10.0, power=1.0)).omega(100) == 0.1
    assert ss.SA(lambda k: -0.5).omega(1) == 0.0


def test_em_has_omega_one_and_fixed_zero() -> None:
    assert [ss.EM().omega(k) for k in (1, 10, 10_000)] == [1.0] * 3
    assert [ss.Fixed().omega(k) for k in (1, 10, 10_000)] == [0.0] * 3


def test_marginal_moves_sigma_and_delta_only_where_it_has_a_schedule() -> None:
    assert ss.Marginal().omega(1) == 0.0
    assert ss.Marginal(ss.schedules.constant(0.3)).omega(1) == 0.3
    assert ss.Marginal(ss.schedules.constant(3.0)).omega(1) == 1.0


def test_the_papers_omega_of_cifar_sums_to_three_quarters() -> None:
    sa = ss.SA(ss.polynomial(0.02, power=0.75, offset=1000))
    assert sum(sa.omega(k) for k in range(1, 50_001)) == pytest.approx(0.752, abs=5e-4)


@pytest.mark.parametrize("every", [2, 5, 10])
@pytest.mark.parametrize("kind", [ss.SA, ss.Marginal])
def test_the_sum_of_omega_stays(kind, every):
    thinned = kind(SCHEDULE).thin(every)
    total = sum(SCHEDULE(step) for step in range(1, 1001))
    assert type(thinned) is kind
    assert sum(thinned.omega(step) for step in range(1, 1001)) == pytest.approx(total, rel=1e-12)
    assert [step for step in range(1, 21) if thinned.omega(step)] == list(range(every, 21, every))


def test_a_move_never_goes_beyond_its_target():
    assert [ss.EM().thin(3).omega(step) for step in range(1, 7)] == [0.0, 0.0, 1.0, 0.0, 0.0, 1.0]
    assert ss.SA(ss.schedules.constant(0.4)).thin(3).omega(3) == 1.0


@pytest.mark.parametrize("adapt", [ss.Fixed(), ss.Marginal()])
def test_what_has_no_omega_has_nothing_to_thin(adapt):
    assert adapt.thin(7) is adapt


# ---- adapt_every: the same sum of omega and the same fixed point, exactly resumable ----------------------------------

both_paths = pytest.mark.parametrize("fused", [pytest.param(True, id="fused"), pytest.param(False, id="foreach")])


@pytest.fixture(autouse=True)
def numba_where_fused(request):
    if request.node.callspec.params.get("fused") if hasattr(request.node, "callspec") else False:
        pytest.importorskip("numba")


class Chain:
    """A small regression with a prior on all its weights."""

    def __init__(self, fused: bool, lr: float = 0.01, **settings) -> None:
        torch.manual_seed(0)
        self.x, self.y = torch.randn(40, 6), torch.randn(40, 1)
        self.model = nn.Linear(6, 1)
        settings = {"v0": 0.05, "v1": 1.0, "adapt": ss.SA(SCHEDULE), "sigma_coupling": "conjugate"} | settings
        self.prior = ss.SpikeSlab(ss.select_weights(self.model, "weight"), **settings)
        self.likelihood = ss.GaussianLikelihood(self.prior)
        self.sampler = ss.SGHMC(
            self.model.parameters(),
            lr=lr,
            num_data=40,
            prior=self.prior,
            seed=0,
            fused=fused,
            temperature=float(lr > 0),
        )

    def run(self, steps: int) -> Chain:
        for _ in range(steps):
            self.sampler.zero_grad()
            self.likelihood(self.model(self.x), self.y).backward()
            self.sampler.step()
        return self

    def latents(self) -> tuple:
        state = self.prior.state_dict()
        return state["sigma"], state["delta"], state["omega_sum"], state["progress"], *state["rho"], *state["rho_bar"]


def assert_same(one: Chain, other: Chain) -> None:
    for a, b in zip(one.latents(), other.latents(), strict=True):
        assert torch.equal(torch.as_tensor(a), torch.as_tensor(b))
    for a, b in zip(one.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(a, b)


@both_paths
def test_every_step_is_the_path_without_the_option(fused):
    assert ss.SA(SCHEDULE).thin(1) == ss.SA(SCHEDULE)
    assert_same(Chain(fused).run(20), Chain(fused, adapt_every=1).run(20))


@both_paths
def test_latents_rest_between_and_move_by_the_sum(fused):
    chain = Chain(fused, adapt_every=4).run(3)
    start = Chain(fused).latents()
    assert chain.latents() == start
    chain.run(1)
    assert chain.prior.diagnostics(40).omega_sum == pytest.approx(sum(SCHEDULE(step) for step in range(1, 5)))
    moved = chain.latents()
    chain.run(3)
    for before, after in zip(moved, chain.latents(), strict=True):
        assert torch.equal(torch.as_tensor(before), torch.as_tensor(after))


@pytest.mark.parametrize("adapt", [ss.SA(SCHEDULE), ss.EM(), ss.Marginal(SCHEDULE)])
def test_both_paths_do_the_same(adapt):
    pytest.importorskip("numba")
    fused, foreach = (Chain(path, lr=0.0, adapt=adapt, adapt_every=3).run(12) for path in (True, False))
    for a, b in zip(fused.latents(), foreach.latents(), strict=True):
        torch.testing.assert_close(torch.as_tensor(a), torch.as_tensor(b))


@both_paths
@pytest.mark.parametrize("learn_delta", [False, True])
def test_the_fixed_point_stays(fused, learn_delta):
    """Weights that rest have one fixed point of sigma, delta, rho and kappa, whatever omega is."""
    # A beta prior of delta that keeps its maximum away from 0, where steps would become ever shorter.
    settings = {"lr": 0.0, "adapt": ss.SA(ss.schedules.constant(0.2)), "learn_delta": learn_delta, "a": 9.0, "b": 9.0}
    each, thinned = (Chain(fused, **settings, adapt_every=every).run(300) for every in (1, 3))
    assert (each.prior.delta["weight"] != 0.5) == learn_delta
    assert each.prior.diagnostics(40).omega_sum == pytest.approx(thinned.prior.diagnostics(40).omega_sum)
    assert each.prior.sigma == pytest.approx(thinned.prior.sigma, rel=1e-4)
    assert each.prior.delta["weight"] == pytest.approx(thinned.prior.delta["weight"], rel=1e-4)
    for a, b in zip(each.prior.kappa["weight"], thinned.prior.kappa["weight"], strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)


@both_paths
@pytest.mark.parametrize("stop", [1, 4, 6])
def test_a_resumed_chain_is_the_same_chain(fused, stop):
    whole = Chain(fused, adapt_every=4).run(13)
    first = Chain(fused, adapt_every=4).run(stop)
    second = Chain(fused, adapt_every=4)
    second.model.load_state_dict(first.model.state_dict())
    second.sampler.load_state_dict(copy.deepcopy(first.sampler.state_dict()))
    assert_same(second.run(13 - stop), whole)


@pytest.mark.parametrize(
    ("value", "error"), [(0, ValueError), (-1, ValueError), (2.5, TypeError), (True, TypeError), (None, TypeError)]
)
def test_bad_values_are_refused(value, error):
    with pytest.raises(error, match=rf"^adapt_every must be an integer >= 1, but got {value!r}\.$"):
        ss.SpikeSlab([torch.zeros(3)], v0=0.01, v1=1.0, adapt_every=value)
