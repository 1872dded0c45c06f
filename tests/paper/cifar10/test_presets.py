"""The presets of CIFAR-10: the paper's schedules in any number of steps, and ours."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from small_cifar10 import ROWS, TOTAL, small_run

from spikeslab.compression import METHODS, Settings
from spikeslab.compression.problem import Problem
from spikeslab.compression.settings import Timeline
from spikeslab.paper.cifar10 import resnet20
from spikeslab.paper.cifar10.presets import PRESETS, check_method
from spikeslab.paper.cifar10.runs import (
    SPARSE,
    CifarRun,
)
from spikeslab.paper.cifar10.tables import (
    paper_accuracy,
)
from spikeslab.pruning import Pruner
from spikeslab.weights import select_weights

EPOCH = 50


def problem(settings: Settings, sparsity: float, steps: int) -> Problem:
    model = resnet20()
    return Problem(
        model=model,
        weights=select_weights(model, SPARSE),
        sparsity=sparsity,
        network=model,
        settings=settings,
        timeline=Timeline(settings, steps),
        num_data=ROWS,
        seed=0,
    )


def make_settings(preset: str, sparsity: float = 0.9, epochs: int | None = None) -> tuple[Settings, int]:
    """The settings of a preset on all of CIFAR-10, and its steps."""
    made = PRESETS[preset]
    epochs = epochs or made.epochs
    run = CifarRun("a-sghmc-sa", sparsity, preset, epochs, made.batch_size, made.erasing)
    return run.settings(ROWS), epochs * (ROWS // made.batch_size)


def test_the_papers_preset_is_its_run_of_1000_epochs() -> None:
    settings, steps = make_settings("paper")
    timeline = Timeline(settings, steps)
    assert steps == 50_000
    lr = timeline.lr()
    assert [lr(50 * epoch) for epoch in (1, 700, 701, 900, 901, 1000)] == pytest.approx(
        [1e-4, 1e-4, 1e-5, 1e-5, 1e-6, 1e-6]
    )
    tau = [1.0 / timeline.temperature(annealed=True)(EPOCH * epoch + 1) for epoch in (0, 100, 1000)]
    assert tau == pytest.approx([1000.0, 1000.0 * 1.005**100, 1000.0 * 1.005**1000])
    for epoch in (1, 12, 151, 515):
        assert timeline.sparsity(0.9)(EPOCH * epoch) == pytest.approx(0.9 * (1.0 - 0.99**epoch), rel=2e-3)
    assert (settings.prior["v0"], settings.prior["v1"]) == (0.005, 1e-5)
    assert settings.prior["kappa"] == (5e-4, 5e-4)
    assert settings.weight_decay == pytest.approx(25 / ROWS)


@pytest.mark.filterwarnings("ignore:the spike")
@pytest.mark.parametrize("preset", ["paper", "paper-short"])
def test_compression_of_time_keeps_the_sum_of_omega_and_scales_the_rest(preset: str) -> None:
    settings, steps = make_settings(preset)
    c = 50_000 / steps
    adapt = METHODS["a-sghmc-sa"](problem(settings, 0.9, steps)).sampler.prior.adapt
    for step in (1, 10, steps):
        expected = 0.02 * c**0.25 * (1000 / c + step) ** -0.75  # c omega(ck), by hand
        assert adapt.omega(step) == pytest.approx(expected, rel=5e-3)
    if steps < 50_000:
        assert sum(adapt.omega(step) for step in range(1, steps + 1)) == pytest.approx(0.752, abs=2e-3)
    assert settings.lr == pytest.approx(1e-4 * c)
    timeline = Timeline(settings, steps)
    tau = timeline.temperature(annealed=True)
    assert tau(1) / tau(EPOCH + 1) == pytest.approx(1.005**c)
    assert 1.0 - timeline.sparsity(0.9)(EPOCH) / 0.9 == pytest.approx(0.99**c, abs=1e-3)


def test_the_short_preset_drops_the_lr_at_70_and_90_per_cent() -> None:
    settings, steps = make_settings("paper-short")
    lr = Timeline(settings, steps).lr()
    peak = 1e-4 * 1000 / 30
    assert [lr(k) for k in (1, 1050, 1051, 1350, 1351)] == pytest.approx([peak, peak, peak / 10, peak / 10, peak / 100])


def test_the_ablation_is_warmer_and_cools_further() -> None:
    settings, steps = make_settings("ablation")
    assert steps == 25_000
    tau = Timeline(settings, steps).temperature(annealed=True)
    assert [1.0 / tau(25 * epoch + 1) for epoch in (0, 1, 1000)] == pytest.approx(
        [20.0, 20.0 * 1.01, 20.0 * 1.01**1000], rel=1e-6
    )


def test_the_default_preset_warms_up_for_an_epoch_and_has_a_true_spike() -> None:
    settings, steps = make_settings("default", epochs=20)
    lr = Timeline(settings, steps).lr()
    per_epoch = ROWS // 128
    assert steps == 20 * per_epoch
    assert [lr(per_epoch // 2), lr(per_epoch), lr(steps)] == pytest.approx([0.025, 0.05, 0.005])
    assert Timeline(settings, steps).sparsity(0.9)(round(0.3 * steps)) == pytest.approx(0.9 * (1 - 0.5**3), rel=1e-3)
    assert not METHODS["a-sghmc-sa"](problem(settings, 0.9, steps)).sampler.prior.inverted


def test_the_distilled_preset_is_the_default_with_a_teacher() -> None:
    assert make_settings("distilled")[0] == replace(make_settings("default")[0], distillation=0.2)


@pytest.mark.parametrize(("sparsity", "rate", "nonzeros"), [(0.3, 0.305, 190_732), (0.9, 0.917, 27_247)])
def test_zeros_are_counted_over_the_network_and_the_layers_rate_is_the_papers(
    sparsity: float, rate: float, nonzeros: int
) -> None:
    settings, steps = make_settings("default")
    made = problem(settings, sparsity, steps)
    pruner = Pruner(made.weights, sparsity, network=made.network)
    pruner.step()
    found = pruner.sparsity()
    assert math.floor(1000 * found.sparse) / 1000 == rate
    assert TOTAL - found.sparse_zeros == nonzeros
    assert found.sparse_total == 267_264


@pytest.mark.parametrize(("sparsity", "rate"), [(0.3, 0.305), (0.5, 0.509), (0.7, 0.713), (0.9, 0.917)])
def test_the_rates_of_the_layers_are_the_papers(sparsity: float, rate: float) -> None:
    assert math.floor(1000 * round(sparsity * TOTAL) / 267_264) / 1000 == rate


def test_sparsities_without_scales_in_the_paper_get_the_nearest() -> None:
    assert make_settings("paper-short", 0.95)[0].prior["v0"] == 0.005
    assert make_settings("paper-short", 0.5)[0].prior["v1"] == 5e-4


def test_the_grid_is_that_of_the_source() -> None:
    methods = PRESETS["grid"].methods
    assert methods[:2] == ("l1:0.0001", "l1:0.0003")
    assert methods[-1] == "l2:1"
    assert all(paper_accuracy(method, 0.9) is not None for method in methods)
    run = small_run("l2:0.6", preset="grid")
    assert run.settings(ROWS).strength == 0.6


@pytest.mark.filterwarnings("ignore:the spike")
@pytest.mark.parametrize("preset", list(PRESETS))
def test_settings_of_the_prior_reach_it_under_every_preset(preset: str) -> None:
    changes = (("v0", 0.02), ("v1", 0.3), ("rho", 0.25), ("kappa", (3.0, 7.0)))
    settings = small_run(preset=preset, changes=changes).settings(ROWS)
    prior = METHODS["a-sghmc-sa"](problem(settings, 0.9, steps=10)).sampler.prior
    assert (prior.v0, prior.v1) == (0.02, 0.3)
    name = "layer1.0.conv1.weight"
    assert prior.rho[name].unique().tolist() == [0.25]
    assert [kappa.unique().tolist() for kappa in prior.kappa[name]] == [[3.0], [7.0]]


def test_strengths_follow_l1_and_l2_only() -> None:
    assert check_method("l1:3e-3") == "l1:0.003"
    for call, message in (
        (lambda: check_method("gmp:1"), r"^methods must have a strength with 'l1', 'l2' only, but got 'gmp:1'.$"),
        (lambda: check_method("l2:x"), r"^methods must have a strength > 0 such as 'l2:0.01', but got 'l2:x'.$"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
