"""The five regression sets of appendix D, from the UCI repository, with 20 splits into training and test rows.

The files are CSV with one line of names: the features, then the target. ``energy.csv`` ends in both of its targets,
the heating and the cooling load. ``NAME_splits.npz`` has the standard splits as integer arrays ``train`` and ``test``
with a row for each split.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spikeslab.errors import check_choice

VARIABLE = "SPIKESLAB_DATA"
SPLITS = 20
TEST_SHARE = 0.1
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


@dataclass(frozen=True)
class UCIData:
    """One data set and its splits.

    Attributes:
        name: One of ``NAMES``; ``"energy"`` is the cooling load, as in the paper.
        x: Features, (rows, features), float64 and as they are in the file.
        y: Target, (rows,).
        train: Training rows of each split, (splits, training rows).
        test: Test rows of each split.
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
            ``SPIKESLAB_DATA`` says where.
        splits: ``"standard"``, from the file of splits, or ``"paper"``: scikit-learn's ``train_test_split`` with a
            tenth for the test and the seeds 0 to 19. The paper's code lost the first row of Yacht, and so does this.

    Raises:
        FileNotFoundError: If a file is not there; the message says what to put where.
        ValueError: If a file does not hold what it should.
    """
    file, rows, columns, position = FILES[check_choice("name", name, NAMES)]
    check_choice("splits", splits, ("standard", "paper"))
    path = _find(file, data_dir)
    table = _read(path, rows, columns)
    features = columns - TARGETS.get(path.stem, 1)
    x, y = torch.from_numpy(table[:, :features].copy()), torch.from_numpy(table[:, -position].copy())
    if splits == "paper":
        first = 1 if name == "yacht" else 0
        return UCIData(name, x[first:], y[first:], *_paper_splits(rows - first))
    return UCIData(name, x, y, *_standard_splits(_find(f"{path.stem}_splits.npz", data_dir), rows))


def _find(file: str, data_dir: str | os.PathLike[str] | None) -> Path:
    folder = os.environ.get(VARIABLE) if data_dir is None else data_dir
    for path in () if folder is None else (Path(folder) / "uci" / file, Path(folder) / file):
        if path.is_file():
            return path
    raise FileNotFoundError(
        f"data_dir (--data-dir, or the variable {VARIABLE}) must be a folder with {file} or uci/{file}, which are not "
        f"downloaded, but got {'none' if folder is None else folder}."
    )


def _read(path: Path, rows: int, columns: int) -> NDArray[np.float64]:
    expected = f"{path} must hold a line of names and {rows} rows of {columns} numbers with commas between them"
    try:
        table = np.loadtxt(path, delimiter=",", skiprows=1, ndmin=2, encoding="utf-8")
    except (ValueError, UnicodeDecodeError) as error:
        raise ValueError(f"{expected}, but got: {str(error).splitlines()[0].rstrip('.')}.") from error
    if table.shape != (rows, columns):
        raise ValueError(f"{expected}, but got {table.shape[0]} rows of {table.shape[1]}.")
    if not np.isfinite(table).all():
        raise ValueError(f"{expected}, but got one that is not finite.")
    return table


def _paper_splits(rows: int) -> tuple[Tensor, Tensor]:
    from sklearn.model_selection import train_test_split

    pairs = [train_test_split(np.arange(rows), test_size=TEST_SHARE, random_state=seed) for seed in range(SPLITS)]
    train, test = (torch.from_numpy(np.stack(part)) for part in zip(*pairs, strict=True))
    return train, test


def _standard_splits(path: Path, rows: int) -> tuple[Tensor, Tensor]:
    expected = f"{path} must hold integer arrays 'train' and 'test' whose rows each split the {rows} rows in two"
    try:
        with np.load(path, allow_pickle=False) as arrays:
            train, test = arrays["train"].astype(np.int64), arrays["test"].astype(np.int64)
        both = np.sort(np.concatenate([train, test], axis=1), axis=1)
    except (ValueError, KeyError, OSError, np.exceptions.AxisError, EOFError) as error:
        raise ValueError(f"{expected}, but got: {str(error).splitlines()[0].rstrip('.')}.") from error
    if both.shape != (len(train), rows) or not (both == np.arange(rows)).all():
        raise ValueError(f"{expected}, but got others.")
    return torch.from_numpy(train), torch.from_numpy(test)
