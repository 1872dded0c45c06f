import math

import pytest
import torch

from spikeslab.metrics import detection, detection_curves, entropy, mutual_information, selective_accuracy
from spikeslab.metrics.uncertainty import _rank


def test_entropy_and_mutual_information_of_known_predictions() -> None:
    agree = torch.tensor([[[0.5, 0.5]], [[0.5, 0.5]]])
    differ = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]])
    assert entropy(agree[0]).item() == pytest.approx(math.log(2))
    assert mutual_information(agree).item() == pytest.approx(0.0, abs=1e-7)
    assert mutual_information(differ).item() == pytest.approx(math.log(2))
    weighted = mutual_information(differ, torch.tensor([1.0, 0.0]))
    assert weighted.item() == pytest.approx(0.0, abs=1e-7)


def test_the_three_entropies_add_up() -> None:
    p = torch.randn(7, 20, 5).softmax(-1)
    assert torch.allclose(entropy(p.mean(0)), entropy(p).mean(0) + mutual_information(p), atol=1e-6)
    assert bool((mutual_information(p) > 0).all())


def test_detection_is_the_share_of_pairs_in_the_right_order() -> None:
    own, foreign = torch.randn(300), torch.randn(200) + 1.0
    found = detection(own, foreign)
    pairs = (foreign[:, None] > own).double() + 0.5 * (foreign[:, None] == own).double()
    assert found.auroc == pytest.approx(float(pairs.mean()), abs=1e-6)
    threshold = foreign.sort(descending=True).values[math.ceil(0.95 * 200) - 1]
    assert found.fpr95 == pytest.approx(float((own >= threshold).double().mean()), abs=1e-6)
    order = torch.cat([own, foreign]).argsort(descending=True)
    hits = (order >= 300).double()
    precision = hits.cumsum(0) / torch.arange(1, 501)
    assert found.aupr == pytest.approx(float((precision * hits).sum() / 200), abs=1e-5)


def test_detection_does_not_depend_on_the_scale_of_the_scores() -> None:
    own, foreign = torch.rand(50), torch.rand(50) + 0.3
    assert (
        detection(own, foreign) == detection(1e-9 * own, 1e-9 * foreign) == detection(100 * own - 7, 100 * foreign - 7)
    )
    assert detection(own, own).auroc == 0.5


def test_selective_accuracy_keeps_the_most_confident() -> None:
    p = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.4, 0.6], [0.55, 0.45]])
    labels = torch.tensor([0, 0, 0, 1])
    kept = selective_accuracy(p, labels, torch.tensor([0.25, 0.5, 0.75, 1.0]))
    assert kept.tolist() == pytest.approx([1.0, 1.0, 2 / 3, 0.5])


def test_bad_shapes_are_refused() -> None:
    for call, message in (
        (
            lambda: mutual_information(torch.rand(2, 3)),
            r"^probabilities must have the shape \(samples, rows, classes\) with at least one sample, but got \(2, 3\)",
        ),
        (
            lambda: detection(torch.rand(3), torch.rand(0)),
            r"^foreign must be a vector of finite scores, but got the shape \(0,\)\.$",
        ),
        (
            lambda: selective_accuracy(torch.rand(2, 2), torch.zeros(2), torch.zeros(1)),
            r"^coverages must be in \(0, 1\], but got \[0\.0\]\.$",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            call()


@pytest.mark.parametrize("weights", [[1.0, -1.0], [0.0, 0.0], [1.0], [math.inf, 1.0], [math.nan, 1.0]])
def test_weights_that_weigh_nothing_are_refused(weights: list[float]) -> None:
    message = r"^weights must be finite numbers >= 0, not all 0, one for each of the 2 samples, but got \["
    with pytest.raises(ValueError, match=message):
        mutual_information(torch.rand(2, 3, 4).softmax(-1), torch.tensor(weights))


def test_weights_have_no_unit() -> None:
    p, weights = torch.randn(3, 20, 5).softmax(-1), torch.tensor([0.5, 0.25, 0.25])
    repeated = mutual_information(p[[0, 0, 1, 2]])
    torch.testing.assert_close(mutual_information(p, weights), repeated)
    torch.testing.assert_close(mutual_information(p, 8 * weights), repeated)
    torch.testing.assert_close(mutual_information(p, torch.tensor([2, 1, 1])), repeated)


def test_selective_accuracy_wants_a_label_for_each_row() -> None:
    with pytest.raises(ValueError, match=r"and labels \(rows,\) with at least one row, but got \(4, 2\) and \(3,\)\.$"):
        selective_accuracy(torch.rand(4, 2).softmax(1), torch.zeros(3, dtype=torch.long), torch.ones(1))


def test_labels_are_made_where_the_scores_are() -> None:
    own, foreign = torch.rand(5), torch.rand(4)
    with torch.device("meta"):  # where tensors go that are made without a thought
        assert [tensor.device.type for tensor in _rank(own, foreign)] == ["cpu", "cpu"]


def test_the_curves_of_a_score_enclose_its_areas() -> None:
    own, foreign = torch.randn(120).round(decimals=1), (torch.randn(90) + 1.0).round(decimals=1)  # with ties
    curves, found = detection_curves(own, foreign), detection(own, foreign)
    assert float(torch.trapezoid(curves.true_positive, curves.false_positive)) == pytest.approx(found.auroc, abs=1e-6)
    steps = curves.recall.diff() * curves.precision[1:]
    assert float(steps.sum()) == pytest.approx(found.aupr, abs=1e-6)
    threshold = 0.5
    called = float((own >= threshold).double().mean()), float((foreign >= threshold).double().mean())
    points = torch.stack([curves.false_positive, curves.true_positive], dim=1)
    assert any(torch.allclose(point.double(), torch.tensor(called).double(), atol=1e-6) for point in points)
