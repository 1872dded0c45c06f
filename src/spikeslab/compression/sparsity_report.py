"""What sparsity bought: non-zeros, multiply-adds, bytes on disk and measured time, each by itself.

They are four different things. Zeros make a file smaller at once. They do not make a dense kernel faster, which
multiplies them like any other number; removed channels do.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from spikeslab.compression.finalize import finalize
from spikeslab.compression.latency import Latency, measure_latency
from spikeslab.compression.layer_counts import (
    COMPACTED,
    LayerCount,
    compacted_sizes,
    count_layers,
    file_sizes,
    unshared,
)
from spikeslab.compression.macs import count_positions
from spikeslab.compression.onnx import OnnxNetwork
from spikeslab.compression.sparsity_words import file_table, known_sum, latency_table, layer_table, words
from spikeslab.compression.variants import network_variants
from spikeslab.graph.tracing import ExampleInput
from spikeslab.report.tables import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


@dataclass(frozen=True)
class SparsityReport:
    """What sparsity bought.

    >>> model = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2))
    >>> _ = nn.init.zeros_(model[0].weight)
    >>> report = SparsityReport.of(model, torch.zeros(1, 8), variants={})
    >>> report.nonzeros, report.weights, report.macs, report.nonzero_macs
    (14, 46, 40, 8)

    Attributes:
        layers: Parameters of two or more dimensions.
        other_weights: How many parameters there are besides, such as biases.
        other_nonzeros: How many of them are not zero.
        files: Bytes on disk by format, those of the compacted network too where it was timed and has fewer channels.
        latencies: Measured times; the first variant is what the others are compared with.
        variant_macs: Multiply-adds of one example, for each variant.
        threads: Threads that torch measured with.
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
        """Count and measure.

        Args:
            model: The sparse model.
            example_input: A batch, or a tuple of batches.
            original: The dense model that it was made from, if that is not of the same shapes.
            weights: Names of the sparse layers; every layer with a zero if not given.
            variants: Models to time against each other by name, the dense one first; ``{}`` measures nothing. If not
                given: ``original``, or else ``model``, the same with batch normalisation folded, and ``model``
                finalised and compacted.
            batches: Sizes of a batch.
            rounds: How often each variant has its turn.
        """
        plain = finalize(model)
        dense = plain if original is None else finalize(original)
        if variants is None:
            variants = network_variants(model if original is None else original, model, example_input)
        parameters = dict(plain.named_parameters())
        return cls(
            layers=count_layers(parameters, weights, count_positions(plain, example_input)),
            **_others(parameters),
            files=file_sizes(plain.state_dict(), dense.state_dict())
            | _without_channels(variants.get(COMPACTED), plain),
            latencies=tuple(measure_latency(variants, example_input, batches, rounds)) if variants else (),
            variant_macs={name: _macs(variant, example_input) for name, variant in variants.items()},
            threads=torch.get_num_threads(),
        )

    @classmethod
    def of_tensors(cls, tensors: Mapping[str, Tensor], weights: Sequence[str] | None = None) -> SparsityReport:
        """What a state_dict says without its module: weights, non-zeros and bytes.

        Floating tensors count as parameters, a shared one once, unless their name is that of a statistic of batch
        normalisation.
        """
        parameters = {
            name: tensor
            for name, tensor in unshared(tensors).items()
            if tensor.is_floating_point() and name.rpartition(".")[2] not in STATISTICS
        }
        return cls(layers=count_layers(parameters, weights), **_others(parameters), files=file_sizes(tensors, tensors))

    @property
    def weights(self) -> int:
        """Parameters of the whole network."""
        return self.other_weights + sum(layer.weights for layer in self.layers)

    @property
    def nonzeros(self) -> int:
        """Those that are not zero."""
        return self.other_nonzeros + sum(layer.nonzeros for layer in self.layers)

    @property
    def macs(self) -> int | None:
        """Multiply-adds of one example, over the layers where they are known."""
        return known_sum([layer.macs for layer in self.layers])

    @property
    def nonzero_macs(self) -> int | None:
        """Multiply-adds of one example if zeros are skipped."""
        return known_sum([layer.nonzero_macs for layer in self.layers])

    def speedup(self, latency: Latency) -> float:
        """How many times faster a measured variant is than the first one, at the same size of a batch."""
        first = next(item for item in self.latencies if item.batch == latency.batch)
        return first.seconds / latency.seconds

    def words(self) -> tuple[str, str]:
        """Smaller or not, faster or not, in a sentence each."""
        return words(self)

    def table(self) -> Table:
        """The layers, the sparse ones together, and the whole network."""
        return layer_table(self)

    def tables(self) -> list[Table]:
        """The layers, the files and, where they were measured, the times."""
        return [layer_table(self), file_table(self), *([latency_table(self)] if self.latencies else [])]

    def figure(self) -> Figure:
        """Bars: non-zeros by layer, bytes by format and, where they were measured, times by variant."""
        from spikeslab.compression.sparsity_figure import sparsity_figure

        return sparsity_figure(self)

    def record(self) -> dict[str, Any]:
        """Everything, in JSON's types."""
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
        """The record as text."""
        return json.dumps(self.record(), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _others(parameters: Mapping[str, Tensor]) -> dict[str, Any]:
    others = [tensor for tensor in parameters.values() if tensor.ndim < 2]
    return {
        "other_weights": sum(tensor.numel() for tensor in others),
        "other_nonzeros": sum(int(tensor.count_nonzero()) for tensor in others),
    }


def _without_channels(compacted: nn.Module | None, plain: nn.Module) -> dict[str, int]:
    """Bytes of the compacted network, where channels were removed."""
    if compacted is None:
        return {}
    size, less = (sum(p.numel() for p in model.parameters() if p.ndim > 1) for model in (plain, compacted))
    return compacted_sizes(compacted.state_dict()) if less < size else {}


def _macs(model: nn.Module, example_input: ExampleInput) -> int | None:
    plain = finalize(model.source if isinstance(model, OnnxNetwork) else model)
    counts = count_layers(dict(plain.named_parameters()), positions=count_positions(plain, example_input))
    return known_sum([layer.macs for layer in counts])
