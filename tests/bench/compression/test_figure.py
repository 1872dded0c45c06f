"""Figure of the study."""

from __future__ import annotations

import pytest

from spikeslab.bench.compression.figure import make_figure
from spikeslab.bench.compression.grid import CellKey
from spikeslab.bench.compression.results import StudyResults


def test_a_panel_for_each_network_with_what_is_drawn(tmp_path):
    def record(nll: float, accuracy: float) -> dict:
        return {"single": {"nll": nll, "accuracy": accuracy}, "command": ""}

    records = {
        CellKey("lenet", 0.0, "dense"): {0: record(0.1, 0.9)},
        CellKey("lenet", 0.8, "gmp"): {0: record(0.2, 0.8)},
        CellKey("lenet", 0.9, "gmp"): {0: record(0.3, 0.7)},
        CellKey("transformer", 0.5, "gmp"): {0: record(0.0, 0.5)},
    }
    figure = make_figure(StudyResults(records, tmp_path))
    lenet, transformer = figure.axes
    assert (lenet.get_ylabel(), transformer.get_ylabel()) == ("accuracy, %", "perplexity")
    drawn, dense = (list(line.get_ydata()) for line in (lenet.lines[0], lenet.lines[-1]))
    assert drawn == pytest.approx([80.0, 70.0])
    assert dense == pytest.approx([90.0, 90.0])
    assert list(transformer.lines[0].get_ydata()) == pytest.approx([1.0])
    assert [tick.get_text() for tick in lenet.get_xticklabels()] == ["80 %", "90 %"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["gmp", "dense"]
