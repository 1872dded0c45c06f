"""The table at the end of ``spikeslab compress``: what was lost, and what was saved."""

from __future__ import annotations

import math
from typing import Any

from spikeslab.compression import Compressed
from spikeslab.compression.sparse_file import DENSE
from spikeslab.errors import pluralize
from spikeslab.report.tables import Cell, Column, Table

METRICS = {
    "accuracy": ("acc. %", 100.0, ".2f"),
    "nll": ("NLL", 1.0, ".4f"),
    "ece": ("ECE %", 100.0, ".2f"),
    "rmse": ("RMSE", 1.0, ".4g"),
    "mae": ("MAE", 1.0, ".4g"),
    "loss": ("loss", 1.0, ".4g"),
}
"""Heading, factor and format of the numbers in the table."""
ROUNDED = ("fp16", "int8")
"""Formats of a file that round values."""


def comparison(
    result: Compressed,
    parts: dict[str, dict[str, dict[str, Any]]],
    stored: dict[str, dict[str, dict[str, float]]],
) -> Table:
    """Dense, sparse, sparse in files that round, and average, on every part of the data.

    Args:
        result: The compression.
        parts: What was found on each part of the data, by its name: of ``"dense"``, ``"sparse"`` and ``"average"``.
        stored: What ``result.evaluate_stored`` found on each of them.
    """
    parts = {part: {**found, **{key: stored[part][key] for key in ROUNDED}} for part, found in parts.items()}
    files = next(iter(stored.values()))
    sizes = {"dense": files[DENSE], "sparse": files["fp32"], **{key: files[key] for key in ROUNDED}}
    shown = [name for name in METRICS if any(name in found for part in parts.values() for found in part.values())]
    network, layers, samples = result.report["network"], result.report["sparse_layers"], result.report["samples"]
    rows: list[dict[str, Cell]] = []
    for key, copies in (("dense", 0), ("sparse", 1), *((key, 1) for key in ROUNDED), ("average", samples)):
        row: dict[str, Cell] = {"model": f"sparse, {key}" if key in ROUNDED else key}
        for part, found in parts.items():
            for metric in shown:
                # The NLL of a network that gives a right class no chance is infinite, for which JSON has no word.
                value = float(found[key].get(metric, math.nan))
                row[f"{part}_{metric}"] = METRICS[metric][1] * value if math.isfinite(value) else None
        row["nonzeros"] = copies * network["nonzeros"] or network["weights"]
        row["layers"] = copies * layers["nonzeros"] or layers["weights"]
        if key in ROUNDED:  # small values may have become zero
            row["nonzeros"], row["layers"] = files[key]["nonzeros"], files[key]["sparse_nonzeros"]
        row["kilobytes"] = sizes[key]["bytes"] / 1000.0 if key in sizes else None
        rows.append(row)
    columns = [
        Column(f"{part}_{metric}", f"{part} {METRICS[metric][0]}", METRICS[metric][2])
        for part in parts
        for metric in shown
    ]
    rest = [
        Column("nonzeros", "non-zeros", ","),
        Column("layers", "in sparse layers", ","),
        Column("kilobytes", "file, kB", ".1f"),
    ]
    note = (
        f"{network['sparsity']:.2%} of the whole network is zero, and {layers['sparsity']:.2%} of "
        f"{pluralize(len(result.report['layers']), 'sparse layer')}. The average is that of "
        f"{pluralize(samples, 'sample')} with the same zeros, and needs them all. Files are those of `save_sparse`, "
        "lossless or with values rounded to fp16 or int8; that of the dense network is a safetensors file."
    )
    notes = [note, *([_channels(result.report)] if "channels" in result.report else [])]
    return Table("Dense and compressed", [Column("model", "Network"), *columns, *rest], rows, notes=notes)


def _channels(report: dict[str, Any]) -> str:
    layers = report["channels"].values()
    living, total = (sum(layer[key] for layer in layers) for key in ("living", "all"))
    told = f"{total - living} of {total} channels of {pluralize(len(layers), 'layer')} are gone."
    if "compacted" not in report:
        return told
    weights, macs = report["compacted"]["parameters"], report["compacted"]["multiply_adds"]
    return (
        f"{told} Without them (spikeslab.compact) the network has {weights['after']:,} parameters instead of "
        f"{weights['before']:,}, and {macs['after']:,} multiply-adds instead of {macs['before']:,}."
    )
