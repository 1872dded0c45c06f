"""What a network takes on disk in each format, and what the rounding of its values costs."""

from __future__ import annotations

import copy
from collections.abc import Iterable

from torch import Tensor, nn

from spikeslab.compression.layer_counts import DENSE, dense_content
from spikeslab.compression.sparse_format import VALUES, decode, encode
from spikeslab.compression.tasks import Evaluation, numbers


def evaluate_stored(
    model: nn.Module, evaluation: Evaluation, sparse: Iterable[str] = ()
) -> dict[str, dict[str, float]]:
    """Bytes of the file in every format of :func:`~spikeslab.compression.save_sparse`, and how good what it holds is.

    Args:
        model: The network; it is not changed.
        evaluation: Judges the network that is read back.
        sparse: Names of the sparse weights.

    Returns:
        For ``"fp32"``, ``"fp16"`` and ``"int8"`` the ``bytes``, the ``nonzeros`` of all parameters and
        ``sparse_nonzeros`` of the sparse ones, of which rounding may leave fewer, and the numbers of the evaluation;
        for ``"dense"`` the bytes of a safetensors file with every tensor once.
    """
    names = set(sparse)
    read = copy.deepcopy(model)
    found: dict[str, dict[str, float]] = {DENSE: {"bytes": len(dense_content(tensor_dict(model)))}}
    for values in VALUES:
        content = encode(tensor_dict(model), values)
        read.load_state_dict({**read.state_dict(), **decode(content, values)})
        counts = {name: int(parameter.count_nonzero()) for name, parameter in read.named_parameters()}
        found[values] = {
            "bytes": len(content),
            "nonzeros": sum(counts.values()),
            "sparse_nonzeros": sum(count for name, count in counts.items() if name in names),
            **numbers(evaluation.of_model(read)),
        }
    return found


def tensor_dict(model: nn.Module) -> dict[str, Tensor]:
    """The ``state_dict`` without what is no tensor, under the names of the model, parametrizations included."""
    return {name: entry for name, entry in model.state_dict().items() if isinstance(entry, Tensor)}


def state_tensors(model: nn.Module) -> dict[str, Tensor]:
    """The same with memory of its own for each tensor: a file has no room for two that share theirs."""
    return {name: tensor.to("cpu", copy=True).contiguous() for name, tensor in tensor_dict(model).items()}
