"""``spikeslab reproduce linear`` on small data."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from spikeslab.presets import paper_linear
from spikeslab.sklearn import SGLDOptions


def test_the_settings_of_the_estimators_are_those_of_the_preset() -> None:
    preset, settings = paper_linear(0.1, 1.0, num_data=100), SGLDOptions(v0=0.1, sigma=1.0)
    shared = asdict(settings)
    assert {name: preset.prior[name] for name in ("v0", "v1", "sigma", "delta", "a", "b", "nu", "lam")} == {
        name: shared[name] for name in ("v0", "v1", "sigma", "delta", "a", "b", "nu", "lam")
    }
    assert preset.prior["kappa"] == (settings.kappa, settings.kappa)
    assert preset.prior["sigma_maximum"] == settings.sigma_maximum == "printed"
    assert (preset.batch_size, preset.posterior["thin"]) == (settings.batch_size, settings.thin)
    scale, offset, power = settings.omega
    size, start, decay = settings.step
    for k in (1, 1000, 60_000):
        assert preset.prior["adapt"].schedule(k) == pytest.approx(min(1.0, scale * (k + offset) ** -power))
        assert preset.sampler["lr"](k) == pytest.approx(100 * size * (k + start) ** -decay)
