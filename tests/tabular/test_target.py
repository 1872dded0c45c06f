"""Targets: families that are guessed or given, and columns that are refused."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest

from spikeslab.tabular.table import DataTable
from spikeslab.tabular.target import read_target


def refused(call, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        call()


def target_of(y, family=None):
    return read_target(DataTable("t.csv", pd.DataFrame({"y": y})), "y", family)


@pytest.mark.parametrize(
    ("y", "family", "guess"),
    [
        ([0, 1, 1, 0], "binomial", "it has two different values"),
        ([True, False, True, True], "binomial", "it has two different values"),
        (list("abab"), "binomial", "it has two different values"),
        (list("abcabc"), "multinomial", "it holds 3 different texts"),
        ([1, 2, 3, 1, 2, 3], "multinomial", "it holds only the integers from 1 to 3"),
        ([3, 5, 8, 3, 5, 8], "gaussian", "it holds numbers"),
        ([1.5, 2.0, 3.0], "gaussian", "it holds numbers"),
        ([1, 2, 3, 4], "gaussian", "it holds numbers"),
    ],
)
def test_family_is_guessed(y, family, guess):
    target = target_of(y)
    assert (target.family, target.guess) == (family, guess)


def test_a_given_family_is_taken():
    assert target_of([0, 1, 1, 0], "gaussian").y.dtype == np.float64
    assert target_of([0, 1, 1, 0], "multinomial").family == "multinomial"


@pytest.mark.parametrize(
    ("y", "family", "message"),
    [
        ([1.0], None, "t.csv has only 1 row: at least 2 are needed."),
        (
            [1.0, None, 2.0],
            None,
            "t.csv has missing values in the target 'y' (1 of 3 rows): fill them in or leave out those rows.",
        ),
        ([2, 2, 2], None, "The target 'y' is 2 in every row of t.csv."),
        (list("aab"), "gaussian", "family='gaussian' needs numbers, but the target 'y' holds text: 'a'."),
        (list("abc"), "binomial", "family='binomial' needs 2 classes, but the target 'y' has 3: 'a', 'b', 'c'."),
        (
            list("abc"),
            None,
            "family='multinomial' needs at least 2 rows per class on average, "
            "but the target 'y' has 3 different values in 3 rows.",
        ),
        ([1.0, np.inf], "gaussian", "The target 'y' of t.csv has infinite numbers or some beyond 1e+100."),
    ],
)
def test_targets_that_are_refused(y, family, message):
    refused(lambda: target_of(y, family), message)


def test_unknown_targets():
    table = DataTable("t.csv", pd.DataFrame({"Price": [1, 2], "size": [3, 4]}))
    refused(
        lambda: read_target(table, "pricy"),
        "target must be a column of t.csv, but got 'pricy': its columns include 'Price'.",
    )
    refused(
        lambda: read_target(table, "y"),
        "target must be a column of t.csv, but got 'y': its columns are 'Price', 'size'.",
    )
    numbers = DataTable("t.csv", pd.DataFrame({"1.5": [1], "2": [2]}))
    refused(
        lambda: read_target(numbers, "y"),
        "target must be a column of t.csv, but got 'y': "
        "the first line of t.csv must hold the names of the columns, and holds only numbers.",
    )
