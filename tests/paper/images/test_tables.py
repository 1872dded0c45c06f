"""Tables of the image experiments from given predictions."""

from __future__ import annotations

import pytest
import torch

from spikeslab.paper.images import tables as image_tables
from spikeslab.paper.images.runs import Part, describe
from spikeslab.paper.images.tables import ImageRow, make_rows


def make_probabilities(answers: list[bool]) -> torch.Tensor:
    probabilities = torch.full((len(answers), 10), 0.05)
    probabilities[torch.arange(len(answers)), torch.tensor([0 if each else 1 for each in answers])] = 0.55
    return probabilities


def make_result_rows(method: str, right: list[list[bool]], samples: bool) -> list[ImageRow]:
    """Answers that are right or wrong as told: of seeds with one sample each, or of the networks of one seed."""
    stacks = [make_probabilities(answers)[None] for answers in right]
    unsure = torch.full((1, 4, 10), 0.1)
    if samples:
        predictions = [
            {"test.point": each, "fashion.point": unsure, "test.samples": each, "fashion.samples": unsure}
            | {"test.sparse": make_probabilities([True, False, False, False])[None]}
            for each in stacks
        ]
    else:
        predictions = [{"test.point": torch.cat(stacks), "fashion.point": unsure.expand(len(stacks), -1, -1)}]
    parts = {
        "test": Part(torch.empty(0), torch.zeros(len(right[0]), dtype=torch.long)),
        "fashion": Part(torch.empty(0)),
    }
    shared = {"settings": {"chains": 1, "epochs": 30}, "seconds": [10.0], "threads": [1]}
    prior = [{"slab": 0.1, "delta": 0.05, "kappa0": 1.0, "kappa1": 2.0}]
    results = [{**shared, "prior": prior, **describe(each, parts)} for each in predictions]
    for result in results:
        result["held_out"] = result["test"]
    return make_rows(method, "paper", results, predictions)


LABELS = torch.zeros(4, dtype=torch.long)


RUNS = [
    *make_result_rows("vanilla", [[True, False, False, False], [True, True, False, False]], samples=False),
    *make_result_rows("sghmc-sa", [[True, True, True, False], [True, True, True, True]], samples=True),
]


def test_the_table_has_means_over_seeds_and_networks_beside_the_papers_numbers() -> None:
    table = image_tables.accuracy_table("mnist", RUNS, augment=False)
    rows = {row["method"]: row for row in table.rows}
    assert rows["Vanilla"]["accuracy"].mean == pytest.approx(37.5)
    assert rows["Vanilla"]["accuracy"].error == pytest.approx(12.5)
    assert (rows["Vanilla"]["runs"], rows["SGHMC-SA"]["runs"]) == (1, 2)
    # The second image has one vote for and one against, and the first class wins a tie.
    assert rows["Vanilla, ensemble of 2"]["accuracy"].mean == 50.0
    assert rows["SGHMC-SA"]["accuracy"].mean == pytest.approx(87.5)
    assert rows["SGHMC-SA"]["auroc_fashion"].mean == 100.0
    assert rows["SGHMC-SA without the spike's weights"]["auroc_fashion"] is None
    assert rows["SGHMC-SA"]["paper"] == 99.59
    assert rows["SGHMC-SA, last weights"]["paper"] is None
    assert rows["Maxout (cited by the paper)"]["paper"] == 99.55
    augmented = image_tables.accuracy_table("fashion", RUNS, augment=True)
    assert [row["paper"] for row in augmented.rows] == [93.14, None, None, 94.38, None]


def test_differences_are_paired_over_the_images_and_seeds() -> None:
    table = image_tables.difference_table("mnist", RUNS, LABELS)
    assert table is not None
    rows = {row["method"]: row for row in table.rows}
    # Image by image, averaged over the two seeds and the two networks: 0, 0.5, 1, 0.5.
    gaps = torch.tensor([0.0, 50.0, 100.0, 50.0])
    assert rows["Vanilla"]["difference"].mean == pytest.approx(50.0)
    assert rows["Vanilla"]["difference"].error == pytest.approx(float(gaps.std()) / 2)
    surprise = torch.tensor(0.55 / 0.05).log()
    assert rows["Vanilla"]["nll"].mean == pytest.approx(-0.5 * float(surprise))
    assert rows["Vanilla"]["seeds"].mean == pytest.approx(50.0)
    assert rows["Vanilla"]["seeds"].error == pytest.approx(0.0)
    assert rows["Vanilla, ensemble of 2"]["seeds"] is None
    assert image_tables.difference_table("mnist", RUNS[:1], LABELS) is None


def test_uniform_predictions_of_foreign_images_are_told_apart_by_entropy() -> None:
    rows = image_tables.uncertainty_table("mnist", RUNS, LABELS).rows
    assert {row["auroc"].mean for row in rows if row["score"] == "entropy"} == {100.0}
    assert {row["foreign"] for row in rows} == {"Fashion-MNIST"}
    scores = ["entropy", "entropy", "mutual information", "entropy", "entropy", "mutual information"]
    assert [row["score"] for row in rows] == scores


def test_the_prior_is_described_by_its_end_and_the_accuracy_without_the_spike() -> None:
    table = image_tables.prior_table("mnist", RUNS, LABELS)
    assert table is not None
    (row,) = table.rows
    assert (row["slab"].mean, row["delta"].mean) == (pytest.approx(10.0), pytest.approx(0.05))
    assert (row["accuracy"].mean, row["sparse"].mean) == (pytest.approx(87.5), pytest.approx(25.0))
    assert row["difference"].mean == pytest.approx(-62.5)
    assert image_tables.prior_table("mnist", RUNS[:2], LABELS) is None


def test_the_figure_of_the_prior_has_a_line_for_each_chain() -> None:
    trace = [{"epoch": epoch, "slab": 1 / epoch, "delta": 0.5, "kappa0": 1.0, "kappa1": 2.0} for epoch in (1, 2, 3)]
    figure = image_tables.prior_figure([trace, trace[:2]], "Prior")
    assert [len(axes.lines) for axes in figure.axes] == [2, 2, 2, 2]
    assert list(figure.axes[0].lines[0].get_ydata()) == [1, 1 / 2, 1 / 3]
