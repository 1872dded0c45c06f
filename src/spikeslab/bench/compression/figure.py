"""Figure of the study: accuracy, RMSE or perplexity against sparsity, all methods, a panel for each network."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from spikeslab.bench.compression.grid import DENSE, GMP, L2, OURS, PAT, TORCH_PRUNE, CellKey, split_method
from spikeslab.bench.compression.networks import STUDY_NETWORKS
from spikeslab.bench.compression.results import AVERAGE, MethodSeries, StudyResults
from spikeslab.paper.grid import estimate
from spikeslab.report.figures import BLUE, GREEN, GREY, INK, ORANGE, VERMILION, new_figure
from spikeslab.report.tables import Estimate

COLOURS = {OURS: BLUE, GMP: VERMILION, TORCH_PRUNE: GREEN, L2: ORANGE, PAT: INK}
LABELS = {"accuracy": "accuracy, %", "rmse": "RMSE", "nll": "perplexity"}
CHANGES: dict[str, Callable[[float], float]] = {"accuracy": lambda v: 100.0 * v, "rmse": float, "nll": math.exp}
"""Function from a score to the number that is drawn."""


def make_figure(results: StudyResults) -> Figure:
    """Draw accuracy, RMSE or perplexity against sparsity, a panel for each network."""
    places = list(results.places())
    networks = list(dict.fromkeys(network for network, _ in places))
    columns = min(2, max(1, len(networks)))
    lines = -(-max(1, len(networks)) // columns)
    with new_figure(2.9 * lines + 0.6) as figure:
        panels = list(figure.subplots(lines, columns, squeeze=False).flat)
        shown: dict[tuple[str, str], None] = {}
        for axes, network in zip(panels, networks, strict=False):
            score = STUDY_NETWORKS[network].score
            change = CHANGES[score]
            shares = [sparsity for name, sparsity in places if name == network]
            points: dict[tuple[str, str], dict[int, Estimate]] = {}
            for place, sparsity in enumerate(shares):
                for series in results.series(network, sparsity):
                    found = estimate(map(change, results.values(series, score)))
                    if found is not None:
                        points.setdefault((series.method, series.kind), {})[place] = found
            shown |= dict.fromkeys(points)
            for index, ((name, kind), of_series) in enumerate(points.items()):
                shift = 0.04 * (index - (len(points) - 1) / 2)
                x, means = [place + shift for place in of_series], [each.mean for each in of_series.values()]
                errors = [each.error or 0.0 for each in of_series.values()]
                axes.errorbar(x, means, errors, capsize=2, **_look(name, kind))
            dense = estimate(map(change, results.values(MethodSeries(DENSE, CellKey(network, 0.0, DENSE)), score)))
            if dense is not None:
                axes.axhline(dense.mean, color=GREY, linewidth=0.9, linestyle=(0, (1, 2)))
            axes.set_xticks(range(len(shares)), [f"{100.0 * share:g} %" for share in shares])
            axes.set_xlim(-0.4, max(len(shares) - 0.6, 0.4))
            axes.set(title=STUDY_NETWORKS[network].title, ylabel=LABELS[score], xlabel="zeros in the network")
        for axes in panels[len(networks) :]:
            axes.set_visible(False)
        handles = [
            Line2D([], [], label=MethodSeries(name, CellKey("", 0.0, name), kind).label, **_look(name, kind))
            for name, kind in shown
        ]
        handles.append(Line2D([], [], color=GREY, linewidth=0.9, linestyle=(0, (1, 2)), label="dense"))
        figure.legend(handles=handles, loc="outside lower center", ncols=4)
    return figure


def _look(name: str, kind: str) -> dict[str, Any]:
    """Return the look of a line: dashed if tuned, dotted if it is the posterior average, both with open markers."""
    method, tuned = split_method(name)
    colour, average = COLOURS[method], kind == AVERAGE
    return {
        "color": colour,
        "linestyle": "--" if tuned else ":" if average else "-",
        "marker": "o",
        "markersize": 5,
        "markerfacecolor": "none" if average or tuned else colour,
        "linewidth": 1.3,
    }
