"""One progress display for all long work: plain lines without a terminal, bars with one."""

from __future__ import annotations

import builtins
import subprocess
import sys
from typing import Any

import pytest

from spikeslab.report.progress import Progress


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    return now


def test_plain_lines_come_first_every_half_minute_and_last(
    capsys: pytest.CaptureFixture[str], clock: list[float]
) -> None:
    with Progress({"Warm-up": 20, "Sampling": 1}, unit="sweeps") as progress:
        for step in range(1, 21):
            clock[0] += 4.0
            progress.update("Warm-up", step, lambda step=step: f"loss {1 / step:.2f}")
        progress.advance("Sampling")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == [
        "Warm-up: 1 of 20 sweeps, loss 1.00",
        "Warm-up: 9 of 20 sweeps, loss 0.11, 44 s left",
        "Warm-up: 17 of 20 sweeps, loss 0.06, 12 s left",
        "Warm-up: 20 of 20 sweeps, loss 0.05",
        "Sampling: 1 of 1 sweeps",
    ]


def test_time_left_ignores_the_steps_of_an_earlier_run(capsys: pytest.CaptureFixture[str], clock: list[float]) -> None:
    with Progress({"Sampling": 1000}) as progress:
        progress.advance("Sampling", 900)
        clock[0] += 300.0
        progress.advance("Sampling", 10)
    assert capsys.readouterr().err.splitlines()[-1] == "Sampling: 910 of 1,000 steps, 45 min 0 s left"


def test_a_terminal_shows_bars_for_all_stages(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    with Progress({"Warm-up [a]": 3, "Sampling": 4}) as progress:
        progress.update("Sampling", 4, lambda: "loss 0.5")
    shown = capsys.readouterr().err
    assert "Warm-up [a]" in shown
    assert "4/4" in shown
    assert "loss 0.5" in shown


def test_a_terminal_without_rich_shows_plain_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    load = builtins.__import__

    def refuse(name: str, *rest: Any, **more: Any) -> Any:
        if name.startswith("rich"):
            raise ImportError(name)
        return load(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", refuse)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with Progress({"Sampling": 4}) as progress:
        progress.advance("Sampling", 4)
    assert capsys.readouterr().err == "Sampling: 4 of 4 steps\n"


def test_bars_are_closed_when_the_work_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    stopped = []
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setattr("rich.progress.Progress.stop", lambda self: stopped.append(True))
    with pytest.raises(RuntimeError, match="broken"), Progress({"Sampling": 4}):
        raise RuntimeError("broken")
    assert stopped == [True]


def test_the_import_is_light() -> None:
    code = "import sys, spikeslab.report.progress; print({'rich', 'matplotlib', 'jinja2'} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "set()\n"
