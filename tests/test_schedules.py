"""Schedules are pure functions of the step, which counts from 1."""

from __future__ import annotations

import math
import pickle
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

import spikeslab as ss
from spikeslab.errors import ArgumentValueError

ALL = [
    ss.schedules.constant(0.3),
    ss.polynomial(10.0, power=0.7, offset=1000),
    ss.schedules.geometric(1e-3, 1 / 1.005, every=50),
    ss.schedules.multistep(0.1, 0.1, [100, 200]),
    ss.cosine(0.1, total=300, final=0.01, warmup=20),
    ss.cyclical(0.1, cycle=37),
    ss.schedules.waves(0.1, total=120, low=0.01, high=0.05, period=37),
    ss.exponential_sparsity(0.9),
    ss.exponential_sparsity(0.9, total=250),
    ss.exponential_sparsity(0.9, total=250, start=40),
    ss.cubic_sparsity(0.9, total=250, start=30),
]


@pytest.mark.parametrize("schedule", ALL, ids=repr)
def test_a_schedule_is_a_pure_function_of_the_step(schedule) -> None:
    forward = [schedule(k) for k in range(1, 400)]
    backward = [schedule(k) for k in reversed(range(1, 400))]
    assert forward == backward[::-1]
    assert all(math.isfinite(value) and value >= 0 for value in forward)
    again = pickle.loads(pickle.dumps(schedule))
    assert again == schedule
    assert [again(k) for k in range(1, 400)] == forward


@pytest.mark.parametrize("schedule", ALL, ids=repr)
@pytest.mark.parametrize("step", [0, -3])
def test_steps_count_from_one(schedule, step: int) -> None:
    with pytest.raises(ValueError, match=rf"^step must be an integer >= 1, but got {step}\.$"):
        schedule(step)


def test_schedules_with_the_same_settings_are_equal_and_say_what_they_are() -> None:
    assert ss.polynomial(1.0, 0.7) == ss.polynomial(1.0, power=0.7, offset=0.0)
    assert ss.polynomial(1.0, 0.7) != ss.polynomial(1.0, 0.8)
    assert repr(ss.cubic_sparsity(0.9, total=10)) == "cubic_sparsity(target=0.9, total=10, start=0)"


def test_polynomial_is_the_papers_epsilon_and_omega() -> None:
    epsilon, omega = ss.polynomial(0.001, power=1 / 3), ss.polynomial(10.0, power=0.7, offset=1000)
    for k in (1, 2, 1000, 500_000):
        assert epsilon(k) == pytest.approx(0.001 * k ** (-1 / 3), rel=1e-12)
        assert omega(k) == pytest.approx(10 * (k + 1000) ** -0.7, rel=1e-12)


def test_geometric_changes_by_step_or_by_epoch() -> None:
    by_step, by_epoch = ss.schedules.geometric(1.0, 0.5), ss.schedules.geometric(1.0, 0.5, every=3)
    assert [by_step(k) for k in (1, 2, 3)] == [1.0, 0.5, 0.25]
    assert [by_epoch(k) for k in range(1, 8)] == [1.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.25]


def test_multistep_drops_after_its_milestones_in_any_order() -> None:
    schedule = ss.schedules.multistep(1.0, 0.1, [4, 2])
    assert [schedule(k) for k in range(1, 6)] == pytest.approx([1.0, 1.0, 0.1, 0.1, 0.01])


def test_cosine_warms_up_falls_and_stays() -> None:
    schedule = ss.cosine(1.0, total=100, final=0.2, warmup=10)
    values = [schedule(k) for k in range(1, 121)]
    assert values[:10] == pytest.approx([k / 10 for k in range(1, 11)])
    assert values[10] == 1.0
    assert all(a > b for a, b in pairwise(values[10:100]))
    assert values[99:] == [0.2] * 21


@pytest.mark.parametrize("warmup", [0, 4])
def test_cosine_over_a_single_step_is_its_end(warmup: int) -> None:
    assert ss.cosine(1.0, total=warmup + 1, final=0.2, warmup=warmup)(warmup + 1) == 0.2


def test_cyclical_restarts() -> None:
    schedule = ss.cyclical(2.0, cycle=5)
    first, second = [schedule(k) for k in range(1, 6)], [schedule(k) for k in range(6, 11)]
    assert first == second
    assert first[0] == 2.0
    assert all(a > b > 0 for a, b in pairwise(first))


def test_waves_fall_once_and_then_rise_and_fall_without_a_jump() -> None:
    schedule = ss.schedules.waves(1.0, total=100, low=0.1, high=0.5, period=40)
    fall = ss.cosine(1.0, total=100, final=0.1)
    assert [schedule(k) for k in range(1, 101)] == [fall(k) for k in range(1, 101)]
    assert [schedule(100 + 40 * cycle) for cycle in (1, 2, 7)] == [0.1] * 3
    assert [schedule(80 + 40 * cycle) for cycle in (1, 2, 7)] == pytest.approx([0.5] * 3)
    wave = [schedule(k) for k in range(100, 260)]
    assert max(abs(a - b) for a, b in pairwise(wave)) < 0.4 * math.pi / 40 * 1.01


def test_sparsity_is_the_papers_formula() -> None:
    schedule = ss.exponential_sparsity(0.917, decay=0.99, every=50)
    for k in (1, 50, 1234, 50_000):
        assert schedule(k) == pytest.approx(0.917 * (1 - 0.99 ** (k / 50)), rel=1e-9)


@given(target=st.floats(0, 0.999), total=st.integers(1, 1000), decay=st.floats(0.5, 0.999), every=st.floats(1, 100))
def test_a_sparsity_with_a_total_ends_on_its_target_exactly_and_never_overshoots(target, total, decay, every) -> None:
    for schedule in (
        ss.exponential_sparsity(target, decay=decay, every=every, total=total),
        ss.cubic_sparsity(target, total=total),
    ):
        assert schedule(total) == schedule(total + 1) == schedule(10 * total) == target
        values = [schedule(k) for k in range(1, total + 1)]
        assert all(0 <= a <= b * (1 + 1e-12) for a, b in pairwise(values))
        assert max(values) <= target * (1 + 1e-12)


def test_cubic_waits_for_its_start() -> None:
    schedule = ss.cubic_sparsity(0.8, total=100, start=20)
    assert [schedule(k) for k in (1, 20)] == [0.0, 0.0]
    assert schedule(60) == pytest.approx(0.8 * (1 - 0.5**3))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ss.schedules.constant(-1.0), "value must be a number >= 0, but got -1.0."),
        (lambda: ss.polynomial(-1.0), "scale must be a number >= 0, but got -1.0."),
        (lambda: ss.polynomial(1.0, power=1.5), "power must be a number in [0, 1], but got 1.5."),
        (lambda: ss.polynomial(1.0, offset=-2), "offset must be a number >= 0, but got -2."),
        (lambda: ss.schedules.geometric(1.0, 0.0), "factor must be a number > 0, but got 0.0."),
        (lambda: ss.schedules.geometric(1.0, 0.5, every=0), "every must be an integer >= 1, but got 0."),
        (lambda: ss.schedules.multistep(1.0, 0.5, [0]), "milestones must be an integer >= 1, but got 0."),
        (lambda: ss.cosine(1.0, total=5, warmup=5), "warmup must be an integer below total=5, but got 5."),
        (lambda: ss.cyclical(1.0, cycle=0), "cycle must be an integer >= 1, but got 0."),
        (
            lambda: ss.schedules.waves(1.0, total=5, low=-1.0, high=1.0, period=5),
            "low must be a number >= 0, but got -1.0.",
        ),
        (
            lambda: ss.schedules.waves(1.0, total=5, low=0.1, high=1.0, period=0),
            "period must be an integer >= 1, but got 0.",
        ),
        (lambda: ss.exponential_sparsity(1.0), "target must be a number in [0, 1), but got 1.0."),
        (lambda: ss.exponential_sparsity(0.5, decay=1.0), "decay must be a number in (0, 1), but got 1.0."),
        (
            lambda: ss.exponential_sparsity(0.5, total=9, start=9),
            "start must be an integer below total=9, but got 9.",
        ),
        (lambda: ss.exponential_sparsity(0.5, every=0), "every must be a number > 0, but got 0."),
        (lambda: ss.cubic_sparsity(-0.1, total=5), "target must be a number in [0, 1), but got -0.1."),
        (lambda: ss.cubic_sparsity(0.5, total=5, start=5), "start must be an integer below total=5, but got 5."),
        (lambda: ss.schedules.constant(math.nan), "value must be a number >= 0, but got nan."),
    ],
)
def test_bad_settings_are_told_in_one_sentence(make, message: str) -> None:
    with pytest.raises(ArgumentValueError) as error:
        make()
    assert str(error.value) == message


def test_a_number_of_the_wrong_type_is_told_too() -> None:
    for make, message in [
        (lambda: ss.schedules.constant("0.1"), "value must be a number >= 0, but got '0.1'."),
        (lambda: ss.schedules.constant(True), "value must be a number >= 0, but got True."),
        (lambda: ss.cubic_sparsity(0.5, total=5.0), "total must be an integer >= 1, but got 5.0."),
    ]:
        with pytest.raises(TypeError) as error:
            make()
        assert str(error.value) == message


def test_the_schedule_prints_what_it_sums() -> None:
    assert (
        repr(ss.schedules.accumulate(ss.schedules.constant(0.1), 5))
        == "accumulate(schedule=constant(value=0.1), every=5)"
    )
