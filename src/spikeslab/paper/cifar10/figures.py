"""Figures of the CIFAR-10 experiment: accuracy against sparsity, and the course of runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from spikeslab.paper.cifar10.runs import AVERAGE, SINGLE
from spikeslab.paper.cifar10.table3 import method_title
from spikeslab.paper.cifar10.tables import CifarRow
from spikeslab.report.figures import BLUE, GREEN, GREY, INK, ORANGE, SKY, VERMILION, WIDTH, style

COLOURS = {
    "a-sghmc-sa": BLUE,
    "sghmc-sa": SKY,
    "a-sghmc-em": GREEN,
    "a-sghmc": GREY,
    "gmp": VERMILION,
    "l2": ORANGE,
    "l1": "#CC79A7",
    "marginal": "#7A5195",
    "prior-annealing": "#6B4C2A",
    "dpf": "#3B6E22",
    "one-shot": INK,
}
SHIFT = 0.06
"""Distance between the points of two rows at the same sparsity."""
Line: TypeAlias = Literal["-", "--", ":", "-."]
ROOM = 120
"""Letters in a line of the legend."""
LINE = 0.23
"""Height of a line of the legend in inches."""
LINES: tuple[Line, ...] = ("-", "--", ":", "-.")
MARKERS = ("o", "s", "^", "D", "v")


class Course(NamedTuple):
    """Log of a run, with its method and label."""

    method: str
    label: str
    records: Sequence[Mapping[str, Any]]


def sparsity_figure(rows: Sequence[CifarRow]) -> Figure:
    """Draw the accuracy of every row against the sparsity, at equal distances since the high ones matter most.

    Filled markers are the last epoch, open ones the average, crosses the paper.
    """
    places = {sparsity: place for place, sparsity in enumerate(sorted({row.sparsity for row in rows}))}
    series: dict[tuple[str, str], list[CifarRow]] = {}
    for row in rows:
        series.setdefault((row.method, row.label), []).append(row)
    with style():
        figure = Figure(figsize=(WIDTH, 3.4), layout="constrained")
        axes = figure.subplots()
        handles = []
        for (method, label), members in series.items():
            colour, line = _colour(method), _line(method, label, list(series))
            marker = MARKERS[_place(method, label, list(series)) % len(MARKERS)]
            x = [places[row.sparsity] + _shift(row, rows) for row in members]
            singles, averages = ([row.percent(kind) for row in members] for kind in (SINGLE, AVERAGE))
            axes.plot(x, [each.mean for each in singles], line, color=colour, marker=marker, markersize=5)
            axes.plot(x, [each.mean for each in averages], marker, color=colour, markersize=8, markerfacecolor="none")
            errors = [each.error or 0.0 for each in singles]
            axes.errorbar(x, [each.mean for each in singles], errors, fmt="none", ecolor=colour, capsize=2)
            axes.plot(
                *_given([(place, _paper(row, rows)) for place, row in zip(x, members, strict=True)]),
                "x",
                color=colour,
                markersize=7,
                markeredgewidth=1.8,
            )
            epochs = " or ".join(f"{count}" for count in sorted({row.epochs for row in members}))
            name = f"{method_title(method)}, {label}, {epochs} epochs"
            handles.append(Line2D([], [], color=colour, linestyle=line, marker=marker, markersize=5, label=name))
        dense = max(row.percent("dense").mean for row in rows)
        axes.axhline(dense, color=GREY, linewidth=0.9, linestyle=(0, (1, 2)))
        axes.text(len(places) - 0.55, dense, f"dense {dense:.2f} %", color=GREY, ha="right", va="bottom", fontsize=9)
        handles += [
            Line2D([], [], color=INK, linestyle="", marker="o", markerfacecolor="none", label="posterior average"),
            Line2D([], [], color=INK, linestyle="", marker="x", label="paper, best epoch of 1000"),
        ]
        axes.set_xticks(list(places.values()), [f"{sparsity:.0%}" for sparsity in places])
        axes.set_xlim(-0.5, len(places) - 0.5)
        axes.set(xlabel="zeros in the whole network", ylabel="accuracy, %", title="ResNet20 on CIFAR-10")
        _legend(figure, handles)
    return figure


def _paper(row: CifarRow, rows: Sequence[CifarRow]) -> float | None:
    """Return the paper's accuracy for the first of the rows that it belongs to."""
    alike = [other for other in rows if (other.method, other.sparsity) == (row.method, row.sparsity)]
    return row.paper if alike[0] is row else None


def _shift(row: CifarRow, rows: Sequence[CifarRow]) -> float:
    """Return the distance of a row from the tick of its sparsity, which other rows share."""
    beside = [other for other in rows if other.sparsity == row.sparsity]
    return SHIFT * (beside.index(row) - (len(beside) - 1) / 2)


def course_figure(courses: Sequence[Course]) -> Figure:
    """Draw accuracy or loss, sparsity, lr, penalty and norm of the weights against epochs."""
    judged = any("evaluation" in record for course in courses for record in course.records)
    panels = [
        ("accuracy, %" if judged else "training loss", "accuracy" if judged else "loss", False),
        ("zeros in the network, %", "sparsity", False),
        ("lr", "lr", True),
        ("L2 penalty of a weight left", "effective_l2", True),
        ("L1 penalty of a weight left", "effective_l1", True),
        ("norm of the sparse weights", "norm", False),
    ]
    keys = [(course.method, course.label) for course in courses]
    with style():
        figure = Figure(figsize=(WIDTH, 4.6), layout="constrained")
        for axes, (name, key, logarithmic) in zip(figure.subplots(2, 3, sharex=True).flat, panels, strict=True):
            for course in courses:
                _draw(axes, course, key, _line(course.method, course.label, keys))
            axes.set_title(name, fontsize=9.5)
            if logarithmic and axes.lines and any(value > 0.0 for line in axes.lines for value in line.get_ydata()):
                axes.set_yscale("log")
        for axes in figure.axes[3:]:
            axes.set_xlabel("epoch")
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        handles = [
            Line2D([], [], color=_colour(m), linestyle=_line(m, label, keys), label=f"{method_title(m)}, {label}")
            for m, label in keys
        ]
        _legend(figure, handles)
    return figure


def _legend(figure: Figure, handles: Sequence[Line2D]) -> None:
    """Draw a legend below the figure, in as many columns as fit, and make the figure higher by it."""
    widest = max(len(f"{handle.get_label()}") for handle in handles)
    columns = max(1, min(len(handles), ROOM // (widest + 8)))
    figure.set_figheight(figure.get_figheight() + LINE * math.ceil(len(handles) / columns))
    figure.legend(handles=handles, loc="outside lower center", ncols=columns)


def _draw(axes: Axes, course: Course, key: str, line: Line) -> None:
    percent = key in ("accuracy", "sparsity")
    points = [(record["epoch"], _entry(record, key)) for record in course.records]
    x, y = _given(points)
    axes.plot(x, [100.0 * value if percent else value for value in y], line, color=_colour(course.method))


def _entry(record: Mapping[str, Any], key: str) -> float | None:
    """Return a number of a record, or ``None`` for zero penalties, which a logarithmic axis cannot show."""
    if key == "sparsity":
        return float(record["sparsity"] if "sparsity" in record else record["sparsity_sparse"])
    value = record.get("evaluation", {}).get(key) if key == "accuracy" else record.get(key)
    return None if value is None or (key.startswith("effective") and value <= 0.0) else float(value)


def _given(points: Sequence[tuple[float, float | None]]) -> tuple[list[float], list[float]]:
    """Return x and y of the points that have a value."""
    found = [(x, y) for x, y in points if y is not None]
    return [x for x, _ in found], [y for _, y in found]


def _colour(method: str) -> str:
    return COLOURS.get(method.partition(":")[0], INK)


def _line(method: str, label: str, keys: Sequence[tuple[str, str]]) -> Line:
    return LINES[_place(method, label, keys) % len(LINES)]


def _place(method: str, label: str, keys: Sequence[tuple[str, str]]) -> int:
    """Return the index of a row among those of its colour, which differ in lines and markers."""
    alike = [key for key in dict.fromkeys(keys) if _colour(key[0]) == _colour(method)]
    return alike.index((method, label))
