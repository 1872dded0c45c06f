"""Storage of samples: in memory, or in a folder of safetensors files with an index in JSON."""

from __future__ import annotations

import hashlib
import math
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save
from torch import Tensor, nn

from spikeslab.errors import SpikeSlabError, first_line, mark, quote, warn
from spikeslab.files import (
    FolderExistsError,
    OversizedError,
    check_links,
    check_tensors,
    digest,
    encode_record,
    read_record,
    read_regular,
    sweep,
    write_atomically,
)
from spikeslab.posterior.part_files import PartFiles, encode_parts
from spikeslab.shards import Reduction, gather, part_of

Tensors: TypeAlias = dict[str, Tensor]

INDEX = "posterior.json"
VERSION = 2
WEIGHTINGS = ("uniform", "epsilon")
FIELDS = {"step", "weight", "sigma", "delta"}
"""Facts about a sample in the index."""
DIGEST, FILE = re.compile(r"[0-9a-f]{64}"), re.compile(r"\d+(/\d{1,6})?", re.ASCII)


def named_tensors(model: nn.Module, all_names: bool = False) -> Iterator[tuple[str, Tensor]]:
    """Yield parameters and buffers by name; a shared one once, or with ``all_names`` under each of its names."""
    yield from model.named_parameters(remove_duplicate=not all_names)
    yield from model.named_buffers(remove_duplicate=not all_names)


def snapshot(model: nn.Module) -> Tensors:
    """Return copies of all parameters and buffers on the CPU; sharded ones are gathered, one by one, on all ranks."""
    return {name: gather(tensor.detach()).to("cpu", copy=True).contiguous() for name, tensor in named_tensors(model)}


def read_tensors(sample: Tensors | Path) -> Tensors:
    """Return the tensors of a sample in a state, which holds them or the path of their file."""
    return _load(sample) if isinstance(sample, Path) else sample


def read_shapes(sample: Tensors | Path) -> dict[str, list[int]]:
    """Return the shapes of a sample's tensors by name; of a file its header alone is read."""
    if not isinstance(sample, Path):
        return {name: list(tensor.shape) for name, tensor in sample.items()}
    with safe_open(sample, framework="pt") as file:
        return {name: list(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118 - not a dict


class SamplesError(SpikeSlabError, ValueError):
    """A stored sample or the index of a posterior is missing, damaged or of another version."""


def _load(path: Path) -> Tensors:
    try:
        check_tensors(path)
    except OversizedError as error:
        raise SamplesError(f"Cannot read the sample {path}: {error}.") from error
    return load_file(path)


class Samples:
    """Tensors of samples in memory, by the step at which they were taken."""

    def __init__(self) -> None:
        self._tensors: dict[int, Tensors] = {}

    def write(self, key: int, tensors: Tensors) -> None:
        """Keep a sample, or replace it."""
        self._tensors[key] = tensors

    def read(self, key: int) -> Tensors:
        """Return a sample."""
        return self._tensors[key]

    def remove(self, key: int) -> None:
        """Delete a sample."""
        del self._tensors[key]

    def export(self, key: int) -> Tensors | Path:
        """Return a sample for a state: its tensors, or the file that holds them."""
        return self._tensors[key]

    def restore(self, samples: Mapping[int, Tensors | Path], index: dict[str, Any]) -> None:
        """Replace all samples by those of a state, their tensors or files, described by ``index``."""
        self._tensors = {key: read_tensors(sample) for key, sample in samples.items()}

    def write_index(self, index: Callable[[], dict[str, Any]]) -> None:
        """Keep the description of the samples, given as a function because it grows with their number."""


class DiskSamples(Samples):
    """Samples in a folder, each in a safetensors file, with an index that holds the SHA-256 of every file.

    Files are written under another name first, so that none is ever half written. A file that has changed since is
    refused; folders of version 1, without digests, are read as they are.

    Ranks that share a model write the parts that they have, a file each; the first of them writes the index.

    Attributes:
        directory: The folder, the same one for all ranks.
        is_writer: True if this process writes the index and removes samples.
    """

    def __init__(self, directory: Path, is_writer: bool = True) -> None:
        self.directory = directory
        self.is_writer = is_writer
        self._digests: dict[str, list[str]] = {}
        """Digests of each file, by the step of its sample, and the rank if there are several: ``"20"``, ``"20/3"``."""
        self._parts: dict[int, int] = {}
        """Number of files of each sample in parts."""
        self._index: dict[str, Any] | None = None
        self._checked: dict[str, tuple[int, int, int]] = {}
        self._expected: dict[str, str] = {}

    @classmethod
    def create(cls, directory: Path, exist_ok: bool = False) -> DiskSamples:
        """Use a folder without a posterior, or with ``exist_ok`` also one that has samples already."""
        samples = cls(directory)
        if samples.exists() and not exist_ok:
            raise FolderExistsError(
                f"{directory} holds a posterior already: load it with Posterior.load, or choose another "
                f"{mark('directory')}."
            )
        directory.mkdir(parents=True, exist_ok=True)
        sweep(directory)
        return samples

    def exists(self) -> bool:
        """Return True if the folder holds a posterior."""
        return (self.directory / INDEX).exists()

    def _path(self, key: int) -> Path:
        return self._file(f"{key}")

    def _file(self, name: str) -> Path:
        """Return the file of a sample, ``"20"``, or of the parts of a rank, ``"20/3"``."""
        key, _, rank = name.partition("/")
        return self.directory / f"sample-{int(key):09d}{f'-{int(rank):04d}' if rank else ''}.safetensors"

    def _files(self, key: int) -> list[str]:
        """Return the names of the files of a sample."""
        return [f"{key}/{rank}" for rank in range(self._parts[key])] if key in self._parts else [f"{key}"]

    def write(self, key: int, tensors: Tensors) -> None:
        """Keep a sample, or replace it."""
        content = save(tensors)
        digests = {f"{key}": hashlib.sha256(content).hexdigest()}
        self._announce(key, digests)
        write_atomically(self._path(key), content)
        self._keep(key, digests)

    def write_parts(self, key: int, tensors: Mapping[str, Tensor], ranks: Reduction) -> None:
        """Keep a sample of which every rank writes its parts; all of them must call it.

        Raises:
            SamplesError: On all ranks, if one of them cannot write.
        """
        content = encode_parts(tensors, ranks)
        found = ranks.gather_bytes(hashlib.sha256(content).digest())
        digests = {f"{key}/{rank}": digest.hex() for rank, digest in enumerate(found)}
        error: OSError | None = None
        try:
            self._announce(key, digests)
        except OSError as reason:
            error = reason
        if ranks.all(error is None):  # the index allows the new contents now
            try:
                write_atomically(self._file(f"{key}/{ranks.position}"), content)
            except OSError as reason:
                error = reason
        if not ranks.all(error is None):
            what = "another rank cannot write" if error is None else first_line(error)
            raise SamplesError(f"Cannot write the sample of step {key} to {self.directory}: {what}.") from error
        self._keep(key, digests)

    def _announce(self, key: int, digests: Mapping[str, str]) -> None:
        """Let the index allow the old and the new contents of a sample that is about to be replaced.

        A kill between the two files must leave a pair that fits.
        """
        if self._files(key)[0] in self._digests:
            for name, digest in digests.items():
                self._digests[name] = [*self._digests.get(name, [])[-1:], digest]
            if self._index is not None:
                self._write_index(self._index)

    def _keep(self, key: int, digests: Mapping[str, str]) -> None:
        """Take the digests of a sample that is written, in place of those that it had before."""
        self.forget(key)
        if f"{key}" not in digests:
            self._parts[key] = len(digests)
        self._digests |= {name: [digest] for name, digest in digests.items()}

    def forget(self, key: int) -> None:
        """Forget the digests of a sample."""
        for name in self._files(key):
            self._digests.pop(name, None)
        self._parts.pop(key, None)

    def read(self, key: int) -> Tensors:
        """Return a sample.

        Raises:
            SamplesError: If the file cannot be read or is not as it was written.
        """
        if key in self._parts:
            return self._read_parts(key)
        path = self._path(key)
        try:
            if not self._verify(f"{key}"):
                return load_file(path)
            tensors = _load(path)
        except (SafetensorError, OSError) as error:
            raise SamplesError(f"Cannot read the sample {path}: {first_line(error)}.") from error
        self._check(path, {name: _describe(tensor) for name, tensor in tensors.items()})
        _check_numbers(path, tensors)
        self._remember(f"{key}")
        return tensors

    def read_like(self, key: int, like: Mapping[str, Tensor]) -> Tensors:
        """Return this rank's parts of a sample whose tensors are spread as those of a model.

        Raises:
            SamplesError: As :meth:`read`.
        """
        if key in self._parts:
            return self._read_parts(key, like)
        return {name: part_of(tensor, like[name]) for name, tensor in self.read(key).items()}

    def _read_parts(self, key: int, like: Mapping[str, Tensor] | None = None) -> Tensors:
        """Return the tensors of a sample in parts, whole or as this rank has them."""
        names = self._files(key)
        path = self._file(names[0])
        try:
            changed = [self._verify(name) for name in names]
            for name in names:
                check_tensors(self._file(name))
            files = PartFiles([self._file(name) for name in names])
            if any(changed):
                self._check(path, {name: _name_kind(*kind) for name, kind in files.kinds.items()})
            tensors = {
                name: files.whole(name) if like is None else files.part(name, like[name]) for name in files.kinds
            }
        except SamplesError:
            raise
        except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
            raise SamplesError(f"Cannot read the sample {path} and those beside it: {first_line(error)}.") from error
        if any(changed):
            _check_numbers(path, tensors)
        for name in names:
            self._remember(name)
        return tensors

    def _verify(self, name: str) -> bool:
        """Return True if a file has changed since it was last checked.

        Raises:
            SamplesError: If it is not as it was written.
        """
        path = self._file(name)
        check_links(path)
        if self._checked.get(name) == _stamp(path):
            return False
        if name in self._digests and digest(path) not in self._digests[name]:
            raise SamplesError(f"The sample {path} has changed since it was written: {INDEX} has another SHA-256.")
        return True

    def _remember(self, name: str) -> None:
        self._checked[name] = _stamp(self._file(name))

    def expect(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Refuse samples whose tensors have other names, shapes or kinds than these, which are the model's."""
        self._expected = {name: _describe(tensor) for name, tensor in tensors}

    def _check(self, path: Path, found: Mapping[str, str]) -> None:
        expected = self._expected or found
        for name in {**expected, **found}:
            if found.get(name) != expected.get(name):
                raise SamplesError(
                    f"The sample {path} must have {expected.get(name, 'no tensor')} as {name}, but has "
                    f"{found.get(name, 'none')}."
                )

    def remove(self, key: int) -> None:
        """Delete a sample."""
        if self.is_writer:
            for name in self._files(key):
                self._file(name).unlink(missing_ok=True)
        self.forget(key)

    def export(self, key: int) -> Tensors | Path:
        """Return the file, or the tensors of a sample in parts."""
        return self.read(key) if key in self._parts else self._path(key)

    def restore(self, samples: Mapping[int, Tensors | Path], index: dict[str, Any]) -> None:
        """Replace all samples by those of a state; if that fails, the folder is as it was.

        Files that are there already stay, others are first written beside them, and none is removed before the end.
        """
        digests: dict[str, list[str]] = {}
        staged: dict[int, Path] = {}
        added: list[Path] = []
        allowed, described, parts = self._digests, self._index, self._parts
        try:
            for key, sample in samples.items():
                content, path = read_regular(sample) if isinstance(sample, Path) else save(sample), self._path(key)
                digests[f"{key}"] = [hashlib.sha256(content).hexdigest()]
                if path.is_symlink() or not path.is_file() or digest(path) not in digests[f"{key}"]:
                    staged[key] = path.with_name(f"{path.name}.{os.getpid()}.tmp")
                    write_atomically(staged[key], content)
            names = [f"{key}" for key in staged if f"{key}" in allowed]
            both = {name: [*allowed[name][-1:], *digests[name]] for name in names}
            if both and described is not None:  # as in `write`
                self._digests = allowed | both
                self._write_index(described)
                allowed = self._digests
            added = [self._path(key) for key in staged if not self._path(key).exists()]
            for key, temporary in staged.items():
                temporary.replace(self._path(key))
            self._digests, self._parts = digests, {}
            self._write_index(index)
        except BaseException:
            self._digests, self._index, self._parts = allowed, described, parts
            for path in (*staged.values(), *added):
                path.unlink(missing_ok=True)
            raise
        kept = {self._path(key) for key in samples}
        for path in self.directory.glob("sample-*.safetensors"):
            if path not in kept:
                path.unlink(missing_ok=True)

    def write_index(self, index: Callable[[], dict[str, Any]]) -> None:
        """Write the description of the samples."""
        self._write_index(index())

    def _write_index(self, index: dict[str, Any]) -> None:
        self._index = index
        if not self.is_writer:
            return
        names = [name for record in index["samples"] for name in self._files(record["step"])]
        for name in names:
            if name not in self._digests:  # a sample of version 1
                self._digests[name] = [digest(self._file(name))]
        digests = {name: self._digests[name] for name in names}
        write_atomically(self.directory / INDEX, encode_record({"version": VERSION, **index, "sha256": digests}))

    def read_index(self) -> dict[str, Any]:
        """Read the description of the samples.

        Raises:
            FileNotFoundError: If there is none.
            SamplesError: If it is damaged or of another version.
        """
        path = self.directory / INDEX
        if not path.exists():
            raise FileNotFoundError(f"{self.directory} holds no posterior: it has no {INDEX}.")
        index = read_record(path, SamplesError, (1, VERSION), sealed_since=VERSION)
        check_index(path, index)
        digests = index.pop("sha256", {})
        self._digests = {name: list(values) for name, values in digests.items()}
        self._parts = _count_parts(self._digests)
        self._index = {name: value for name, value in index.items() if name != "version"}
        return dict(self._index)


def _describe(tensor: Tensor) -> str:
    whole = not tensor.is_floating_point() and not tensor.is_complex()
    return f"{'integers' if whole else 'numbers'} of shape {list(tensor.shape)}"


def _name_kind(dtype: str, shape: Sequence[int]) -> str:
    """Return the same for a tensor in a file, whose dtype is one such as ``"F32"``."""
    return f"{'numbers' if dtype.startswith(('F', 'BF', 'C')) else 'integers'} of shape {list(shape)}"


def _stamp(path: Path) -> tuple[int, int, int]:
    """Return numbers that change with a file."""
    stat = path.stat()
    return stat.st_size, stat.st_mtime_ns, stat.st_ino


def _check_numbers(path: Path, tensors: Tensors) -> None:
    if bad := [name for name, tensor in tensors.items() if _has_nan(tensor)]:
        raise SamplesError(f"The sample {path} must hold numbers, but {quote(bad)} has NaN.")


def _has_nan(tensor: Tensor) -> bool:
    """Return True if one of the numbers is NaN; then the sum is not finite, which is tested faster."""
    numbers = tensor.float() if tensor.itemsize == 1 else tensor  # some dtypes of one byte lack these operations
    return not math.isfinite(abs(numbers.sum().item())) and bool(numbers.isnan().any())


def _count_parts(names: Iterable[str]) -> dict[int, int]:
    """Return the number of files of each sample in parts, given the names of all files."""
    return dict(Counter(int(name.partition("/")[0]) for name in names if "/" in name))


def _are_digests(value: object, steps: list[Any]) -> bool:
    """Return True if a value maps the files of all steps to lists of digests; a sample that is replaced has two."""
    if not isinstance(value, dict) or not all(FILE.fullmatch(name) for name in value):
        return False
    parts = _count_parts(value)
    files = {f"{step}/{rank}" for step in steps for rank in range(parts.get(step, 0))}
    if value.keys() != files | {f"{step}" for step in steps if step not in parts}:
        return False
    lists = all(isinstance(each, list) and each for each in value.values())
    return lists and all(isinstance(text, str) and DIGEST.fullmatch(text) for each in value.values() for text in each)


def check_index(path: Path | str, index: Mapping[str, Any]) -> None:
    """Raise if the description of the samples lacks a field or has an impossible value."""

    def is_number(value: object, high: float = sys.float_info.max) -> bool:
        return isinstance(value, int | float) and not isinstance(value, bool) and 0.0 <= value <= high

    def is_count(value: object) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and value >= 0

    try:
        records = index["samples"]
        steps = [record["step"] for record in records]
        problems = {
            "sha256": index.get("version") == VERSION and not _are_digests(index.get("sha256"), steps),
            "link": not isinstance(index.get("link", ""), str),
            "fields of a sample": any(record.keys() - FIELDS for record in records),
            "burn_in": not is_count(index["burn_in"]),
            "thin": not is_count(index["thin"]) or not index["thin"],
            "max_samples": index["max_samples"] is not None and not is_count(index["max_samples"]),
            "steps": not is_count(index["steps"]),
            "weights": index["weights"] not in WEIGHTINGS,
            "regression": not isinstance(index["regression"], bool),
            "shapes": not all(isinstance(s, list) and all(map(is_count, s)) for s in index["shapes"].values()),
            "samples": not all(map(is_count, steps)) or len(set(steps)) < len(steps),
            "weight of a sample": not all(is_number(record["weight"]) and record["weight"] for record in records)
            or not math.isfinite(sum(record["weight"] for record in records)),
            "sigma of a sample": not all(
                record.get("sigma") is None or is_number(record["sigma"]) for record in records
            ),
            "delta of a sample": not all(
                is_number(value, 1.0) for record in records for value in (record.get("delta") or {}).values()
            ),
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise SamplesError(f"{path} is not the index of a posterior: {type(error).__name__} {error}.") from error
    wrong = [name for name, bad in problems.items() if bad]
    if wrong:
        raise SamplesError(f"{path} has impossible values of {', '.join(wrong)}.")


class ZeroCounts:
    """Counts of zeros in samples that are read one at a time: the fewest in a sample, and those common to all."""

    def __init__(self) -> None:
        self.total = self.fewest = 0
        self._alive: Tensors = {}

    def add(self, tensors: Tensors) -> None:
        """Count the zeros of a sample."""
        alive = {name: tensor != 0 for name, tensor in tensors.items()}
        self.total = sum(tensor.numel() for tensor in tensors.values())
        zeros = self.total - sum(int(mask.sum()) for mask in alive.values())
        self.fewest = min(zeros, self.fewest) if self._alive else zeros
        self._alive = {name: mask | self._alive.get(name, mask) for name, mask in alive.items()}

    @property
    def common(self) -> int:
        """Number of values that are zero in all samples."""
        return self.total - sum(int(mask.sum()) for mask in self._alive.values())


def mean_tensors(samples: Iterable[tuple[Tensors, float]], last: Tensors) -> Tensors:
    """Return the weighted mean of samples, computed in double precision; integer tensors are the last sample's.

    Warns if the samples have different zeros, since the mean then has fewer than each of them. The sample
    weights sum to 1.
    """
    mean = {name: torch.zeros_like(tensor, dtype=torch.float64) for name, tensor in last.items()}
    zeros = ZeroCounts()
    for tensors, sample_weight in samples:
        for name, tensor in tensors.items():
            mean[name].add_(tensor, alpha=sample_weight)
        zeros.add(tensors)
    if zeros.common < zeros.fewest:
        warn(
            f"The samples have different zeros: their mean has {zeros.common}, each sample at least {zeros.fewest}. "
            "Freeze the mask before collecting, or prune the mean again and recalibrate it."
        )
    return {
        name: mean[name].to(tensor.dtype) if tensor.is_floating_point() else tensor for name, tensor in last.items()
    }
