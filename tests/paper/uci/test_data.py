"""The UCI data: splits, targets, and files that are not what they should be."""

from __future__ import annotations

import functools
import hashlib
import http.server
import re
import threading

import numpy as np
import pytest
import torch
from sklearn.model_selection import train_test_split

from spikeslab.paper import DataError
from spikeslab.paper.uci import data as uci
from spikeslab.paper.uci import load_uci
from spikeslab.paper.uci.data import FILES


@pytest.fixture
def folder(tmp_path):
    """Files of the right shapes; the number in a cell is 1000 times its column plus its row."""
    for file, rows, columns, _ in FILES.values():
        table = 1000.0 * np.arange(columns) + np.arange(rows)[:, None]
        np.savetxt(tmp_path / file, table, delimiter=",", header=",".join("abcdefghijklmn"[:columns]), comments="")
        order = np.stack([np.random.default_rng(seed).permutation(rows) for seed in range(20)]).astype(np.int32)
        np.savez(tmp_path / file.replace(".csv", "_splits.npz"), train=order[:, 30:], test=order[:, :30])
    return tmp_path


def test_energy_has_two_targets_and_neither_is_a_feature(folder):
    cooling, heating = load_uci("energy", folder), load_uci("energy-heating", folder)
    assert cooling.x.shape == heating.x.shape == (768, 8)
    assert cooling.y[0] == 9000.0
    assert heating.y[0] == 8000.0
    assert load_uci("boston", folder).y[5] == 13_005.0


def test_standard_splits_come_from_the_file(folder):
    data = load_uci("wine", folder)
    assert data.train.shape == (20, 1569)
    assert torch.equal(torch.cat([data.train, data.test], dim=1).sort(dim=1).values[3], torch.arange(1599))


def test_paper_splits_are_those_of_sklearn_and_yacht_loses_its_first_row(folder):
    data = load_uci("yacht", folder, splits="paper")
    train, test = train_test_split(np.arange(307), test_size=0.1, random_state=7)
    assert torch.equal(data.train[7], torch.from_numpy(train))
    assert torch.equal(data.test[7], torch.from_numpy(test))
    assert data.y[0] == 6001.0
    assert data.train.shape == (20, 276)


def test_files_are_found_in_a_folder_uci_and_through_the_environment(folder, monkeypatch):
    (folder / "data").mkdir()
    (folder / "data" / "uci").symlink_to(folder)
    monkeypatch.setenv("SPIKESLAB_DATA", str(folder / "data"))
    assert load_uci("concrete").x.shape == (1030, 8)


def test_a_missing_file_is_named(tmp_path, monkeypatch):
    monkeypatch.delenv("SPIKESLAB_DATA", raising=False)
    start = "data_dir (or the variable SPIKESLAB_DATA) must be a folder with concrete.csv or uci/concrete.csv, but got "
    for given, end in ((None, "none: only Boston"), (tmp_path, f"{tmp_path}: only Boston")):
        with pytest.raises(DataError, match=re.escape(start + end)):
            load_uci("concrete", given)


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A publisher with a file of yacht's shape."""
    pooch = pytest.importorskip("pooch")
    root = tmp_path / "server"
    root.mkdir()
    table = np.random.default_rng(0).normal(size=(308, 7)).round(3)
    np.savetxt(root / "yacht.data", table, fmt="%.3f")
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(root))
    monkeypatch.delenv("SPIKESLAB_DATA", raising=False)
    monkeypatch.setattr(pooch, "os_cache", lambda name: tmp_path / "cache")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        digest = hashlib.sha256(table.astype("<f8").tobytes()).hexdigest()
        url = f"http://127.0.0.1:{running.server_port}/yacht.data"
        monkeypatch.setitem(uci.DOWNLOADS, "yacht", (url, None, 0, digest))
        yield root, table
        running.shutdown()


def test_a_downloaded_table_is_checked_number_by_number(server):
    _, table = server
    assert np.array_equal(load_uci("yacht", splits="paper").x.numpy(), table[1:, :6])


def test_a_changed_download_is_refused_and_not_kept(server, tmp_path):
    root, table = server
    table[5, 5] += 0.001
    np.savetxt(root / "yacht.data", table, fmt="%.3f")
    with pytest.raises(DataError, match=r"yacht\.data must hold the known numbers .* but got 308 rows of 7 "):
        load_uci("yacht", splits="paper")
    assert not list((tmp_path / "cache").rglob("yacht.data"))


def test_standard_splits_are_not_downloaded(server):
    with pytest.raises(DataError, match=r"with yacht\.csv or uci/yacht\.csv, but got none: only Boston, Yacht and"):
        load_uci("yacht")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda text: text.replace("13005", "many"), "could not convert string 'many' to float64"),
        (lambda text: "\n".join(text.splitlines()[:-1]), "505 rows of 14."),
    ],
)
def test_a_bad_table_is_refused(folder, change, reason):
    path = folder / "boston.csv"
    table = np.loadtxt(path, delimiter=",", skiprows=1)
    np.savetxt(path, table, fmt="%d", delimiter=",", header="names", comments="")
    path.write_text(change(path.read_text()))
    message = f"{path} must hold a line of names and 506 rows of 14 numbers with commas between them, but got"
    with pytest.raises(ValueError, match=re.escape(message) + ".*" + re.escape(reason)):
        load_uci("boston", folder)


def test_a_number_that_is_not_finite_is_refused(folder):
    path = folder / "yacht.csv"
    table = np.loadtxt(path, delimiter=",", skiprows=1)
    table[3, 2] = np.nan
    np.savetxt(path, table, delimiter=",", header="names", comments="")
    with pytest.raises(ValueError, match=r"but one is not finite\."):
        load_uci("yacht", folder)


def test_bad_splits_are_refused(folder):
    path = folder / "yacht_splits.npz"
    message = re.escape(
        f"{path} must hold integer arrays 'train' and 'test' whose rows each split the 308 rows in two, but got"
    )
    rows = np.arange(308)
    np.savez(path, train=np.stack([rows[:280]]), test=np.stack([rows[279:307]]))
    with pytest.raises(ValueError, match=message + r" others\."):
        load_uci("yacht", folder)
    np.savez(path, train=np.stack([rows[:280]]))
    with pytest.raises(ValueError, match=message):
        load_uci("yacht", folder)
    path.write_bytes(b"no archive")
    with pytest.raises(ValueError, match=message):
        load_uci("yacht", folder)
