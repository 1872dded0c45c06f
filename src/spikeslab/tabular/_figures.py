"""Figures of a selection of variables: inclusion probabilities, and traces of the chains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

from spikeslab.report.figures import BLUE, GREEN, GREY, INK, ORANGE, SKY, VERMILION, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

NAMED, FEWEST, WORTH = 30, 10, 0.01
"""Variables with a bar of their own: at most, at least, and the smallest probability in between."""
LONGEST = 36  # characters of a name
POINTS = 400  # of a trace; more would not be seen
CHAINS = (BLUE, ORANGE, GREEN, VERMILION, SKY)


def shorten(name: str, longest: int = LONGEST) -> str:
    """Cut the middle out of a long name.

    >>> shorten("a_very_long_name", 9)
    'a_ve…name'
    """
    if len(name) <= longest:
        return name
    half = (longest - 1) // 2
    return f"{name[: longest - 1 - half]}…{name[-half:]}"


def _plain(name: str, longest: int = LONGEST) -> str:
    """Shorten a name and escape dollar signs, which matplotlib reads as mathematics."""
    return shorten(name, longest).replace("$", r"\$")


def count_named(pip: NDArray[np.float64]) -> int:
    """Count the variables with a bar of their own, the most probable first.

    >>> count_named(np.array([0.9, 0.001])), count_named(np.full(50, 0.2)), count_named(np.zeros(50))
    (2, 30, 10)
    """
    return min(pip.size, NAMED, max(FEWEST, int((pip >= WORTH).sum())))


def inclusion_figure(
    names: Sequence[str], pip: NDArray[np.float64], selected: NDArray[np.bool_], threshold: float | None = None
) -> Figure:
    """Draw the inclusion probabilities: a bar for each of the most probable variables, a band for the rest.

    A line is drawn at ``threshold``.
    """
    order = np.argsort(-pip, kind="stable")
    named = count_named(pip)
    top, rest = order[:named], order[named:]
    heights = [0.23 * len(top) + 0.3, *([1.5] if rest.size else [])]
    with new_figure(sum(heights) + 0.7) as figure:
        bars, *bands = np.atleast_1d(figure.subplots(len(heights), 1, height_ratios=heights)).tolist()
        rows = np.arange(len(top))
        bars.barh(rows, pip[top], height=0.7, color=np.where(selected[top], BLUE, "#C4C4C4").tolist())
        for row, j in zip(rows, top, strict=True):
            patch = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}  # the line must not cross the number
            bars.text(pip[j] + 0.01, row, f"{pip[j]:.2f}", va="center", fontsize=8.5, bbox=patch)
        bars.set_yticks(rows, [_plain(names[j]) for j in top])
        bars.tick_params(axis="y", length=0)
        bars.set(xlim=(0.0, 1.07), ylim=(len(top) - 0.4, -0.6), xlabel="posterior inclusion probability")
        bars.set_xticks(np.linspace(0.0, 1.0, 6))
        most = f"the {len(top)} most probable of " if rest.size else ""
        bars.set_title(f"Inclusion probabilities: {most}{len(names):,} variables, {selected.sum():,} selected (blue)")
        if threshold is not None:
            bars.axvline(threshold, color=VERMILION, linewidth=1.0, linestyle="--", zorder=0)
        for axes in bands:
            _band(axes, named, pip[rest], selected[rest], threshold)
    return figure


def _band(
    axes: Axes, named: int, pip: NDArray[np.float64], selected: NDArray[np.bool_], threshold: float | None
) -> None:
    rank = np.arange(named + 1, named + 1 + pip.size)
    axes.fill_between(rank, pip, color="#C4C4C4", linewidth=0.0, step="mid")
    if selected.any():
        axes.fill_between(rank, pip, where=selected.tolist(), color=BLUE, linewidth=0.0, step="mid")
    top = max(1.15 * float(pip.max()), 0.01)
    if threshold is not None and threshold < top:
        axes.axhline(threshold, color=VERMILION, linewidth=1.0, linestyle="--")
    axes.set(xlim=(named + 0.5, named + 0.5 + pip.size), ylim=(0.0, top), ylabel="probability")
    axes.set_xlabel(f"rank of the other {pip.size:,} variables (together they expect {pip.sum():.2g} inclusions)")


def traces_figure(traces: Mapping[str, NDArray[np.float64]]) -> Figure:
    """Plot the draws of each chain, of shape (chains, draws) by name, with their histograms beside them."""
    with new_figure(1.25 * len(traces) + 0.6) as figure:
        grid = figure.subplots(len(traces), 2, width_ratios=(5, 1), squeeze=False, sharey="row")
        for (line, side), (name, draws) in zip(grid, traces.items(), strict=True):
            steps = np.arange(1, draws.shape[1] + 1)
            every = max(1, draws.shape[1] // POINTS)
            bins = _bins(draws)
            for i, chain in enumerate(draws):
                colour = CHAINS[i % len(CHAINS)]
                line.plot(steps[::every], chain[::every], color=colour, linewidth=0.6, alpha=0.8)
                heights, edges = np.histogram(chain, bins=bins)
                side.stairs(heights, edges, orientation="horizontal", color=colour, linewidth=1.0)
            line.set_title(_plain(name, 2 * LONGEST), fontsize=9.5)
            line.set_xlim(1, max(draws.shape[1], 2))
            line.tick_params(color=GREY, labelbottom=line is grid[-1][0])
            side.set_xticks([])
            side.spines[["bottom", "left"]].set_visible(False)
            side.tick_params(axis="y", length=0)
        grid[-1][0].set_xlabel(f"kept draw; one colour for each of {len(draws)} chains", color=INK)
    return figure


def _bins(draws: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the edges of the histograms of all chains; integers get a bar each."""
    low, high = float(draws.min()), float(draws.max())
    if high - low < 40 and abs(high) < 1e6 and (draws == np.round(draws)).all():
        return np.arange(low - 0.5, high + 1.0)
    pad = 1e-9 * max(abs(low), abs(high), 1e-300) if low == high else 0.0
    return np.linspace(low - pad, high + pad, 31)
