"""Regression data sets of appendix D, from the UCI repository, with 20 splits into training and test rows.

The files are CSV with one line of names: the features, then the target. ``energy.csv`` ends in both of its targets,
the heating and the cooling load. ``NAME_splits.npz`` has the standard splits as integer arrays ``train`` and ``test``
with a row for each split.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spikeslab.errors import check_choice, first_line, mark
from spikeslab.paper.data_files import VARIABLE, DataError, data_folder, fetch

# name: file, rows, columns, and the target's column from the end
FILES = {
    "boston": ("boston.csv", 506, 14, 1),
    "yacht": ("yacht.csv", 308, 7, 1),
    "energy": ("energy.csv", 768, 10, 1),
    "energy-heating": ("energy.csv", 768, 10, 2),
    "wine": ("wine.csv", 1599, 12, 1),
    "concrete": ("concrete.csv", 1030, 9, 1),
}
TARGETS = {"energy": 2}  # columns at the end that are no features
NAMES = tuple(FILES)
ARCHIVE = "https://archive.ics.uci.edu/ml/machine-learning-databases"
# Sets that the publisher has as text (the others are Excel files): URL, separator of columns, lines of names, and the
# SHA-256 of the numbers as little-endian doubles, row by row.
BOSTON = "832e894115c56dd24ec63848d4a3d9bd921d268d0be1bee2a8f4ee5ea318f5f7"
YACHT = "ec08588637fd93582116a1ead33f0c1e787dae755168073608e030e5282a3f4e"
WINE = "d4f6a6d672e0ee31d41fdd93b4b58985b45a31f2f971499c18137c42229278ac"
DOWNLOADS = {
    "boston": (f"{ARCHIVE}/housing/housing.data", None, 0, BOSTON),
    "yacht": (f"{ARCHIVE}/00243/yacht_hydrodynamics.data", None, 0, YACHT),
    "wine": (f"{ARCHIVE}/wine-quality/winequality-red.csv", ";", 1, WINE),
}


@dataclass(frozen=True)
class UCIData:
    """Features (rows, features) and target as they are in the file, and the rows of each split, (splits, rows).

    The target of ``"energy"`` is the cooling load, as in the paper.
    """

    name: str
    x: Tensor
    y: Tensor
    train: Tensor
    test: Tensor


def load_uci(name: str, data_dir: str | os.PathLike[str] | None = None, *, splits: str = "standard") -> UCIData:
    """Read one of the data sets.

    Args:
        name: One of ``NAMES``.
        data_dir: Folder with the files, or with a folder ``uci`` that has them; by default the environment variable
            ``SPIKESLAB_DATA`` says where. Without either, Boston, Yacht and Wine are downloaded from the publisher,
            and their numbers checked; the paper's splits need no file.
        splits: ``"standard"``, from the file of splits, or ``"paper"``: scikit-learn's ``train_test_split`` with a
            tenth for the test and the seeds 0 to 19. The paper's code lost the first row of Yacht, and so does this.

    Raises:
        DataError: If a file is missing, cannot be downloaded or does not hold what it should.
    """
    file, rows, columns, position = FILES[check_choice("name", name, NAMES)]
    check_choice("splits", splits, ("standard", "paper"))
    if name in DOWNLOADS and splits == "paper" and data_folder(data_dir) is None:
        table = _download(name)
    else:
        table = _read(_find(file, data_dir), rows, columns)
    features = columns - TARGETS.get(Path(file).stem, 1)
    x, y = torch.from_numpy(table[:, :features].copy()), torch.from_numpy(table[:, -position].copy())
    if splits == "paper":
        first = 1 if name == "yacht" else 0
        return UCIData(name, x[first:], y[first:], *_paper_splits(rows - first))
    return UCIData(name, x, y, *_standard_splits(_find(f"{Path(file).stem}_splits.npz", data_dir), rows))


def _find(file: str, data_dir: str | os.PathLike[str] | None) -> Path:
    folder = data_folder(data_dir)
    for path in () if folder is None else (folder / "uci" / file, folder / file):
        if path.is_file():
            return path
    raise DataError(
        f"{mark('data_dir')} (or the variable {VARIABLE}) must be a folder with {file} or uci/{file}, but got "
        f"{'none' if folder is None else folder}: only Boston, Yacht and Wine with {mark('splits', 'paper')} are "
        "downloaded."
    )


def _download(name: str) -> NDArray[np.float64]:
    """Download the publisher's file and return its numbers; a changed file is refused and not kept."""
    url, separator, skipped, digest = DOWNLOADS[name]
    path = fetch(url, None, "uci")
    try:
        table = np.loadtxt(path, delimiter=separator, skiprows=skipped, ndmin=2, encoding="utf-8")
    except (ValueError, UnicodeDecodeError):
        table = np.empty((0, 0))
    found = hashlib.sha256(table.astype("<f8").tobytes()).hexdigest()
    if found != digest:
        path.unlink()
        raise DataError(
            f"{url} must hold the known numbers (SHA-256 {digest[:12]}…), but got {table.shape[0]} rows of "
            f"{table.shape[1]} (SHA-256 {found[:12]}…): put {FILES[name][0]} into a folder and give it as "
            f"{mark('data_dir')}."
        )
    return table


def _read(path: Path, rows: int, columns: int) -> NDArray[np.float64]:
    expected = f"{path} must hold a line of names and {rows} rows of {columns} numbers with commas between them"
    try:
        table = np.loadtxt(path, delimiter=",", skiprows=1, ndmin=2, encoding="utf-8")
    except (ValueError, UnicodeDecodeError) as error:
        raise DataError(f"{expected}, but got: {first_line(error)}.") from error
    if table.shape != (rows, columns):
        raise DataError(f"{expected}, but got {table.shape[0]} rows of {table.shape[1]}.")
    if not np.isfinite(table).all():
        raise DataError(f"{expected}, but one is not finite.")
    return table


def _paper_splits(rows: int) -> tuple[Tensor, Tensor]:
    from sklearn.model_selection import train_test_split

    pairs = [train_test_split(np.arange(rows), test_size=0.1, random_state=seed) for seed in range(20)]
    train, test = (torch.from_numpy(np.stack(part)) for part in zip(*pairs, strict=True))
    return train, test


def _standard_splits(path: Path, rows: int) -> tuple[Tensor, Tensor]:
    expected = f"{path} must hold integer arrays 'train' and 'test' whose rows each split the {rows} rows in two"
    try:
        with np.load(path, allow_pickle=False) as arrays:
            train, test = arrays["train"].astype(np.int64), arrays["test"].astype(np.int64)
        both = np.sort(np.concatenate([train, test], axis=1), axis=1)
    except (ValueError, KeyError, OSError, np.exceptions.AxisError, EOFError) as error:
        raise DataError(f"{expected}, but got: {first_line(error)}.") from error
    if both.shape != (len(train), rows) or not (both == np.arange(rows)).all():
        raise DataError(f"{expected}, but got others.")
    return torch.from_numpy(train), torch.from_numpy(test)
