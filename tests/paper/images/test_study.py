"""Studies of MNIST and Fashion-MNIST: their runs and their command."""

from __future__ import annotations

import pytest

from spikeslab.paper.images.presets import make_preset
from spikeslab.paper.images.runs import ImageRun
from spikeslab.paper.images.study import ImageStudy, change_preset, parse_seeds


def test_a_study_has_every_method_preset_and_seed_and_says_what_to_type() -> None:
    run = ImageRun("fashion", "vanilla", make_preset("paper", "fashion"), augment=True, seed=3)
    changes = {"epochs": 30, "chains": 2}
    study = ImageStudy(run, ("vanilla", "sghmc-sa"), ("paper", "default"), {"sghmc-sa": 2}, changes, ("mnist",))
    assert [[each.name for each in runs] for runs in study.rows()] == [
        [f"{method}-{preset}-augmented-2x30-seed{seed}" for seed in seeds]
        for preset in ("paper", "default")
        for method, seeds in (("vanilla", (3,)), ("sghmc-sa", (3, 4)))
    ]
    assert study.command == (
        "spikeslab reproduce fashion --methods vanilla,sghmc-sa --presets paper,default --epochs 30 --chains 2 "
        "--seed 3 --seeds sghmc-sa=2 --augment --foreign mnist"
    )


def test_seeds_are_a_number_or_one_for_each_method() -> None:
    assert parse_seeds("2", ("vanilla", "sghmc")) == {"vanilla": 2, "sghmc": 2}
    assert parse_seeds("sghmc=3", ("vanilla", "sghmc")) == {"sghmc": 3}
    for text in ("0", "10000", "sghmc=0", "sghmc", "swa=2", "sghmc=1=2", "-1", ""):
        with pytest.raises(ValueError, match=r"^seeds must be an integer from 1 to 9,999, or METHOD=NUMBER"):
            parse_seeds(text, ("vanilla", "sghmc"))


def test_every_value_of_a_preset_can_be_changed() -> None:
    preset = make_preset("default", "mnist")
    changed = change_preset(
        preset, ["lr=0.2", "v1=0.04", "final_lr=none", "erasing=1", "samples=3", "num_data=600000", "warmup=2"]
    )
    assert (changed.lr, changed.v1, changed.final_lr, changed.erasing) == (0.2, 0.04, None, True)
    assert (changed.samples, changed.num_data, changed.warmup) == (3, 600_000, 2.0)
    for bad in ("erasing=2", "lr=none", "samples=2.5", "lr"):
        with pytest.raises(ValueError, match=r"^set must be NAME=VALUE with a number, but got"):
            change_preset(preset, [bad])
    with pytest.raises(ValueError, match=r"^set must name one of epochs, chains, .*, but got 'name'"):
        change_preset(preset, ["name=1"])
