"""Result of a compression: a sparse network, samples that share its zeros, numbers, and files of all three."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from spikeslab.compression.compact import compact
from spikeslab.compression.sparse_file import evaluate_stored, save_sparse, state_tensors, tensor_dict
from spikeslab.compression.tasks import Evaluation, Task
from spikeslab.errors import NonFiniteError, first_line, mark, warn
from spikeslab.files import check_free, write_atomically, write_record
from spikeslab.functional.groups import joint_norms
from spikeslab.graph.tracing import ExampleInput
from spikeslab.posterior import Posterior
from spikeslab.pruning import UnitFamily, measure_sparsity
from spikeslab.states import encode_tensors
from spikeslab.training.log import nan_to_null
from spikeslab.training.run_folder import POSTERIOR, RESULT_FILE

MODEL_FILE, SPARSE_FILE = "model.safetensors", "sparse.safetensors"


@dataclass(frozen=True)
class Compressed:
    """Compressed network with its posterior and report.

    Attributes:
        model: The sparse network: of the user's class, with its ordinary ``state_dict`` keys, in evaluation mode.
        posterior: Samples with the same zeros, each with its own statistics of batch normalisation.
        history: One record for every epoch.
        evaluation: Metrics on the validation data of ``"dense"``, ``"sparse"`` and ``"average"``, the posterior
            average; empty without such data.
        report: Settings, zeros and numbers, in JSON's types.
        task: The task of the network.
    """

    model: nn.Module
    posterior: Posterior
    history: list[dict[str, Any]]
    evaluation: dict[str, dict[str, Any]]
    report: dict[str, Any]
    task: Task

    def evaluate(self, data: Iterable[Any], name: str = "data") -> dict[str, dict[str, Any]]:
        """Evaluate the sparse network and the posterior average on other data, such as a test set.

        Args:
            data: Batches.
            name: Name of the data in messages.
        """
        evaluation = Evaluation(self.task, data, name)
        return {"sparse": evaluation.of_model(self.model), "average": evaluation.of_posterior(self.posterior)}

    def evaluate_stored(self, data: Iterable[Any], name: str = "data") -> dict[str, dict[str, float]]:
        """Measure the file of the sparse network in every format, and evaluate it after it was read back.

        Args:
            data: Batches.
            name: Name of the data in messages.

        Returns:
            ``"fp32"`` (lossless), ``"fp16"`` and ``"int8"``, each with ``bytes``, ``nonzeros`` and ``sparse_nonzeros``
            after rounding, and the numbers of the evaluation; ``"dense"`` has the bytes of an ordinary safetensors
            file with every tensor once.
        """
        sparse = [layer["name"] for layer in self.report["layers"]]
        return evaluate_stored(self.model, Evaluation(self.task, data, name), sparse)

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Write the model twice, ``posterior/`` and ``report.json``.

        ``model.safetensors`` is the dense ``state_dict``; ``sparse.safetensors`` is the same in a smaller file, for
        :func:`~spikeslab.compression.load_sparse`.

        Raises:
            FileExistsError: If the folder holds something.
        """
        folder = Path(directory)
        check_free(folder, "directory")
        folder.mkdir(parents=True, exist_ok=True)
        self.posterior.save(folder / POSTERIOR)
        self.write(folder)

    def write(self, folder: Path) -> None:
        """Write the model and the report into an existing folder, and replace earlier ones."""
        write_atomically(folder / MODEL_FILE, encode_tensors(state_tensors(self.model)))
        # The same names as in the other file; finalize, for a module, would take parametrizations off.
        save_sparse(tensor_dict(self.model), folder / SPARSE_FILE)
        write_record(folder / RESULT_FILE, nan_to_null(self.report))


def find_unbounded(model: nn.Module) -> frozenset[str]:
    """Return the names of buffers that hold infinities, as masks of attention do."""
    return frozenset(name for name, buffer in model.named_buffers() if bool(buffer.isinf().any()))


def check_finite(model: nn.Module, posterior: Posterior, unbounded: Collection[str] = ()) -> None:
    """Raise if a number of a network or of its samples is not finite, but for infinities in ``unbounded`` buffers."""
    states = {"at the end": {**dict(model.named_parameters()), **dict(model.named_buffers())}}
    states |= {f"in sample {index}": posterior.tensors(index) for index in range(len(posterior))}
    for where, tensors in states.items():
        for name, tensor in tensors.items():
            wrong = tensor.isnan() if name in unbounded else ~tensor.isfinite()
            if bool(wrong.any()):
                raise NonFiniteError(f"{name} must be finite {where}, but got NaN or Inf: try a lower {mark('lr')}.")


def describe_zeros(model: nn.Module, weights: Mapping[str, Tensor]) -> dict[str, Any]:
    """Count weights and non-zeros of every sparse layer, of all of them, and of the whole network."""
    found = measure_sparsity(weights, model)
    layers = [
        {"name": name, **_count(weight.numel() - int(weight.count_nonzero()), weight.numel())}
        for name, weight in weights.items()
    ]
    return {
        "layers": layers,
        "sparse_layers": _count(found.sparse_zeros, found.sparse_total),
        "network": _count(int(found.network_zeros or 0), int(found.network_total or 0)),
    }


def describe_channels(
    model: nn.Module, units: Mapping[str, UnitFamily], example: ExampleInput | None
) -> dict[str, Any]:
    """Count the living units of every family and, with an example, what is left of the network without the others."""
    tensors = dict(model.named_parameters())
    living = {name: joint_norms(family.filters(tensors), tensors).count_nonzero() for name, family in units.items()}
    found: dict[str, Any] = {
        "channels": {name: {"all": units[name].count, "living": int(count)} for name, count in living.items()}
    }
    if example is not None:
        try:
            report = compact(model, example).report
        except Exception as error:  # a network was trained for this report, which must not be lost with it
            reason = f"{type(error).__name__}: {first_line(error)}"
            warn(f"The network cannot be compacted for the report: {reason}.")
            return found
        for name, (before, after) in (("parameters", report.parameters), ("multiply_adds", report.multiply_adds)):
            found.setdefault("compacted", {})[name] = {"before": before, "after": after}
    return found


def _count(zeros: int, total: int) -> dict[str, Any]:
    return {"weights": total, "nonzeros": total - zeros, "sparsity": zeros / total}
