"""A folder from elsewhere leads nowhere: nothing outside is read or written, and no claim of a size is believed."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from records import change_record
from runs import network, training
from safetensors.torch import load_file, save_file
from small import compress_small

import spikeslab as ss
from spikeslab.cli._stored_network import read_stored
from spikeslab.compression import load_sparse, save_sparse
from spikeslab.compression.sparse_format import FORMAT, _checksum, squeeze
from spikeslab.diagnostics.run_reader import read_run
from spikeslab.errors import SpikeSlabError
from spikeslab.sklearn import SpikeSlabRegressor, load_model, save_model
from spikeslab.training import Checkpoints, Every, RunFolder

pytestmark = pytest.mark.slow
MEGABYTE = 1 << 20
SECRET = b"secret"
RUN_ENTRIES = ("run.json", "metrics.jsonl", "evaluation.json", ".lock", "checkpoints", "posterior")


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a run, a compressed network and an estimator."""
    root = tmp_path_factory.mktemp("originals")
    training(root / "run").run(steps=56, folder=RunFolder(root / "run", checkpoint_every=Every(steps=40)))
    compress_small().save(root / "compressed")
    X = np.random.default_rng(0).standard_normal((30, 6))
    save_model(SpikeSlabRegressor(n_iter=40, random_state=0).fit(X, 2.0 * X[:, 1]), root / "model")
    return root


def _resume(root: Path) -> None:
    training(root / "run").run(steps=64, folder=RunFolder(root / "run", resume=True))


def _report(root: Path) -> None:
    read_run(root / "run")


def _resume_and_predict(root: Path) -> None:
    _resume(root)
    _predict(root)


def _predict(root: Path) -> None:
    ss.Posterior.load(root / "run" / "posterior", network()).predict(torch.ones(2, 6))


def _measure(root: Path) -> None:
    read_stored(root / "compressed", None)


def _load_sparse(root: Path) -> None:
    load_sparse(root / "compressed" / "sparse.safetensors")


def _measure_sparse(root: Path) -> None:
    read_stored(root / "compressed" / "sparse.safetensors", None)


def _load_model(root: Path) -> None:
    load_model(root / "model").predict(np.eye(6))


def _link(name: str) -> Callable[[Path, Path], None]:
    """Move a file or a folder outside, and put a link to it in its place."""

    def tamper(root: Path, outside: Path) -> None:
        (path,) = root.glob(name) if "*" in name else (root / name,)
        if path.exists():
            shutil.move(path, outside / path.name)
        else:
            (outside / path.name).write_bytes(SECRET)
        path.symlink_to(outside / path.name)

    return tamper


def _pipe(name: str) -> Callable[[Path, Path], None]:
    def tamper(root: Path, outside: Path) -> None:
        (root / name).unlink(missing_ok=True)
        os.mkfifo(root / name)

    return tamper


def _last_checkpoint(root: Path) -> Path:
    checkpoints = Checkpoints(root / "run" / "checkpoints")
    return checkpoints.path(checkpoints.steps()[-1])


def _sum_up(folder: Path) -> None:
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "SHA256SUMS")
    lines = (f"{hashlib.sha256(p.read_bytes()).hexdigest()}  {p.relative_to(folder).as_posix()}\n" for p in paths)
    (folder / "SHA256SUMS").write_text("".join(lines))


def _change_state(change: Callable[[dict[str, Any], Path], object]) -> Callable[[Path, Path], None]:
    """Change ``state.json`` and make its sums right again."""

    def tamper(root: Path, outside: Path) -> None:
        folder = _last_checkpoint(root)
        record = json.loads((folder / "state.json").read_text())
        change(record, outside)
        (folder / "state.json").write_text(json.dumps(record))
        _sum_up(folder)

    return tamper


def _escape(to: str) -> Callable[[Path, Path], None]:
    def change(record: dict[str, Any], outside: Path) -> None:
        record["files"] = dict.fromkeys(record["files"], to.replace("OUTSIDE", str(outside)))

    return _change_state(change)


def _nest(record: dict[str, Any], outside: Path) -> None:
    record["state"]["parts"] = {}
    for _ in range(900):
        record["state"] = {"a": record["state"]}


def _set_index(**changes: object) -> Callable[[Path, Path], None]:
    def tamper(root: Path, outside: Path) -> None:
        change_record(root / "run" / "posterior" / "posterior.json", lambda index: index.update(changes))

    return tamper


def _set_sample(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path, Path], None]:
    """Change the tensors of a sample, and the digest in the index."""

    def tamper(root: Path, outside: Path) -> None:
        path = sorted((root / "run" / "posterior").glob("sample-*"))[0]
        tensors = load_file(path)
        change(tensors)
        save_file(tensors, path)
        key, value = str(int(path.stem[7:])), [hashlib.sha256(path.read_bytes()).hexdigest()]
        change_record(path.parent / "posterior.json", lambda index: index["sha256"].update({key: value}))

    return tamper


def _claim(size: int | None = None, **changes: object) -> Callable[[Path, Path], None]:
    """Write a sparse file with a right checksum and a wrong index."""

    def tamper(root: Path, outside: Path) -> None:
        path = root / "compressed" / "sparse.safetensors"
        path.unlink()
        save_sparse({"a": torch.zeros(64, 64), "b": torch.rand(3, 3)}, path)
        index = {"bits": 4096, "counts": {"float32": 9}, "tensors": []} | changes
        streams = {name: tensor.numpy().tobytes() for name, tensor in load_file(path).items()}
        text = json.dumps(index).encode()
        streams["index"] = squeeze(text)
        head: dict[str, Any] = {"version": 1, "values": "fp32", "size": len(text) if size is None else size}
        head["sha256"] = _checksum(head, streams)
        tensors = {name: torch.frombuffer(bytearray(data), dtype=torch.uint8) for name, data in streams.items() if data}
        save_file(tensors, path, {FORMAT: json.dumps(head)})

    return tamper


def _tensor(shape: list[int], **changes: object) -> dict[str, Any]:
    return {"tensors": [{"name": "a", "dtype": "float32", "shape": shape, "stored": "float32", "kept": 0} | changes]}


def _bomb(root: Path, outside: Path) -> None:
    """Write a true sparse file of zeros, with a mask that is packed 7000 times smaller."""
    bits = 1 << 33
    path = root / "compressed" / "sparse.safetensors"
    _claim(bits=bits, counts={}, **_tensor([bits]))(root, outside)
    streams = {name: tensor.numpy().tobytes() for name, tensor in load_file(path).items()}
    streams["mask"] = squeeze(bytes(bits >> 9))  # a part of it must do
    text = json.dumps({"bits": bits, "counts": {}, **_tensor([bits])}).encode()
    head: dict[str, Any] = {"version": 1, "values": "fp32", "size": len(text)}
    head["sha256"] = _checksum(head, streams)
    tensors = {name: torch.frombuffer(bytearray(data), dtype=torch.uint8) for name, data in streams.items()}
    save_file(tensors, path, {FORMAT: json.dumps(head)})


def _padded_bomb(root: Path, outside: Path) -> None:
    """Write a true sparse file of a megabyte of noise and half a gigabyte of zeros."""
    path = root / "compressed" / "sparse.safetensors"
    path.unlink()
    save_sparse({"noise": torch.rand(1 << 18)}, path)
    streams = {name: tensor.numpy().tobytes() for name, tensor in load_file(path).items()}
    bits = 1 << 27
    noise = {"name": "noise", "dtype": "float32", "shape": [1 << 18], "stored": "float32"}
    index = {"bits": bits, "counts": {"float32": 1 << 18}, "tensors": [noise, *_tensor([bits])["tensors"]]}
    text = json.dumps(index).encode()
    streams |= {"mask": squeeze(bytes(bits >> 3)), "index": squeeze(text)}
    head: dict[str, Any] = {"version": 1, "values": "fp32", "size": len(text)}
    head["sha256"] = _checksum(head, streams)
    tensors = {name: torch.frombuffer(bytearray(data), dtype=torch.uint8) for name, data in streams.items()}
    save_file(tensors, path, {FORMAT: json.dumps(head)})


def _header(size: int, shape: list[int], dtype: str = "F32") -> Callable[[Path, Path], None]:
    """Write a safetensors file whose header claims more than there is."""

    def tamper(root: Path, outside: Path) -> None:
        header = json.dumps({"weight": {"dtype": dtype, "shape": shape, "data_offsets": [0, size]}}).encode()
        content = len(header).to_bytes(8, "little") + header + bytes(16)
        (root / "compressed" / "model.safetensors").write_bytes(content)

    return tamper


def _long_header(root: Path, outside: Path) -> None:
    (root / "compressed" / "model.safetensors").write_bytes((1 << 40).to_bytes(8, "little") + b"{}")


def _set_model(change: Callable[[dict[str, Any]], object]) -> Callable[[Path, Path], None]:
    return lambda root, outside: change_record(root / "model" / "model.json", change) and None


def _nested(name: str) -> Callable[[Path, Path], None]:
    return lambda root, outside: (root / name).write_text('{"a": ' + "[" * 200_000 + "]" * 200_000 + "}") and None


def _many(name: str, item: str = "[]") -> Callable[[Path, Path], None]:
    """Write 30 MB of JSON with so many parts that they would take a gigabyte."""
    return lambda root, outside: (root / name).write_text('{"a": [' + f"{item}," * 10_000_000 + "0]}") and None


def _many_lines(root: Path, outside: Path) -> None:
    (root / "run" / "metrics.jsonl").write_bytes(b"{}\n" * 10_000_000)


def _many_names(root: Path, outside: Path) -> None:
    (root / "run" / "metrics.jsonl").write_bytes(b"".join(b'{"%d": 0}\n' % k for k in range(3_000_000)))


def _other_names(root: Path, outside: Path) -> None:
    """Write a log of 32 MB in whose records no name is there twice."""
    with (root / "run" / "metrics.jsonl").open("wb") as file:
        for step in range(100):
            names = b",".join(b'"%x":0' % (30_000 * step + k) for k in range(30_000))
            file.write(b'{"step": %d, %b}\n' % (step, names))


def _set_log(line: bytes) -> Callable[[Path, Path], None]:
    return lambda root, outside: (root / "run" / "metrics.jsonl").write_bytes(line + b"\n") and None


def _long_line(root: Path, outside: Path) -> None:
    _many("run/metrics.jsonl", "{}")(root, outside)
    with (root / "run" / "metrics.jsonl").open("a") as file:
        file.write("\n")


def _many_states(root: Path, outside: Path) -> None:
    folder = _last_checkpoint(root)
    _many(str(folder / "state.json"))(root, outside)
    _sum_up(folder)


def _many_tensors(name: str) -> Callable[[Path, Path], None]:
    """Write a safetensors file of 25 MB with half a million empty tensors, and make the checksums right again."""

    def tamper(root: Path, outside: Path) -> None:
        (path,) = sorted(root.glob(name))[:1]
        names = ",".join(f'"{k}":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}' for k in range(500_000))
        path.write_bytes((len(names) + 2).to_bytes(8, "little") + f"{{{names}}}".encode())
        found = hashlib.sha256(path.read_bytes()).hexdigest()
        if path.name.startswith("sample-"):
            key, index = str(int(path.stem[7:])), path.parent / "posterior.json"
            change_record(index, lambda record: record["sha256"].update({key: [found]}))
        if (path.parent / "model.json").exists():
            change_record(path.parent / "model.json", lambda record: record.update(sha256=found))
        if path.name == "tensors.safetensors":
            _sum_up(path.parent)

    return tamper


def _hard_lock(root: Path, outside: Path) -> None:
    (outside / "notes").write_bytes(SECRET)
    (root / "run" / ".lock").unlink()
    os.link(outside / "notes", root / "run" / ".lock")


def _stale(root: Path, outside: Path) -> None:
    """Put a link in the place of every temporary file that this process could write."""
    (outside / "notes").write_bytes(SECRET)
    for name in ("run.json", "evaluation.json", "metrics.jsonl"):
        for process in range(os.getpid(), os.getpid() + 40):
            (root / "run" / f"{name}.{process}.tmp").symlink_to(outside / "notes")


HUGE = 1 << 33
TAMPERED: dict[str, tuple[Callable[[Path, Path], None], Callable[[Path], None]]] = {
    **{f"link {name}, resume": (_link(f"run/{name}"), _resume) for name in RUN_ENTRIES},
    **{f"link {name}, report": (_link(f"run/{name}"), _report) for name in RUN_ENTRIES if name != ".lock"},
    "link step": (_link("run/checkpoints/step-*56"), _resume),
    "link state": (_link("run/checkpoints/step-*56/state.json"), _resume),
    "link tensors": (_link("run/checkpoints/step-*56/tensors.safetensors"), _resume),
    "link sums": (_link("run/checkpoints/step-*56/SHA256SUMS"), _resume),
    "link files": (_link("run/checkpoints/step-*56/files"), _resume),
    "link a file": (_link("run/checkpoints/step-*56/files/000000*"), _report),
    "link index": (_link("run/posterior/posterior.json"), _predict),
    "link sample": (_link("run/posterior/sample-*35.safetensors"), _predict),
    "link model": (_link("compressed/model.safetensors"), _measure),
    "link report": (_link("compressed/report.json"), _measure),
    "link recipe": (_link("compressed/recipe.py"), _measure),
    "link model.json": (_link("model/model.json"), _load_model),
    "link arrays": (_link("model/model.safetensors"), _load_model),
    "hard link lock": (_hard_lock, _resume),
    "pipe run.json": (_pipe("run/run.json"), _report),
    "pipe metrics": (_pipe("run/metrics.jsonl"), _resume),
    "pipe lock": (_pipe("run/.lock"), _resume),
    "escape up": (_escape("../../../../outside/run.json"), _resume),
    "escape absolute": (_escape("OUTSIDE/secret"), _resume),
    "escape dots": (_escape(".."), _resume),
    "escape nothing": (_escape(""), _report),
    "escape drive": (_escape("C:\\secret"), _report),
    "nested state": (_change_state(_nest), _resume),
    "nested run.json": (_nested("run/run.json"), _report),
    "nested index": (_nested("run/posterior/posterior.json"), _predict),
    "nested model.json": (_nested("model/model.json"), _load_model),
    "many lists in run.json": (_many("run/run.json"), _report),
    "many objects in the index": (_many("run/posterior/posterior.json", "{}"), _predict),
    "many keys in model.json": (_many("model/model.json", '{"":0}'), _load_model),
    "many lists in report.json": (_many("compressed/report.json"), _measure),
    "many lists in evaluation.json": (_many("run/evaluation.json"), _report),
    "many lists in the state": (_many_states, _resume),
    "many lines in the log": (_many_lines, _report),
    "many names in the log": (_many_names, _report),
    "a line of many parts in the log": (_long_line, _report),
    "other names in every record of the log": (_other_names, _report),
    "a step of 400 digits": (_set_log(b'{"step": 1%b}' % (b"0" * 400)), _report),
    "many tensors in a sample": (_many_tensors("run/posterior/sample-*"), _predict),
    "many tensors in a checkpoint": (_many_tensors("run/checkpoints/step-*56/tensors.safetensors"), _resume),
    "many tensors in a model": (_many_tensors("model/model.safetensors"), _load_model),
    "many tensors in a network": (_many_tensors("compressed/model.safetensors"), _measure),
    "negative step": (_set_index(samples=[{"step": -1, "weight": 1.0}]), _predict),
    "step with a path": (_set_index(samples=[{"step": "../../x", "weight": 1.0}]), _predict),
    "NaN in a sample": (_set_sample(lambda tensors: tensors["0.weight"].fill_(torch.nan)), _predict),
    "integers in a sample": (_set_sample(lambda t: t.update({"0.weight": t["0.weight"].long()})), _predict),
    "huge shapes": (_set_index(shapes={"0.weight": [HUGE, HUGE]}), _predict),
    "sparse shape": (_claim(**_tensor([HUGE])), _load_sparse),
    "sparse shapes": (_claim(**_tensor([1 << 31, 1 << 31, 1 << 31])), _load_sparse),
    "sparse negative": (_claim(**_tensor([-64, -64])), _load_sparse),
    "sparse bits": (_claim(bits=1 << 40), _load_sparse),
    "sparse counts": (_claim(counts={"float32": 1 << 40}), _load_sparse),
    "sparse index": (_claim(size=1 << 40), _load_sparse),
    "sparse dtype": (_claim(**_tensor([1 << 24], dtype="complex128")), _load_sparse),
    "sparse no dtype": (_claim(**_tensor([4], dtype="load")), _load_sparse),
    "sparse bomb": (_bomb, _load_sparse),
    "padded sparse bomb": (_padded_bomb, _load_sparse),
    "padded sparse bomb, command": (_padded_bomb, _measure_sparse),
    "dense shape": (_header(4 * HUGE, [HUGE]), _measure),
    "dense dtype": (_header(16, [1], dtype="F9999"), _measure),
    "dense header": (_long_header, _measure),
    "classes": (
        _set_model(
            lambda r: r.update(estimator="SpikeSlabClassifier", classes={"dtype": "<U500000000", "values": [1]})
        ),
        _load_model,
    ),
    "many features": (_set_model(lambda record: record.update(n_features=1 << 40)), _load_model),
}
HARMLESS = {
    "links of temporary files": (_stale, _resume),
    "link sample, resume": (_link("run/posterior/sample-*35.safetensors"), _resume_and_predict),
}


def _run_in_fork(work: Callable[[], object]) -> tuple[str, int]:
    """Return how a function ended in a child, and by how much it raised the child's peak memory."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins at what the child has now
        before, ended = _peak_now(), "passed"
        try:
            work()
        except SpikeSlabError as error:
            ended = f"refused: {error}"
        except BaseException:
            ended = f"failed: {traceback.format_exc()}"
        os.write(writer, json.dumps([ended, _peak_now() - before]).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        content = pipe.read()
    os.waitpid(child, 0)
    ended, memory = json.loads(content or b'["killed", 0]')
    return ended, memory


def _peak_now() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def _read_all(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the peak of memory is read from /proc")
@pytest.mark.parametrize("name", [*TAMPERED, *HARMLESS])
def test_a_tampered_folder_is_refused_and_leads_nowhere(name: str, originals: Path, tmp_path: Path) -> None:
    tamper, use = (TAMPERED | HARMLESS)[name]
    root, outside = tmp_path / "root", tmp_path / "outside"
    shutil.copytree(originals, root)
    outside.mkdir()
    (outside / "secret").write_bytes(SECRET)
    tamper(root, outside)
    before = _read_all(outside)
    size = sum(path.stat().st_size for path in root.rglob("*") if path.is_file())
    ended, memory = _run_in_fork(lambda: use(root))
    assert ended.startswith("passed" if name in HARMLESS else "refused: "), ended
    assert _read_all(outside) == before
    assert memory < 2 * size + 200 * MEGABYTE


def test_there_are_fifty_tampered_folders() -> None:
    assert len(TAMPERED) + len(HARMLESS) >= 50
