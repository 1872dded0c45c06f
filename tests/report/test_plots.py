"""What is drawn equals the numbers given."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from spikeslab.metrics import detection, detection_curves, reliability_curve, selective_accuracy
from spikeslab.report import plots
from spikeslab.report.figures import BLUE, COLOURS, GREEN, GREY
from spikeslab.report.tables import Estimate


@pytest.fixture
def predictions() -> tuple[torch.Tensor, torch.Tensor]:
    probabilities = (3.0 * torch.randn(400, 4)).softmax(1)
    return probabilities, torch.multinomial(probabilities, 1).squeeze(1)


def legend(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_reliability_curves_of_two_models(predictions):
    probabilities, labels = predictions
    curves = {
        "calibrated": reliability_curve(probabilities, labels),
        "too sure": reliability_curve(probabilities.square(), labels, bins=10),
    }
    figure = plots.reliability_figure(curves)
    left, right = figure.axes
    lines = {line.get_label(): line for line in left.lines if not line.get_label().startswith("_")}
    assert list(lines) == legend(figure) == list(curves)
    for (name, curve), bars, steps in zip(curves.items(), left.collections, right.patches, strict=True):
        filled = curve.count > 0
        assert not bool(filled.all()), "so that empty bins are tried"
        assert np.array_equal(lines[name].get_xdata(), curve.confidence[filled].numpy())
        assert np.array_equal(lines[name].get_ydata(), curve.accuracy[filled].numpy())
        middle = [segment[:, 1].mean() for segment in bars.get_segments()]
        assert middle == pytest.approx(curve.accuracy[filled].tolist())
        share, edges, _ = steps.get_data()
        assert share.tolist() == pytest.approx((curve.count / 400).tolist())
        assert edges.tolist() == pytest.approx(np.linspace(0, 1, len(share) + 1).tolist())


def test_the_error_of_a_bin_shrinks_with_its_rows():
    few, many = (
        reliability_curve(torch.tensor([[0.7, 0.3]]).repeat(n, 1), (torch.arange(n) % 10 >= 7).long())
        for n in (10, 1000)
    )
    figure = plots.reliability_figure({"few": few, "many": many})
    lengths = [float(np.ptp(bars.get_segments()[0][:, 1])) for bars in figure.axes[0].collections]
    assert lengths[1] == pytest.approx(2 * (0.7 * 0.3 / 1000) ** 0.5, rel=0.01)
    assert 8 < lengths[0] / lengths[1] < 10


def test_bins_with_few_rows_may_be_left_out(predictions):
    curve = reliability_curve(*predictions)
    fewest = int(curve.count[curve.count > 0].min()) + 1
    left, right = plots.reliability_figure({"one": curve}, fewest=fewest).axes
    shown = curve.count >= fewest
    assert 0 < int(shown.sum()) < int((curve.count > 0).sum())
    assert np.array_equal(left.lines[1].get_ydata(), curve.accuracy[shown].numpy())
    assert len(left.collections[0].get_segments()) == int(shown.sum())
    assert left.get_title(loc="left") == f"accuracy ± standard error, bins of ≥ {fewest} rows"
    assert right.patches[0].get_data()[0].tolist() == pytest.approx((curve.count / 400).tolist())


def test_selective_accuracy(predictions):
    probabilities, labels = predictions
    coverages = torch.linspace(0.1, 1.0, 10)
    kept = selective_accuracy(probabilities, labels, coverages)
    (axes,) = plots.selective_accuracy_figure({"one": kept, "two": 0.9 * kept}, coverages).axes
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["one", "two"]
    assert [line.get_color() for line in axes.lines] == list(COLOURS[:2])
    assert np.array_equal(axes.lines[1].get_xdata(), coverages.numpy())
    assert np.array_equal(axes.lines[1].get_ydata(), (0.9 * kept).numpy())


def test_bars_and_their_errors():
    scores = {
        "Vanilla": {"error, %": Estimate(7.25, 0.5), "NLL": Estimate(0.25, None)},
        "SGHMC-SA": {"error, %": Estimate(6.0, 0.25), "NLL": Estimate(0.2, None)},
    }
    figure = plots.scores_figure(scores)
    assert legend(figure) == list(scores)
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["error, %", "NLL"]
    error, nll = figure.axes
    assert [bar.get_height() for bar in error.patches] == [7.25, 6.0]
    assert [bar.get_y() for bar in error.patches] == [0.0, 0.0]
    spans = [collection.get_segments()[0][:, 1].tolist() for collection in error.collections]
    assert spans == [[6.75, 7.75], [5.75, 6.25]]
    assert not nll.collections
    assert [text.get_text() for text in nll.texts] == ["0.250", "0.200"]


def test_histograms_of_own_and_foreign_inputs():
    own, foreign = 0.3 * torch.rand(500), 0.2 + torch.rand(300)
    figure = plots.uncertainty_figure(
        {"predictive entropy": (own, foreign), "mutual information": (own / 2, foreign / 2)}, "MNIST", "Fashion-MNIST"
    )
    assert legend(figure) == ["MNIST", "Fashion-MNIST"]
    assert [axes.get_xlabel() for axes in figure.axes] == ["predictive entropy, nats", "mutual information, nats"]
    for axes, scale in zip(figure.axes, (1.0, 0.5), strict=True):
        outlines = [patch for patch in axes.patches if not patch.get_fill()]
        for outline, values in zip(outlines, (own, foreign), strict=True):
            share, edges, _ = outline.get_data()
            assert float(share.sum()) == pytest.approx(1.0)
            assert edges[-1] == pytest.approx(scale * float(foreign.max()))
            centres = (edges[1:] + edges[:-1]) / 2
            assert float((share * centres).sum()) == pytest.approx(scale * float(values.mean()), abs=0.02)


def test_curves_of_detection_and_their_areas():
    scores = {
        "entropy": (torch.randn(200), torch.randn(150) + 2.0),
        "mutual information": (torch.randn(200), torch.randn(150) + 1.0),
    }
    figure = plots.detection_figure(scores)
    roc, recall = figure.axes
    assert roc.get_xscale() == "log"
    assert roc.get_xlim() == (1 / 200, 1.0)
    least = min(float(detection_curves(*pair).precision.min()) for pair in scores.values())
    assert least <= 150 / 350
    assert recall.get_ylim() == pytest.approx((least - 0.01, 1.01))
    shown = [line for line in roc.lines if not line.get_label().startswith("_")]
    for line, other, label, (name, pair) in zip(shown, recall.lines, legend(figure), scores.items(), strict=True):
        curves, found = detection_curves(*pair), detection(*pair)
        assert np.array_equal(line.get_xdata(), curves.false_positive.numpy())
        assert np.array_equal(line.get_ydata(), curves.true_positive.numpy())
        assert np.array_equal(other.get_xdata(), curves.recall.numpy())
        assert np.array_equal(other.get_ydata(), curves.precision.numpy())
        area = torch.trapezoid(torch.as_tensor(line.get_ydata()), torch.as_tensor(line.get_xdata()))
        assert float(area) == pytest.approx(found.auroc, abs=1e-6)
        assert label == f"{name}: AUROC {found.auroc:.3f}, AUPR {found.aupr:.3f}, FPR95 {found.fpr95:.3f}"


def test_a_model_keeps_its_colour_where_others_are_left_out(predictions):
    colours = {"Vanilla": GREY, "SGHMC": GREEN, "SGHMC-SA": BLUE}
    curve, coverages = reliability_curve(*predictions), torch.linspace(0.1, 1.0, 10)
    names = ("SGHMC-SA", "Vanilla")
    lines = [
        plots.reliability_figure(dict.fromkeys(names, curve), colours).axes[0].lines[1:],
        plots.selective_accuracy_figure(dict.fromkeys(names, coverages), coverages, colours).axes[0].lines,
        plots.detection_figure(dict.fromkeys(names, (torch.rand(9), torch.rand(9))), colours).axes[1].lines,
    ]
    assert [[line.get_color() for line in of_figure] for of_figure in lines] == [[BLUE, GREY]] * 3
    bars = plots.scores_figure({key: {"NLL": Estimate(1.0, None)} for key in names}, colours).axes[0].patches
    assert [to_hex(bar.get_facecolor()) for bar in bars] == [BLUE.lower(), GREY.lower()]
    with pytest.raises(ValueError, match=r"^colours must have one for every model, but got none for 'Dropout'\.$"):
        plots.reliability_figure({"Dropout": curve, "SGHMC": curve}, colours)


class Elsewhere(torch.Tensor):
    """Numbers on a device that numpy cannot read."""

    def cpu(self):
        return self.as_subclass(torch.Tensor)

    def numpy(self):
        raise TypeError("can't convert a tensor of another device to numpy")


def test_results_may_be_on_any_device(predictions):
    probabilities, labels = (tensor.as_subclass(Elsewhere) for tensor in predictions)
    coverages = torch.linspace(0.1, 1.0, 10).as_subclass(Elsewhere)
    pair = (probabilities[:200, 0], probabilities[200:, 1])
    assert isinstance(reliability_curve(probabilities, labels).confidence, Elsewhere)
    plots.reliability_figure({"one": reliability_curve(probabilities, labels)})
    plots.selective_accuracy_figure({"one": selective_accuracy(probabilities, labels, coverages)}, coverages)
    plots.uncertainty_figure({"entropy": pair}, "own", "foreign")
    plots.detection_figure({"one": pair})


def test_what_cannot_be_drawn_is_refused():
    estimate = Estimate(1.0, None)
    for call, message in (
        (lambda: plots.reliability_figure({}), r"^results must be of 1 to 6 models by name, but got 0\.$"),
        (
            lambda: plots.scores_figure({"a": {"NLL": estimate}, "b": {"ECE": estimate}}),
            r"^b must have the scores 'NLL', but got 'ECE'\.$",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            call()


def test_metrics_do_not_need_matplotlib():
    code = "import sys, spikeslab.metrics; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
