"""The CIFAR-10 experiment, on a few images made here."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from synthetic_images import bright_pixels
from torch import Tensor

from spikeslab.compression import METHODS, Settings
from spikeslab.compression.problem import Problem
from spikeslab.compression.settings import Timeline
from spikeslab.errors import NonFiniteError
from spikeslab.paper.cifar10 import data as cifar10_data
from spikeslab.paper.cifar10 import resnet20
from spikeslab.paper.cifar10 import runs as cifar10_runs
from spikeslab.paper.cifar10 import study as cifar10_study
from spikeslab.paper.cifar10.data import Dense, OrderedBatches, new_network, pretrain
from spikeslab.paper.cifar10.figures import Course, course_figure, sparsity_figure
from spikeslab.paper.cifar10.presets import PRESETS, check_method
from spikeslab.paper.cifar10.runs import (
    SPARSE,
    CifarRun,
    find_best_epoch,
    read_results,
    run_cifar10,
)
from spikeslab.paper.cifar10.tables import (
    TABLE3,
    accuracy_table,
    detail_table,
    file_table,
    group_rows,
    paper_accuracy,
    paper_table,
    select_table3,
    table3,
)
from spikeslab.paper.images.augmentation import Augment
from spikeslab.posterior import Posterior
from spikeslab.priors import L1, L2, SpikeSlab
from spikeslab.pruning import Pruner
from spikeslab.training import CheckpointError, Every, MetricsLog
from spikeslab.weights import select_weights

ROWS, TOTAL, EPOCH = 50_000, 272_474, 50


DATA = bright_pixels()


@pytest.fixture(scope="module")
def dense() -> Dense:
    torch.manual_seed(0)
    return Dense(new_network().eval(), "0123")


def small_run(method: str = "a-sghmc-sa", **changes: Any) -> CifarRun:
    settings = {"sparsity": 0.9, "preset": "default", "epochs": 2, "batch_size": 8, "erasing": False, **changes}
    return CifarRun(method, **settings)


def run_small(run: CifarRun, out: Path, dense: Dense, **more: Any) -> dict[str, Any]:
    return run_cifar10(run, out, DATA, dense, report=False, **more)


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


def recipe(preset: str, sparsity: float = 0.9, epochs: int | None = None) -> tuple[Settings, int]:
    """The settings of a preset on all of CIFAR-10, and its steps."""
    made = PRESETS[preset]
    epochs = epochs or made.epochs
    run = CifarRun("a-sghmc-sa", sparsity, preset, epochs, made.batch_size, made.erasing)
    return run.settings(ROWS), epochs * (ROWS // made.batch_size)


def test_the_papers_preset_is_its_run_of_1000_epochs() -> None:
    settings, steps = recipe("paper")
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
    settings, steps = recipe(preset)
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
    settings, steps = recipe("paper-short")
    lr = Timeline(settings, steps).lr()
    peak = 1e-4 * 1000 / 30
    assert [lr(k) for k in (1, 1050, 1051, 1350, 1351)] == pytest.approx([peak, peak, peak / 10, peak / 10, peak / 100])


def test_the_ablation_is_warmer_and_cools_further() -> None:
    settings, steps = recipe("ablation")
    assert steps == 25_000
    tau = Timeline(settings, steps).temperature(annealed=True)
    assert [1.0 / tau(25 * epoch + 1) for epoch in (0, 1, 1000)] == pytest.approx(
        [20.0, 20.0 * 1.01, 20.0 * 1.01**1000], rel=1e-6
    )


def test_the_default_preset_warms_up_for_an_epoch_and_has_a_true_spike() -> None:
    settings, steps = recipe("default", epochs=20)
    lr = Timeline(settings, steps).lr()
    per_epoch = ROWS // 128
    assert steps == 20 * per_epoch
    assert [lr(per_epoch // 2), lr(per_epoch), lr(steps)] == pytest.approx([0.025, 0.05, 0.0005])
    assert Timeline(settings, steps).sparsity(0.9)(round(0.3 * steps)) == pytest.approx(0.9 * (1 - 0.5**3), rel=1e-3)
    assert not METHODS["a-sghmc-sa"](problem(settings, 0.9, steps)).sampler.prior.inverted


def test_the_distilled_preset_is_the_default_with_a_teacher_and_one_ranking() -> None:
    assert recipe("distilled")[0] == replace(recipe("default")[0], distillation=0.2, scope="global")


@pytest.mark.parametrize(("sparsity", "rate", "nonzeros"), [(0.3, 0.305, 190_732), (0.9, 0.917, 27_247)])
def test_zeros_are_counted_over_the_network_and_the_layers_rate_is_the_papers(
    sparsity: float, rate: float, nonzeros: int
) -> None:
    settings, steps = recipe("default")
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
    assert recipe("paper-short", 0.95)[0].prior["v0"] == 0.005
    assert recipe("paper-short", 0.5)[0].prior["v1"] == 5e-4


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


def test_a_strength_is_set_for_fixed_penalties_only() -> None:
    assert small_run("l2", changes=(("strength", 0.01),)).settings(ROWS).strength == 0.01
    for method in ("l2:0.6", "gmp"):
        with pytest.raises(ValueError) as caught:
            small_run(method, changes=(("strength", 0.01),)).settings(ROWS)
        assert str(caught.value) == (f"strength must go with 'l1', 'l2' alone, without a colon, but got {method!r}.")


def test_strengths_follow_l1_and_l2_only() -> None:
    assert check_method("l1:3e-3") == "l1:0.003"
    with pytest.raises(ValueError, match=r"^methods must have a strength with 'l1', 'l2' only, but got 'gmp:1'.$"):
        check_method("gmp:1")
    with pytest.raises(ValueError, match=r"^methods must have a strength > 0 such as 'l2:0.01', but got 'l2:x'.$"):
        check_method("l2:x")


def test_training_images_are_erased_only_where_wanted() -> None:
    x = torch.full((200, 3, 8, 8), 255, dtype=torch.uint8)
    plain, erased = (Augment("cifar10", erasing)(x, torch.Generator().manual_seed(0)) for erasing in (False, True))
    assert plain.is_contiguous(memory_format=torch.channels_last)
    assert erased.is_contiguous(memory_format=torch.channels_last)
    filled = (erased != plain).flatten(1).any(dim=1).double().mean()
    assert 0.3 < filled < 0.7


def test_images_that_are_judged_come_in_order_and_normalised() -> None:
    batches = OrderedBatches(DATA.x_test, DATA.y_test, batch_size=10)
    assert len(batches) == 2
    x, y = (torch.cat(tensors) for tensors in zip(*batches, strict=True))
    assert torch.equal(y, DATA.y_test)
    mean, std = torch.tensor([0.4914, 0.4822, 0.4465]), torch.tensor([0.2023, 0.1994, 0.2010])
    expected = (DATA.x_test / 255 - mean[:, None, None]) / std[:, None, None]
    torch.testing.assert_close(x, expected)
    assert next(iter(batches))[0].is_contiguous(memory_format=torch.channels_last)


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
    with pytest.raises(CheckpointError, match=r"gmp-.* other settings: dense was '0123' and is now 'other'.$"):
        run_small(run, tmp_path, replace(dense, digest="other"))
    with pytest.raises(CheckpointError, match=r"best_epoch was False and is now True.$"):
        run_small(replace(run, best_epoch=True), tmp_path, dense)
    path = tmp_path / run.name / "result.json"
    older = json.loads(path.read_text())
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
    calls = iter(range(99))

    class Stopping(Augment):
        def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
            if next(calls) == 4:
                raise KeyboardInterrupt
            return super().__call__(x, generator)

    monkeypatch.setattr(cifar10_runs, "Augment", Stopping)
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


def result(method: str, sparsity: float, seed: int, single: float, average: float, **more: Any) -> dict[str, Any]:
    """A result with given accuracies of 10,000 images, dense at 94.12 %."""
    numbers = {"nll": 0.3, "ece": 0.02, "rows": 10_000}
    return {
        "facts": {
            "row": method,
            "label": "default",
            "held_out": 0,
            "dense": "",
            "best_epoch": "best" in more,
            "structure": more.get("structure", "weights"),
            "seen_all": True,
        },
        "command": more.get("command", "spikeslab"),
        "settings": more.get("settings", {}),
        "target": sparsity,
        "epochs": 30,
        "seed": seed,
        "part": "test",
        "rows": 10_000,
        "samples": 15,
        "seconds": 3600.0,
        "dense": {"accuracy": 0.9412, **numbers},
        "sparse": {"accuracy": single, **numbers},
        "average": {"accuracy": average, **numbers},
        "network": {"nonzeros": 27_247, "sparsity": 0.9, "weights": TOTAL},
        "sparse_layers": {"nonzeros": 22_037, "sparsity": 0.9175, "weights": 267_264},
        "best_epoch": more.get("best"),
        **({"compacted": more["compacted"]} if "compacted" in more else {}),
    }


FOUND = [
    (Path("a"), result("a-sghmc-sa", 0.9, 1, 0.914, 0.918)),
    (Path("b"), result("a-sghmc-sa", 0.9, 0, 0.912, 0.916)),
    (Path("c"), result("gmp", 0.9, 0, 0.905, 0.906)),
    (Path("d"), result("l2:0.6", 0.5, 0, 0.94, 0.941)),
]


def test_committed_results_regenerate_their_tables(tmp_path: Path) -> None:
    """Names of presets are the present ones; every number is the committed one."""
    committed = Path(__file__).parents[3] / "results" / "cifar10"
    for folder in committed.glob("*seed?"):
        (tmp_path / folder.name).mkdir()
        shutil.copy(folder / "result.json", tmp_path / folder.name)
    cifar10_study.write_tables(tmp_path)
    for name in ("accuracy", "details", "files", "table3", "paper"):
        before, now = (json.loads((place / f"{name}.json").read_text()) for place in (committed, tmp_path))
        assert [_numbers(row) for row in now["rows"]] == [_numbers(row) for row in before["rows"]]
    labels = {row["label"].partition(",")[0] for row in json.loads((tmp_path / "accuracy.json").read_text())["rows"]}
    assert labels == {"default", "distilled", "paper-short"}
    assert "--preset distilled" in (tmp_path / "accuracy.md").read_text()


def _numbers(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key != "label"}


def test_rows_stand_beside_the_papers_numbers() -> None:
    rows = accuracy_table(group_rows(FOUND, "test"), "test").rows
    assert [(row["method"], row["sparsity"]) for row in rows] == [("L2 = 0.6", 0.5), ("A-SGHMC-SA", 0.9), ("GMP", 0.9)]
    ours = rows[1]
    assert (ours["paper"], ours["log"], ours["runs"]) == (91.68, 91.43, 2)
    assert ours["single"].mean == pytest.approx(91.3)
    assert ours["single"].error == pytest.approx(0.1)
    assert ours["drop"].mean == pytest.approx(94.12 - 91.3)
    assert ours["average_drop"].mean == pytest.approx(94.12 - 91.7)
    assert (rows[0]["paper"], rows[2]["paper"]) == (93.09, None)
    assert [each["seed"] for each in group_rows(FOUND, "test")[1].results] == [0, 1]
    details = detail_table(group_rows(FOUND, "test"), "test").rows[1]
    assert (details["nonzeros"], details["minutes"]) == (27_247, 2.0)
    assert details["layers"] == pytest.approx(91.75)


def test_files_are_a_table_of_their_own_and_missing_where_they_were_not_measured() -> None:
    sizes = {"dense": {"bytes": 1_000_000}} | {
        name: {"bytes": size, "accuracy": accuracy}
        for name, size, accuracy in (("fp32", 100_000, 0.91), ("fp16", 60_000, 0.909), ("int8", 50_000, 0.9))
    }
    measured = [(path, found | {"files": sizes}) for path, found in FOUND[:2]]
    rows = file_table(group_rows([*measured, *FOUND[2:]], "test"), "test").rows
    without, ours, gmp = rows
    assert (ours["dense"].mean, ours["fp16_kilobytes"].mean, ours["fp32_ratio"].mean) == (1000.0, 60.0, 10.0)
    assert (ours["int8_ratio"].mean, ours["int8_accuracy"].mean) == (20.0, 90.0)
    assert [without["dense"], gmp["fp16_accuracy"]] == [None, None]


def test_runs_with_other_settings_do_not_share_a_row() -> None:
    found = [
        (Path("a"), result("gmp", 0.9, 0, 0.9, 0.9)),
        (Path("b"), result("gmp", 0.9, 1, 0.9, 0.9, settings={"lr": 0.05})),  # the default, in words
        (Path("c"), result("gmp", 0.9, 2, 0.8, 0.8, settings={"lr": 0.1, "prior": {"v0": 0.3}})),
    ]
    rows = group_rows(found, "test")
    assert [(row.label, len(row.results)) for row in rows] == [
        ("default, lr=0.05, prior.v0=None", 2),
        ("default, lr=0.1, prior.v0=0.3", 1),
    ]
    other = result("gmp", 0.9, 1, 0.8, 0.8)
    other["facts"]["dense"] = "0123"
    rows = group_rows([found[0], (Path("b"), other)], "test")
    assert [row.label for row in rows] == ["default, dense=", "default, dense=0123"]


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


def test_the_best_epoch_has_a_column_only_where_it_was_asked_for() -> None:
    plain = accuracy_table(group_rows(FOUND, "test"), "test")
    assert "best" not in plain.rows[0]
    assert plain.notes[0].startswith("10,000 test images, looked at once, after the last step; all settings")
    asked = [*FOUND, (Path("e"), result("l1:0.003", 0.9, 0, 0.9, 0.9, best={"epoch": 3, "accuracy": 0.92}))]
    table = accuracy_table(group_rows(asked, "test"), "test")
    assert [column.title for column in table.columns if column.key == "best"] == ["best test epoch %"]
    assert [row["best"].mean for row in table.rows if row["best"] is not None] == [pytest.approx(92.0)]


def test_table_3_has_the_papers_numbers_and_ours_of_each_kind_below() -> None:
    short = result("a-sghmc-sa", 0.9, 0, 0.5, 0.5) | {"epochs": 3}
    half = result("a-sghmc-sa", 0.5, 0, 0.94, 0.942, best={"epoch": 2, "accuracy": 0.943}) | {"epochs": 10}
    table = table3(select_table3(group_rows([*FOUND, (Path("e"), short), (Path("f"), half)], "test")))
    ours = [line for line in table.lines() if line[0] == "A-SGHMC-SA"]
    assert ours == [
        ["A-SGHMC-SA", "the paper", "1000", "best test epoch", "94.23", "94.27", "93.74", "91.68"],
        ["A-SGHMC-SA", "default", "10, 30", "best test epoch", "–", "94.30", "–", "–"],
        ["A-SGHMC-SA", "default", "10, 30", "last epoch", "–", "94.00", "–", "91.30 ± 0.10"],
        ["A-SGHMC-SA", "default", "10, 30", "average", "–", "94.20", "–", "91.70 ± 0.10"],
    ]
    assert [line[0] for line in table.lines() if line[1] == "the paper"] == [
        "A-SGHMC", "A-SGHMC-EM", "SGHMC-SA", "A-SGHMC-SA",
    ]  # fmt: skip
    channels = result("a-sghmc-sa", 0.9, 0, 0.9, 0.9, structure="channels")
    assert select_table3(group_rows([*FOUND[2:], (Path("a"), channels)], "test")) == []


def test_an_infinite_likelihood_has_no_number() -> None:
    broken = result("gmp", 0.9, 0, 0.1, 0.1)
    broken["sparse"]["nll"] = None
    row = detail_table(group_rows([(Path("a"), broken)], "test"), "test").rows[0]
    assert row["nll"] is None
    assert row["average_nll"].mean == 0.3


def test_rows_of_channels_have_no_number_of_the_paper() -> None:
    compacted = {"multiply_adds": {"before": 40, "after": 10}}
    channels = result("a-sghmc-sa", 0.9, 0, 0.9, 0.9, structure="channels", compacted=compacted)
    rows = group_rows([(Path("a"), channels)], "test")
    table = accuracy_table(rows, "test")
    assert (table.rows[0]["paper"], table.rows[0]["log"]) == (None, None)
    assert table.rows[0]["sparsity"] == "90% of channels"
    details = detail_table(rows, "test")
    assert details.rows[0]["multiply_adds"] == 25.0
    assert "where channels go, the sparse layers are the first convolution of each block. An" in details.notes[0]
    assert "267,264" not in details.notes[0]
    assert table.notes[-1] == (
        "The paper cites targeted dropout 91.48 % (ResNet32, 47K weights, 90 %) and BC-GHS 91 % (VGG, 8M weights, "
        "94.5 %); all of its numbers are in `paper.md`."
    )


def test_whole_channels_can_be_pruned(tmp_path: Path, dense: Dense) -> None:
    run = small_run(sparsity=0.5, structure="channels")
    found = run_small(run, tmp_path, dense)
    assert run.name == "a-sghmc-sa-0.5-default-channels-batch=8-2epochs-seed0"
    assert found["compacted"]["multiply_adds"]["after"] < found["compacted"]["multiply_adds"]["before"]


def test_the_papers_numbers_are_all_there() -> None:
    rows = {row["method"]: row for row in paper_table().rows}
    assert [rows["A-SGHMC-SA"][key] for key in ("s30", "s50", "s70", "s90", "log_best", "log_final")] == [
        94.23,
        94.27,
        93.74,
        91.68,
        91.56,
        91.43,
    ]
    assert rows["A-SGHMC-EM"]["s90"] == 91.26
    assert rows["A-SGHMC-EM"]["remark"] == "90 %: 91.12 on the poster"
    assert [rows["SGHMC-SSG"][key] for key in ("s30", "s50", "s70", "s90")] == [94.27, 93.94, 93.63, 91.51]
    assert rows["L2 = 0.6"]["s90"] == 91.40
    assert rows["L1 = 0.003"]["s90"] == 91.12
    assert (rows["targeted dropout (cited)"]["s90"], rows["BC-GHS (cited)"]["s90"]) == (91.48, 91.0)
    assert "47K" in rows["targeted dropout (cited)"]["remark"]
    assert len(rows) == 4 + 6 + 8 + 1 + 2
    assert paper_accuracy("a-sghmc", 0.7) == TABLE3["a-sghmc"][2] == 93.16


def test_figures_show_every_row_and_the_papers_points() -> None:
    axes = sparsity_figure(group_rows(FOUND, "test")).axes[0]
    crosses = [list(line.get_ydata()) for line in axes.lines if line.get_marker() == "x"]
    assert sorted(value for line in crosses for value in line) == [91.68, 93.09]
    short = (Path("e"), result("a-sghmc-sa", 0.5, 0, 0.94, 0.942) | {"epochs": 10})
    figure = sparsity_figure(group_rows([*FOUND, short], "test"))
    assert [round(y, 2) for y in figure.axes[0].lines[0].get_ydata()] == [94.0, 91.3]
    assert figure.legends[0].get_texts()[0].get_text() == "A-SGHMC-SA, default, 10 or 30 epochs"
    records = [
        {"epoch": 1, "loss": 1.0, "lr": 0.1, "sparsity": 0.3, "effective_l2": 0.01, "effective_l1": 0.0, "norm": 9.0},
        {"epoch": 2, "loss": 0.5, "lr": 0.05, "sparsity": 0.9, "effective_l2": 0.02, "effective_l1": 0.0, "norm": 3.0},
    ]
    figure = course_figure([Course("a-sghmc-sa", "default", records), Course("a-sghmc-sa", "default, v0=0.1", records)])
    assert [axes.get_title(loc="left") for axes in figure.axes][:2] == ["training loss", "zeros in the network, %"]
    assert [list(line.get_ydata()) for line in figure.axes[1].lines] == [[30.0, 90.0], [30.0, 90.0]]
    assert [line.get_linestyle() for line in figure.axes[1].lines] == ["-", "--"]


def test_pretraining_is_the_papers_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = cifar10_data.make_pretraining_sampler(new_network(), ROWS, 50_000, seed=0)
    group = sampler.param_groups[0]
    assert group["weight_decay"] == 5e-4
    assert group["temperature"] == pytest.approx(5e-5)
    made = pretrain(DATA, tmp_path, epochs=1, batch_size=8, held_out=8)
    assert not made.seen_all
    monkeypatch.setattr(cifar10_data, "Training", lambda *_, **__: pytest.fail("trained again"))
    again = pretrain(DATA, tmp_path, epochs=1, batch_size=8, held_out=8)
    assert again.digest == made.digest
    assert torch.equal(again.model.fc.weight, made.model.fc.weight)


def test_plans_write_what_to_type() -> None:
    run = CifarRun("a-sghmc-sa", 0.9, "paper-short", 30, 1000, False)
    variants = ((("scope", "global"), ("v0", 0.01)),)
    plan = cifar10_study.CifarStudy(run, ("a-sghmc-sa",), (0.9, 0.95), (3, 4), variants)
    assert plan.command({"dense": "d"}) == (
        "spikeslab reproduce cifar10 --dense d --preset paper-short --methods a-sghmc-sa --sparsities 0.9,0.95 "
        "--epochs 30 --seed 3 --seeds 2 --no-erasing --scope global --set v0=0.01"
    )
    assert [(run.seed, run.sparsity) for run in plan.runs()] == [(3, 0.9), (3, 0.95), (4, 0.9), (4, 0.95)]
