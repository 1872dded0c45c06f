"""A file that was changed is refused in a sentence that names it, or loads as it was: no change is silent."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from runs import network, same, training
from small import compress_small
from small import data as small_data

import spikeslab as ss
from spikeslab.cli._stored_network import read_stored
from spikeslab.compression import load_sparse
from spikeslab.diagnostics.run_reader import read_run
from spikeslab.errors import SpikeSlabError
from spikeslab.files import read_record, write_atomically, write_record
from spikeslab.paper._runs import read_result, write_result
from spikeslab.paper.grid import Cell, CellFile
from spikeslab.sklearn import SpikeSlabRegressor, load_model, read_metadata, save_model
from spikeslab.states import encode_tensors, read_tensors_file
from spikeslab.training import CheckpointError, Checkpoints, Every, MetricsLog, RunFolder
from spikeslab.training.run_folder import read_run_record

pytestmark = pytest.mark.slow
CHANGES = 5000


class Kind(NamedTuple):
    """Kind of file: a pattern of its paths, the function that reads it, and the path that an error names."""

    pattern: str
    read: Callable[[Path, Path], Any]
    named: Callable[[Path], Path] = lambda path: path


def _read_posterior(root: Path, path: Path) -> Any:
    posterior = ss.Posterior.load(root / "run" / "posterior", network())
    return posterior.index(), [posterior.tensors(index) for index in range(len(posterior))]


def _read_log(root: Path, path: Path) -> Any:
    checkpoint = Checkpoints(root / "run" / "checkpoints").latest()
    assert checkpoint is not None
    log = MetricsLog(path)
    log.check(checkpoint.state["log"])
    return log.read()


def _read_model(root: Path, path: Path) -> Any:
    model = load_model(root / "model")
    predictions = model.predict(np.eye(6)), model.pip_, model.coef_
    return [array.tobytes() for array in predictions], repr(model.get_params()), read_metadata(root / "model")


def _read_network(root: Path, path: Path) -> Any:
    found = read_stored(root / "compressed", None)
    return found.tensors, found.weights


KINDS = {
    "record": Kind("run/run.json", lambda root, path: read_run_record(path, CheckpointError)),
    "log": Kind("run/metrics.jsonl", _read_log),
    "evaluation": Kind("run/evaluation.json", lambda root, path: read_run(root / "run").evaluation),
    "checkpoint": Kind(
        "run/checkpoints/step-*/*.*",
        lambda root, path: Checkpoints(root / "run" / "checkpoints").load(int(path.parent.name[5:])).state,
        lambda path: path.parent,
    ),
    "sums": Kind(
        "run/checkpoints/step-*/SHA256SUMS",
        lambda root, path: Checkpoints(root / "run" / "checkpoints").load(int(path.parent.name[5:])).state,
        lambda path: path.parent,
    ),
    "files": Kind(
        "run/checkpoints/step-*/files/*",
        lambda root, path: Checkpoints(root / "run" / "checkpoints").load(int(path.parents[1].name[5:])).state,
        lambda path: path.parents[1],
    ),
    "posterior": Kind("run/posterior/*", _read_posterior),
    "network": Kind("compressed/model.safetensors", _read_network),
    "report": Kind("compressed/report.json", _read_network),
    "sparse": Kind("compressed/sparse.safetensors", lambda root, path: load_sparse(path)),
    "estimator": Kind("model/*", _read_model),
    "result": Kind("study/result.json", lambda root, path: read_result(path.parent)),
    "trial": Kind("study/trial.json", lambda root, path: read_record(path, CheckpointError)),
    "predictions": Kind("study/predictions.safetensors", lambda root, path: read_tensors_file(path, CheckpointError)),
    "cells": Kind("study/cells.jsonl", lambda root, path: list(CellFile.load(path, {"--steps": 1}).records.items())),
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a file of every kind."""
    root = tmp_path_factory.mktemp("files")
    torch.manual_seed(0)
    place = RunFolder(root / "run", log_every=Every(steps=8), checkpoint_every=Every(steps=40), seed=1, command="make")
    training(root / "run").run(steps=56, folder=place)
    compress_small(val_loader=[small_data(5)]).save(root / "compressed")
    X = np.random.default_rng(0).standard_normal((30, 6))
    save_model(SpikeSlabRegressor(n_iter=40, random_state=0).fit(X, 2.0 * X[:, 1]), root / "model", {"target": "y"})
    study = root / "study"
    study.mkdir()
    write_result(study, {"settings": {"lr": 0.1, "name": "a"}, "test": {"point": {"accuracy": 0.5, "nll": 1.25}}})
    write_record(study / "trial.json", {"dataset": "mnist", "epochs": 3, "average": {"accuracy": 0.5, "rows": 20}})
    write_atomically(study / "predictions.safetensors", encode_tensors({"test.point": torch.rand(20, 10)}))
    cells = CellFile(study / "cells.jsonl", {"--steps": 1})
    for seed in range(6):
        cells.add(Cell("gibbs", seed), {"error": 0.1 * seed, "found": [seed, 2]})
    return root


def _change(content: bytes, source: random.Random) -> bytes:
    """Flip a bit, cut, insert bytes, or swap two blocks."""
    place = source.randrange(len(content))
    match source.randrange(4):
        case 0:
            return content[:place] + bytes([content[place] ^ 1 << source.randrange(8)]) + content[place + 1 :]
        case 1:
            return content[:place]
        case 2:
            return content[:place] + source.randbytes(source.randint(1, 8)) + content[place:]
    size = source.randint(1, max(1, min(64, len(content) // 3)))
    first = source.randrange(len(content) - 2 * size + 1)
    second = source.randrange(first + size, len(content) - size + 1)
    blocks = content[second : second + size], content[first + size : second], content[first : first + size]
    return content[:first] + b"".join(blocks) + content[second + size :]


def _cases(root: Path) -> Iterator[tuple[str, Path, Any]]:
    for name, kind in KINDS.items():
        paths = sorted(path for path in root.glob(kind.pattern) if path.is_file())
        assert paths, f"there is no file of the kind {name}"
        for path in paths:
            yield name, path, kind.read(root, path)


def test_no_change_of_a_file_is_silent(root: Path) -> None:
    source = random.Random(22)
    cases = list(_cases(root))
    share = -(-CHANGES // len(KINDS))
    done, refused = 0, 0
    for name, path, expected in cases:
        kind, content = KINDS[name], path.read_bytes()
        for _ in range(-(-share // sum(name == other for other, *_ in cases))):
            changed = _change(content, source)
            path.write_bytes(changed)
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    found = kind.read(root, path)
            except SpikeSlabError as error:
                if str(kind.named(path)) not in str(error):
                    pytest.fail(f"{path} is not named: {error}")
                refused += 1
            else:
                # A cell that is cut off at the end is computed again.
                whole = expected[: len(found)] if name == "cells" else expected
                assert same(found, whole), f"a change of {path} is silent: {_differences(content, changed)}"
            done += 1
        path.write_bytes(content)
        assert same(kind.read(root, path), expected)
    assert done >= CHANGES
    assert refused > 0.9 * done


def _differences(content: bytes, changed: bytes) -> str:
    place = next((i for i, (a, b) in enumerate(zip(content, changed, strict=False)) if a != b), len(changed))
    return f"{content[max(place - 30, 0) : place + 30]!r} became {changed[max(place - 30, 0) : place + 30]!r}"
