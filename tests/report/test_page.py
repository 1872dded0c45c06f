"""The HTML page: complete in itself, escaped, and not wider than a phone."""

from __future__ import annotations

import re
import shutil
import subprocess
from html.parser import HTMLParser

import numpy as np
import pytest
from matplotlib.figure import Figure

from spikeslab.report.figures import render_png
from spikeslab.report.page import Code, Facts, Grid, Page, Picture, Section, Text
from spikeslab.report.tables import Column, Table
from spikeslab.tabular._figures import inclusion_figure, traces_figure

NAUGHTY = "<script>alert('&')</script>"


@pytest.fixture
def page():
    columns = [Column(f"c{i}", f"Column number {i}", ".3f") for i in range(12)]
    wide = Table("Wide", columns, [{column.key: float(i) for i, column in enumerate(columns)}], ["A note."])
    names = Table("Names", [Column("name", NAUGHTY)], [{"name": NAUGHTY}])
    picture = Picture(render_png(Figure(figsize=(9, 2))), "A caption", "A description")
    blocks = [
        Text("Plain."),
        Text(NAUGHTY, "warning"),
        Facts({"Seed": "0"}),
        Code(f"run {NAUGHTY}"),
        Grid(wide),
        Grid(names),
    ]
    return Page(NAUGHTY, "A lead.", [Section("First", blocks), Section("Second", [picture])])


class Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.seen, self.addresses, self.text = [], [], [], ""

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        self.addresses += [value for name, value in attrs if name in ("src", "href", "srcset", "action")]
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def test_tags_are_closed_and_text_is_escaped(page):
    tags = Tags()
    tags.feed(page.html())
    assert tags.open == []
    assert "script" not in tags.seen
    assert tags.text.count(NAUGHTY) == 6
    assert [tag for tag in tags.seen if tag in ("h1", "h2")] == ["h1", "h2", "h2"]


def test_nothing_is_loaded_from_elsewhere(page):
    html = page.html()
    tags = Tags()
    tags.feed(html)
    assert [address.partition(",")[0] for address in tags.addresses] == ["data:image/png;base64"]
    assert not re.search(r"https?:|url\(|@import|//", html.partition("data:image")[0])


def test_numbers_are_flush_right_and_words_flush_left(page):
    html = page.html()
    assert html.count('<td class="right">') == 12
    assert '<td class="right">11.000</td>' in html
    assert '<p class="note">A note.</p>' in html


@pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed; it measures the page's width")
def test_the_page_is_not_wider_than_a_phone(page, tmp_path):
    (tmp_path / "page.html").write_text(page.html(), encoding="utf-8")
    (tmp_path / "frame.html").write_text(
        '<iframe src="page.html" style="width:390px;height:900px;border:0"></iframe><p id="width"></p><script>'
        "document.querySelector('iframe').onload = event => document.querySelector('#width').textContent = "
        "'width ' + event.target.contentDocument.documentElement.scrollWidth</script>",
        encoding="utf-8",
    )
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--dump-dom"]
    options += ["--allow-file-access-from-files", f"--user-data-dir={tmp_path / 'profile'}"]
    command = ["chromium", *options, str(tmp_path / "frame.html")]
    dom = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    assert int(re.search(r"width (\d+)", dom)[1]) <= 390


def texts(figure):
    return [text.get_text() for axes in figure.axes for text in (*axes.get_yticklabels(), axes.title)]


def test_thousands_of_variables_are_some_bars_and_a_band():
    pip = np.full(5000, 0.001)
    pip[[7, 4000]] = 0.99, 0.7
    figure = inclusion_figure([f"gene {j}" for j in range(5000)], pip, pip > 0.5, 0.5)
    bars, band = figure.axes
    assert [label.get_text() for label in bars.get_yticklabels()][:2] == ["gene 7", "gene 4000"]
    assert len(bars.patches) == 10
    assert band.get_xlabel() == "rank of the other 4,990 variables (together they expect 5 inclusions)"
    assert figure.get_figheight() < 8


def test_few_variables_have_no_band_and_names_are_not_mathematics():
    figure = inclusion_figure(["price $ and $", "x" * 80], np.array([1.0, 0.0]), np.array([True, False]))
    (bars,) = figure.axes
    assert [label.get_text() for label in bars.get_yticklabels()] == [r"price \$ and \$", "x" * 18 + "…" + "x" * 17]
    render_png(figure)


def test_traces_of_draws_that_do_not_vary():
    draws = {
        "size": np.ones((4, 20)),
        "sigma": np.linspace(0.0, 1.0, 80).reshape(4, 20),
        "huge": np.full((4, 20), 1e300),
    }
    figure = traces_figure(draws)
    assert texts(figure)[-1] is not None
    assert [axes.get_title(loc="left") for axes in figure.axes[::2]] == ["size", "sigma", "huge"]
    render_png(figure)
