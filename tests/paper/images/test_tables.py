"""Tables of the image experiments from given predictions."""

from __future__ import annotations

import pytest
import torch

from spikeslab.paper.images import tables as image_tables
from spikeslab.paper.images.runs import (
    Part,
    describe,
)
from spikeslab.paper.images.tables import ImageRow, make_rows


def make_result_rows(method: str, right: list[list[bool]], samples: bool) -> list[ImageRow]:
    """Seeds whose answers are right or wrong as told."""
    predictions = []
    for answers in right:
        probabilities = torch.full((len(answers), 10), 0.05)
        probabilities[torch.arange(len(answers)), torch.tensor([0 if each else 1 for each in answers])] = 0.55
        one = {"test.point": probabilities, "foreign.point": torch.full((4, 10), 0.1)}
        if samples:
            one |= {"test.samples": probabilities[None], "foreign.samples": torch.full((1, 4, 10), 0.1)}
        predictions.append(one)
    parts = {
        "test": Part(torch.empty(0), torch.zeros(len(right[0]), dtype=torch.long)),
        "foreign": Part(torch.empty(0)),
    }
    results = [{"samples": int(samples), **describe(each, parts)} for each in predictions]
    for result in results:
        result["held_out"] = result["test"]
    return make_rows(method, "paper", results, predictions)


LABELS = torch.zeros(4, dtype=torch.long)


RUNS = [
    *make_result_rows("vanilla", [[True, False, False, False], [True, True, False, False]], samples=False),
    *make_result_rows("sghmc-sa", [[True, True, True, False], [True, True, True, True]], samples=True),
]


def test_the_table_has_means_over_seeds_beside_the_papers_numbers() -> None:
    table = image_tables.accuracy_table("mnist", RUNS, 30, augment=False)
    rows = {row["method"]: row for row in table.rows}
    assert rows["Vanilla"]["accuracy"].mean == pytest.approx(37.5)
    assert rows["Vanilla"]["accuracy"].error == pytest.approx(12.5)
    assert rows["SGHMC-SA, average"]["paper"] == 99.59
    assert rows["SGHMC-SA"]["paper"] is None
    assert rows["Maxout (cited by the paper)"]["paper"] == 99.55
    augmented = image_tables.accuracy_table("fashion", RUNS, 30, augment=True)
    assert [row["paper"] for row in augmented.rows] == [93.14, None, 94.38]


def test_differences_are_paired_over_the_images() -> None:
    table = image_tables.difference_table("mnist", RUNS, LABELS)
    assert table is not None
    (row,) = [row for row in table.rows if row["method"] == "Vanilla"]
    # Image by image, averaged over the two seeds: 0, 0.5, 1, 0.5.
    gaps = torch.tensor([0.0, 50.0, 100.0, 50.0])
    assert row["difference"].mean == pytest.approx(50.0)
    assert row["difference"].error == pytest.approx(float(gaps.std()) / 2)
    assert image_tables.difference_table("mnist", RUNS[:1], LABELS) is None


def test_uniform_predictions_of_foreign_images_are_told_apart_by_entropy() -> None:
    rows = image_tables.uncertainty_table("mnist", RUNS, LABELS).rows
    assert {row["auroc"].mean for row in rows if row["score"] == "entropy"} == {100.0}
    assert [row["score"] for row in rows] == ["entropy", "entropy", "entropy", "mutual information"]
