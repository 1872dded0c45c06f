"""Style of all figures: sizes, fonts, and colours that a colour-blind reader can tell apart.

>>> with new_figure(height=3.0) as figure:
...     axes = figure.subplots()
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from spikeslab.files import write_atomically

WIDTH = 9.0
"""Inches; at 160 dots per inch a figure is 1440 pixels wide, sharp in the 830 or so of a README."""

# From the palette of Okabe and Ito (2008).
BLUE, ORANGE, GREEN, SKY, VERMILION = "#0072B2", "#E69F00", "#009E73", "#56B4E9", "#D55E00"
GREY, INK = "#8A8A8A", "#222222"
COLOURS = (BLUE, ORANGE, GREEN, VERMILION, SKY, INK)
"""Colours of lines and bars, in this order."""

RC: dict[Any, Any] = {
    "savefig.dpi": 160,
    "font.size": 10.0,
    "axes.titlesize": 10.5,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.labelsize": 10.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.8,
    "text.color": INK,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 9.0,
    "ytick.labelsize": 9.0,
    "legend.frameon": False,
    "legend.fontsize": 9.5,
    "lines.linewidth": 1.6,
}


@contextmanager
def style() -> Iterator[None]:
    """Use the settings of all figures; the caller's come back afterwards."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(RC)
        yield


@contextmanager
def new_figure(height: float, *, width: float = WIDTH) -> Iterator[Figure]:
    """Yield an empty figure, to be drawn in the style of all figures; its size is in inches."""
    with style():
        yield Figure(figsize=(width, height), layout="constrained")


def remove_y_axis(axes: Axes) -> None:
    """Remove the y axis, where its numbers say nothing, as in a histogram."""
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)


def add_title(figure: Figure, title: str) -> None:
    """Write the title of the figure above all panels."""
    figure.suptitle(title, x=0.005, ha="left", fontsize=10.5)


def render_png(figure: Figure) -> bytes:
    """Return a PNG without a date, so that equal figures are equal files.

    256 colours are enough for lines and points, and make the file less than half as large.
    """
    drawn, content = BytesIO(), BytesIO()
    with style():
        figure.savefig(drawn, format="png", metadata={"Software": None})
    Image.open(drawn).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(content, "PNG", optimize=True)
    return content.getvalue()


def save(figure: Figure, path: Path) -> Path:
    """Write a PNG and return its path."""
    write_atomically(path, render_png(figure))
    return path
