"""Atomic files and the check of folders."""

from pathlib import Path

import pytest

from spikeslab.errors import ArgumentValueError
from spikeslab.files import FolderExistsError, check_free, digest, write_atomically


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


def test_a_folder_must_be_new_or_empty(tmp_path: Path) -> None:
    check_free(tmp_path / "new", "out")
    check_free(tmp_path, "out")
    (tmp_path / "file").touch()
    with pytest.raises(FolderExistsError, match=r"^out must be a new or an empty folder"):
        check_free(tmp_path, "out")
    with pytest.raises(ArgumentValueError, match=r"^out must be a folder, but .*file is a file\.$"):
        check_free(tmp_path / "file", "out")
