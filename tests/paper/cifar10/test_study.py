"""Studies of CIFAR-10: their runs, their command, and tables after every run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from small_cifar10 import DATA, result, small_run

from spikeslab.errors import NonFiniteError
from spikeslab.paper.cifar10 import study as cifar10_study
from spikeslab.paper.cifar10.data import Dense
from spikeslab.paper.cifar10.runs import (
    CifarRun,
)


def test_tables_are_written_after_every_run_and_one_that_fails_does_not_stop_the_others(
    tmp_path: Path, dense: Dense, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_one(run: CifarRun, out: Path, *_: Any, command: str, report: bool) -> None:
        if run.seed == 0:
            raise NonFiniteError("the loss must be finite")
        if run.seed == 2:
            raise KeyboardInterrupt
        (out / run.name).mkdir()
        text = json.dumps(result("gmp", 0.9, run.seed, 0.9, 0.9, command=command))
        (out / run.name / "result.json").write_text(text)

    monkeypatch.setattr(cifar10_study, "run_cifar10", run_one)
    failed: list[str] = []
    study = cifar10_study.CifarStudy(small_run("gmp", epochs=1), ("gmp",), (0.9,), (0, 1, 2))
    with pytest.raises(KeyboardInterrupt):
        cifar10_study.run_study(study, tmp_path, DATA, dense, "typed", failed.append)
    assert failed == ["gmp-0.9-default-batch=8-1epochs-seed0 failed, and the others go on: the loss must be finite"]
    table = json.loads((tmp_path / "accuracy.json").read_text())
    assert [row["runs"] for row in table["rows"]] == [1]
    assert table["run"]["command"] == "typed"


def test_plans_write_what_to_type() -> None:
    run = CifarRun("a-sghmc-sa", 0.9, "paper-short", 30, 1000, False)
    variants = ((("scope", "global"), ("v0", 0.01)),)
    plan = cifar10_study.CifarStudy(run, ("a-sghmc-sa",), (0.9, 0.95), (3, 4), variants)
    assert plan.command({"dense": "d"}) == (
        "spikeslab reproduce cifar10 --dense d --preset paper-short --methods a-sghmc-sa --sparsities 0.9,0.95 "
        "--epochs 30 --seed 3 --seeds 2 --no-erasing --scope global --set v0=0.01"
    )
    assert [(run.seed, run.sparsity) for run in plan.runs()] == [(3, 0.9), (3, 0.95), (4, 0.9), (4, 0.95)]
