"""Bar charts of a report of sparsity."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import ScaledTranslation

from spikeslab.report.figures import BLUE, GREY, INK, ORANGE, SKY, WIDTH, style

if TYPE_CHECKING:
    from spikeslab.compression.sparsity_report import SparsityReport

COLOURS = (SKY, BLUE, ORANGE)
PALE = "#DDDDDD"
SHOWN = 40
"""Number of layers shown, the largest if there are more."""


def draw_sparsity(report: SparsityReport) -> Figure:
    """Draw non-zeros of each layer on the left; bytes by format and, if measured, times by variant on the right."""
    layers = min(len(report.layers), SHOWN)
    with style():
        variants = len({item.variant for item in report.latencies})
        height = max(3.2 + 0.6 * variants, 1.0 + 0.2 * layers)
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        if report.latencies:
            parts = figure.subplot_mosaic([["layers", "files"], ["layers", "times"]], width_ratios=(1.0, 1.1))
            _draw_times(figure, parts["times"], report)
        else:
            parts = figure.subplot_mosaic([["layers", "files"]], width_ratios=(1.0, 1.1))
        _draw_layers(figure, parts["layers"], report)
        _draw_files(parts["files"], report)
    return figure


def _draw_layers(figure: Figure, axes: Axes, report: SparsityReport) -> None:
    largest = sorted(report.layers, key=lambda layer: layer.weights, reverse=True)[:SHOWN]
    layers = [layer for layer in report.layers if layer in largest]
    names = [layer.name.removesuffix(".weight") for layer in layers]
    axes.barh(names, [layer.weights for layer in layers], color=PALE, label="weights")
    axes.barh(names, [layer.nonzeros for layer in layers], color=BLUE, label="non-zeros")
    axes.invert_yaxis()
    axes.margins(y=0.01)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.xaxis.set_major_locator(MaxNLocator(4))
    _legend_below(figure, axes, 0.3)
    more = f", the {SHOWN} largest layers" if len(report.layers) > SHOWN else ""
    zeros = 100 * (1 - report.nonzeros / report.weights)
    axes.set_title(f"{zeros:.1f} % of {report.weights:,} weights are zero{more}")


def _draw_files(axes: Axes, report: SparsityReport) -> None:
    names, sizes = list(report.files), [size / 1000 for size in report.files.values()]
    bars = axes.barh(names, sizes, 0.7, color=[GREY if name.startswith("dense") else BLUE for name in names])
    labels = [f"{size:,.0f} KB  ({sizes[0] / size:.1f} x smaller)" for size in sizes]
    axes.bar_label(bars, [f"{sizes[0]:,.0f} KB", *labels[1:]], padding=4, fontsize=8.5, color=INK)
    axes.set_xlim(0, 1.3 * max(sizes))
    axes.set_xlabel("KB on disk")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.invert_yaxis()
    axes.set_title(f"Smaller? {sizes[0] / sizes[2]:.1f} x without loss")


def _draw_times(figure: Figure, axes: Axes, report: SparsityReport) -> None:
    variants = list(dict.fromkeys(item.variant for item in report.latencies))
    batches = list(dict.fromkeys(item.batch for item in report.latencies))
    width = 0.8 / len(batches)
    for number, batch in enumerate(batches):
        items = [item for item in report.latencies if item.batch == batch]
        places = [variants.index(item.variant) + (number - (len(batches) - 1) / 2) * width for item in items]
        ratios = [report.speedup(item) for item in items]
        colour = COLOURS[number % len(COLOURS)]
        bars = axes.barh(places, ratios, 0.92 * width, color=colour, label=f"batch {batch}")
        labels = [f"{ratio:.2f} x  ({_milliseconds(item.seconds)})" for ratio, item in zip(ratios, items, strict=True)]
        axes.bar_label(bars, labels, padding=4, fontsize=8.5, color=INK)
    axes.set_yticks(range(len(variants)), variants)
    axes.invert_yaxis()
    axes.axvline(1.0, color=INK, linewidth=0.8, linestyle="--")
    axes.set_xlim(0, 1.6 * max(map(report.speedup, report.latencies)))
    axes.set_xlabel(f"times as fast as {variants[0]}, measured")
    _legend_below(figure, axes, 0.45)
    axes.set_title(f"Faster? Up to {max(map(report.speedup, report.latencies)):.2f} x")


def _legend_below(figure: Figure, axes: Axes, inches: float) -> None:
    """Put a legend under the axis, where no bar is."""
    below = axes.transAxes + ScaledTranslation(0.0, -inches, figure.dpi_scale_trans)
    axes.legend(loc="upper left", bbox_to_anchor=(0.0, 0.0), bbox_transform=below, ncols=3, borderaxespad=0.0)


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:,.{0 if seconds >= 0.1 else 1 if seconds >= 0.01 else 2}f} ms"
