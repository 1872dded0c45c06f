from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from spikeslab.report.figures import RC, WIDTH, save, style


def test_the_style_is_left_behind() -> None:
    before = dict(mpl.rcParams)
    with style():
        assert mpl.rcParams["axes.spines.top"] is RC["axes.spines.top"]
    assert dict(mpl.rcParams) == before


def test_equal_figures_are_equal_files(tmp_path: Path) -> None:
    for name in ("a.png", "b.png"):
        with style():
            figure = Figure(figsize=(WIDTH, 2.0), layout="constrained")
            figure.subplots().plot([1, 2, 3])
        assert save(figure, tmp_path / name) == tmp_path / name
    content = (tmp_path / "a.png").read_bytes()
    assert content.startswith(b"\x89PNG")
    assert content == (tmp_path / "b.png").read_bytes()
