"""Runs of one compression, on a few images made here."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from records import load_record
from safetensors.torch import load_file
from small_cifar10 import DATA, ROWS, TOTAL, run_small, small_run
from torch import Tensor

from spikeslab.paper.cifar10 import runs as cifar10_runs
from spikeslab.paper.cifar10.data import Dense, OrderedBatches, new_network
from spikeslab.paper.cifar10.runs import (
    SPARSE,
    find_best_epoch,
    read_results,
    run_cifar10,
)
from spikeslab.paper.cifar10.tables import (
    accuracy_table,
    group_rows,
)
from spikeslab.paper.images.augmentation import Augment
from spikeslab.posterior import Posterior
from spikeslab.priors import L1, L2, SpikeSlab
from spikeslab.training import CheckpointError, Every, MetricsLog
from spikeslab.weights import select_weights


def test_a_strength_is_set_for_fixed_penalties_only() -> None:
    assert small_run("l2", changes=(("strength", 0.01),)).settings(ROWS).strength == 0.01
    for method in ("l2:0.6", "gmp"):
        with pytest.raises(ValueError) as caught:
            small_run(method, changes=(("strength", 0.01),)).settings(ROWS)
        assert str(caught.value) == (f"strength must go with 'l1', 'l2' alone, without a colon, but got {method!r}.")


def test_a_run_ends_in_numbers_and_the_test_images_are_judged_once(tmp_path: Path, dense: Dense) -> None:
    run = small_run()
    result = run_small(run, tmp_path, dense)
    assert run.name == "a-sghmc-sa-0.9-default-batch=8-2epochs-seed0"
    assert result["network"] == {"weights": TOTAL, "nonzeros": 27_247, "sparsity": pytest.approx(0.9, abs=1e-5)}
    assert result["part"] == "test"
    assert result["best_epoch"] is None
    assert [result[kind]["rows"] for kind in ("dense", "sparse", "average")] == [16, 16, 16]
    records = MetricsLog(tmp_path / run.name / "metrics.jsonl").read()
    assert not any("evaluation" in record for record in records)
    assert records[-1]["effective_l2"] > 0.0
    model = new_network()
    model.load_state_dict(load_file(tmp_path / run.name / "model.safetensors"))
    with torch.no_grad():
        right = (
            model.eval()(next(iter(OrderedBatches(DATA.x_test, DATA.y_test)))[0]).argmax(1) == DATA.y_test
        ).double()
    assert result["sparse"]["accuracy"] == pytest.approx(float(right.mean()))
    norm = math.sqrt(sum(float(w.detach().square().sum()) for w in select_weights(model, SPARSE).values()))
    assert records[-1]["norm"] == pytest.approx(norm)


def test_samples_share_their_zeros_and_keep_their_own_statistics(tmp_path: Path, dense: Dense) -> None:
    run = small_run(epochs=4, changes=(("samples", 2),))
    run_small(run, tmp_path, dense)
    posterior = Posterior.load(tmp_path / run.name / "posterior", new_network())
    first, last = (posterior.tensors(index) for index in (0, 1))
    for name in select_weights(posterior.model, SPARSE):
        assert torch.equal(first[name] == 0, last[name] == 0)
    assert not torch.equal(first["bn1.running_mean"], last["bn1.running_mean"])
    assert int(last["bn1.num_batches_tracked"]) > int(first["bn1.num_batches_tracked"])


def test_held_out_images_are_judged_in_place_of_the_test_images(
    tmp_path: Path, dense: Dense, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = small_run("gmp", held_out=8, epochs=1)
    data = replace(DATA, x_test=None, y_test=None)  # type: ignore[arg-type]
    result = run_cifar10(run, tmp_path, data, dense, report=False)
    assert (result["part"], result["rows"]) == ("held_out", 8)
    assert run.name.endswith("held8-seed0")
    note = accuracy_table(group_rows(read_results(tmp_path), "held_out"), "held_out").notes[0]
    assert note == (
        "8 training images were held out. The dense network has been trained on them, so these numbers are too good "
        "and only rank settings against each other; the test images were not looked at."
    )


def test_a_run_that_is_done_is_read_and_only_with_the_same_settings(
    tmp_path: Path, dense: Dense, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = small_run("gmp", epochs=1)
    first = run_small(run, tmp_path, dense)
    monkeypatch.setattr(cifar10_runs, "Compression", lambda *_, **__: pytest.fail("trained again"))
    assert run_small(run, tmp_path, dense) == json.loads(json.dumps(first))
    for call, message in (
        (
            lambda: run_small(run, tmp_path, replace(dense, digest="other")),
            r"gmp-.* other settings: dense was '0123' and is now 'other'.$",
        ),
        (lambda: run_small(replace(run, best_epoch=True), tmp_path, dense), r"best_epoch was False and is now True.$"),
    ):
        with pytest.raises(CheckpointError, match=message):
            call()
    path = tmp_path / run.name / "result.json"
    older = load_record(path)
    del older["settings"]["crest_lr"]
    older["settings"]["freeze_at"] = older["settings"].pop("freeze_from")
    path.write_text(json.dumps(older))
    assert run_small(run, tmp_path, dense) == older, "a setting that was not there yet had its default"
    path.write_text(json.dumps(older | {"settings": older["settings"] | {"freeze_at": 0.7}}))
    with pytest.raises(CheckpointError, match=r"freeze_from was 0.7 and is now 0.6.$"):
        run_small(run, tmp_path, dense)


def test_a_run_that_was_stopped_ends_in_the_same_bits(
    tmp_path: Path, dense: Dense, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = small_run(best_epoch=True, erasing=True)
    whole = run_small(run, tmp_path / "whole", dense)
    calls, augment = iter(range(99)), Augment.__call__

    def stop_at_fifth(self: Augment, x: Tensor, generator: torch.Generator) -> Tensor:
        if next(calls) == 4:
            raise KeyboardInterrupt
        return augment(self, x, generator)

    monkeypatch.setattr(Augment, "__call__", stop_at_fifth)
    with pytest.raises(KeyboardInterrupt):
        run_small(run, tmp_path / "halves", dense, checkpoint_every=Every(steps=1))
    monkeypatch.undo()
    halves = run_small(run, tmp_path / "halves", dense)
    assert {**halves, "seconds": 0} == {**whole, "seconds": 0}
    tensors = [load_file(tmp_path / name / run.name / "model.safetensors") for name in ("whole", "halves")]
    assert all(torch.equal(tensors[0][name], tensors[1][name]) for name in tensors[0])
    assert whole["best_epoch"] == find_best_epoch(tmp_path / "whole" / run.name)


def test_the_best_epoch_is_sparse_enough(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "metrics.jsonl")
    for epoch, sparsity, accuracy in ((1, 0.5, 0.95), (2, 0.896, 0.91), (3, 0.9, 0.9)):
        log.write({"step": epoch, "epoch": epoch, "sparsity_sparse": sparsity, "evaluation": {"accuracy": accuracy}})
    assert find_best_epoch(tmp_path) == {"epoch": 2, "accuracy": 0.91}


def test_effective_penalties_are_in_units_of_the_mean_loss() -> None:
    layer = torch.nn.Parameter(torch.tensor([0.0, 1.0, 2.0]))
    assert L1([layer], 0.3).effective_penalty(100) == (0.3, 0.0)
    assert L2([layer], 0.3).effective_penalty(100) == (0.0, 0.3)
    prior = SpikeSlab([layer], v0=0.1, v1=1.0, rho=0.25, sigma_coupling="fixed")
    assert prior.effective_penalty(100) == pytest.approx((0.75 / 0.1 / 100, 0.25 / 1.0 / 100))


def test_whole_channels_can_be_pruned(tmp_path: Path, dense: Dense) -> None:
    run = small_run(sparsity=0.5, structure="channels")
    found = run_small(run, tmp_path, dense)
    assert run.name == "a-sghmc-sa-0.5-default-channels-batch=8-2epochs-seed0"
    assert found["compacted"]["multiply_adds"]["after"] < found["compacted"]["multiply_adds"]["before"]
