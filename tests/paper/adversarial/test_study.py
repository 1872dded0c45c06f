"""Attacks on tiny finished runs, made here on images made here."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest
import torch
from records import change_record
from safetensors.torch import load_file, save_file

from spikeslab.attacks import fgsm, of_model, of_posterior
from spikeslab.cli.app import run as cli
from spikeslab.paper.adversarial import study as adversarial
from spikeslab.paper.adversarial.study import (
    AdversarialStudy,
    Attack,
    AttackedNetwork,
    Curve,
    accuracy_table,
    check_runs,
    curves_table,
    measure,
    paper_curve,
    run_adversarial,
)
from spikeslab.paper.grid import CellFileError
from spikeslab.paper.images import runs as image_runs
from spikeslab.paper.images.augmentation import PLAIN
from spikeslab.paper.images.data import LOADERS, Images
from spikeslab.paper.images.presets import PRESETS, make_preset
from spikeslab.paper.images.runs import ImageRun, read_network, read_predictions, run_images
from spikeslab.report.tables import Estimate
from spikeslab.training import CheckpointError

TINY = replace(
    make_preset("default", "mnist"), epochs=2, chains=2, batch_size=20, temperature=1.0, plain_temperature=1.0,
    v0=0.05, v1=0.1, samples=3, burn_in=0.5,
)  # fmt: skip
METHODS = tuple(adversarial.KINDS)


def bars(rows: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Noise with a bright bar whose height is the class."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(rows) % 10
    x = torch.randint(0, 120, (rows, 1, 28, 28), generator=generator)
    for image, label in zip(x, y.tolist(), strict=True):
        image[0, 2 + 2 * label : 5 + 2 * label, 4:24] += 100
    return x.to(torch.uint8), y


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AdversarialStudy]:
    """All methods, trained for two short epochs; both data sets have the same images and runs."""
    data = Images(*bars(140, 0), *bars(24, 1), tuple("abcdefghij"))
    runs = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(adversarial, "PIECE", 10)
        patch.setattr(image_runs, "write_report", None)
        patch.setitem(PRESETS, "default", lambda dataset: TINY)
        for dataset in adversarial.DATASETS:
            patch.setitem(LOADERS, dataset, lambda data_dir: data)
        for method in METHODS:
            run = ImageRun("mnist", method, TINY, held_out=40, precision="bfloat16")
            run_images(run, runs / "mnist", data, {"fashion": data.x_test})
        shutil.copytree(runs / "mnist", runs / "fashion")
        for path in (runs / "fashion").glob("*/result.json"):
            change_record(path, lambda record: record["settings"].update(dataset="fashion"))
        yield AdversarialStudy(adversarial.DATASETS, METHODS, "default", images=24, runs=runs)


@pytest.fixture(scope="module")
def curves(study: AdversarialStudy, tmp_path_factory: pytest.TempPathFactory) -> list[Curve]:
    """All curves."""
    return run_adversarial(study, tmp_path_factory.mktemp("curves"))


@pytest.fixture
def x(study: AdversarialStudy) -> torch.Tensor:
    """The test images in [0, 1]."""
    return PLAIN(LOADERS["mnist"](None).x_test)


@pytest.fixture
def y() -> torch.Tensor:
    """Their labels."""
    return bars(24, 1)[1]


def test_a_finished_run_is_read_as_it_ended(study, x):
    for method in METHODS:
        folder = study.folder("mnist", method)
        before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
        model, posterior = read_network(study.image_run("mnist", method), folder)
        predictions = read_predictions(folder)
        transform = study.image_run("mnist", method).normalize.standardise
        with torch.no_grad():
            own = of_model(model, transform)(x).exp()
            torch.testing.assert_close(own, predictions["test.point"][0], rtol=1e-4, atol=1e-5)
            if posterior is not None:
                average = of_posterior(posterior, transform=transform)(x).exp()
                torch.testing.assert_close(average, predictions["test.samples"].mean(0), rtol=1e-4, atol=1e-5)
        assert (posterior is None) == (method in ("vanilla", "dropout"))
        assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_without_an_attack_accuracy_is_that_of_the_run(study, curves):
    for curve in curves:
        if curve.attack.dataset == "fashion":  # its networks saw images standardised as those of MNIST
            continue
        result = json.loads((study.folder(*curve.attack[:2]) / "result.json").read_text())
        clean = result["test"]["point" if curve.attack.kind == "itself" else "average"][0]["accuracy"]
        assert curve.right[0] == round(24 * clean)
        share = curve.right[3] / 24
        zeta = curve.zetas[3]
        assert curve.accuracy(zeta) == Estimate(100 * share, pytest.approx(100 * (share * (1 - share) / 24) ** 0.5))
        assert min(curve.confidence) >= 0.1
        assert max(curve.entropy) <= torch.tensor(10.0).log() + 1e-6


@pytest.mark.parametrize("kind", ["single", "averaged"])
def test_a_curve_is_that_of_fgsm_at_each_zeta(study, x, y, kind):
    target = adversarial.read_target(study, Attack("mnist", "sghmc-sa", kind))
    zetas = (0.0, 0.05, 0.2)
    moved = adversarial.attack_images(target.attacked, "fgsm", x, zetas)
    for images, zeta in zip(moved, zetas, strict=True):
        assert torch.equal(images, fgsm(target.attacked, x, zeta))
    record = measure(target, "fgsm", x, y, zetas)
    with torch.no_grad():
        expected = [int((target.defence(images).argmax(1) == y).sum()) for images in moved]
    assert record["right"] == expected
    assert record["images"] == 24


def test_the_attack_on_the_average_lowers_it_more_than_that_on_one_sample(study, x):
    single, averaged = (
        adversarial.read_target(study, Attack("mnist", "sghmc", kind)) for kind in ("single", "averaged")
    )
    with torch.no_grad():
        clean, labels = averaged.defence(x).max(dim=1)
        one, all_ = (
            averaged.defence(fgsm(target.attacked, x, 1e-3)).gather(1, labels[:, None]).squeeze(1)
            for target in (single, averaged)
        )
    # To first order in zeta no other direction lowers an image's log-probability more.
    assert bool((all_ <= one + 1e-5).all())
    assert float((clean - all_).mean()) > 1.05 * float((clean - one).mean())


@pytest.mark.parametrize("attack", adversarial.ATTACKS)
def test_the_attack_does_not_see_the_labels(study, x, y, attack):
    target = adversarial.read_target(study, Attack("fashion", "vanilla", "itself"))
    one, other = (measure(target, attack, x[:10], labels[:10], (0.0, 0.1)) for labels in (y, y.roll(1)))
    assert one["right"] != other["right"]
    assert one["confidence"] == other["confidence"]
    assert one["entropy"] == other["entropy"]


def test_memory_is_bounded_by_smaller_batches(study, x, y):
    target = adversarial.read_target(study, Attack("mnist", "sghmc", "averaged"))
    rows = []

    def watched(images: torch.Tensor) -> torch.Tensor:
        rows.append(len(images))
        return target.attacked(images)

    whole = measure(target, "fgsm", x, y, (0.1,))
    parts = measure(AttackedNetwork(watched, target.defence, samples=100), "fgsm", x, y, (0.1,))
    assert rows == [10, 10, 4]
    assert parts["right"] == whole["right"]


def test_the_attack_on_one_sample_follows_the_last_and_the_average_predicts(study, x):
    samples = read_predictions(study.folder("mnist", "sghmc"))["test.samples"]
    target = adversarial.read_target(replace(study, samples=2), Attack("mnist", "sghmc", "single"))
    with torch.no_grad():
        torch.testing.assert_close(target.attacked(x).exp(), samples[5], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(target.defence(x).exp(), samples[[2, 5]].mean(0), rtol=1e-4, atol=1e-5)


def test_one_sample_is_attacked_the_same_in_both_ways(study, x, y):
    one = replace(study, samples=1)
    both = [adversarial.read_target(one, Attack("mnist", "sghmc", kind)) for kind in ("single", "averaged")]
    records = [measure(target, "fgsm", x, y, (0.1,)) for target in both]
    assert records[0] == records[1]


def test_what_is_done_is_read_and_other_settings_are_refused(study, tmp_path, monkeypatch):
    small = replace(study, datasets=("mnist",), methods=("vanilla",))
    first = run_adversarial(small, tmp_path)
    lines = (tmp_path / "cells.jsonl").read_text().splitlines()
    assert len(lines) == 1 + 3  # pieces of 10, 10 and 4 images
    (tmp_path / "cells.jsonl").write_text("\n".join(lines[:3]) + "\n" + lines[3][:9])  # killed while it wrote
    done: list[int] = []
    worked: list[str] = []
    work = adversarial.measure_piece
    monkeypatch.setattr(
        adversarial, "measure_piece", lambda study, cell: worked.append(cell.method) or work(study, cell)
    )
    assert run_adversarial(small, tmp_path, done.append) == first
    network = study.folder("mnist", "vanilla") / "chain-0" / "network.safetensors"
    digest = sha256(network.read_bytes()).hexdigest()[:12]
    assert worked == [f"mnist vanilla itself 20 {digest}"]
    assert done == [2, 1]
    with pytest.raises(CellFileError, match=r"was made with --attack fgsm instead of --attack pgd\."):
        run_adversarial(replace(small, attack="pgd"), tmp_path)


def test_a_network_that_was_trained_anew_is_attacked_anew(study, tmp_path):
    small = replace(study, datasets=("mnist",), methods=("vanilla",), runs=tmp_path)
    shutil.copytree(study.runs / "mnist", tmp_path / "mnist")
    before = run_adversarial(small, tmp_path / "out")
    network = small.folder("mnist", "vanilla") / "chain-0" / "network.safetensors"
    save_file({name: torch.zeros_like(tensor) for name, tensor in load_file(network).items()}, network)
    assert run_adversarial(small, tmp_path / "out") != before


def test_a_run_of_other_settings_is_not_attacked(study, tmp_path, monkeypatch):
    monkeypatch.setitem(PRESETS, "default", lambda dataset: replace(TINY, v0=0.125))
    with pytest.raises(CheckpointError, match=r"v0 was [0-9.]+ and is now 0.125\.$"):
        check_runs(replace(study, datasets=("mnist",), methods=("sghmc-sa",)))


def test_tables_have_the_papers_numbers_beside_ours(study, curves):
    table = accuracy_table(curves, study)
    assert [row["attack"] for row in table.rows[:7]] == [
        "its own gradient",
        "paper",
        "its own gradient",
        "paper",
        "one sample's gradient",
        "paper",
        "the average's gradient",
    ]
    assert table.rows[1]["zeta 0.3"] == 28.1
    assert table.rows[1]["zeta 0"] == 99.31
    assert paper_curve(Attack("fashion", "sghmc-sa", "single"))[0.01] == 91.7
    assert paper_curve(Attack("fashion", "sghmc-sa", "single"))[0.5] == 15.2
    long = curves_table(curves, study)
    assert len(long.rows) == 6 * 11 + 6 * 12
    assert long.rows[0]["accuracy"] == curves[0].accuracy(0.0)
    assert all(row["paper"] is None for row in curves_table(curves, replace(study, attack="pgd")).rows)


def arguments(study: AdversarialStudy, out: Path, *more: str) -> list[str]:
    return ["reproduce", "adversarial", "--runs", str(study.runs), "--out", str(out), "--images", "6",
            "--workers", "1", *more]  # fmt: skip


def test_the_command_writes_tables_and_figures_and_goes_on_when_asked(study, tmp_path, capsys):
    out = tmp_path / "out"
    more = ("--methods", "vanilla,sghmc-sa", "--samples", "2")
    assert cli(arguments(study, out, *more)) == 0
    assert "Files written:" in capsys.readouterr().out
    expected = {"cells.jsonl", "figure2.png", "confidence.png"}
    expected |= {f"{stem}.{kind}" for stem in ("accuracy", "curves") for kind in ("md", "json")}
    assert {path.name for path in out.iterdir()} == expected
    record = json.loads((out / "accuracy.json").read_text())
    assert record["run"]["command"] == (
        "spikeslab reproduce adversarial --datasets mnist,fashion --methods vanilla,sghmc-sa --preset default "
        "--seed 0 --attack fgsm --images 6 --samples 2"
    )
    cells = (out / "cells.jsonl").read_bytes()
    assert cli(arguments(study, out, *more)) == 2
    assert f"--out must not hold these results yet, but {out} does: continue with --resume" in capsys.readouterr().err
    assert cli(arguments(study, out, *more, "--resume")) == 0
    assert (out / "cells.jsonl").read_bytes() == cells
    capsys.readouterr()
    assert cli(arguments(study, out, "--resume")) == 2
    assert capsys.readouterr().err == (
        f"Error: Cannot continue: {out / 'cells.jsonl'} was made with --samples 2 instead of --samples all. Use those "
        "settings or another --out.\n"
    )


def test_projected_gradient_descent_on_one_data_set(study, tmp_path):
    more = ("--datasets", "fashion", "--methods", "dropout", "--attack", "pgd")
    assert cli(arguments(study, tmp_path, *more)) == 0
    text = (tmp_path / "accuracy.md").read_text()
    assert text.startswith("## Accuracy under attack, %: PGD, ten steps, default preset, 2 epochs\n")
    assert "paper" not in text.split("Made by")[0]


def test_a_missing_run_is_named_with_the_command_that_makes_it(study, tmp_path, capsys):
    runs = tmp_path / "none"
    assert cli(arguments(replace(study, runs=runs), tmp_path / "out", "--methods", "vanilla,sghmc", "--seed", "3")) == 2
    assert capsys.readouterr().err == (
        f"Error: --runs must hold the finished runs, but {runs / 'mnist' / 'vanilla-default-2x2-seed3'} is missing or "
        "unfinished: make them with `spikeslab reproduce mnist --methods vanilla,sghmc --presets default --seed 3 "
        f"--out {runs / 'mnist'} --resume`.\n"
    )
    assert not (tmp_path / "out").exists()


def test_more_samples_or_images_than_there_are_are_refused(study):
    folder = re.escape(str(study.folder("mnist", "sghmc")))
    for change, message in (
        ({"samples": 9}, rf"^samples must be at most the 6 of {folder}, but got 9\.$"),
        ({"images": 25}, r"^images must be at most 24, but got 25\.$"),
    ):
        with pytest.raises(ValueError, match=message):
            check_runs(replace(study, **change))
