"""Studies of MNIST and Fashion-MNIST: their runs and their command."""

from __future__ import annotations

from spikeslab.paper.images.presets import make_preset
from spikeslab.paper.images.runs import ImageRun
from spikeslab.paper.images.study import ImageStudy


def test_a_study_has_every_method_preset_and_seed_and_says_what_to_type() -> None:
    run = ImageRun("fashion", "vanilla", make_preset("paper", "fashion"), 30, augment=True)
    study = ImageStudy(run, ("vanilla", "sghmc-sa"), ("paper", "default"), (3, 4))
    assert [[each.name for each in runs] for runs in study.rows()] == [
        [f"{method}-{preset}-augmented-30-seed{seed}" for seed in (3, 4)]
        for preset in ("paper", "default")
        for method in ("vanilla", "sghmc-sa")
    ]
    assert study.command == (
        "spikeslab reproduce fashion --methods vanilla,sghmc-sa --presets paper,default --epochs 30 --seed 3 --seeds 2 "
        "--augment"
    )
