"""Files of data sets: from a folder, or downloaded from their publishers, and accepted only if no byte has changed."""

from __future__ import annotations

import gzip
import hashlib
import os
import tarfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "SPIKESLAB_DATA"


class DataError(ValueError):
    """What is wrong with the files of a data set, in one sentence."""


@dataclass(frozen=True)
class Published:
    """The files of a data set.

    Attributes:
        folder: Where they lie below a folder of data sets.
        digests: The SHA-256 of each file.
        url: Where they come from.
        downloads: What to fetch below ``url``, and the hash of each as pooch writes it: for every file itself plus
            ``.gz``, or one tar archive that holds them all.
    """

    folder: str
    digests: Mapping[str, str]
    url: str
    downloads: Mapping[str, str]


def data_folder(data_dir: str | os.PathLike[str] | None) -> Path | None:
    """The folder of data sets: the one given, or that of ``SPIKESLAB_DATA``, or none.

    Raises:
        DataError: If it is not a folder.
    """
    chosen = data_dir or os.environ.get(VARIABLE)
    if not chosen:
        return None
    folder = Path(chosen).expanduser()
    if not folder.is_dir():
        name = "data_dir" if data_dir else VARIABLE
        raise DataError(f"{name} must be a folder with data sets, but got {folder}, which is none.")
    return folder


def read_published(source: Published, data_dir: str | os.PathLike[str] | None = None) -> dict[str, bytes]:
    """Contents of the files, in the order of ``source.digests``.

    Args:
        source: Which files.
        data_dir: Folder of data sets; each file lies in ``source.folder`` below it, as it is or with ``.gz``, or in it
            if it is the right one there (data sets share names). By default the one of ``SPIKESLAB_DATA``, or else they
            are downloaded once into a cache.

    Raises:
        DataError: If a file is missing, cut, altered or of another data set; its path is named.
    """
    folder = data_folder(data_dir)
    if folder is None:
        return _download(source)
    return {name: _read(folder, source.folder, name, value) for name, value in source.digests.items()}


def _read(folder: Path, below: str, name: str, digest: str) -> bytes:
    for path in _versions(folder / below / name):
        return _check(path, _content(path), digest)
    others = _versions(folder / name)
    for path in others:
        if _digest(content := _content(path)) == digest:
            return content
    odd = f", and {others[0]} is of another data set or altered" if others else ""
    raise DataError(
        f"data_dir must hold {below}/{name} (or {name}.gz), but {folder} does not{odd}: put the publisher's file into "
        f"{folder / below}, or give no data_dir (and no {VARIABLE}) to download it."
    )


def _versions(path: Path) -> list[Path]:
    """What is there of a file: itself, and the file compressed."""
    return [each for each in (path, path.with_name(f"{path.name}.gz")) if each.is_file()]


def _content(path: Path) -> bytes:
    content = path.read_bytes()
    return _unzip(path, content) if path.suffix == ".gz" else content


def _unzip(path: Path, content: bytes) -> bytes:
    try:
        return gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} must be a whole gzip file, but got: {error}.") from error


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
    """Download a file into a cache, unless it is there.

    Args:
        url: Where it is.
        known_hash: Its hash as pooch writes it, or ``None``.
        folder: Folder of the cache.

    Raises:
        DataError: If it cannot be reached, or has another hash.
        ImportError: If pooch is not installed.
    """
    way_out = f"put the files into a folder and give it as data_dir (--data-dir, or {VARIABLE})"
    try:
        import pooch
    except ImportError as error:
        raise ImportError(
            f"Downloading data needs the package 'pooch', which is not installed: pip install 'spikeslab[cli]', or "
            f"{way_out}."
        ) from error
    try:
        return Path(pooch.retrieve(url, known_hash, url.rpartition("/")[2], Path(pooch.os_cache("spikeslab")) / folder))
    except OSError as error:
        raise DataError(f"{url} must be reachable, but got a {type(error).__name__}: {way_out}.") from error
    except ValueError as error:
        raise DataError(f"{url} must be the known file, but it has another hash: {way_out}.") from error


def _download(source: Published) -> dict[str, bytes]:
    contents: dict[str, bytes] = {}
    for name, known_hash in source.downloads.items():
        path = fetch(f"{source.url}/{name}", known_hash, source.folder)
        if name.endswith(".tar.gz"):
            contents |= _members(path, source)
        else:
            contents[name.removesuffix(".gz")] = _content(path)
    return {name: _check(name, contents[name], value) for name, value in source.digests.items()}


def _members(archive: Path, source: Published) -> dict[str, bytes]:
    """The files of a tar archive, which is read and never unpacked."""
    with tarfile.open(archive) as tar:
        files = {Path(member.name).name: tar.extractfile(member) for member in tar if member.isfile()}
        return {name: file.read() for name in source.digests if (file := files.get(name)) is not None}
