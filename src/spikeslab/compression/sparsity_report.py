"""Report of sparsity: non-zeros, multiply-adds, bytes on disk and measured time.

These are four different things. Zeros make a file smaller at once. They do not make a dense kernel faster, which
multiplies them like any other number; removed channels do.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from spikeslab.compression._op_counter import LayerCount, add_known, count_layers, count_positions
from spikeslab.compression.finalize import finalize
from spikeslab.compression.latency import Latency, measure_latency, network_variants
from spikeslab.compression.onnx import OnnxNetwork
from spikeslab.compression.sparse_file import COMPACTED, COMPACTED_SPARSE, DENSE, drop_shared, file_sizes
from spikeslab.errors import pluralize
from spikeslab.graph.tracing import ExampleInput
from spikeslab.report.tables import Cell, Column, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
GAIN = 1.1
"""Ratio from which a network counts as smaller or faster; the speed of a machine varies by less."""
WHY = "zeros make no dense kernel faster, removed channels and folded normalisation do"


@dataclass(frozen=True)
class SparsityReport:
    """Weights, multiply-adds, bytes and times of a sparse network.

    >>> model = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2))
    >>> _ = nn.init.zeros_(model[0].weight)
    >>> report = SparsityReport.of(model, torch.zeros(1, 8), variants={})
    >>> report.nonzeros, report.weights, report.macs, report.nonzero_macs
    (14, 46, 40, 8)

    Attributes:
        layers: Parameters of two or more dimensions.
        other_weights: Number of other parameters, such as biases.
        other_nonzeros: Number of those that are not zero.
        files: Bytes on disk by format, also of the compacted network if it was timed and has fewer channels.
        latencies: Measured times; the others are compared with the first variant.
        variant_macs: Multiply-adds of one example, for each variant.
        threads: Number of threads of torch during the measurement.
    """

    layers: tuple[LayerCount, ...]
    other_weights: int
    other_nonzeros: int
    files: Mapping[str, int]
    latencies: tuple[Latency, ...] = ()
    variant_macs: Mapping[str, int | None] = field(default_factory=dict)
    threads: int = 1

    @classmethod
    def of(
        cls,
        model: nn.Module,
        example_input: ExampleInput,
        original: nn.Module | None = None,
        *,
        weights: Sequence[str] | None = None,
        variants: Mapping[str, nn.Module] | None = None,
        batches: Sequence[int] = (1, 64),
        rounds: int = 11,
    ) -> SparsityReport:
        """Count the weights of a model and measure its variants.

        Args:
            model: The sparse model.
            example_input: A batch, or a tuple or mapping of batches.
            original: The dense model that it was made from, if its shapes are different.
            weights: Names of the sparse layers; by default every layer with a zero.
            variants: Models to time against each other by name, the dense one first; ``{}`` measures nothing. By
                default those of :func:`~spikeslab.compression.latency.network_variants`.
            batches: Sizes of a batch.
            rounds: Number of turns of each variant.
        """
        plain = finalize(model)
        dense = plain if original is None else finalize(original)
        if variants is None:
            variants = network_variants(model if original is None else original, model, example_input)
        parameters, smaller, compacted = dict(plain.named_parameters()), variants.get(COMPACTED), None
        if smaller is not None and _count_matrices(smaller) < _count_matrices(plain):  # channels were removed
            compacted = smaller.state_dict()
        return cls(
            layers=count_layers(parameters, weights, count_positions(plain, example_input)),
            **_count_others(parameters),
            files=file_sizes(plain.state_dict(), dense.state_dict(), compacted),
            latencies=tuple(measure_latency(variants, example_input, batches, rounds)) if variants else (),
            variant_macs={name: _count_macs(variant, example_input) for name, variant in variants.items()},
            threads=torch.get_num_threads(),
        )

    @classmethod
    def of_tensors(cls, tensors: Mapping[str, Tensor], weights: Sequence[str] | None = None) -> SparsityReport:
        """Count weights, non-zeros and bytes of a state_dict without its module.

        Floating tensors count as parameters, shared ones once; statistics of batch normalisation do not.
        """
        parameters = {
            name: tensor
            for name, tensor in drop_shared(tensors).items()
            if tensor.is_floating_point() and name.rpartition(".")[2] not in STATISTICS
        }
        return cls(
            layers=count_layers(parameters, weights), **_count_others(parameters), files=file_sizes(tensors, tensors)
        )

    @property
    def weights(self) -> int:
        """Parameters of the whole network."""
        return self.other_weights + sum(layer.weights for layer in self.layers)

    @property
    def nonzeros(self) -> int:
        """Parameters that are not zero."""
        return self.other_nonzeros + sum(layer.nonzeros for layer in self.layers)

    @property
    def macs(self) -> int | None:
        """Multiply-adds of one example, over the layers where they are known."""
        return add_known([layer.macs for layer in self.layers])

    @property
    def nonzero_macs(self) -> int | None:
        """Multiply-adds of one example if zeros are skipped."""
        return add_known([layer.nonzero_macs for layer in self.layers])

    def speedup(self, latency: Latency) -> float:
        """Return how many times faster a measured variant is than the first one at the same batch size."""
        first = next(item for item in self.latencies if item.batch == latency.batch)
        return first.seconds / latency.seconds

    def words(self) -> tuple[str, str]:
        """Return a sentence on the size and one on the speed, since one does not follow from the other."""
        return _describe_size(self), _describe_speed(self)

    def table(self) -> Table:
        """Return a table of the layers, the sparse ones together, and the whole network."""
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
        other = (self.other_weights, self.other_nonzeros)
        rows = [
            *(_row(layer.name, [layer], shape="x".join(map(str, layer.shape))) for layer in self.layers),
            _row("biases and normalisation", [], other),
            _row("sparse layers", [layer for layer in self.layers if layer.sparse]),
            _row("whole network", self.layers, other),
        ]
        return Table("Sparsity", columns, rows, self.words())

    def tables(self) -> list[Table]:
        """Return tables of the layers, the files and, if measured, the times."""
        return [self.table(), _file_table(self), *([_latency_table(self)] if self.latencies else [])]

    def figure(self) -> Figure:
        """Draw non-zeros by layer, bytes by format and, if measured, times by variant."""
        from spikeslab.compression._sparsity_figure import draw_sparsity

        return draw_sparsity(self)

    def record(self) -> dict[str, Any]:
        """Return all numbers in the types of JSON."""
        sparse = [layer for layer in self.layers if layer.sparse]
        return {
            "words": list(self.words()),
            "weights": self.weights,
            "nonzeros": self.nonzeros,
            "sparse_weights": sum(layer.weights for layer in sparse),
            "sparse_nonzeros": sum(layer.nonzeros for layer in sparse),
            "macs": self.macs,
            "nonzero_macs": self.nonzero_macs,
            "bytes": dict(self.files),
            "latencies": [asdict(item) | {"speedup": self.speedup(item)} for item in self.latencies],
            "variant_macs": dict(self.variant_macs),
            "threads": self.threads,
            "layers": [asdict(layer) | {"weights": layer.weights} for layer in self.layers],
        }

    def json(self) -> str:
        """Return the record as text."""
        return json.dumps(self.record(), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _count_others(parameters: Mapping[str, Tensor]) -> dict[str, Any]:
    others = [tensor for tensor in parameters.values() if tensor.ndim < 2]
    return {
        "other_weights": sum(tensor.numel() for tensor in others),
        "other_nonzeros": sum(int(tensor.count_nonzero()) for tensor in others),
    }


def _count_matrices(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters() if parameter.ndim > 1)


def _count_macs(model: nn.Module, example_input: ExampleInput) -> int | None:
    plain = finalize(model.source if isinstance(model, OnnxNetwork) else model)
    positions = count_positions(plain, example_input)
    return sum(count * plain.get_parameter(name).numel() for name, count in positions.items()) if positions else None


def _describe_size(report: SparsityReport) -> str:
    exact, half, byte = (report.files[DENSE] / report.files[f"sparse {values}"] for values in ("fp32", "fp16", "int8"))
    less = ""
    if COMPACTED in report.files:
        plain, sparse = (report.files[DENSE] / report.files[key] for key in (COMPACTED, COMPACTED_SPARSE))
        less = f"; without its dead channels {plain:.1f} x as an ordinary file, {sparse:.1f} x as a sparse one"
    return (
        f"Smaller: {'yes' if exact >= GAIN else 'no'}, {exact:.1f} x on disk without loss "
        f"({report.files['sparse fp32']:,} bytes instead of {report.files[DENSE]:,}), {half:.1f} x with fp16 values, "
        f"{byte:.1f} x with int8{less}."
    )


def _describe_speed(report: SparsityReport) -> str:
    if not report.latencies:
        return f"Faster: not measured; {WHY}."
    first, *others = dict.fromkeys(item.variant for item in report.latencies)
    answers = []
    for variant in others:
        ratios = {item.batch: report.speedup(item) for item in report.latencies if item.variant == variant}
        gains = [ratio >= GAIN for ratio in ratios.values()]
        answer = "yes" if all(gains) else "in part" if any(gains) else "no"
        sizes = " and ".join(f"{ratio:.2f} x at batch {batch}" for batch, ratio in ratios.items())
        answers.append(f"{variant} {answer}, {sizes}")
    return f"Faster than {first} on {pluralize(report.threads, 'thread')}: {'; '.join(answers)}; {WHY}."


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
        "macs": add_known([layer.macs for layer in layers]),
        "nonzero_macs": add_known([layer.nonzero_macs for layer in layers]),
    }


def _file_table(report: SparsityReport) -> Table:
    columns = [Column("format", "Format"), Column("bytes", "Bytes", ","), Column("ratio", "Times smaller", ".2f")]
    rows: list[dict[str, Cell]] = [
        {"format": name, "bytes": size, "ratio": report.files[DENSE] / size} for name, size in report.files.items()
    ]
    return Table("Bytes on disk", columns, rows)


def _latency_table(report: SparsityReport) -> Table:
    columns = [
        Column("variant", "Variant"),
        Column("batch", "Batch"),
        Column("milliseconds", "Median (ms)", ".2f"),
        Column("speedup", "Times faster", ".2f"),
        Column("macs", "Multiply-adds of an example", ","),
    ]
    rows: list[dict[str, Cell]] = []
    for item in report.latencies:
        row: dict[str, Cell] = {"variant": item.variant, "batch": item.batch, "milliseconds": 1000 * item.seconds}
        rows.append(row | {"speedup": report.speedup(item), "macs": report.variant_macs[item.variant]})
    return Table(f"Time of a forward pass on {pluralize(report.threads, 'thread')}", columns, rows)
