"""Samples on disk and lines of a log: time and memory of predictions and of the doctor."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn

from spikeslab.bench.optimizers import NETWORKS
from spikeslab.bench.scale.candidates import OURS, build_optimizer
from spikeslab.bench.scale.processes import PeakMemory, run_alone
from spikeslab.bench.suites import BenchPlan
from spikeslab.diagnostics.doctor import examine
from spikeslab.diagnostics.run_reader import read_run
from spikeslab.diagnostics.temperatures import Thermometer
from spikeslab.files import encode_line, iterate_lines
from spikeslab.posterior import Posterior
from spikeslab.report.tables import Cell, Column, Table
from spikeslab.training import TensorBatches, Training
from spikeslab.training.log import RunError
from spikeslab.training.run_folder import METRICS_FILE, POSTERIOR

NETWORK, ROWS = "ResNet20", 8
SAMPLES, QUICK_SAMPLES = (10, 100, 1000), (2, 4)
LINES, QUICK_LINES = (2_000, 20_000, 200_000), (20, 200)
REPEATS, LAST = 3, 10
"""Fresh processes of each measurement, of which the median counts, and last samples whose time is that of one."""


def sample_table(plan: BenchPlan) -> Table:
    """Measure predictions from samples on disk, and the doctor of the run that they are of."""
    rows: list[dict[str, Cell]] = []
    raw: dict[str, Any] = {}
    for count in QUICK_SAMPLES if plan.quick else SAMPLES:
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place) / "run"
            write_run(folder, plan.seed)
            collect = write_samples(folder / POSTERIOR, count, plan.seed)
            on_disk = sum(path.stat().st_size for path in (folder / POSTERIOR).iterdir())
            predicted, read = (_measure(name, folder, plan) for name in ("predict", "diagnose"))
        cells = {"size": on_disk / 1e6, "collect": 1e3 * collect}
        rows.append({"samples": count, **cells, **_cells(predicted, "predict"), **_cells(read, "doctor")})
        plan.tick(plan.repeats)
        raw[f"{count} samples"] = {"predict": predicted, "doctor": read}
    columns = [
        Column("samples", "samples", ","),
        Column("size", "MB on disk", ",.0f"),
        Column("collect", "collect, ms", ".1f"),
        Column("predict", "predict, s", ".2f"),
        Column("predict memory", "MB", ".0f"),
        Column("doctor", "doctor, s", ".2f"),
        Column("doctor memory", "MB", ".0f"),
    ]
    size = sum(param.numel() for param in NETWORKS[NETWORK].build().parameters())
    note = (
        f"{NETWORK}, {size:,} parameters. Collect: the last sample; predict: the posterior average for {ROWS} images; "
        "doctor: what `spikeslab doctor` reads and checks. Processor time, and peak resident memory beyond that of a "
        f"process which has imported the library and run the network once; medians of {REPEATS} fresh processes."
    )
    return Table(f"Samples on disk, {plan.words}", columns, rows, [note], raw)


def log_table(plan: BenchPlan) -> Table:
    """Measure the doctor of a run with a long log."""
    rows: list[dict[str, Cell]] = []
    raw: dict[str, Any] = {}
    for count in QUICK_LINES if plan.quick else LINES:
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place) / "run"
            write_run(folder, plan.seed)
            numbers = lengthen_log(folder / METRICS_FILE, count)
            size = (folder / METRICS_FILE).stat().st_size
            read = _measure("diagnose", folder, plan)
        rows.append({"lines": count, "size": size / 1e6, **_cells(read, "doctor")})
        rows[-1]["whole"] = median(each["whole"] for each in read) / 1e6
        plan.tick(plan.repeats)
        raw[f"{count} lines"] = read
    columns = [
        Column("lines", "lines", ","),
        Column("size", "MB on disk", ".1f"),
        Column("doctor", "doctor, s", ".2f"),
        Column("doctor memory", "MB", ".0f"),
        Column("whole", "MB with torch", ".0f"),
    ]
    note = f"Each line has {numbers} numbers. Measured as the samples; the last column counts the imports too."
    return Table(f"Lines of a log, {plan.words}", columns, rows, [note], raw)


def _measure(function: str, folder: Path, plan: BenchPlan) -> list[dict[str, Any]]:
    times = 1 if plan.quick else REPEATS
    return [run_alone(f"disk:{function}", folder=str(folder)) for _ in range(times)]


def _cells(found: list[dict[str, Any]], name: str) -> dict[str, Cell]:
    memory = median(each["bytes"] for each in found) / 1e6
    return {name: median(each["seconds"] for each in found), f"{name} memory": memory}


def write_run(folder: Path, seed: int) -> None:
    """Write a run of one step, of a small network with a prior."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 3))
    params = dict(model.named_parameters())
    sampler = build_optimizer(OURS, params, {"0.weight": params["0.weight"]}, seed)
    data = TensorBatches(torch.randn(8, 20), torch.arange(8) % 3, batch_size=8)
    Training(model, sampler, data, callbacks=[Thermometer()]).run(steps=1, folder=folder)


def lengthen_log(path: Path, count: int) -> int:
    """Repeat the last line of a log at later steps until there are ``count``; return how many numbers it has."""
    *_, (before, record) = iterate_lines(path, RunError)
    lines = [before]
    for step in range(2, count + 1):
        lines.append(encode_line({**record, "step": step, "seconds": step / 100, "loss": 1.0 + 1.0 / step}, lines[-1]))
    path.write_bytes(b"\n".join(lines) + b"\n")
    return sum(1 if not isinstance(value, dict) else len(value) for value in record.values())


def write_samples(folder: Path, count: int, seed: int) -> float:
    """Write a posterior whose samples are a random walk; return the processor time of the last ones."""
    torch.manual_seed(seed)
    model = NETWORKS[NETWORK].build()
    posterior = Posterior(model, directory=folder)
    seconds = []
    for _ in range(count):
        with torch.no_grad():
            for param in model.parameters():
                param.add_(torch.randn_like(param), alpha=0.01)
        begin = time.process_time()
        posterior.collect()
        seconds.append(time.process_time() - begin)
    return median(seconds[-LAST:])


def predict(folder: str) -> dict[str, Any]:
    """Predict from all samples of a run."""
    model, x = NETWORKS[NETWORK].build().eval(), torch.randn(ROWS, *NETWORKS[NETWORK].image)
    model(x)
    return _observe(lambda: Posterior.load(Path(folder) / POSTERIOR, model).predict(x))


def diagnose(folder: str) -> dict[str, Any]:
    """Read and check a run."""
    return _observe(lambda: examine(read_run(Path(folder))))


def _observe(action: Callable[[], object]) -> dict[str, Any]:
    peak, begin = PeakMemory(), time.process_time()
    action()
    return {"seconds": time.process_time() - begin, "bytes": peak.read(), "whole": peak.whole()}
