"""ONNX export of a model, checked in onnxruntime against torch."""

from __future__ import annotations

import logging
import os
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from spikeslab.compression.finalize import finalize
from spikeslab.errors import ArgumentTypeError, MissingExtraError, SpikeSlabError, first_line
from spikeslab.files import write_atomically
from spikeslab.forward_pass import PLAIN, Forward, ReadOutput, RunForward
from spikeslab.graph.tracing import ExampleInput, check_example_input

NEEDS = ("onnx", "onnxscript", "onnxruntime")
INSTALL = "pip install 'spikeslab[onnx]'"
PRODUCER, HEAD = b"pytorch", 32
"""Name of the exporter, within the first bytes of its files."""
BATCHES = (1, 3)
"""Sizes of the random batches that a file is checked with; the exporter has seen neither."""


class ExportError(SpikeSlabError, RuntimeError):
    """A model cannot be exported, or its file computes something else."""


def export_onnx(
    model: nn.Module,
    example_input: ExampleInput,
    file: str | os.PathLike[str],
    *,
    rtol: float = 1e-4,
    atol: float = 1e-5,
    forward: RunForward | None = None,
    output: ReadOutput | None = None,
) -> Path:
    """Write a model to an ONNX file, which onnxruntime and other engines can run without Python.

    The file holds ``finalize(model)`` for a batch of any size. It is written only if onnxruntime and torch agree on
    random batches. It is as large and as fast as the dense model, since onnxruntime multiplies zeros too.

    Args:
        model: A model that returns a tensor or a tuple of tensors, or one of which the file computes the ``logits``.
        example_input: A batch, or a tuple or mapping of batches, one for each argument.
        file: File to write; an earlier ONNX file of torch is replaced, no other is.
        rtol: Relative tolerance, as a share of the largest output.
        atol: Absolute tolerance, added to the relative one.
        forward: Function from (model, inputs) to what the model returns, as for :func:`~spikeslab.compress`.
        output: Function from that to the tensor that the file computes; likewise.

    Returns:
        The path of the file.

    Raises:
        MissingExtraError: If onnx, onnxscript or onnxruntime is missing.
        ExportError: If torch cannot export the model, or the outputs differ.
        FileExistsError: If there is another file of that name.
    """
    _check_installed("export_onnx")
    path = Path(file)
    if path.exists() and not (path.is_file() and PRODUCER in path.read_bytes()[:HEAD]):
        raise FileExistsError(f"file must be a new file or an ONNX file of torch, but {path} is something else.")
    plain, inputs, content = _export(model, example_input, Forward(forward, output))
    difference, allowed = _compare(content, plain, inputs, rtol, atol)
    if not difference <= allowed:
        raise ExportError(
            f"The ONNX file does not compute what the model computes: its outputs differ by {difference:.2g}, and no "
            f"more than {allowed:.2g} is allowed."
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, content)
    return path


class OnnxNetwork(nn.Module):
    """Network that onnxruntime computes, with as many threads as torch has when it is created.

    Args:
        model: A model that returns a tensor, or something that holds one.
        example_input: A batch, or a tuple or mapping of batches.

    Attributes:
        source: The model.

    Raises:
        MissingExtraError: If onnx, onnxscript or onnxruntime is missing.
        ExportError: If torch cannot export the model.
    """

    def __init__(self, model: nn.Module, example_input: ExampleInput) -> None:
        super().__init__()
        _check_installed("OnnxNetwork")
        self.source = model
        self._names = tuple(example_input) if isinstance(example_input, Mapping) else ()
        self._session = _start_session(_export(model, example_input, PLAIN)[2])

    def forward(self, *inputs: Tensor, **named: Tensor) -> Tensor:
        """Compute the first output on the CPU and move it to the device of the inputs."""
        inputs = (*inputs, *(named[name] for name in self._names))
        return _run(self._session, tuple(tensor.cpu() for tensor in inputs))[0].to(inputs[0].device)


def missing_packages() -> list[str]:
    """Return the packages that ONNX needs and that are not installed."""
    return [name for name in NEEDS if find_spec(name) is None]


def _check_installed(what: str) -> None:
    if missing := missing_packages():
        raise MissingExtraError(f"{what} needs {', '.join(missing)}: {INSTALL}.")


class _Positional(nn.Module):
    """Network that takes its inputs in a row, and returns one tensor.

    Args:
        model: The network.
        example_input: Inputs in the form in which the network takes them.
        forward: Its forward pass.
    """

    def __init__(self, model: nn.Module, example_input: ExampleInput, forward: Forward) -> None:
        super().__init__()
        self.model = model
        self.pass_inputs = forward
        self.names = tuple(example_input) if isinstance(example_input, Mapping) else ()
        self.single = isinstance(example_input, Tensor)

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return the outputs of the network."""
        whole: Any = inputs[0] if self.single else inputs
        return self.pass_inputs(self.model, dict(zip(self.names, inputs, strict=True)) if self.names else whole)


def _returns_tensors(result: object) -> bool:
    return all(isinstance(item, Tensor) for item in (result if isinstance(result, (tuple, list)) else [result]))


def _export(
    model: nn.Module, example_input: ExampleInput, forward: Forward
) -> tuple[nn.Module, tuple[Tensor, ...], bytes]:
    """Return the plain model, a batch for it and the content of the file, all for the CPU."""
    plain, inputs = finalize(model).cpu(), tuple(tensor.cpu() for tensor in check_example_input(example_input))
    names = list(example_input) if isinstance(example_input, Mapping) else None
    try:  # The exporter would take dozens of lines to say that the model does not take the example.
        with torch.no_grad():
            if names or not forward.is_default or not _returns_tensors(plain(*inputs)):
                plain = _Positional(plain, example_input, forward).eval()
                plain(*inputs)
    except ArgumentTypeError as error:  # what the model returned holds no tensor
        raise ExportError(f"{first_line(error, marked=True)}.") from error
    except Exception as error:
        raise ExportError(
            f"The model does not take example_input: {type(error).__name__}: {first_line(error)}."
        ) from error
    # A batch of two, since the exporter takes a batch of one for a constant.
    rows, batch = torch.arange(2) % len(inputs[0]), torch.export.Dim("batch")
    shapes = tuple({0: batch} for _ in inputs)
    with tempfile.TemporaryDirectory() as folder, _silence_exporter():
        made = Path(folder) / "model.onnx"
        try:
            torch.onnx.export(
                plain,
                tuple(tensor[rows] for tensor in inputs),
                made,
                dynamo=True,
                dynamic_shapes=(shapes,) if isinstance(plain, _Positional) else shapes,
                input_names=names,
                external_data=False,
                verbose=False,
            )
        except Exception as error:  # the exporter raises what it meets
            raise ExportError(f"torch cannot export the model: {type(error).__name__}: {first_line(error)}.") from error
        return plain, inputs, made.read_bytes()


def _start_session(content: bytes) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    # Threads that spin after a run would slow down whatever runs next, and be counted as its time.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def _run(session: Any, inputs: tuple[Tensor, ...]) -> list[Tensor]:
    names = [entry.name for entry in session.get_inputs()]
    given = {name: tensor.numpy() for name, tensor in zip(names, inputs, strict=True)}
    return [torch.from_numpy(output) for output in session.run(None, given)]


@contextmanager
def _silence_exporter() -> Iterator[None]:
    """Silence what the exporter says of packages that it could use, and of torch's own deprecations."""
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
    """Return the largest difference of the outputs on random batches, and the largest that is allowed."""
    session = _start_session(content)
    difference, size = 0.0, 0.0
    for batch in BATCHES:
        given = tuple(_draw_rows(tensor, batch) for tensor in inputs)
        result = model(*given)
        expected = [result] if isinstance(result, Tensor) else list(result)
        for one, other in zip(expected, _run(session, given), strict=True):
            gap = (one.double() - other.double()).abs()
            difference = max(difference, float(gap.max()) if gap.isfinite().all() else float("inf"))
            size = max(size, float(one.abs().max()))
    return difference, atol + rtol * size


def _draw_rows(tensor: Tensor, batch: int) -> Tensor:
    """Return noise of the example's scale; for anything else than floats, such as indices, its own rows."""
    rows = tensor.detach().cpu()[torch.arange(batch) % len(tensor)]
    if not rows.is_floating_point():
        return rows
    source = torch.Generator().manual_seed(batch)
    spread = max(float(tensor.float().std(unbiased=False)), 1.0)
    return rows + spread * torch.randn(rows.shape, generator=source).to(rows.dtype)
