"""Figures of CIFAR-10 from given results and logs."""

from __future__ import annotations

from pathlib import Path

from small_cifar10 import FOUND, result

from spikeslab.paper.cifar10.figures import Course, course_figure, sparsity_figure
from spikeslab.paper.cifar10.tables import (
    group_rows,
)


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
