"""Figures of the CIFAR-10 experiment: accuracy against sparsity, and the course of runs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from spikeslab.paper.cifar10.runs import AVERAGE, SINGLE
from spikeslab.paper.cifar10.tables import CifarRow, method_title
from spikeslab.report.figures import BLUE, GREEN, GREY, INK, ORANGE, SKY, VERMILION, new_figure

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
    "magnitude": INK,
}
SHIFT = 0.06
"""Distance between the points of two rows at the same sparsity."""
ROOM = 120
"""Letters in a line of the legend."""
LINE = 0.23
"""Height of a line of the legend in inches."""
LINES, MARKERS = ("-", "--", ":", "-."), ("o", "s", "^", "D", "v")

Key: TypeAlias = tuple[str, str]
"""Method and label of a row."""


class Course(NamedTuple):
    """Log of a run, with its method and label."""

    method: str
    label: str
    records: Sequence[Mapping[str, Any]]


def sparsity_figure(rows: Sequence[CifarRow]) -> Figure:
    """Draw the accuracy of every row against the sparsity, at equal distances since the high ones matter most.

    Filled markers are the last epoch, open ones the average, crosses the paper.
    """
    first = {(row.method, row.sparsity): row for row in reversed(rows)}  # the one beside which the paper's point stands
    places = {sparsity: place for place, sparsity in enumerate(sorted({row.sparsity for row in rows}))}
    series: dict[Key, list[CifarRow]] = {}
    for row in rows:
        series.setdefault((row.method, row.label), []).append(row)
    styles = _styles(series)
    with new_figure(3.4) as figure:
        axes = figure.subplots()
        handles = []
        for (method, label), members in series.items():
            own = styles[method, label]
            colour, marker = own["color"], own["marker"]
            x = [places[row.sparsity] + _shift(row, rows) for row in members]
            singles, averages = ([row.percent(kind) for row in members] for kind in (SINGLE, AVERAGE))
            axes.plot(x, [each.mean for each in singles], markersize=5, **own)
            axes.plot(x, [each.mean for each in averages], marker, color=colour, markersize=8, markerfacecolor="none")
            errors = [each.error or 0.0 for each in singles]
            axes.errorbar(x, [each.mean for each in singles], errors, fmt="none", ecolor=colour, capsize=2)
            own_paper = [row.paper if first[method, row.sparsity] is row else None for row in members]
            paper = _drop_missing(zip(x, own_paper, strict=True))
            axes.plot(*paper, "x", color=colour, markersize=7, markeredgewidth=1.8)
            epochs = " or ".join(f"{count}" for count in sorted({row.epochs for row in members}))
            name = f"{method_title(method)}, {label}, {epochs} epochs"
            handles.append(Line2D([], [], markersize=5, label=name, **own))
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


def _shift(row: CifarRow, rows: Sequence[CifarRow]) -> float:
    """Return the distance of a row from the tick of its sparsity, which other rows share."""
    beside = [other for other in rows if other.sparsity == row.sparsity]
    return SHIFT * (beside.index(row) - (len(beside) - 1) / 2)


def course_figure(courses: Sequence[Course]) -> Figure:
    """Draw accuracy or loss, sparsity, lr, penalty and norm of the weights against epochs."""
    evaluated = any("evaluation" in record for course in courses for record in course.records)
    panels = [
        ("accuracy, %" if evaluated else "training loss", "accuracy" if evaluated else "loss", False),
        ("zeros in the network, %", "sparsity", False),
        ("lr", "lr", True),
        ("L2 penalty of a weight left", "effective_l2", True),
        ("L1 penalty of a weight left", "effective_l1", True),
        ("norm of the sparse weights", "norm", False),
    ]
    styles = _styles((course.method, course.label) for course in courses)
    lines = {key: {name: value for name, value in own.items() if name != "marker"} for key, own in styles.items()}
    with new_figure(4.6) as figure:
        for axes, (name, key, logarithmic) in zip(figure.subplots(2, 3, sharex=True).flat, panels, strict=True):
            for course in courses:
                x, y = _drop_missing((record["epoch"], _entry(record, key)) for record in course.records)
                axes.plot(x, y, **lines[course.method, course.label])
            axes.set_title(name, fontsize=9.5)
            if logarithmic and axes.lines and any(value > 0.0 for line in axes.lines for value in line.get_ydata()):
                axes.set_yscale("log")
        for axes in figure.axes[3:]:
            axes.set_xlabel("epoch")
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        handles = [
            Line2D([], [], label=f"{method_title(method)}, {label}", **own) for (method, label), own in lines.items()
        ]
        _legend(figure, handles)
    return figure


def _legend(figure: Figure, handles: Sequence[Line2D]) -> None:
    """Draw a legend below the figure, in as many columns as fit, and make the figure higher by it."""
    widest = max(len(f"{handle.get_label()}") for handle in handles)
    columns = max(1, min(len(handles), ROOM // (widest + 8)))
    figure.set_figheight(figure.get_figheight() + LINE * math.ceil(len(handles) / columns))
    figure.legend(handles=handles, loc="outside lower center", ncols=columns)


def _entry(record: Mapping[str, Any], key: str) -> float | None:
    """Return a number of a record, or ``None`` for zero penalties, which a logarithmic axis cannot show."""
    if key == "sparsity":
        return 100.0 * float(record["sparsity"] if "sparsity" in record else record["sparsity_sparse"])
    if key == "accuracy":
        value = record.get("evaluation", {}).get(key)
        return None if value is None else 100.0 * value
    value = record.get(key)
    return None if value is None or (key.startswith("effective") and value <= 0.0) else float(value)


def _drop_missing(points: Iterable[tuple[float, float | None]]) -> tuple[list[float], list[float]]:
    """Return x and y of the points that have a value."""
    found = [(x, y) for x, y in points if y is not None]
    return [x for x, _ in found], [y for _, y in found]


def _styles(keys: Iterable[Key]) -> dict[Key, dict[str, Any]]:
    """Return colour, line and marker of each row; rows of one method share the colour and differ in the others."""
    styles: dict[Key, dict[str, Any]] = {}
    for method, label in dict.fromkeys(keys):
        colour = COLOURS.get(method.partition(":")[0], INK)
        place = sum(own["color"] == colour for own in styles.values())
        line, marker = LINES[place % len(LINES)], MARKERS[place % len(MARKERS)]
        styles[method, label] = {"color": colour, "linestyle": line, "marker": marker}
    return styles
