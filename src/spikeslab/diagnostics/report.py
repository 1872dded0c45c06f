"""HTML report of a run, a single file made from the run's folder."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from spikeslab.diagnostics import REPORT
from spikeslab.diagnostics._report_figures import (
    LAYERS,
    LINES,
    curves_figure,
    histograms_figure,
    is_constant,
    latents_figure,
)
from spikeslab.diagnostics.doctor import NETWORKS, examine
from spikeslab.diagnostics.findings import Level, verdict
from spikeslab.diagnostics.run_reader import RunFacts, Snapshot, mapping, read_run
from spikeslab.diagnostics.temperatures import KINETIC
from spikeslab.errors import pluralize
from spikeslab.metrics import Reliability
from spikeslab.posterior.convergence import SOME_WEIGHTS
from spikeslab.posterior.samples import Tensors
from spikeslab.report.figures import render_png
from spikeslab.report.page import Block, Code, Facts, Grid, Page, Picture, Section, Text
from spikeslab.report.plots import reliability_figure
from spikeslab.report.progress import format_duration
from spikeslab.report.tables import METRICS, Cell, Column, Table, scale_metric
from spikeslab.training.log import nan_to_null
from spikeslab.training.run_folder import CHECKPOINTS, POSTERIOR

ROWS = 60
"""Largest number of layers in the table of the sparsity."""


def run_page(folder: Path) -> Page:
    """Return the report of a run as a page.

    Raises:
        SpikeSlabError: If the folder is not that of a run, or a file in it is damaged.
    """
    facts = read_run(folder)
    command = [Code(facts.run["command"])] if facts.run["command"] else []
    known = {name: facts.run[name] for name in ("seed", "num_data") if facts.run[name] is not None}
    sections = [
        Section("Dense and sparse", _result(facts)),
        Section("Findings", _findings(facts)),
        Section("Curves", _curves(facts)),
        Section("Latents of the prior", _latents(facts)),
        Section("Sparsity", _sparsity(facts.snapshot)),
        Section("Weights", _weights(facts.snapshot)),
        Section("Calibration", _calibration(facts.evaluation)),
        Section("Convergence", _convergence(facts)),
        Section("Settings", [Facts(_texts({**known, **facts.run["settings"]}))]),
        Section("Files", [Grid(_files(folder))]),
        Section("Command and versions", [*command, Facts(_texts(facts.run["versions"]))]),
    ]
    return Page(f"Run: {folder.resolve().name}", _lead(facts), [section for section in sections if section.blocks])


def _lead(facts: RunFacts) -> str:
    run = facts.run
    did = {
        "finished": f"Finished {pluralize(run['steps'], 'step')}",
        "failed": f"Failed at step {run['steps']:,} of {run['total_steps']:,}",
        "interrupted": f"Interrupted at step {run['steps']:,} of {run['total_steps']:,}",
    }.get(run["status"], f"At step {run['steps']:,} of {run['total_steps']:,}")
    results = [
        f"{name} {format(value, '.1%' if name in ('accuracy', 'ECE') else '.3g')}"
        for name, key in (("accuracy", "accuracy"), ("NLL", "nll"), ("ECE", "ece"), ("RMSE", "rmse"))
        if (value := _final(facts, key)) is not None
    ]
    sparsity = facts.metrics.series("sparsity")
    results += [f"{sparsity.values[-1]:.1%} of the weights zero"] if len(sparsity) else []
    results += [pluralize(sum(facts.samples.chains), "sample")] if facts.samples is not None else []
    found = f": {', '.join(results)}" if results else ""
    return f"{did} in {format_duration(run['seconds'])}{found}. {verdict(examine(facts))}"


def _final(facts: RunFacts, key: str) -> float | None:
    """Return a number of the final evaluation, or else of the last one in the log."""
    if isinstance(facts.evaluation.get(key), int | float):
        return float(facts.evaluation[key])
    series = facts.metrics.series("evaluation", key)
    return float(series.values[-1]) if len(series) else None


def _findings(facts: RunFacts) -> list[Block]:
    findings = examine(facts)
    problems = [
        Text(f"{finding.about.capitalize()}: {finding.text}", "warning")
        for finding in findings
        if finding.level is Level.PROBLEM
    ]
    return [*problems, Facts({f.about.capitalize(): f.text for f in findings if f.level is not Level.PROBLEM})]


def _result(facts: RunFacts) -> list[Block]:
    """Return the table of the dense, the sparse and the averaged network of a compression."""
    found = {name: mapping(mapping(facts.result.get("metrics")).get(name)) for name in NETWORKS}
    metrics = [name for name in METRICS if any(scale_metric(name, numbers) is not None for numbers in found.values())]
    counts = mapping(facts.result.get("network"))
    if not metrics or not {"weights", "nonzeros"} <= counts.keys():
        return []
    copies = {"dense": 0, "sparse": 1, "average": facts.result.get("samples")}
    rows: list[dict[str, Cell]] = [
        {
            "network": name,
            **{metric: scale_metric(metric, numbers) for metric in metrics},
            "nonzeros": counts["weights"] if name == "dense" else (copies[name] or 0) * counts["nonzeros"],
        }
        for name, numbers in found.items()
    ]
    columns = [
        Column("network", "Network"),
        *(Column(metric, METRICS[metric][0], METRICS[metric][2]) for metric in metrics),
        Column("nonzeros", "non-zeros", ","),
    ]
    note = f"The average is that of the {pluralize(copies['average'] or 0, 'sample')}, which have the same zeros."
    return [Grid(Table("The networks on the validation data", columns, rows, [note]))]


def _curves(facts: RunFacts) -> list[Block]:
    figure = curves_figure(facts)
    if figure is None:
        return []
    caption = f"Records of metrics.jsonl against the step.{_constants(facts, 'lr', 'temperature')}"
    if facts.metrics.layers(KINETIC):
        caption += " The kinetic temperature is measured from the momenta and should agree with the set temperature."
    return [Picture(render_png(figure), caption, "Curves of the loss and the other logged numbers.")]


def _constants(facts: RunFacts, *names: str) -> str:
    """Return a sentence with the numbers that have no curve because they are constant."""
    series = {name: facts.metrics.series(name) for name in names}
    same = [f"{name} {s.values[0]:.3g}" for name, s in series.items() if len(s) and is_constant(s)]
    return f" Constant: {', '.join(same)}." if same else ""


def _latents(facts: RunFacts) -> list[Block]:
    figure = latents_figure(facts)
    layers = len(facts.metrics.layers("delta"))
    more = f" Of {layers} layers, the {LINES} whose delta changed most are shown." if layers > LINES else ""
    caption = "Probability of each sparse weight to be in the slab (rho), at the last checkpoint."
    rho = _histograms({} if facts.snapshot is None else facts.snapshot.rho, "rho", (0.0, 1.0), caption)
    constant = _constants(facts, "sigma").strip()
    if figure is None:
        return [*([Text(constant)] if constant else []), *rho]
    caption = f"The latents should settle well before the first sample.{more} {constant}"
    return [Picture(render_png(figure), caption, "Traces of sigma and delta."), *rho]


def _histograms(tensors: Tensors, label: str, limits: tuple[float, float] | None, caption: str) -> list[Block]:
    """Return histograms of the largest layers."""
    filled = {name: tensor for name, tensor in tensors.items() if tensor.numel()}
    if not filled:
        return []
    largest = sorted(filled, key=lambda name: -filled[name].numel())[:LAYERS]
    shown = {name: tensor for name, tensor in filled.items() if name in largest}
    left = len(filled) - len(shown)
    more = f" {pluralize(left, 'smaller layer')} {'is' if left == 1 else 'are'} left out." if left else ""
    figure = histograms_figure(shown, label, limits)
    return [Picture(render_png(figure), caption + more, f"Histograms of {label} of {pluralize(len(shown), 'layer')}.")]


def _weights(snapshot: Snapshot | None) -> list[Block]:
    if snapshot is None:
        return []
    alive = {name: weight[weight != 0] for name, weight in snapshot.weights.items() if weight.ndim > 1}
    caption = (
        f"Non-zero weights at {snapshot.origin}. The outermost bins include the most extreme weight in a thousand of "
        "each layer."
    )
    return _histograms(alive, "weight", None, caption)


def _sparsity(snapshot: Snapshot | None) -> list[Block]:
    if snapshot is None or not snapshot.weights:
        return []

    def row(name: str, tensors: list[torch.Tensor], kind: str) -> dict[str, str | int | float]:
        total = sum(tensor.numel() for tensor in tensors)
        zeros = total - sum(int(tensor.count_nonzero()) for tensor in tensors)
        return {"name": name, "kind": kind, "total": total, "zeros": zeros, "share": 100.0 * zeros / max(total, 1)}

    names = [*snapshot.sparse, *(name for name in snapshot.weights if name not in set(snapshot.sparse))]
    rows = [
        row(name, [snapshot.weights[name]], "sparse" if name in snapshot.sparse else "dense") for name in names[:ROWS]
    ]
    sums = [row("whole network", list(snapshot.weights.values()), "all")]
    if snapshot.sparse:
        sums.insert(0, row("all sparse layers", [snapshot.weights[name] for name in snapshot.sparse], "sparse"))
    notes = [f"{len(names) - ROWS} more layers are left out."] if len(names) > ROWS else []
    columns = [
        Column("name", "Layer"),
        Column("share", "zeros %", ".1f"),
        Column("zeros", "zeros", ","),
        Column("total", "weights", ","),
        Column("kind", "Kind"),
    ]
    return [Grid(Table(f"Zeros by layer at {snapshot.origin}", columns, [*sums, *rows], notes))]


def _calibration(evaluation: Mapping[str, Any]) -> list[Block]:
    curve = mapping(evaluation.get("reliability"))
    if not {"confidence", "accuracy", "count"} <= set(curve):
        return []
    bins = (
        torch.tensor([math.nan if x is None else float(x) for x in curve[key]], dtype=torch.float64)
        for key in ("confidence", "accuracy", "count")
    )
    ece = f"ECE is {evaluation['ece']:.1%}: the" if evaluation.get("ece") is not None else "The ECE is the"
    rows = f" ({evaluation['rows']:,} in all)" if isinstance(evaluation.get("rows"), int) else ""
    caption = f"{ece} mean distance of the points from the diagonal, weighted by their numbers of rows{rows}."
    figure = reliability_figure({"at the last evaluation": Reliability(*bins)})
    return [Picture(render_png(figure), caption, "Accuracy against confidence, in bins.")]


def _convergence(facts: RunFacts) -> list[Block]:
    if not facts.convergence:
        return []
    columns = [
        Column("name", "Quantity"),
        Column("rhat", "worst R-hat", ".3f"),
        Column("chance", "by chance up to", ".3f"),
        Column("bulk", "least bulk ESS", ",.0f"),
        Column("tail", "least tail ESS", ",.0f"),
        Column("count", "compared", ","),
        Column("draws", "draws"),
    ]
    rows = [
        {
            "name": item.name,
            **nan_to_null({"rhat": item.rhat, "chance": item.chance, "bulk": item.ess_bulk, "tail": item.ess_tail}),
            "count": item.count,
            "draws": f"{item.chains} × {item.draws:,}",
        }
        for item in facts.convergence
    ]
    notes = [
        "R-hat compares chains, or the two halves of a single one: near 1 they have the same distribution, above 1.1 "
        "they do not. Few draws of many quantities have a larger R-hat by chance; independent draws stay below the "
        "number in the next column in 99 of 100 cases. The effective sample size (ESS) is the equivalent number of "
        "independent draws, for means (bulk) and for 5 % and 95 % quantiles (tail)."
    ]
    if any(item.name == SOME_WEIGHTS for item in facts.convergence):
        notes.append("Single weights of two chains need not agree, since hidden units can be permuted.")
    return [Grid(Table("R-hat and effective sample size", columns, rows, notes))]


def _texts(facts: Mapping[str, Any]) -> dict[str, str]:
    return {name: value if isinstance(value, str) else repr(value) for name, value in facts.items()}


def _files(folder: Path) -> Table:
    """Return a table of the files, with those of a checkpoint or a chain in one row."""
    groups: dict[str, list[Path]] = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and path.name != REPORT):
        parts = path.relative_to(folder).parts
        if any(part.startswith(".") for part in parts):
            continue
        depth = 1 if parts[0] == POSTERIOR and not parts[1].startswith("chain-") else 2
        name = "/".join(parts[:depth]) + "/" if parts[0] in (CHECKPOINTS, POSTERIOR) else path.name
        groups.setdefault(name if len(parts) > 1 else parts[0], []).append(path)
    rows: list[dict[str, str | int | float]] = [
        {"name": name, "files": len(paths), "size": sum(path.stat().st_size for path in paths) / 1000.0}
        for name, paths in groups.items()
    ]
    columns = [Column("name", "File or folder"), Column("files", "files", ","), Column("size", "kB", ",.1f")]
    return Table("Files of the run", columns, rows)
