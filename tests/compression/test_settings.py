"""The recipe in steps, for runs of any length."""

from __future__ import annotations

import pytest

from spikeslab.compression import Settings
from spikeslab.compression.settings import Timeline

RECIPES = [
    Settings(),
    Settings(samples=1),
    Settings(samples=1000),
    Settings(prune_until=1.0, freeze_from=1.0, collect_from=1.0),
    Settings(prune_from=0.3, freeze_from=0.7, collect_from=0.7, ramp="exponential", lr_schedule="steps"),
    Settings(lr_schedule="constant", warmup_until=0.5),
    Settings(lr_schedule="waves", warmup_until=0.02),
]


@pytest.mark.parametrize("total", [1, 2, 3, 7, 10, 100, 1234])
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_run_of_any_length_prunes_freezes_and_then_collects(recipe: Settings, total: int) -> None:
    timeline = Timeline(recipe, total)
    steps = range(timeline.burn_in + timeline.thin, total + 1, timeline.thin)
    assert 1 <= timeline.prune_end <= timeline.freeze <= timeline.collect <= total
    assert timeline.freeze <= steps[0], "no sample before the mask is frozen"
    assert steps[-1] == total, "the last sample is the end"
    assert len(steps) <= recipe.samples
    sparsity, lr, cooled = timeline.sparsity(0.9), timeline.lr(), timeline.temperature(annealed=True)
    assert sparsity(timeline.prune_end) == 0.9
    values = [sparsity(k) for k in range(1, total + 1)]
    assert values == sorted(values)
    assert max(lr(k) for k in range(1, total + 1)) <= recipe.highest_lr
    assert min(lr(k) for k in range(1, total + 1)) > 0.0
    assert cooled(total + 1) == pytest.approx(recipe.temperature / recipe.cooling)


def test_samples_are_taken_in_the_troughs_of_waves() -> None:
    settings = Settings(lr_schedule="waves", lr=1.0, final_lr=0.01, crest_lr=0.3, samples=5)
    timeline = Timeline(settings, 1000)
    lr = timeline.lr()
    taken = [timeline.burn_in + timeline.thin * index for index in range(6)]
    assert taken[-1] == 1000
    assert [lr(step) for step in taken] == pytest.approx(6 * [0.01])
    assert [lr(step + timeline.thin // 2) for step in taken[:-1]] == pytest.approx(5 * [0.3])
    assert lr(round(0.05 * 1000)) > 0.98, "the crest of the whole run, after the warm-up"
    fall = [lr(step) for step in range(50, timeline.burn_in + 1)]
    assert fall == sorted(fall, reverse=True)


def test_the_exponential_ramp_is_the_papers() -> None:
    timeline = Timeline(Settings(ramp="exponential", prune_until=1.0, freeze_from=1.0, collect_from=1.0), 50_000)
    for epoch in (1, 41, 151, 515):
        expected = 0.9 * (1.0 - 0.99**epoch)
        assert timeline.sparsity(0.9)(50 * epoch) == pytest.approx(expected, abs=2e-4)


def test_the_exponential_ramp_begins_where_it_is_told_to() -> None:
    late = Timeline(Settings(ramp="exponential", prune_from=0.2, prune_until=0.6), 1000).sparsity(0.9)
    assert [late(step) for step in (1, 200, 600)] == [0.0, 0.0, 0.9]
    assert 0.0 < late(201) < late(300) < 0.9


def test_the_exponential_ramp_keeps_its_pace_where_it_ends_early() -> None:
    timeline = Timeline(Settings(ramp="exponential", prune_until=0.7, freeze_from=0.7), 1500)  # 30 epochs of 50 steps
    for epoch in (1, 5, 15):
        expected = 0.9 * (1.0 - 0.99 ** (1000 / 30 * epoch))
        assert timeline.sparsity(0.9)(50 * epoch) == pytest.approx(expected, rel=1e-3)
    assert timeline.sparsity(0.9)(1050) == 0.9


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lr": 0.0}, "lr must be a number > 0, but got 0.0."),
        ({"temperature": -1.0}, "temperature must be a number >= 0, but got -1.0."),
        ({"prune_until": 0.8}, "freeze_from must be a number in [0.8, 1], but got 0.6."),
        ({"freeze_from": 0.9}, "collect_from must be a number in [0.9, 1], but got 0.75."),
        ({"prune_from": 0.6}, "prune_from must be a number in [0, 0.6), but got 0.6."),
        ({"lr_schedule": "line"}, "lr_schedule must be one of 'cosine', 'waves', 'steps', 'constant', but got 'line'."),
        ({"ramp": "line"}, "ramp must be one of 'cubic', 'exponential', but got 'line'."),
        ({"scope": "row"}, "scope must be one of 'layer', 'global', 'erk', but got 'row'."),
        ({"floor": 0}, "floor must be an integer >= 1 or a number in (0, 1), but got 0."),
        ({"floor": 1.5}, "floor must be an integer >= 1 or a number in (0, 1), but got 1.5."),
        ({"samples": 0}, "samples must be an integer >= 1, but got 0."),
        ({"v0": 0.0}, "v0 must be a number > 0, but got 0.0."),
        ({"rho": 2}, "rho must be a number in [0, 1], but got 2."),
        ({"crest_lr": 1.5}, "crest_lr must be a number in [0, 1], but got 1.5."),
        ({"kappa": (-1.0, 0.0)}, "kappa must be a number >= 0, but got -1.0."),
        ({"drops": (1.5,)}, "drops must be a number in (0, 1), but got 1.5."),
    ],
)
def test_bad_settings_are_one_sentence(changes: dict, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        Settings(**changes)
    assert str(caught.value) == message


def test_kappa_is_a_pair() -> None:
    with pytest.raises(TypeError) as caught:
        Settings(kappa=5e-4)  # type: ignore[arg-type]
    assert str(caught.value) == "kappa must be a pair (kappa0, kappa1) of numbers >= 0 or None, but got 0.0005."


def test_zeros_are_chosen_every_few_steps_but_often_enough_in_a_short_ramp() -> None:
    assert [Timeline(Settings(), total).prune_every for total in (10, 100, 200, 1000)] == [1, 3, 6, 8]
    assert Timeline(Settings(prune_every=1), 1000).prune_every == 1
    assert Settings.upgrade({"lr": 0.1})["prune_every"] == 1, "earlier runs chose them after every step"


def test_the_record_of_a_run_is_read_with_the_present_name_of_its_method() -> None:
    assert Settings.upgrade({"method": "one-shot"})["method"] == "magnitude"
    assert Settings.upgrade({"method": "gmp"})["method"] == "gmp"
    assert "method" not in Settings.upgrade({"lr": 0.1})
