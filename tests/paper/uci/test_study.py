"""The UCI regressions, on small data made here."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from spikeslab.cli.app import run
from spikeslab.paper.uci import UCIData
from spikeslab.paper.uci import sampling as uci
from spikeslab.paper.uci import study as uci_study
from spikeslab.paper.uci.data import FILES
from spikeslab.report.tables import Estimate


def small_data(rows: int = 60) -> UCIData:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, 3, dtype=torch.float64, generator=generator) * torch.tensor([1.0, 50.0, 0.0])
    y = 20.0 + 3.0 * x[:, 0] + 0.1 * torch.randn(rows, dtype=torch.float64, generator=generator)
    order = torch.stack([torch.randperm(rows, generator=generator) for _ in range(3)])
    return UCIData("yacht", x, y, order[:, 10:], order[:, :10])


def test_splits_are_standardised_by_their_own_training_rows():
    splits = uci.Splits.of(small_data())
    torch.testing.assert_close(splits.x_train.mean(1), torch.zeros(3, 3), rtol=0, atol=1e-5)
    torch.testing.assert_close(splits.x_train.std(1, correction=0)[:, :2], torch.ones(3, 2))
    assert not splits.x_train[:, :, 2].any()  # a constant feature


@pytest.mark.parametrize("method", uci.METHODS)
def test_the_default_preset_learns_the_line_and_its_noise(method):
    splits = uci.Splits.of(small_data())
    preset = uci.default_preset(method, 50, 200, uci.UCIDefaults(lr_end=1e-3, v0=0.2, batch_size=25))
    record = uci.sample_splits(splits, preset, standardise=True, epochs=200, seed=0)
    assert record["diverged"] == []
    assert sum(record["rmse"]) / 3 < 1.5  # the target's standard deviation is 3


def test_the_paper_preset_has_no_prior_for_plain_sghmc_and_the_papers_otherwise():
    assert uci.make_preset("paper", "boston", "SGHMC", 455, 200).prior == {}
    preset = uci.make_preset("paper", "energy-heating", "A-SGHMC-SA", 691, 200)
    assert preset.prior["kappa"] == (1e-4, 1e-4)
    assert preset.sampler["lr"] == pytest.approx(1e-5 * 691)
    assert preset.sampler["temperature"](2) == pytest.approx(10.0 / 1.003**2)


def test_a_split_that_diverges_is_counted_and_the_others_are_as_without_it():
    splits = uci.Splits.of(small_data())
    preset = uci.make_preset("paper", "yacht", "SGHMC-SA", 50, 4)
    fine = uci.sample_splits(splits, preset, standardise=False, epochs=4, seed=0)
    splits.y_train[1] *= 1e15
    record = uci.sample_splits(splits, preset, standardise=False, epochs=4, seed=0)
    assert record["diverged"] == [1]
    assert record["rmse"] == [fine["rmse"][0], None, fine["rmse"][2]]


def test_every_epoch_is_a_shuffle_of_each_chain_without_the_partial_batch():
    batches = list(uci._epoch(2, 7, 3, torch.Generator().manual_seed(0)))
    assert [tuple(batch.shape) for batch in batches] == [(2, 3), (2, 3)]
    rows = torch.cat(batches, dim=1)
    assert all(len(set(of_chain.tolist())) == 6 for of_chain in rows)
    assert not torch.equal(rows[0], rows[1])


@pytest.fixture
def folder(tmp_path):
    """Yacht as it might be."""
    _, rows, columns, _ = FILES["yacht"]
    table = np.random.default_rng(0).standard_normal((rows, columns))
    table[:, -1] = table[:, 0] + 0.1 * table[:, -1]
    np.savetxt(tmp_path / "yacht.csv", table, delimiter=",", header="names", comments="")
    return tmp_path


def test_the_command_writes_tables_and_a_figure_and_goes_on_where_it_stopped(folder, capsys, monkeypatch):
    monkeypatch.delenv("SPIKESLAB_DATA", raising=False)
    out = folder / "out"
    arguments = ["reproduce", "uci", "--data-dir", str(folder), "--datasets", "yacht", "--out", str(out)]
    arguments += ["--epochs", "2", "--workers", "1"]
    assert run([*arguments, "--methods", "SGHMC"]) == 0
    first = (out / "cells.jsonl").read_text()
    assert run([*arguments, "--methods", "SGHMC, A-SGHMC-SA"]) == 0
    assert (out / "cells.jsonl").read_text().startswith(first)
    record = json.loads((out / "table.json").read_text())
    assert [row["method"] for row in record["rows"]] == ["SGHMC", "A-SGHMC-SA"]
    assert record["rows"][1]["paper"] == {"mean": 0.782, "error": 0.052}
    assert record["run"]["command"] == (
        "spikeslab reproduce uci --datasets yacht --methods SGHMC,A-SGHMC-SA --epochs 2 --preset default "
        "--splits paper --seed 0"
    )
    assert {path.name for path in out.iterdir()} == {
        "cells.jsonl",
        "table.md",
        "table.json",
        "differences.md",
        "differences.json",
        "rmse.png",
    }
    capsys.readouterr()
    assert run([*arguments, "--preset", "paper"]) == 2
    assert "was made with --preset default instead of --preset paper" in capsys.readouterr().err


def test_differences_are_paired_by_split(tmp_path):
    study = uci_study.UCIStudy(("yacht",), ("SGHMC", "A-SGHMC-SA"), "paper", "paper")
    file = uci_study.CellFile(tmp_path / "cells.jsonl", {})
    for method, values in (("SGHMC", [1.0, 2.0, None, 4.0]), ("A-SGHMC-SA", [0.5, 1.0, 9.0, None])):
        file.add(uci_study.Cell(f"yacht {method}", 0), {"rmse": values})
    results = uci_study.UCIResults(study, file)
    assert results.difference(("yacht", "SGHMC"), "rmse") == Estimate.of([-0.5, -1.0])
    assert results.count_diverged(("yacht", "SGHMC")) == 1
    assert results.estimate(("yacht", "A-SGHMC-SA"), "rmse") == Estimate.of([0.5, 1.0, 9.0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--datasets", "iris"], "--datasets must be one of 'boston', 'yacht', 'energy', 'energy-heating', 'wine', "),
        (["--methods", "SGD"], "--methods must be one of 'SGHMC', 'A-SGHMC', 'SGHMC-EM', "),
        (["--preset", "best"], "--preset must be one of 'default', 'paper', but got 'best'."),
        (["--splits", "mine"], "--splits must be one of 'standard', 'paper', but got 'mine'."),
        (["--epochs", "1"], "--epochs must be an integer >= 2, but got 1."),
        (["--seed", "-1"], "--seed must be an integer >= 0, but got -1."),
        (
            ["--splits", "standard"],
            "--data-dir (or the variable SPIKESLAB_DATA) must be a folder with boston.csv",
        ),
    ],
)
def test_bad_options_are_refused_before_any_work(tmp_path, capsys, monkeypatch, arguments, message):
    monkeypatch.delenv("SPIKESLAB_DATA", raising=False)
    assert run(["reproduce", "uci", "--out", str(tmp_path / "new"), *arguments]) == 2
    assert capsys.readouterr().err.startswith(f"Error: {message}")
    assert not (tmp_path / "new").exists()


def test_the_names_of_the_command_line_are_those_of_the_study():
    from spikeslab.cli.reproduce import DATA_VARIABLE, UCI_DATASETS, UCI_METHODS
    from spikeslab.paper.uci.data import NAMES, VARIABLE

    assert set(UCI_DATASETS) == set(uci_study.TITLES) == set(NAMES) == set(uci.CHOSEN)
    assert tuple(uci.METHODS) == UCI_METHODS
    assert DATA_VARIABLE == VARIABLE
