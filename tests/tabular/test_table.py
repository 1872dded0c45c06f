"""Reading tables: what is understood, what is said about it, and what is refused in one sentence."""

from __future__ import annotations

import builtins
import gzip
import re
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest

from spikeslab.tabular.design import Encoding, make_design
from spikeslab.tabular.table import Table, TableError, read_table
from spikeslab.tabular.target import read_target


def write(folder, text, name="data.csv", encoding="utf-8"):
    path = folder / name
    path.write_bytes(text.encode(encoding))
    return path


def frame_of(folder, text, name="data.csv", encoding="utf-8"):
    return read_table(write(folder, text, name, encoding)).frame


def refused(call, message):
    with pytest.raises(TableError, match=f"^{re.escape(message)}$"):
        call()


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        ("a,b\n1,x\n2.5,y\n", "utf-8"),
        ("a,b\r\n1,x\r\n2.5,y\r\n", "utf-8-sig"),
        ("a, b\n1, x\n2.5, y", "utf-8"),
        ('\n"a","b"\n1,"x"\n\n2.5,y\n\n', "utf-8"),
        ("a\tb\n1\tx\n2.5\ty\n", "utf-16"),
        ("a;b\n1,0;x\n2,5;y\n", "utf-8"),
        ("a|b\n1|x\n2.5|y\n", "utf-8"),
    ],
)
def test_dialects_of_text(tmp_path, text, encoding):
    frame = frame_of(tmp_path, text, encoding=encoding)
    assert list(frame.columns) == ["a", "b"]
    assert frame["a"].tolist() == [1.0, 2.5]
    assert frame["b"].tolist() == ["x", "y"]


def test_another_separator_is_said(tmp_path):
    assert read_table(write(tmp_path, "a;b\n1,5;2\n")).notes == (
        "The fields are separated by semicolons, with decimal commas.",
    )
    assert read_table(write(tmp_path, "a;b\n1.5;2\n")).notes == ("The fields are separated by semicolons.",)
    assert read_table(write(tmp_path, "a\tb\n1.5\t2\n", "data.tsv")).notes == ()


def test_a_decimal_comma_is_not_seen_in_words(tmp_path):
    frame = frame_of(tmp_path, "a;b\n1.5;x, y\n2.5;z\n")
    assert frame["a"].tolist() == [1.5, 2.5]
    assert frame["b"].tolist() == ["x, y", "z"]


def test_quoted_separators_and_line_breaks(tmp_path):
    frame = frame_of(tmp_path, 'a,"the ""b"", too"\n1,"x, y"\n2,"z\nz"\n')
    assert list(frame.columns) == ["a", 'the "b", too']
    assert frame.iloc[:, 1].tolist() == ["x, y", "z\nz"]


@pytest.mark.parametrize("name", ["data.csv.gz", "data.tsv.gz"])
def test_gzip(tmp_path, name):
    separator = "\t" if "tsv" in name else ","
    (tmp_path / name).write_bytes(gzip.compress(f"a{separator}b\n1{separator}2\n".encode()))
    table = read_table(tmp_path / name)
    assert table.frame.to_dict("list") == {"a": [1], "b": [2]}
    assert table.notes == ()


def test_parquet(tmp_path):
    pytest.importorskip("pyarrow")
    frame = pd.DataFrame({"a": [1.5, 2.5], "b": ["x", "y"]}, index=["r1", "r2"])
    frame.to_parquet(tmp_path / "data.parquet")
    table = read_table(tmp_path / "data.parquet")
    assert table.frame.to_dict("list") == {"a": [1.5, 2.5], "b": ["x", "y"]}
    assert table.notes == ("Left out the row labels '__index_level_0__'.",)
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 and nothing else")
    refused(lambda: read_table(tmp_path / "bad.parquet"), "bad.parquet is not a parquet file that can be read.")


def test_parquet_without_pyarrow(tmp_path, monkeypatch):
    real = builtins.__import__

    def refuse(name, *args, **kwargs):
        if name.partition(".")[0] == "pyarrow":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    path = write(tmp_path, "anything", "data.parquet")
    refused(lambda: read_table(path), "Parquet files need the package pyarrow: pip install 'spikeslab[parquet]'.")


def test_integers_of_any_size_and_decimals_are_numbers(tmp_path):
    assert frame_of(tmp_path, "a,b\n12345678901234567890123,1\n1,2\n")["a"].tolist() == [12345678901234567890123.0, 1.0]
    pytest.importorskip("pyarrow")
    pd.DataFrame({"a": [Decimal("1.5"), None], "b": ["1", "2"]}).to_parquet(tmp_path / "data.parquet")
    frame = read_table(tmp_path / "data.parquet").frame
    assert frame["a"].dtype == float
    assert frame["b"].tolist() == ["1", "2"]


def test_row_names_without_a_heading_are_left_out(tmp_path):
    table = read_table(write(tmp_path, ",a,b\nr1,1,2\nr2,3,4\n"))
    assert list(table.frame.columns) == ["a", "b"]
    assert table.notes == ("Left out the first column, which has no name and a different value in every row.",)
    assert list(frame_of(tmp_path, ",a\n1,1\n1,3\n").columns) == ["column 1", "a"]


def test_text_that_looks_like_numbers(tmp_path):
    path = write(tmp_path, "zip,a\n01,1\n02,2\n")
    assert read_table(path, text=["zip"]).frame["zip"].tolist() == ["01", "02"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "data.csv is empty."),
        (b"\n\n", "data.csv is empty."),
        (b"a,b\n", "data.csv has a header but no rows."),
        (b"\x89PNG\x00\x01\x02" * 9, "data.csv is not a text file: it holds bytes that no text has."),
        ("a,b\n1,caf\xe9\n".encode("latin-1"), "data.csv is not UTF-8 text: save it with that encoding."),
        (b"a,b,a\n1,2,3\n", "data.csv must have different names for its columns, but repeats 'a'."),
        (b"a,b\n1,2\n1,2,3\n", "data.csv is not a table: its header has 2 fields, but its line 3 has 3."),
        (
            b"a,b\n" + b"1,2\n" * 20 + b"1,2,3\n",
            "data.csv is not a table: its header has 2 fields, but its line 22 has 3.",
        ),
        (b'a,b\n1,"2\n3,4\n', "data.csv is not a table: a quotation mark is never closed."),
    ],
)
def test_files_that_are_refused(tmp_path, content, message):
    (tmp_path / "data.csv").write_bytes(content)
    refused(lambda: read_table(tmp_path / "data.csv"), message)


def test_paths_that_are_refused(tmp_path):
    refused(lambda: read_table(tmp_path / "no.csv"), f"There is no file {tmp_path / 'no.csv'}.")
    (tmp_path / "folder.csv").mkdir()
    refused(lambda: read_table(tmp_path / "folder.csv"), f"{tmp_path / 'folder.csv'} must be a table, but is a folder.")
    path = write(tmp_path, "a", "data.xlsx")
    refused(
        lambda: read_table(path),
        f"{path} must end in .csv, .tsv, .csv.gz, .tsv.gz or .parquet, which says how to read it.",
    )
    path = write(tmp_path, "a,b\n1,2\n", "data.csv.gz")
    refused(lambda: read_table(path), "data.csv.gz is not a gzip file, or is cut off.")
    path.write_bytes(gzip.compress(b"a,b\n" + b"1,2\n" * 9)[:-9])
    refused(lambda: read_table(path), "data.csv.gz is not a gzip file, or is cut off.")


def design_of(columns, **options):
    return make_design(Table("t.csv", pd.DataFrame(columns)), "y", **options)


Y = [1.0, 2.0, 3.0, 5.0]


def test_columns_that_say_nothing_are_left_out():
    nan = float("nan")
    design = design_of(
        {"a": [1, 2, 3, 4], "y": Y, "one": 1, "word": "w", "none": nan, "b": [1.0, 2.0, 3.0, 4.0], "c": [0, 1, 0, 1]}
    )
    assert {column.name: column.reason for column in design.dropped} == {
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
    assert [(column.name, column.reason) for column in design.dropped] == [("id", "a different text in every row")]
    again = Encoding.from_state(design.encoding.state())
    assert again == design.encoding
    moved = Table("new.csv", pd.DataFrame(columns)[["a", "y", "sex", "colour"]])
    assert again.transform(moved).equals(design.X)


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        (
            {"a": [1, None, None, 2], "b": [None, 1, 2, 3]},
            {},
            "t.csv must have no missing values, but of its 4 rows they are missing in 'a' (2), 'b' (1): "
            "fill them in, or leave out those rows or columns; empty cells are missing values, and so are "
            "words such as NA, NaN, None and null in a text file.",
        ),
        (
            {"a": list("aabb"), "b": [1, 2, 3, 4]},
            {},
            "t.csv has text in the column 'a' (such as 'a'): "
            "--one-hot makes groups of 0/1 columns of them, and --drop NAME leaves one out.",
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
            "make them all numbers, or leave it out with --drop.",
        ),
        ({"a": [1, 2, 3, np.inf]}, {}, "t.csv must have finite numbers below 1e+100 in size, not so the column 'a'."),
        ({"a": 1}, {}, "t.csv has no usable column besides the target 'y' (left out: 'a')."),
        ({}, {}, "t.csv has no usable column besides the target 'y'."),
        ({"a": [1, 2, 3, 4]}, {"drop": ["A"]}, "--drop must be a column of t.csv, but got 'A'; close to it: 'a'."),
        ({"a": [1, 2, 3, 4]}, {"drop": ["y"]}, "--drop must not be the target, but got 'y'."),
        (
            {"a": list("xxzz"), "a=z": [1, 2, 3, 4]},
            {"one_hot": True},
            "t.csv has columns of the names 'a=z', which --one-hot needs: rename them.",
        ),
    ],
)
def test_designs_that_are_refused(columns, options, message):
    refused(lambda: design_of({"y": Y, **columns}, **options), message)


def test_too_many_levels():
    texts = [f"t{i // 2}" for i in range(402)]
    refused(
        lambda: design_of({"a": texts, "y": np.arange(402.0)}, one_hot=True),
        "t.csv has 201 different texts in column 'a', but --one-hot takes at most 200: leave it out with --drop.",
    )


def test_new_tables_that_do_not_fit():
    design = design_of({"colour": list("rrbg"), "y": Y, "a": [4, 3, 2, 1]}, one_hot=True)

    def transform(**columns):
        return lambda: design.encoding.transform(Table("new.csv", pd.DataFrame(columns)))

    refused(transform(b=[1]), "new.csv lacks the columns 'colour', 'a' of the model.")
    refused(
        transform(a=[1, 2], colour=["r", "x"]),
        "new.csv has 'x' in column 'colour', but the model knows only 'b', 'g', 'r'.",
    )
    refused(
        transform(a=["1", "?"], colour=["r", "b"]),
        "new.csv must have numbers in the column 'a' (such as '?'), as the model had.",
    )


def target_of(y, family=None):
    return read_target(Table("t.csv", pd.DataFrame({"y": y})), "y", family)


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
        ([1.0], None, "t.csv must have at least 2 rows, but has 1."),
        ([1.0, None, 2.0], None, "t.csv must have no missing values in the target 'y', but has 1 in 3 rows."),
        ([2, 2, 2], None, "The target 'y' must vary, but is 2 in every row of t.csv."),
        (list("aab"), "gaussian", "--family gaussian needs numbers in the target 'y', but got text such as 'a'."),
        (list("abc"), "binomial", "--family binomial needs 2 classes in the target 'y', but got 3: 'a', 'b', 'c'."),
        (
            list("abc"),
            None,
            "--family multinomial needs classes of about 2 rows or more, "
            "but the target 'y' has 3 different values in 3 rows.",
        ),
        ([1.0, np.inf], "gaussian", "The target 'y' of t.csv must be finite and below 1e+100 in size."),
    ],
)
def test_targets_that_are_refused(y, family, message):
    refused(lambda: target_of(y, family), message)


def test_unknown_targets():
    table = Table("t.csv", pd.DataFrame({"Price": [1, 2], "size": [3, 4]}))
    refused(
        lambda: read_target(table, "pricy"),
        "--target must be a column of t.csv, but got 'pricy'; close to it: 'Price'.",
    )
    refused(lambda: read_target(table, "y"), "--target must be a column of t.csv, but got 'y'; it has 'Price', 'size'.")
    numbers = Table("t.csv", pd.DataFrame({"1.5": [1], "2": [2]}))
    refused(
        lambda: read_target(numbers, "y"),
        "--target must be a column of t.csv, but got 'y'; "
        "its first line must hold the names of the columns, and holds only numbers.",
    )
