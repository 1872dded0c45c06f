"""Atomic files and the check of folders."""

import os
from pathlib import Path

import pytest

from spikeslab.errors import ArgumentValueError
from spikeslab.files import FolderExistsError, check_free, digest, write_atomically, write_together


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


def test_a_folder_must_be_new_or_empty(tmp_path: Path) -> None:
    check_free(tmp_path / "new", "out")
    check_free(tmp_path, "out")
    (tmp_path / "file").touch()
    with pytest.raises(FolderExistsError, match=r"^out must be a new or an empty folder"):
        check_free(tmp_path, "out")
    with pytest.raises(ArgumentValueError, match=r"^out must be a folder, but .*file is a file\.$"):
        check_free(tmp_path / "file", "out")
