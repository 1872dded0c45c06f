"""The step size of each way to adapt."""

from __future__ import annotations

import pytest

import spikeslab as ss


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
