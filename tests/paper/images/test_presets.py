"""The presets of the image experiments: the paper's, and ours."""

from __future__ import annotations

import math

import pytest

from spikeslab.paper.images.presets import PRESETS, make_preset
from spikeslab.paper.images.runs import METHODS
from spikeslab.priors import SA


def test_the_papers_preset_is_the_papers() -> None:
    preset = make_preset("paper", "fashion")
    assert (preset.batch_size, preset.lr, preset.v0, preset.v1) == (1000, pytest.approx(0.03), 1.0, 0.1)
    assert preset.temperature == preset.plain_temperature == pytest.approx(1 / 2500)
    assert preset.learning_rate("sghmc", 12_000, 60) == pytest.approx(0.03)
    assert preset.epochs == 200
    assert preset.thinning("sghmc", 12_000, 60) == (6000, 500)
    prior = preset.prior(True, 100, 60_000, 12_000)
    assert (prior["a"], prior["b"], prior["nu"], prior["lam"], prior["rho"]) == (100.0, 100.0, 1000.0, 1000.0, 0.5)
    assert prior["adapt"].omega(1) == pytest.approx(1001**-0.75)


def test_the_other_reading_of_n_has_ten_times_the_learning_rate() -> None:
    paper, larger = (make_preset(name, "fashion") for name in ("paper", "paper-600k"))
    assert (larger.lr, larger.num_data) == (pytest.approx(10 * paper.lr), 600_000)
    # A step against the gradient of U, lr/N, is the same: the paper's 5e-7.
    assert larger.lr / 600_000 == pytest.approx(paper.lr / 60_000) == pytest.approx(5e-7)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("steps", [1, 7, 60, 1650])
def test_samples_end_at_the_last_step_and_stay_in_the_later_part(preset: str, method: str, steps: int) -> None:
    made = make_preset(preset, "mnist")
    burn_in, thin = made.thinning(method, steps, 60)
    taken = [step for step in range(1, steps + 1) if step > burn_in and (step - burn_in) % thin == 0]
    assert taken[-1] == steps
    if method != "swa":
        assert len(taken) == min(steps, made.samples)
        assert burn_in >= min(math.floor(made.burn_in * steps), steps - made.samples) - 1


@pytest.mark.parametrize("steps", [1, 2, 3, 600, 24_000])
def test_the_default_learning_rate_rises_for_an_epoch_and_falls_to_the_end(steps: int) -> None:
    preset = make_preset("default", "mnist")
    schedule = preset.learning_rate("sghmc-sa", steps, 600)
    assert callable(schedule)
    assert schedule(steps) == preset.final_lr
    values = [schedule(step) for step in range(1, steps + 1)]
    assert max(values) <= preset.lr
    if steps == 24_000:
        assert values[:600] == sorted(values[:600])
        assert values[599] == pytest.approx(preset.lr)
        assert values[600:] == sorted(values[600:], reverse=True)


def test_omega_sums_to_what_the_preset_says() -> None:
    preset = make_preset("default", "fashion")
    prior = preset.prior(True, 100, 60_000, 24_000)
    assert isinstance(prior["adapt"], SA)
    assert sum(prior["adapt"].omega(step) for step in range(1, 24_001)) == pytest.approx(preset.omega_sum)
    assert prior["v1"] == pytest.approx(1 / (60_000 * preset.weight_decay))
    assert "a" not in prior  # 1, and b is the number of weights


def test_augmented_images_have_one_longer_chain() -> None:
    plain, ours, papers = (
        make_preset(name, "fashion", augment=augment)
        for name, augment in (("default", False), ("default", True), ("paper", True))
    )
    assert (plain.epochs, plain.chains) == (40, 4)
    assert (ours.epochs, ours.chains, ours.crop, ours.erasing, ours.pool_dropout) == (200, 1, 2, False, False)
    assert (papers.epochs, papers.crop, papers.erasing, papers.pool_dropout) == (1000, 4, True, True)
    assert make_preset("paper-600k", "mnist", augment=True).epochs == 200


@pytest.mark.parametrize("method", METHODS)
def test_the_record_of_a_method_has_what_it_uses(method: str) -> None:
    record = make_preset("default", "mnist").record(method, augment=False)
    assert {"lr", "epochs", "weight_decay"} <= record.keys()
    assert ("v0" in record) == ("temperature" in record) == (method == "sghmc-sa")
    assert ("plain_temperature" in record) == (method == "sghmc")
    assert "crop" not in record
    assert "crop" in make_preset("default", "mnist").record(method, augment=True)


def test_an_unknown_preset_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^preset must be one of 'default', 'paper', 'paper-600k', but got 'best'\.$"):
        make_preset("best", "mnist")
