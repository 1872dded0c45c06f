"""The presets of the image experiments: the paper's, and ours."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from spikeslab.paper.images.presets import PRESETS, make_preset


def test_the_papers_preset_is_the_papers() -> None:
    preset = make_preset("paper", "fashion")
    assert (preset.batch_size, preset.lr, preset.v0, preset.v1) == (1000, pytest.approx(0.03), 1.0, 0.1)
    assert preset.temperature == pytest.approx(1 / 2500)
    assert preset.learning_rate(100) == pytest.approx(0.03)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("steps", [1, 7, 60, 1650])
def test_samples_end_at_the_last_step_and_stay_in_the_later_part(preset: str, steps: int) -> None:
    made = make_preset(preset, "mnist")
    burn_in, thin = made.thinning(steps)
    taken = [step for step in range(1, steps + 1) if step > burn_in and (step - burn_in) % thin == 0]
    assert taken[-1] == steps
    assert len(taken) == min(steps, made.samples)
    assert burn_in >= min(math.floor(made.burn_in * steps), steps - made.samples) - 1


def test_augmented_images_have_one_chain_with_all_epochs_and_a_lower_end_of_the_lr() -> None:
    plain, changed = (make_preset("default", "fashion", augment=augment) for augment in (False, True))
    assert (plain.chains, changed.chains, changed.samples) == (3, 1, 16)
    assert changed.crest_lr is not None
    assert changed.crest_lr <= plain.sampling_lr
    burn_in, thin = changed.thinning(30 * 550)
    lr = changed.learning_rate(30 * 550)
    assert [lr(step) for step in (burn_in, burn_in + thin, 30 * 550)] == pytest.approx([changed.sampling_lr] * 3)
    assert make_preset("paper", "mnist", augment=True) == make_preset("paper", "mnist")


def test_an_unknown_preset_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^preset must be one of 'paper', 'default', but got 'best'\.$"):
        make_preset("best", "mnist")


def test_the_default_learning_rate_has_fallen_when_samples_are_taken() -> None:
    preset = make_preset("default", "mnist")
    burn_in, _ = preset.thinning(1000)
    schedule = preset.learning_rate(1000)
    assert schedule(1) == preset.lr
    assert schedule(burn_in) == schedule(1000) == preset.sampling_lr


def test_samples_are_taken_in_the_troughs_of_waves() -> None:
    preset = replace(make_preset("default", "mnist"), sampling_lr=0.01, crest_lr=0.05)
    burn_in, thin = preset.thinning(1000)
    schedule = preset.learning_rate(1000)
    assert [schedule(burn_in + k * thin) for k in range(preset.samples + 1)] == [0.01] * (preset.samples + 1)
    assert schedule(burn_in + thin // 2) == pytest.approx(0.05, rel=0.1)
