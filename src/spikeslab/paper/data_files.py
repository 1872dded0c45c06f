"""Files of data sets: read from a folder or downloaded from their publishers, and checked by their SHA-256."""

from __future__ import annotations

import gzip
import hashlib
import os
import tarfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from spikeslab.errors import MissingExtraError, SpikeSlabError, first_line, mark

VARIABLE = "SPIKESLAB_DATA"
"""Environment variable with the default of ``data_dir``."""


class DataError(SpikeSlabError, ValueError):
    """A file of a data set is missing, altered or cannot be downloaded."""


@dataclass(frozen=True)
class Published:
    """Files of a data set.

    Attributes:
        folder: Folder of the files below ``data_dir``.
        digests: SHA-256 of each file.
        url: Address of the folder with the downloads.
        downloads: Names below ``url`` and their hashes as pooch writes them: every file with ``.gz``, or one tar
            archive with all files.
    """

    folder: str
    digests: Mapping[str, str]
    url: str
    downloads: Mapping[str, str]


def data_folder(data_dir: str | os.PathLike[str] | None) -> Path | None:
    """Return the folder of data sets: ``data_dir``, or that of ``SPIKESLAB_DATA``, or ``None``.

    Raises:
        DataError: If it is not a folder.
    """
    chosen = data_dir or os.environ.get(VARIABLE)
    if not chosen:
        return None
    folder = Path(chosen).expanduser()
    if not folder.is_dir():
        name = mark("data_dir") if data_dir else VARIABLE
        raise DataError(f"{name} must be a folder with data sets, but {folder} is not a folder.")
    return folder


def read_published(source: Published, data_dir: str | os.PathLike[str] | None = None) -> dict[str, bytes]:
    """Return the contents of the files, in the order of ``source.digests``.

    A file lies in ``source.folder`` below the :func:`data_folder`, as it is or with ``.gz``, or directly in it. Without
    a folder the files are downloaded once into a cache.

    Raises:
        DataError: If a file is missing, truncated, altered or of another data set.
    """
    folder = data_folder(data_dir)
    if folder is None:
        return _download(source)
    return {name: _read(folder, source.folder, name, value) for name, value in source.digests.items()}


def _read(folder: Path, below: str, name: str, digest: str) -> bytes:
    for path in _versions(folder / below / name):
        return _check(path, _content(path), digest)
    others = _versions(folder / name)
    for path in others:  # data sets share names
        if _digest(content := _content(path)) == digest:
            return content
    odd = f", and {others[0]} is of another data set or altered" if others else ""
    raise DataError(
        f"{mark('data_dir')} must hold {below}/{name} (or {name}.gz), but {folder} does not{odd}: put the publisher's "
        f"file into {folder / below}, or give no {mark('data_dir')} (and no {VARIABLE}) to download it."
    )


def _versions(path: Path) -> list[Path]:
    return [each for each in (path, path.with_name(f"{path.name}.gz")) if each.is_file()]


def _content(path: Path) -> bytes:
    content = path.read_bytes()
    if path.suffix != ".gz":
        return content
    try:
        return gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} must be a whole gzip file, but got: {first_line(error)}.") from error


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _check(file: Path | str, content: bytes, expected: str) -> bytes:
    found = _digest(content)
    if found != expected:
        raise DataError(
            f"{file} must be the publisher's file (SHA-256 {expected[:12]}…), but got one of {len(content):,} bytes "
            f"(SHA-256 {found[:12]}…): it is cut or altered, so fetch it again."
        )
    return content


def fetch(url: str, known_hash: str | None, folder: str) -> Path:
    """Download a file into a folder of the cache, unless it is there, and return its path.

    ``known_hash`` is the hash as pooch writes it.

    Raises:
        DataError: If the file cannot be reached or has another hash.
        MissingExtraError: If pooch is not installed.
    """
    remedy = f"put the files into a folder and give it as {mark('data_dir')} (or {VARIABLE})"
    try:
        import pooch
    except ImportError as error:
        raise MissingExtraError(
            "Downloading data needs the package 'pooch', which is not installed: pip install 'spikeslab[cli]', or put "
            f"the files into a folder and name it in {VARIABLE}."
        ) from error
    try:
        return Path(pooch.retrieve(url, known_hash, url.rpartition("/")[2], Path(pooch.os_cache("spikeslab")) / folder))
    except OSError as error:
        raise DataError(f"{url} must be reachable, but got a {type(error).__name__}: {remedy}.") from error
    except ValueError as error:
        raise DataError(f"{url} must be the known file, but it has another hash: {remedy}.") from error


def _download(source: Published) -> dict[str, bytes]:
    contents: dict[str, bytes] = {}
    for name, known_hash in source.downloads.items():
        path = fetch(f"{source.url}/{name}", known_hash, source.folder)
        if name.endswith(".tar.gz"):
            with tarfile.open(path) as tar:  # read, never unpacked
                files = {Path(member.name).name: tar.extractfile(member) for member in tar if member.isfile()}
                contents |= {key: file.read() for key in source.digests if (file := files.get(key)) is not None}
        else:
            contents[name.removesuffix(".gz")] = _content(path)
    return {name: _check(name, contents[name], value) for name, value in source.digests.items()}
