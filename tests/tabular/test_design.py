"""Design matrices: columns that are left out, 0/1 columns, and tables that are refused."""

from __future__ import annotations

import re
import time

import numpy as np
import pandas as pd
import pytest

from spikeslab.tabular.design import Encoding, make_design
from spikeslab.tabular.table import DataTable


def refused(call, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        call()


def design_of(columns, **options):
    return make_design(DataTable("t.csv", pd.DataFrame(columns)), "y", **options)


Y = [1.0, 2.0, 3.0, 5.0]


def test_columns_that_say_nothing_are_left_out():
    nan = float("nan")
    design = design_of(
        {"a": [1, 2, 3, 4], "y": Y, "one": 1, "word": "w", "none": nan, "b": [1.0, 2.0, 3.0, 4.0], "c": [0, 1, 0, 1]}
    )
    assert design.dropped == {
        "one": "constant",
        "word": "constant",
        "none": "no values",
        "b": "the same as 'a'",
    }
    assert list(design.X.columns) == ["a", "c"]
    assert design.X.to_numpy().tolist() == [[1, 0], [2, 1], [3, 0], [4, 1]]


def test_one_hot():
    columns = {
        "colour": ["red", "blue", "green", "red"],
        "y": Y,
        "sex": list("fmfm"),
        "a": [4, 3, 2, 1],
        "id": list("wxyz"),
    }
    design = design_of(columns, one_hot=True)
    assert list(design.X.columns) == ["colour=blue", "colour=green", "colour=red", "sex=m", "a"]
    assert design.X.to_numpy().tolist() == [[0, 0, 1, 0, 4], [1, 0, 0, 1, 3], [0, 1, 0, 0, 2], [0, 0, 1, 1, 1]]
    assert design.dropped == {"id": "a different text in every row"}
    state = design.encoding.state()
    assert state[-1] == "a"
    again = Encoding.from_state(state)
    assert again == design.encoding == Encoding.from_state([*state[:-1], {"name": "a"}])  # the last as it was early
    moved = DataTable("new.csv", pd.DataFrame(columns)[["a", "y", "sex", "colour"]])
    assert again.transform(moved).equals(design.X)


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        (
            {"a": [1, None, None, 2], "b": [None, 1, 2, 3]},
            {},
            "t.csv has missing values in 'a' (2), 'b' (1) of 4 rows: fill them in, or leave out those rows or columns. "
            "Empty cells and words such as NA, NaN, None and null are missing values.",
        ),
        (
            {"a": list("aabb"), "b": [1, 2, 3, 4]},
            {},
            "t.csv has text in the column 'a' (such as 'a'): "
            "encode it by 0/1 columns with one_hot=True, or leave it out with drop.",
        ),
        (
            {"a": ["1", "2", "3", "?"]},
            {"one_hot": True, "drop": ()},
            "t.csv has no usable column besides the target 'y' (left out: 'a').",
        ),
        (
            {"a": ["1", "2", "2", "?"]},
            {"one_hot": True},
            "t.csv has numbers in column 'a' but for 1 of 4 rows, such as '?': "
            "make them all numbers, or leave it out with drop.",
        ),
        ({"a": [1, 2, 3, np.inf]}, {}, "t.csv has infinite numbers, or numbers beyond 1e+100, in the column 'a'."),
        ({"a": 1}, {}, "t.csv has no usable column besides the target 'y' (left out: 'a')."),
        ({}, {}, "t.csv has no usable column besides the target 'y'."),
        ({"a": [1, 2, 3, 4]}, {"drop": ["A"]}, "drop must be a column of t.csv, but got 'A': its columns include 'a'."),
        ({"a": [1, 2, 3, 4]}, {"drop": ["y"]}, "drop must not be the target, but got 'y'."),
        (
            {"a": list("xxzz"), "a=z": [1, 2, 3, 4]},
            {"one_hot": True},
            "t.csv has columns named 'a=z', which one_hot=True needs: rename them.",
        ),
    ],
)
def test_designs_that_are_refused(columns, options, message):
    refused(lambda: design_of({"y": Y, **columns}, **options), message)


def test_two_hundred_thousand_columns(rng):
    """Columns are compared as one matrix; one after the other they took 20 seconds."""
    numbers = rng.standard_normal((10, 200_000))
    numbers[:, 7], numbers[:, 9] = 1.0, numbers[:, 3]
    frame = pd.DataFrame(numbers, columns=[f"v{j}" for j in range(200_000)])
    start = time.process_time()
    design = make_design(DataTable("t.csv", frame), "v0")
    assert time.process_time() - start < 8.0
    assert design.dropped == {"v7": "constant", "v9": "the same as 'v3'"}
    assert design.X.shape == (10, 199_997)


def test_too_many_levels():
    texts = [f"t{i // 2}" for i in range(402)]
    refused(
        lambda: design_of({"a": texts, "y": np.arange(402.0)}, one_hot=True),
        "t.csv has 201 different texts in column 'a', but one_hot=True takes at most 200: leave it out with drop.",
    )


def test_new_tables_that_do_not_fit():
    design = design_of({"colour": list("rrbg"), "y": Y, "a": [4, 3, 2, 1]}, one_hot=True)

    def transform(**columns):
        return lambda: design.encoding.transform(DataTable("new.csv", pd.DataFrame(columns)))

    refused(transform(b=[1]), "new.csv lacks the columns 'colour', 'a', which the model uses.")
    refused(
        transform(a=[1, 2], colour=["r", "x"]),
        "new.csv has 'x' in column 'colour', but the model knows only 'b', 'g', 'r'.",
    )
    refused(
        transform(a=["1", "?"], colour=["r", "b"]),
        "new.csv has text in the column 'a' (such as '?'), but the model was fitted to numbers.",
    )
