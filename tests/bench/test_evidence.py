"""The scores for pruning, and their table."""

from __future__ import annotations

import pytest

from spikeslab.bench import BenchPlan
from spikeslab.bench.evidence import MASKED, PROJECTED, QUICK_SPARSITIES, SCORES, SIZE, Run, run, tabulate


def make_run(score: str, mode: str, seed: int, accuracy: float) -> Run:
    return Run("lenet", 0.5, score, mode, seed, {"accuracy": accuracy, "nll": 1.0}, 10)


def test_differences_are_paired_by_seed_with_size_and_regrowth() -> None:
    found = [
        make_run(SIZE, PROJECTED, 0, 0.80),
        make_run("odds", MASKED, 0, 0.81),
        make_run(SIZE, PROJECTED, 1, 0.90),
        make_run("odds", MASKED, 1, 0.93),
    ]
    dense = [make_run("dense", "", seed, 0.95) for seed in (0, 1)]
    whole, base, other = tabulate(found, dense).rows
    assert whole["value"] == "95.00 ± 0.00"
    assert base["difference"] is None
    assert other["difference"] == "+2.00 ± 1.00"
    assert (base["regrowth"], other["regrowth"]) == ("yes", "no")


@pytest.mark.filterwarnings("error")
def test_every_score_prunes_to_the_same_exact_number() -> None:
    raw = run(BenchPlan(repeats=1, quick=True)).tables["evidence"].raw["runs"]
    pruned = [each for each in raw if each["score"] != "dense"]
    assert len(pruned) == 2 * len(SCORES) * 2 * len(QUICK_SPARSITIES)
    for network in ("lenet", "mlp"):
        assert len({each["zeros"] for each in pruned if each["network"] == network}) == 1
