"""Atomic files and the check of folders."""

import os
from pathlib import Path

import pytest
from kill_points import run_killed

from spikeslab.errors import ArgumentValueError, SpikeSlabError
from spikeslab.files import (
    FolderExistsError,
    ForeignFileError,
    check_free,
    digest,
    encode_line,
    finish_writing,
    read_lines,
    read_record,
    read_regular,
    sweep,
    write_atomically,
    write_record,
    write_together,
)


def test_a_file_is_replaced_whole_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    for content in (b"one", b"two"):
        write_atomically(path, content)
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_bytes() == b"two"
    assert digest(path).startswith("3fc4ccfe745870e2")


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "table.csv"
    write_atomically(path, b"one")
    monkeypatch.setattr("spikeslab.files.flush", lambda path: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, b"two")
    assert path.read_bytes() == b"one"
    assert list(tmp_path.iterdir()) == [path]


def test_files_are_written_together_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_together(tmp_path / "new", {"a": b"1", "b": b"2"})
    (tmp_path / "new" / "c").mkdir()
    running, stopped = (tmp_path / "new" / f"a.{process}.tmp" for process in (os.getppid(), 2**22 + 1))
    for left in (running, stopped):
        left.touch()
    with pytest.raises(IsADirectoryError):
        write_together(tmp_path / "new", {"a": b"3", "b": b"4", "c": b"5"})
    assert (tmp_path / "new" / "a").read_bytes() == b"1"
    assert running.exists()
    assert not stopped.exists()


def test_files_are_written_together_whenever_the_process_is_killed(tmp_path: Path) -> None:
    old, new = ({name: f"{kind} {name}".encode() for name in "abc"} for kind in ("old", "new"))
    found = []
    for at in range(60):
        folder = tmp_path / f"{at}"
        write_together(folder, old)
        code, _ = run_killed(lambda folder=folder: write_together(folder, new), folder, at)
        finish_writing(folder)
        found.append({name: (folder / name).read_bytes() for name in "abc"})
        assert found[-1] in (old, new), f"operation {at}"
        write_together(folder, old)
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == old, f"operation {at}"
        if code == 0:
            break
    assert (code, found[-1]) == (0, new)
    assert found.count(new) > 4  # three renames, a wait for the disk and the end
    assert found.count(old) > 6


def test_a_journal_leads_nowhere_and_a_damaged_one_is_named(tmp_path: Path) -> None:
    folder, journal = tmp_path / "folder", tmp_path / "folder" / f".pending-{2**22 + 1}.json"
    write_together(folder, {"a": b"1"})
    (tmp_path / "secret").write_bytes(b"mine")
    for name in ("../secret", "", 3):
        write_record(journal, {"names": [name]})
        with pytest.raises(SpikeSlabError, match=rf"{journal} is damaged"):
            write_together(folder, {"a": b"2"})
    assert (tmp_path / "secret").read_bytes() == b"mine"
    assert (folder / "a").read_bytes() == b"1"


def test_a_folder_must_be_new_or_empty(tmp_path: Path) -> None:
    check_free(tmp_path / "new", "out")
    check_free(tmp_path, "out")
    (tmp_path / "file").touch()
    for call, error, message in (
        (lambda: check_free(tmp_path, "out"), FolderExistsError, r"^out must be a new or an empty folder"),
        (
            lambda: check_free(tmp_path / "file", "out"),
            ArgumentValueError,
            r"^out must be a folder, but .*file is a file\.$",
        ),
    ):
        with pytest.raises(error, match=message):
            call()


def test_a_link_is_replaced_and_never_followed(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_bytes(b"mine")
    for name in ("link", f"link.{os.getpid()}.tmp"):
        (tmp_path / name).symlink_to(target)
    with pytest.raises(ForeignFileError, match=r"link is a symbolic link"):
        read_regular(link)
    write_atomically(link, b"new")
    assert (link.is_symlink(), link.read_bytes(), target.read_bytes()) == (False, b"new", b"mine")


def test_temporary_files_of_stopped_processes_are_swept(tmp_path: Path) -> None:
    names = [f"run.json.{2**22 + 1}.tmp", f"run.json.{os.getppid()}.tmp", "notes.tmp", "run.json"]
    for name in names:
        (tmp_path / name).touch()
    sweep(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == set(names[1:])
    sweep(tmp_path, locked=True)
    assert {path.name for path in tmp_path.iterdir()} == set(names[2:])


def test_a_record_comes_back_and_an_early_one_needs_no_checksum(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    write_record(path, {"version": 2, "é": [1, (2.5, None)], "by number": {1: -0.0}})
    content = {"version": 2, "é": [1, [2.5, None]], "by number": {"1": -0.0}}
    assert read_record(path, SpikeSlabError, (1, 2), sealed_since=2) == content
    path.write_text(path.read_text().replace("2.5", "2.6"))
    with pytest.raises(SpikeSlabError, match=r"record\.json has changed since it was written"):
        read_record(path, SpikeSlabError)
    path.write_text('{"version": 1, "a": 1}')
    assert read_record(path, SpikeSlabError, (1, 2), sealed_since=2) == {"version": 1, "a": 1}
    path.write_text('{"version": 2, "a": 1}')
    with pytest.raises(SpikeSlabError, match="checksum"):
        read_record(path, SpikeSlabError, (1, 2), sealed_since=2)


@pytest.mark.parametrize(
    "change", [lambda lines: lines[:1] + lines[2:], lambda lines: [*lines[:2], lines[1], lines[2]]]
)
def test_lines_that_are_missing_or_added_are_noticed(tmp_path: Path, change) -> None:
    path = tmp_path / "lines.jsonl"
    lines = [b'{"step": 0}']  # of an early version
    for step in (1, 2):
        lines.append(encode_line({"step": step}, lines[-1]))
    path.write_bytes(b"\n".join(lines) + b"\n" + lines[-1][:9])
    assert [record["step"] for record in read_lines(path, SpikeSlabError).records] == [0, 1, 2]
    path.write_bytes(b"\n".join(change(lines)) + b"\n")
    with pytest.raises(SpikeSlabError, match=r"lines\.jsonl has changed since it was written: the checksum of line"):
        read_lines(path, SpikeSlabError)


def test_a_record_with_too_many_parts_for_its_length_is_not_parsed(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    write_record(path, {"names": [f"column {number}" for number in range(1_500_000)]})
    assert len(read_record(path, SpikeSlabError)["names"]) == 1_500_000
    path.write_bytes(b'{"a": [' + b"[]," * 2_000_000 + b"0]}")
    with pytest.raises(
        SpikeSlabError, match=r"record\.json cannot be read: it has too many parts for a record of 6,000,010"
    ):
        read_record(path, SpikeSlabError)
    path.write_bytes(b"{}\n" * 2_000_000)
    with pytest.raises(SpikeSlabError, match=r"record\.json cannot be read: it has too many parts for its length\."):
        read_lines(path, SpikeSlabError)


def test_a_log_of_a_long_run_is_read(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_bytes(b'{"step": 1, "loss": 0.5}\n' * 300_000)
    assert len(read_lines(path, SpikeSlabError).records) == 300_000


def test_a_record_whose_marks_are_damaged_is_no_early_one(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    write_record(path, {"epochs": 3})
    text = path.read_text().replace('"checksum"', '"checksaled"').replace('"sealed"', '"seum"')
    path.write_text(text)
    with pytest.raises(SpikeSlabError, match="has changed since it was written"):
        read_record(path, SpikeSlabError)
    path.write_text('{"epochs": 3}')
    assert read_record(path, SpikeSlabError) == {"epochs": 3}
