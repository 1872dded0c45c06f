"""Files that are whole or absent, even after a power cut, and that say so if they were changed since.

Records carry a checksum: JSON objects of their content, lines of JSON also of the line before. Links, pipes and devices
are neither read nor written, so a folder from elsewhere cannot lead out of itself.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from spikeslab.errors import ArgumentValueError, Phrase, SpikeSlabError, first_line, mark

CHECKSUM, SEALED = "checksum", "sealed"
"""Keys of a record, the last and the first: where the name of the checksum is damaged, the other says it is missing."""
SEAL_SIZE = len(f', "{CHECKSUM}": ""}}') + 16
"""Bytes at the end of a line of JSON that hold its checksum."""
TEMPORARY = re.compile(r"(.+)\.(\d+)\.tmp")
JOURNAL = re.compile(r"\.pending-(\d+)\.json")
"""Name of the journal of a process that renames several files: those in it are complete, and all are to be renamed."""
JSON_COSTS = {b"{": 110, b"[": 88, b":": 130, b",": 75}
"""Bytes that JSON takes at most for each of these signs, parsed and while its checksum is computed (CPython 3.11)."""
TENSOR_COST, SLOT_COST = 1500, 100
"""Bytes of an empty tensor in a safetensors file, and of a place in a set that grows."""
MEMORY_FLOOR = 200 << 20
"""Bytes that reading a record may take whatever its length; beyond them it may take a multiple of its length."""
LINES_FLOOR = MEMORY_FLOOR // 2
"""The same for all records of a log together, and for the one of them that is being read."""
SHORT = LINES_FLOOR // 400
"""Bytes of a line that takes less than that whatever its signs."""
RECORD_FACTOR = 2
SAFE = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


class FolderExistsError(SpikeSlabError, FileExistsError):
    """A folder holds something that would be replaced."""


class ForeignFileError(SpikeSlabError, OSError):
    """Something in a folder is a link, a pipe or a device, which could lead out of the folder."""


class OversizedError(ValueError):
    """A file has more parts than its length accounts for, so that reading it might take all memory."""


def check_free(folder: Path, argument: str) -> None:
    """Raise unless a folder is new or empty.

    Raises:
        ArgumentValueError: If it is a file.
        FolderExistsError: If it holds something.
    """
    if folder.exists() and not folder.is_dir():
        raise ArgumentValueError(argument, "must be a folder", Phrase(f"{folder} is a file"))
    if folder.exists() and any(folder.iterdir()):
        raise FolderExistsError(f"{mark(argument)} must be a new or an empty folder, but {folder} holds something.")


def check_links(*paths: Path) -> None:
    """Raise if one of the paths is a symbolic link.

    Raises:
        ForeignFileError: If one is; its target need not exist.
    """
    for path in paths:
        if path.is_symlink():
            raise ForeignFileError(f"{path} is a symbolic link, which is not followed: put what it points to there.")


def check_name(name: object) -> str:
    """Return the name of a file in a folder if it cannot lead out of it.

    >>> check_name("000000-sample.safetensors")
    '000000-sample.safetensors'
    >>> check_name("../secret")
    Traceback (most recent call last):
    ValueError: '../secret' is not the name of a file in the folder
    """
    if not isinstance(name, str) or name in ("", ".", "..") or any(sign in name for sign in "/\\\0:"):
        raise ValueError(f"{name!r} is not the name of a file in the folder")
    return name


def open_regular(path: Path, flags: int = os.O_RDONLY, *, follow: bool = False) -> int:
    """Open a file and return its handle; a file that the user names may be a link, which ``follow`` allows.

    Raises:
        ForeignFileError: If it is a link, a pipe, a folder or a device.
    """
    if not follow:
        check_links(path)
    handle = os.open(path, flags | (SAFE & ~getattr(os, "O_NOFOLLOW", 0) if follow else SAFE), 0o666)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise ForeignFileError(f"{path} is not a regular file.")
    return handle


def read_regular(path: Path, *, follow: bool = False) -> bytes:
    """Return the content of a file that is not a pipe, a folder or a device, whose content may never end, nor a link.

    ``follow`` allows a link.
    """
    with os.fdopen(open_regular(path, follow=follow), "rb") as file:
        return file.read()


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file under another name, flush it to the disk, and rename it, which replaces ``path`` in one step.

    The other name is this process's own: several may write the same table, and the last one wins. A link in the place
    of the file is replaced, not followed.
    """
    (temporary,) = _write_temporaries(path.parent, {path.name: content})
    try:
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    flush(path.parent)


def write_together(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Write files to a folder, all or none, even if the process is killed in between.

    They are written under other names. Once all of them are on the disk, a journal says so, and they are renamed; the
    next writer or reader calls :func:`finish_writing` and renames what a killed process did not. Temporary files of an
    earlier process that was stopped before its journal are removed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    sweep(folder, contents)
    for name in contents:
        if (folder / name).is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(folder / name))
    journal = folder / f".pending-{os.getpid()}.json"
    temporaries = _write_temporaries(folder, contents)
    try:
        write_record(journal, {"names": list(contents)})
    except BaseException:
        for path in (journal, *temporaries):  # the journal first: it says that the others are all there
            path.unlink(missing_ok=True)
        raise
    finish_writing(folder)


def finish_writing(folder: Path) -> None:
    """Rename the files of :func:`write_together` that a process was killed in the midst of renaming.

    Several processes may do so at once.

    Raises:
        SpikeSlabError: If a journal is damaged.
        OSError: If a file cannot be renamed.
    """
    for journal in [path for path in folder.iterdir() if JOURNAL.fullmatch(path.name)] if folder.is_dir() else ():
        try:
            names = [check_name(name) for name in read_record(journal, SpikeSlabError)["names"]]
        except (SpikeSlabError, KeyError, TypeError, ValueError) as error:
            if not journal.exists():  # another process has finished
                continue
            raise SpikeSlabError(f"{journal} is damaged: delete it and write the files again.") from error
        process = journal.name.removeprefix(".pending-").removesuffix(".json")
        for name in names:
            with suppress(FileNotFoundError):  # it has been renamed
                (folder / f"{name}.{process}.tmp").replace(folder / name)
        flush(folder)
        journal.unlink(missing_ok=True)


def sweep(folder: Path, names: Iterable[str] | None = None, *, locked: bool = False) -> None:
    """Finish or remove what processes that were killed while writing have left.

    Args:
        folder: The folder; it need not exist.
        names: Names of the files that were written; by default any.
        locked: If True, no other process writes in the folder, so none of the files is in use.
    """
    finish_writing(folder)
    wanted = None if names is None else set(names)
    for path in folder.iterdir() if folder.is_dir() else ():
        match = TEMPORARY.fullmatch(path.name)
        written = match and (wanted is None or match[1] in wanted or JOURNAL.fullmatch(match[1]))
        if match and written and (locked or not _is_running(int(match[2]))):
            path.unlink(missing_ok=True)


def _write_temporaries(folder: Path, contents: Mapping[str, bytes]) -> list[Path]:
    """Write files to the disk under the names of this process's temporary files, all or none."""
    temporaries = {folder / f"{name}.{os.getpid()}.tmp": content for name, content in contents.items()}
    try:
        for temporary, content in temporaries.items():
            _create(temporary, content)
            flush(temporary)
    except BaseException:
        for temporary in temporaries:
            temporary.unlink(missing_ok=True)
        raise
    return list(temporaries)


def _create(path: Path, content: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    try:
        handle = os.open(path, flags | SAFE, 0o666)
    except FileExistsError:  # left by a killed process of the same number, or put there to be followed
        path.unlink()
        handle = os.open(path, flags | SAFE, 0o666)
    with os.fdopen(handle, "wb") as file:
        file.write(content)


def _is_running(process: int) -> bool:
    if os.name != "posix":  # os.kill ends a process elsewhere
        return True
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True


def flush(path: Path) -> None:
    """Wait until a file's content, or a folder's list of names, is on the disk."""
    if os.name == "nt" and path.is_dir():  # Windows cannot open a folder, and needs no such wait
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def digest(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def encode_record(record: Mapping[str, Any]) -> bytes:
    """Return a JSON object as text, with a checksum of its content.

    Raises:
        ValueError: If it holds NaN or infinity.
    """
    # As it will be read: keys are text, tuples lists.
    content = json.loads(json.dumps({SEALED: True, **record}, allow_nan=False))
    text = json.dumps({**content, CHECKSUM: _hash_record(content)}, indent=1, ensure_ascii=False)
    return f"{text}\n".encode("utf-8", "surrogatepass")


def write_record(path: Path, record: Mapping[str, Any]) -> None:
    """Write a JSON object with a checksum of its content; see :func:`read_record`."""
    write_atomically(path, encode_record(record))


def parse_json(content: bytes) -> Any:
    """Return what JSON text holds, unless it takes much more memory than its length accounts for.

    A list of empty lists takes 30 times the length of its text.

    Raises:
        OversizedError: If it might take more than two times its length and 200 MB.
        ValueError: If it is not JSON.
        RecursionError: If it is nested too deeply.
    """
    if _estimate_cost(content) > RECORD_FACTOR * len(content) + MEMORY_FLOOR:
        raise OversizedError(f"it has too many parts for a record of {len(content):,} bytes")
    return json.loads(content)


def _estimate_cost(content: bytes) -> int:
    """Return the bytes that JSON text takes at most, with all copies that are made of it.

    Outside of ASCII a sign may take four bytes of memory and, in the text that is hashed, twelve.
    """
    copies = 4 if content.isascii() and b"\\u" not in content else 12
    return copies * len(content) + sum(cost * content.count(sign) for sign, cost in JSON_COSTS.items())


def check_tensors(source: bytes | Path) -> None:
    """Raise if a safetensors file names more tensors than its length accounts for; an empty one takes 1.5 kB.

    Args:
        source: Content of the file, or its path; of that, the header alone is read.

    Raises:
        OversizedError: If they might take more than two times the length of the file and 200 MB.
    """
    if isinstance(source, Path):
        with os.fdopen(open_regular(source), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            header = file.read(min(int.from_bytes(file.read(8), "little"), size))
    else:
        size, header = len(source), source[8 : 8 + int.from_bytes(source[:8], "little")]
    count = header.count(b"{")
    if TENSOR_COST * count > RECORD_FACTOR * size + MEMORY_FLOOR:
        raise OversizedError(f"it names {count:,} tensors in {size:,} bytes")


def _is_mark(key: str) -> bool:
    """Return True if a key is the mark of a checksum, or what damage has left of one.

    >>> [_is_mark(key) for key in ("sealed", "checksaled", "search", "checkpoints", "omega_sum")]
    [True, True, False, False, False]
    """
    return key.startswith(("seal", "checks")) or key.endswith(("ealed", "cksum"))


def read_record(
    path: Path,
    error: type[SpikeSlabError],
    versions: Iterable[int] | None = None,
    *,
    kind: str | None = None,
    sealed_since: int = 0,
) -> dict[str, Any]:
    """Read a JSON object without its checksum; a file of an early version may have none.

    Args:
        path: The file.
        error: Class of the error to raise.
        versions: Values of ``version`` that can be read; by default it is not looked at.
        kind: Value of ``format``; by default it is not looked at.
        sealed_since: Version from which on the checksum may not be missing; 0 if there is none.

    Raises:
        SpikeSlabError: If the file cannot be read, is damaged, or of another version; the message names it.
    """
    try:
        record = parse_json(read_regular(path))
    except OSError as cause:
        raise error(f"{path} cannot be read: {cause.strerror or first_line(cause)}.") from cause
    except RecursionError as cause:
        raise error(f"{path} is damaged: it is nested too deeply.") from cause
    except OversizedError as cause:
        raise error(f"{path} cannot be read: {cause}.") from cause
    except ValueError as cause:
        raise error(f"{path} is damaged: it is not JSON ({first_line(cause)}).") from cause
    if not isinstance(record, dict):
        raise error(f"{path} is damaged: it holds no JSON object.")
    if kind is not None and record.get("format") != kind:
        raise error(f"{path} is not a file of the format {kind!r}.")
    version = record.get("version")
    known = None if versions is None else list(versions)
    if known is not None and version not in known:
        read = " and ".join(map(str, known))
        raise error(f"{path} has version {version!r}, but this spikeslab reads {read}.")
    checksum = record.pop(CHECKSUM, None)
    needed = bool(sealed_since) and isinstance(version, int) and version >= sealed_since
    needed |= any(map(_is_mark, record))  # without any mark, the file is of an early version
    if (checksum is not None or needed) and checksum != _hash_record(record):
        raise error(f"{path} has changed since it was written: its checksum does not match.")
    record.pop(SEALED, None)
    return record


def _hash_record(record: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


class Line(NamedTuple):
    """Line of a file of JSON lines: its bytes without the line feed, and its record without the checksum."""

    text: bytes
    record: dict[str, Any]


class Lines(NamedTuple):
    """Records of a file of JSON lines, its last whole line without the line feed, and the bytes of all whole lines."""

    records: list[dict[str, Any]]
    last: bytes
    size: int


def encode_line(record: Mapping[str, Any], before: bytes) -> bytes:
    """Return a record as a line of JSON, with a checksum of itself and of the line before, without the line feed.

    >>> encode_line({"step": 1}, b"")
    b'{"step": 1, "checksum": "5b0853f7a7aba238"}'
    """
    return _seal(json.dumps(dict(record), allow_nan=False).encode(), before)


def iterate_lines(path: Path, error: type[SpikeSlabError]) -> Iterator[Line]:
    """Yield the lines of a file of JSON lines, if there is one, with the memory of one line.

    An incomplete last line is skipped; lines of an early version have no checksum.

    Raises:
        SpikeSlabError: If it cannot be read or a line is damaged, missing or added; the message names the line.
    """
    before, sealed = b"", False
    decode = json.JSONDecoder().decode
    for number, text in enumerate(_iterate_texts(path, error), start=1):
        if len(text) > SHORT and _estimate_cost(text) > LINES_FLOOR:
            raise error(f"{path} cannot be read: line {number} has too many parts for a record of a log.")
        try:
            record = decode(text.decode("utf-8", "surrogatepass"))
        except (ValueError, RecursionError) as cause:
            raise error(f"{path} is damaged: line {number} is not JSON ({first_line(cause)}).") from cause
        if not isinstance(record, dict):
            raise error(f"{path} is damaged: line {number} is not a JSON object.")
        sealed = sealed or CHECKSUM in record
        if sealed and text != _seal(text[:-SEAL_SIZE] + b"}", before):
            raise error(f"{path} has changed since it was written: the checksum of line {number} does not match.")
        record.pop(CHECKSUM, None)
        yield Line(text, record)
        before = text


def _iterate_texts(path: Path, error: type[SpikeSlabError]) -> Iterator[bytes]:
    """Yield the whole lines of a file, if there is one, without their line feeds."""
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            for text in file:
                if text.endswith(b"\n"):
                    yield text[:-1]
    except FileNotFoundError:
        return
    except OSError as cause:
        raise error(f"{path} cannot be read: {cause.strerror or first_line(cause)}.") from cause


def read_lines(path: Path, error: type[SpikeSlabError]) -> Lines:
    """Read all records of a file of JSON lines; see :func:`iterate_lines`, which takes less memory.

    Raises:
        SpikeSlabError: As there, or if the records take more than two times the length of the file and 200 MB.
    """
    allowed = allow_bytes(path)
    records: list[dict[str, Any]] = []
    names: set[str] = set()
    last, size, taken = b"", 0, 0
    for last, record in iterate_lines(path, error):
        records.append(_share_names(record))
        size += len(last) + 1
        taken += _count_bytes(records[-1], names)
        if taken > allowed:
            raise error(f"{path} cannot be read: it has too many parts for its length.")
    return Lines(records, last, size)


def thin_records(records: Iterable[dict[str, Any]], path: Path) -> list[dict[str, Any]]:
    """Return the records of a file, or so many of them that they fit in two times its length and 200 MB.

    These are the last one and every second, fourth, ... of the others, from the first on.
    """
    allowed = allow_bytes(path)
    kept: list[dict[str, Any]] = []
    names: set[str] = set()
    taken, stride = 0, 1
    record: dict[str, Any] | None = None
    for number, each in enumerate(records):
        record = each
        if number % stride:
            continue
        record = _share_names(each)
        kept.append(record)
        taken += _count_bytes(record, names) + SLOT_COST
        while taken > allowed and len(kept) > 1:
            kept, stride = kept[::2], 2 * stride
            names.clear()  # those of the others are let go
            taken = sum(_count_bytes(each, names) + SLOT_COST for each in kept)
    return kept if record is None or kept[-1] is record else [*kept, record]


def allow_bytes(path: Path) -> int:
    """Return the memory that the records of a file of JSON lines may take."""
    return RECORD_FACTOR * (path.stat().st_size if path.is_file() else 0) + LINES_FLOOR


def _count_bytes(record: dict[str, Any], names: set[str]) -> int:
    """Return the memory of a record, without the names in ``names``, which all records share; add its own to them."""
    total, values = 0, [record]
    while values:
        value: Any = values.pop()
        total += sys.getsizeof(value)
        if isinstance(value, dict):
            new: set[Any] = value.keys() - names
            names |= new
            total += SLOT_COST * len(new)
            values += [*new, *value.values()]
        elif isinstance(value, list):
            values += value
    return total


def _share_names(value: Any) -> Any:
    """Return a value of JSON with interned names, so that the records of a log have one copy of each."""
    if isinstance(value, dict):
        return {sys.intern(name): _share_names(each) for name, each in value.items()}
    return [_share_names(each) for each in value] if isinstance(value, list) else value


def _seal(text: bytes, before: bytes) -> bytes:
    """Return a line of JSON with its checksum at the end."""
    checksum = hashlib.sha256(before + b"\n" + text).hexdigest()[:16]
    return text[:-1] + f', "{CHECKSUM}": "{checksum}"}}'.encode()
