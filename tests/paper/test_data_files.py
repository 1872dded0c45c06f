"""Reading the publishers' files, from a folder and from a server, and refusing all others."""

from __future__ import annotations

import functools
import gzip
import hashlib
import http.server
import re
import tarfile
import threading
from pathlib import Path

import pytest

from spikeslab.paper.data_files import DataError, Published, read_published

CONTENT = {"a-ubyte": b"first" * 50, "b-ubyte": b"second" * 40}


def source(url: str = "http://nowhere", archive: bool = False, folder: Path | None = None) -> Published:
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in CONTENT.items()}
    names = ["set.tar.gz"] if archive else [f"{name}.gz" for name in CONTENT]
    downloads = {}
    if folder is not None:
        downloads = {name: f"md5:{hashlib.md5((folder / name).read_bytes()).hexdigest()}" for name in names}
    return Published("Set/raw", digests, url, downloads)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "Set" / "raw").mkdir(parents=True)
    for name, content in CONTENT.items():
        (tmp_path / "Set" / "raw" / name).write_bytes(content)
    return tmp_path


@pytest.fixture
def server(tmp_path: Path):
    """A server with the compressed files and an archive of all of them."""
    root = tmp_path / "server"
    root.mkdir()
    for name, content in CONTENT.items():
        (root / f"{name}.gz").write_bytes(gzip.compress(content))
        (root / name).write_bytes(content)
    with tarfile.open(root / "set.tar.gz", "w:gz") as tar:
        for name in CONTENT:
            tar.add(root / name, arcname=f"some-folder/{name}")
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(root))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        thread = threading.Thread(target=running.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}", root
        running.shutdown()


def test_files_are_read_as_they_are_or_compressed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_published(source(), folder) == CONTENT
    plain = folder / "Set" / "raw" / "a-ubyte"
    plain.with_name("a-ubyte.gz").write_bytes(gzip.compress(plain.read_bytes()))
    plain.unlink()
    assert read_published(source(), folder) == CONTENT
    monkeypatch.setenv("SPIKESLAB_DATA", str(folder))
    assert list(read_published(source())) == list(CONTENT)


def test_a_cut_or_altered_file_is_refused_by_name(folder: Path) -> None:
    path = folder / "Set" / "raw" / "b-ubyte"
    content = path.read_bytes()
    for bad in (content[:-1], b"x" + content[1:], content + b"x"):
        path.write_bytes(bad)
        with pytest.raises(
            DataError, match=r"^\S+Set.raw.b-ubyte must be the publisher's file .* it is cut or altered, so fetch it "
        ):
            read_published(source(), folder)
    path.unlink()
    path.with_name("b-ubyte.gz").write_bytes(gzip.compress(content)[:-9])
    with pytest.raises(DataError, match=r"b-ubyte\.gz must be a whole gzip file, but got: "):
        read_published(source(), folder)


def test_a_missing_file_or_folder_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "Set" / "raw" / "a-ubyte").unlink()
    for call, message in (
        (
            lambda: read_published(source(), folder),
            r"^data_dir must hold Set/raw/a-ubyte \(or a-ubyte\.gz\), but .* does not: put the",
        ),
        (
            lambda: read_published(source(), folder / "gone"),
            r"^data_dir must be a folder with data sets, but .*gone is not a folder\.$",
        ),
    ):
        with pytest.raises(DataError, match=message):
            call()
    monkeypatch.setenv("SPIKESLAB_DATA", str(folder / "gone"))
    with pytest.raises(DataError, match=r"^SPIKESLAB_DATA must be a folder with data sets, but .*gone is not a folder"):
        read_published(source())


def test_a_file_beside_the_folder_is_taken_only_if_it_is_the_right_one(folder: Path) -> None:
    raw = folder / "Set" / "raw"
    assert read_published(source(), raw) == CONTENT
    other = Published("Other/raw", dict.fromkeys(CONTENT, "0" * 64), "http://nowhere", {})
    message = (
        f"data_dir must hold Other/raw/a-ubyte (or a-ubyte.gz), but {raw} does not, and {raw / 'a-ubyte'} is of "
        f"another data set or altered: put the publisher's file into {raw / 'Other/raw'}, or give no data_dir"
    )
    with pytest.raises(DataError, match=f"^{re.escape(message)}"):
        read_published(other, raw)


@pytest.mark.parametrize("archive", [False, True])
def test_files_are_downloaded_once(
    archive: bool, server: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pooch

    monkeypatch.delenv("SPIKESLAB_DATA", raising=False)
    monkeypatch.setattr(pooch, "os_cache", lambda name: tmp_path / "cache")
    url, root = server
    wanted = source(url, archive, root)
    assert read_published(wanted) == CONTENT
    for path in root.iterdir():
        path.unlink()
    assert read_published(wanted) == CONTENT


def test_an_altered_download_is_refused(
    server: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pooch

    monkeypatch.delenv("SPIKESLAB_DATA", raising=False)
    monkeypatch.setattr(pooch, "os_cache", lambda name: tmp_path / "cache")
    url, root = server
    wanted = source(url, folder=root)
    (root / "a-ubyte.gz").write_bytes(gzip.compress(b"another"))
    with pytest.raises(
        DataError, match=r"a-ubyte\.gz must be the known file, but it has another hash: put the files into"
    ):
        read_published(wanted)
    assert not list((tmp_path / "cache").rglob("a-ubyte.gz"))


def test_a_publisher_out_of_reach_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pooch

    monkeypatch.delenv("SPIKESLAB_DATA", raising=False)
    monkeypatch.setattr(pooch, "os_cache", lambda name: tmp_path / "cache")
    nowhere = Published("Set/raw", {"a": "0"}, "http://127.0.0.1:9", {"a.gz": "md5:0"})
    with pytest.raises(
        DataError, match=r"^http://127\.0\.0\.1:9/a\.gz must be reachable, but got a ConnectionError: put "
    ):
        read_published(nowhere)
