"""Tables of CIFAR-10 from given results, beside the paper's numbers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from small_cifar10 import FOUND, result

from spikeslab.paper.cifar10 import study as cifar10_study
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
