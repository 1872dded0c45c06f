"""The forms of a network that are worth timing against each other."""

from __future__ import annotations

from torch import nn

from spikeslab.compression.compact import compact
from spikeslab.compression.finalize import finalize
from spikeslab.compression.layer_counts import COMPACTED, DENSE
from spikeslab.compression.onnx import OnnxNetwork
from spikeslab.graph.folding import fold_batch_norm
from spikeslab.graph.layers import BATCH_NORMS
from spikeslab.graph.tracing import ExampleInput

FOLDED, FINALISED = "BN folded", "finalised"
ONNX = "{} in onnxruntime"


def network_variants(
    dense: nn.Module, sparse: nn.Module, example_input: ExampleInput, *, onnx: bool = False
) -> dict[str, nn.Module]:
    """What a network was and what became of it, by name; all but ``dense`` itself are copies.

    The dense one with its batch normalisation folded, if it has any, tells what of the gain of the compacted one comes
    from folding.

    >>> import torch
    >>> list(network_variants(nn.Linear(4, 2), nn.Linear(4, 2), torch.zeros(1, 4)))
    ['dense', 'finalised', 'compacted']

    Args:
        dense: The network before.
        sparse: The network with zeros.
        example_input: A batch, or a tuple of batches.
        onnx: Whether the dense and the compacted one run in onnxruntime too.
    """
    variants = {DENSE: dense}
    if any(isinstance(module, BATCH_NORMS) for module in dense.modules()):
        variants[FOLDED] = fold_batch_norm(dense, example_input)
    plain = finalize(sparse)
    variants |= {FINALISED: plain, COMPACTED: compact(plain, example_input).model}
    if onnx:
        variants |= {ONNX.format(name): OnnxNetwork(variants[name], example_input) for name in (DENSE, COMPACTED)}
    return variants
