"""ONNX files of a model, checked in onnxruntime against torch."""

from __future__ import annotations

import logging
import os
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from spikeslab.compression.finalize import finalize
from spikeslab.files import write_atomically
from spikeslab.graph.tracing import ExampleInput, check_example_input

NEEDS = ("onnx", "onnxscript", "onnxruntime")
INSTALL = "pip install 'spikeslab[onnx]'"
PRODUCER, HEAD = b"pytorch", 32
"""What tells files of the exporter from others, within their first bytes."""
BATCHES = (1, 3)
"""Sizes of the random batches that a file is checked with; the exporter has seen neither."""


class ExportError(RuntimeError):
    """A model that could not be exported, or whose file computes something else; a sentence says which."""


def export_onnx(
    model: nn.Module,
    example_input: ExampleInput,
    file: str | os.PathLike[str],
    *,
    rtol: float = 1e-4,
    atol: float = 1e-5,
) -> Path:
    """Write a model to an ONNX file that onnxruntime, and much else, can run without Python.

    The file holds ``finalize(model)`` with a batch of any size. Before it is kept, onnxruntime runs it on random
    batches, and its outputs must be those of torch. It is as large as the dense model, and as fast: onnxruntime
    multiplies zeros too.

    Args:
        model: A model that returns a tensor or a tuple of tensors.
        example_input: A batch, or a tuple of batches, one for each argument.
        file: File to write; an earlier ONNX file of torch is replaced, no other is.
        rtol: Largest difference allowed, relative to the largest output.
        atol: The same in absolute terms; a difference up to the sum of both is allowed.

    Returns:
        The path of the file.

    Raises:
        ImportError: If onnx, onnxscript or onnxruntime is missing.
        ExportError: If torch cannot export the model, or the outputs differ.
        FileExistsError: If there is another file of that name.
    """
    _check_installed("export_onnx")
    path = Path(file)
    if path.exists() and not _is_onnx(path):
        raise FileExistsError(f"file must be a new file or an ONNX file of torch, but {path} is something else.")
    plain, inputs = _on_cpu(model, example_input)
    _check_outputs(plain, inputs)
    content = _exported(plain, inputs)
    difference, allowed = _compare(content, plain, inputs, rtol, atol)
    if not difference <= allowed:
        raise ExportError(
            f"the ONNX file must compute what the model computes, but its outputs differ by {difference:.2g}, and no "
            f"more than {allowed:.2g} is allowed."
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, content)
    return path


class OnnxNetwork(nn.Module):
    """A network as onnxruntime computes it, with as many threads as torch has when it is made.

    Args:
        model: A model that returns a tensor.
        example_input: A batch, or a tuple of batches.

    Attributes:
        source: The model.

    Raises:
        ImportError: If onnx, onnxscript or onnxruntime is missing.
        ExportError: If torch cannot export the model.
    """

    def __init__(self, model: nn.Module, example_input: ExampleInput) -> None:
        super().__init__()
        _check_installed("OnnxNetwork")
        self.source = model
        plain, inputs = _on_cpu(model, example_input)
        _check_outputs(plain, inputs)
        self._session = _session(_exported(plain, inputs))
        self._names = [entry.name for entry in self._session.get_inputs()]

    def forward(self, *inputs: Tensor) -> Tensor:
        """The first output, where the inputs are; it is computed on the CPU."""
        given = {name: tensor.cpu().numpy() for name, tensor in zip(self._names, inputs, strict=True)}
        return torch.from_numpy(self._session.run(None, given)[0]).to(inputs[0].device)


def missing_packages() -> list[str]:
    """What is needed for ONNX and not installed."""
    return [name for name in NEEDS if find_spec(name) is None]


def _check_installed(what: str) -> None:
    if missing := missing_packages():
        raise ImportError(f"{what} needs {', '.join(missing)}: {INSTALL}.")


def _on_cpu(model: nn.Module, example_input: ExampleInput) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """The plain model and a batch for it, where onnxruntime will compute."""
    return finalize(model).cpu(), tuple(tensor.cpu() for tensor in check_example_input(example_input))


@torch.no_grad()
def _check_outputs(model: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    """Raise if the model does not take the example, of which the exporter would say it in dozens of lines."""
    try:
        result = model(*inputs)
    except Exception as error:
        reason = (str(error).strip().splitlines() or ["no reason given"])[0].rstrip(".")
        raise ExportError(
            f"example_input must be a batch that the model takes, but got {type(error).__name__}: {reason}."
        ) from error
    if not all(isinstance(item, Tensor) for item in (result if isinstance(result, (tuple, list)) else [result])):
        raise ExportError(f"model must return a tensor or a tuple of tensors, but got a {type(result).__name__}.")


def _session(content: bytes) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    # Threads that spin after a run would slow down whatever runs next, and be counted as its time.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def _is_onnx(path: Path) -> bool:
    return path.is_file() and PRODUCER in path.read_bytes()[:HEAD]


def _exported(model: nn.Module, inputs: tuple[Tensor, ...]) -> bytes:
    """The content of the file. A batch of two, since the exporter takes a batch of one for a constant."""
    rows = torch.arange(2) % len(inputs[0])
    batch = torch.export.Dim("batch")
    with tempfile.TemporaryDirectory() as folder, _quiet():
        made = Path(folder) / "model.onnx"
        try:
            torch.onnx.export(
                model,
                tuple(tensor[rows] for tensor in inputs),
                made,
                dynamo=True,
                dynamic_shapes=tuple({0: batch} for _ in inputs),
                external_data=False,
                verbose=False,
            )
        except Exception as error:  # the exporter raises what it meets
            reason = (str(error).strip().splitlines() or ["no reason given"])[0].rstrip(".")
            raise ExportError(
                f"model must be one that torch can export, but got {type(error).__name__}: {reason}."
            ) from error
        return made.read_bytes()


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what the exporter says of packages that it could use, and of torch's own deprecations."""
    logger = logging.getLogger("torch.onnx._internal.exporter._registration")
    before = logger.disabled
    logger.disabled = True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            warnings.simplefilter("ignore", DeprecationWarning)
            yield
    finally:
        logger.disabled = before


@torch.no_grad()
def _compare(
    content: bytes, model: nn.Module, inputs: tuple[Tensor, ...], rtol: float, atol: float
) -> tuple[float, float]:
    """The largest difference of the outputs, and the largest that is allowed, on random batches."""
    session = _session(content)
    names = [entry.name for entry in session.get_inputs()]
    difference, size = 0.0, 0.0
    for batch in BATCHES:
        given = tuple(_random_rows(tensor, batch) for tensor in inputs)
        result = model(*given)
        expected = [result] if isinstance(result, Tensor) else list(result)
        found = session.run(None, {name: tensor.numpy() for name, tensor in zip(names, given, strict=True)})
        for one, other in zip(expected, found, strict=True):
            gap = (one.double() - torch.from_numpy(other).double()).abs()
            difference = max(difference, float(gap.max()) if gap.isfinite().all() else float("inf"))
            size = max(size, float(one.abs().max()))
    return difference, atol + rtol * size


def _random_rows(tensor: Tensor, batch: int) -> Tensor:
    """Floats of the example's scale; anything else, such as indices, in the example's own rows."""
    rows = tensor.detach().cpu()[torch.arange(batch) % len(tensor)]
    if not rows.is_floating_point():
        return rows
    source = torch.Generator().manual_seed(batch)
    spread = max(float(tensor.float().std(unbiased=False)), 1.0)
    return rows + spread * torch.randn(rows.shape, generator=source).to(rows.dtype)
