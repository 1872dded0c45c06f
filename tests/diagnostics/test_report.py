"""The report of a run: what is in it, what is left out, and what a real browser makes of it."""

from __future__ import annotations

import re
import shutil
import sys

import pytest
import torch
from browser import find_chromium, look
from matplotlib.figure import Figure
from small import compress_small, data
from synthetic_runs import EVALUATION, write_run

import spikeslab as ss
from spikeslab.diagnostics import REPORT, Thermometer, write_report
from spikeslab.diagnostics._report_figures import LAYERS, curves_figure, histograms_figure, latents_figure
from spikeslab.diagnostics.report import run_page
from spikeslab.diagnostics.run_reader import read_run
from spikeslab.training import RunFolder, TensorBatches, Training
from spikeslab.training.checkpoints import Checkpoints

SECTIONS = [
    "Findings",
    "Curves",
    "Latents of the prior",
    "Sparsity",
    "Weights",
    "Calibration",
    "Convergence",
    "Settings",
    "Files",
    "Command and versions",
]


@pytest.fixture(scope="module")
def full(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("runs") / "full <run>", chains=2, draws=30, evaluation=EVALUATION)


@pytest.fixture(scope="module")
def page(full):
    return run_page(full)


def section(page, title):
    return next(section for section in page.sections if section.title == title)


def test_all_sections_of_a_full_run(page):
    assert [section.title for section in page.sections] == SECTIONS
    assert page.title == "Run: full <run>"
    assert page.lead == (
        "Finished 300 steps in 12.5 s: accuracy 93.0%, NLL 0.25, ECE 6.0%, 50.0% of the weights zero, 60 samples. "
        "No problem was found, and 1 note."
    )
    assert "Run: full &lt;run&gt;" in page.html()


def test_the_page_needs_nothing_else(page):
    html = page.html()
    assert not re.search(r"(src|href)\s*=\s*[\"'](?!data:)", html)
    assert not re.search(r"url\(|@import|<script|<link", html)
    assert html.count("data:image/png;base64,") == 5


def test_the_sparsity_of_each_layer(page):
    table = section(page, "Sparsity").blocks[0].table
    rows = {row["name"]: row for row in table.rows}
    assert list(rows)[:3] == ["all sparse layers", "whole network", "fc1.weight"]
    assert rows["fc1.weight"] == {"name": "fc1.weight", "kind": "sparse", "total": 600, "zeros": 300, "share": 50.0}
    assert rows["whole network"]["total"] == 600 + 30 + 60 + 93
    assert rows["norm.weight"]["kind"] == "dense"


def test_what_was_saved(page):
    rows = {row["name"]: row for row in section(page, "Files").blocks[0].table.rows}
    assert list(rows) == [
        "checkpoints/step-000000300/", "evaluation.json", "metrics.jsonl", "posterior/chain-0/", "posterior/chain-1/",
        "run.json",
    ]  # fmt: skip
    assert rows["posterior/chain-0/"]["files"] == 31
    assert all(row["size"] > 0 for row in rows.values())


def test_what_is_absent_is_left_out(tmp_path):
    folder = write_run(tmp_path / "bare", chains=0, checkpoint=False, change=dict.clear, status="running", steps=10)
    page = run_page(folder)
    assert [section.title for section in page.sections] == ["Findings", "Settings", "Files", "Command and versions"]
    assert page.lead.startswith("At step 10 of 300 in 12.5 s. No problem was found")
    assert "<img" not in page.html()


def test_problems_are_warnings_and_the_rest_is_listed(tmp_path):
    folder = write_run(tmp_path / "ill", chains=0, checkpoint=False, change=lambda r: r.update(omega_sum=0.75))
    blocks = section(run_page(folder), "Findings").blocks
    assert blocks[0].kind == "warning"
    assert "the sum of omega is 0.75" in blocks[0].text
    assert blocks[0].text.endswith("To prune, about 1, the default of compress, is often better.")
    assert "Loss" in blocks[1].facts


def test_constant_numbers_have_a_word_and_no_curve(full):
    facts = read_run(full)
    titles = [axes.get_title(loc="left") for axes in curves_figure(facts).axes if axes.get_visible()]
    assert titles == ["training loss", "accuracy (evaluation)", "sparsity", "temperature"]
    assert [axes.get_title(loc="left") for axes in latents_figure(facts).axes if axes.get_visible()] == ["delta"]
    assert "Constant: lr 0.1, temperature 0.01." in section(run_page(full), "Curves").blocks[0].caption


def test_an_evaluation_that_records_repeat_is_one_point(tmp_path):
    def every_100(record):
        record["evaluation"] = {"accuracy": record["step"] // 100 / 10, "other": 2.0, "nll": 0.1}

    facts = read_run(write_run(tmp_path / "run", chains=0, checkpoint=False, change=every_100))
    axes = {axes.get_title(loc="left"): axes for axes in curves_figure(facts).axes}
    assert axes["accuracy (evaluation)"].lines[0].get_xdata().tolist() == [10.0, 100.0, 200.0, 300.0]


def test_many_layers_are_capped_and_counted(tmp_path):
    folder = write_run(tmp_path / "deep", chains=0, checkpoint=False)
    weights = {f"layer{index}.weight": torch.randn(3, 4 + index) for index in range(LAYERS + 4)}
    Checkpoints(folder / "checkpoints").save(300, {"model": weights})
    caption = section(run_page(folder), "Weights").blocks[0].caption
    assert caption.endswith(" 4 smaller layers are left out.")


def test_histograms_hold_every_weight():
    figure = histograms_figure({"a": torch.tensor([-5.0, 0.1, 0.2, 5.0])}, "weight", None)
    assert isinstance(figure, Figure)
    assert figure.axes[0].patches[0].get_data().values.sum() == 4


def test_the_report_is_written_and_replaced(full, tmp_path):
    folder = shutil.copytree(full, tmp_path / "run")
    path = write_report(folder)
    first = path.read_bytes()
    assert path == folder / REPORT
    assert write_report(folder).read_bytes() == first, "equal runs have equal reports"


def finish(folder, report=write_report):
    model = torch.nn.Linear(4, 2)
    sampler = ss.SGHMC(model.parameters(), lr=0.1, num_data=8, seed=0)
    data = TensorBatches(torch.randn(8, 4), torch.tensor([0, 1] * 4), batch_size=4)
    Training(model, sampler, data, callbacks=[Thermometer()]).run(
        steps=6, folder=RunFolder(folder, write_report=report)
    )


def test_a_run_of_the_loop_ends_in_a_report(tmp_path):
    finish(tmp_path / "run")
    assert "Finished 6 steps in" in (tmp_path / "run" / REPORT).read_text()
    finish(tmp_path / "without", report=None)
    assert not (tmp_path / "without" / REPORT).exists()


def test_a_report_that_cannot_be_made_does_not_spoil_the_run(tmp_path, monkeypatch):
    with pytest.warns(ss.SpikeSlabWarning, match=r"^The run finished, but its report failed \(division"):
        finish(tmp_path / "run", report=lambda path: 1 / 0)
    assert read_run(tmp_path / "run").run["status"] == "finished"
    monkeypatch.setitem(sys.modules, "spikeslab.diagnostics.report", None)
    finish(tmp_path / "bare")
    assert not (tmp_path / "bare" / REPORT).exists()


needs_browser = pytest.mark.skipif(find_chromium() is None, reason="no Chromium or Chrome on this machine")


@pytest.fixture(scope="module", params=[1200, 390], ids=["desktop", "phone"])
def seen(page, tmp_path_factory, request):
    return request.param, look(page.html(), tmp_path_factory.mktemp("browser"), request.param)


@needs_browser
class TestInChromium:
    """The page as a browser shows it."""

    def test_it_loads_without_a_complaint_or_a_request(self, seen):
        _, shown = seen
        assert shown["console"] == []
        assert shown["requests"] == []
        assert shown["title"] == "Run: full <run>"
        assert shown["headings"] == SECTIONS

    def test_the_figures_are_there(self, seen):
        _, shown = seen
        assert len(shown["images"]) == 5
        for complete, natural, drawn in shown["images"]:
            assert complete
            assert natural > 500
            assert drawn > 300

    def test_it_is_readable_at_this_width(self, seen):
        width, shown = seen
        assert shown["width"] <= width, "the page must not scroll sideways"
        assert shown["smallest_font"] >= 14
        assert "No problem was found" in shown["text"]


@needs_browser
def test_the_browser_would_see_what_is_wrong(tmp_path):
    """The instrument itself: errors, requests, missing figures and overflow are noticed."""
    bad = (
        "<!doctype html><title>bad</title><body><div style='width:900px'>wide</div>"
        "<img src='data:image/png;base64,AAAA'><img src='http://127.0.0.1:9/x.png'><script>nonsense()</script>"
    )
    shown = look(bad, tmp_path, 390)
    assert any("nonsense" in line for line in shown["console"])
    assert shown["requests"] == ["http://127.0.0.1:9/x.png"]
    assert shown["images"][0][1] == 0
    assert shown["width"] > 390


def test_a_compression_begins_with_the_dense_and_the_sparse_network(tmp_path):
    result = compress_small(val_loader=[data(5)], folder=tmp_path / "run", report=True)
    html = (tmp_path / "run" / REPORT).read_text(encoding="utf-8")
    titles = re.findall(r"<h2>([^<]*)", html)
    assert titles[:2] == ["Dense and sparse", "Findings"]
    shown = [part for part in re.split(r"</?t[rdh][^>]*>", html[html.index("<h2>Dense") :]) if part.strip()]
    start = shown.index("dense")
    assert shown[start + 1] == f"{100 * result.evaluation['dense']['accuracy']:.2f}"
    start = shown.index("sparse")
    assert shown[start + 1] == f"{100 * result.evaluation['sparse']['accuracy']:.2f}"
    assert "209" in shown[start : start + 8]
