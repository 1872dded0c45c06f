"""A report of sparsity in sentences and tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from spikeslab.compression.layer_counts import COMPACTED, DENSE, LayerCount
from spikeslab.errors import pluralize
from spikeslab.report.tables import Cell, Column, Table

if TYPE_CHECKING:
    from spikeslab.compression.sparsity_report import SparsityReport

GAIN = 1.1
"""Ratio from which "smaller" or "faster" is said; a machine's speed varies by less."""
WHY = "zeros make no dense kernel faster, removed channels and folded normalisation do"


def words(report: SparsityReport) -> tuple[str, str]:
    """Smaller or not, faster or not: one sentence each, because one does not follow from the other."""
    return _smaller(report), _faster(report)


def _smaller(report: SparsityReport) -> str:
    exact, half, byte = (report.files[DENSE] / report.files[f"sparse {values}"] for values in ("fp32", "fp16", "int8"))
    return (
        f"Smaller: {'yes' if exact >= GAIN else 'no'}, {exact:.1f} x on disk without loss "
        f"({report.files['sparse fp32']:,} bytes instead of {report.files[DENSE]:,}), {half:.1f} x with fp16 values, "
        f"{byte:.1f} x with int8{_compacted(report)}."
    )


def _compacted(report: SparsityReport) -> str:
    """What removed channels save, as the end of a sentence."""
    name = f"{COMPACTED}, sparse fp32"
    if name not in report.files:
        return ""
    plain, sparse = (report.files[DENSE] / report.files[key] for key in (COMPACTED, name))
    return f"; without its dead channels {plain:.1f} x as an ordinary file, {sparse:.1f} x as a sparse one"


def _faster(report: SparsityReport) -> str:
    if not report.latencies:
        return f"Faster: not measured; {WHY}."
    first, *others = dict.fromkeys(item.variant for item in report.latencies)
    told = []
    for variant in others:
        ratios = {item.batch: report.speedup(item) for item in report.latencies if item.variant == variant}
        gains = [ratio >= GAIN for ratio in ratios.values()]
        answer = "yes" if all(gains) else "in part" if any(gains) else "no"
        sizes = " and ".join(f"{ratio:.2f} x at batch {batch}" for batch, ratio in ratios.items())
        told.append(f"{variant} {answer}, {sizes}")
    return f"Faster than {first} on {pluralize(report.threads, 'thread')}: {'; '.join(told)}; {WHY}."


def layer_table(report: SparsityReport) -> Table:
    """The layers, the sparse ones together, and the whole network."""
    columns = [
        Column("layer", "Layer"),
        Column("shape", "Shape"),
        Column("weights", "Weights", ","),
        Column("nonzeros", "Non-zeros", ","),
        Column("zeros", "Zeros (%)", ".2f"),
        Column("empty", "Empty channels", ","),
        Column("macs", "Multiply-adds", ","),
        Column("nonzero_macs", "Without zeros", ","),
    ]
    other = (report.other_weights, report.other_nonzeros)
    rows = [
        *(_row(layer.name, [layer], shape="x".join(map(str, layer.shape))) for layer in report.layers),
        _row("biases and normalisation", [], other),
        _row("sparse layers", [layer for layer in report.layers if layer.sparse]),
        _row("whole network", report.layers, other),
    ]
    return Table("Sparsity", columns, rows, words(report))


def _row(
    name: str, layers: Sequence[LayerCount], other: tuple[int, int] = (0, 0), shape: str | None = None
) -> dict[str, Cell]:
    weights = other[0] + sum(layer.weights for layer in layers)
    nonzeros = other[1] + sum(layer.nonzeros for layer in layers)
    return {
        "layer": name,
        "shape": shape,
        "weights": weights,
        "nonzeros": nonzeros,
        "zeros": 100 * (weights - nonzeros) / weights if weights else None,
        "empty": sum(layer.empty_channels for layer in layers) if layers else None,
        "macs": known_sum([layer.macs for layer in layers]),
        "nonzero_macs": known_sum([layer.nonzero_macs for layer in layers]),
    }


def known_sum(counts: Sequence[int | None]) -> int | None:
    """The sum of what is known, if anything is."""
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def file_table(report: SparsityReport) -> Table:
    """Bytes on disk in each format."""
    columns = [Column("format", "Format"), Column("bytes", "Bytes", ","), Column("ratio", "Times smaller", ".2f")]
    rows: list[dict[str, Cell]] = [
        {"format": name, "bytes": size, "ratio": report.files[DENSE] / size} for name, size in report.files.items()
    ]
    return Table("Bytes on disk", columns, rows)


def latency_table(report: SparsityReport) -> Table:
    """Measured times, and what each variant multiplies."""
    columns = [
        Column("variant", "Variant"),
        Column("batch", "Batch"),
        Column("milliseconds", "Median (ms)", ".2f"),
        Column("speedup", "Times faster", ".2f"),
        Column("macs", "Multiply-adds of an example", ","),
    ]
    rows: list[dict[str, Cell]] = [
        {
            "variant": item.variant,
            "batch": item.batch,
            "milliseconds": 1000 * item.seconds,
            "speedup": report.speedup(item),
            "macs": report.variant_macs[item.variant],
        }
        for item in report.latencies
    ]
    return Table(f"Time of a forward pass on {pluralize(report.threads, 'thread')}", columns, rows)
