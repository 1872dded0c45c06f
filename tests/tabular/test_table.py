"""Files that are read, the notes about them, and files that are refused in one sentence."""

from __future__ import annotations

import builtins
import csv
import gzip
import re
import time
from decimal import Decimal
from random import Random

import pandas as pd
import pytest

from spikeslab.errors import SpikeSlabError
from spikeslab.tabular.design import make_design
from spikeslab.tabular.table import TableError, read_table
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
    assert frame_of(tmp_path, '"a,b,c";d\n"x, y, z";1\n"u, v, w";2\n')["d"].tolist() == [1, 2]


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


@pytest.mark.parametrize(("name", "separator"), [("data.csv", ","), ("data.tsv.gz", "\t"), ("data.csv", ";")])
def test_tables_of_many_columns(tmp_path, rng, name, separator):
    """Lines of more than 131,072 characters, with a column of row names, one of text and one of missing values."""
    numbers = rng.standard_normal((4, 30_000)).tolist()
    lines = [["", *(f"gene {j}" for j in range(30_000)), "kind", "age", "code"]]
    for i, row in enumerate(numbers):
        lines.append([f'"r_{i}"', *map(repr, row), ["a", "b", "NA", "a"][i], ["1", "", "3", "4"][i], "1_0"])
    text = "\n".join(separator.join(line) for line in lines)
    content = text.encode()
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    before, start = csv.field_size_limit(), time.process_time()
    table = read_table(tmp_path / name)
    assert time.process_time() - start < 5.0
    assert csv.field_size_limit() == before
    assert table.frame.iloc[:, :30_000].to_numpy().tolist() == numbers
    assert list(table.frame.columns[[0, -3, -1]]) == ["gene 0", "kind", "code"]
    assert table.frame["kind"].fillna("?").tolist() == ["a", "b", "?", "a"]
    assert table.frame["age"].fillna(0.0).tolist() == [1.0, 0.0, 3.0, 4.0]
    assert table.frame["code"].tolist() == ["1_0"] * 4
    assert table.notes[-1].startswith("Left out the first column")


@pytest.mark.parametrize(("name", "separator"), [("data.csv", ","), ("data.csv", "\t"), ("data.tsv", ";")])
def test_two_hundred_thousand_columns(tmp_path, name, separator):
    """Their names hold other separators: the first line alone would not say which one it is."""
    width, other = 200_000, "; " if separator == "," else ", "
    names = [f'"gene{other}{j}"' if j % 2 else f"gene {j}" for j in range(width - 1)]
    rows = [[str(i * width + j) for j in range(width - 1)] for i in range(3)]
    lines = [[*names, "kind"], *([*row, kind] for row, kind in zip(rows, "aba", strict=True))]
    table = read_table(write(tmp_path, "\n".join(separator.join(line) for line in lines), name))
    assert list(table.frame.columns) == [text.strip('"') for text in names] + ["kind"]
    assert table.frame["kind"].tolist() == ["a", "b", "a"]
    assert table.frame.iloc[:, :-1].to_numpy(int).tolist() == [[*map(int, row)] for row in rows]
    assert len(table.notes) == (separator != ("," if name.endswith(".csv") else "\t"))


def test_numbers_with_underscores_are_text_in_wide_tables_too(tmp_path, monkeypatch):
    for wide in (2, 3):
        monkeypatch.setattr("spikeslab.tabular.table.WIDE", wide)
        assert frame_of(tmp_path, "a,b\n1_0,2\n3,4\n")["a"].tolist() == ["1_0", "3"]


def test_tables_of_many_columns_of_text_are_read_too(tmp_path, monkeypatch):
    monkeypatch.setattr("spikeslab.tabular.table.WIDE", 1000)
    text = ",".join(f"snp{j}" for j in range(1100)) + "\n" + "\n".join(",".join([v] * 1100) for v in ("AG", "GG"))
    frame = frame_of(tmp_path, text)
    assert frame["snp1099"].tolist() == ["AG", "GG"]


def test_many_columns_with_a_row_that_is_too_short(tmp_path):
    rows = ["1," * 29_999 + "1"] * 20
    text = "\n".join([",".join(f"v{j}" for j in range(30_000)), *rows, "1,2"])
    refused(
        lambda: frame_of(tmp_path, text),
        "data.csv is not a table: its header has 30,000 fields, but its line 22 has 2.",
    )


def test_a_long_cell_is_read(tmp_path):
    assert frame_of(tmp_path, f"a,b\n1,{'x' * 200_000}\n")["b"].str.len().tolist() == [200_000]


@pytest.mark.parametrize("digits", [400, 4301, 200_000])
def test_integers_beyond_the_largest_number_are_infinite(tmp_path, digits: int):
    text = f"a,b\n{'1' * digits},1\n-{'1' * digits},2\n3,4\n"
    assert frame_of(tmp_path, text)["a"].tolist() == [float("inf"), -float("inf"), 3.0]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "data.csv is empty."),
        (b"\n\n", "data.csv is empty."),
        (b"a,b\n", "data.csv has a header but no rows."),
        (b"\x89PNG\x00\x01\x02" * 9, "data.csv is not a text file."),
        ("a,b\n1,caf\xe9\n".encode("latin-1"), "data.csv is not UTF-8 text: save it with this encoding."),
        (b"a,b,a\n1,2,3\n", "data.csv has several columns of the same name: 'a'."),
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


CELLS = [
    "1",
    "-3.5",
    "1e400",
    "nan",
    "NA",
    "",
    "inf",
    "x",
    '"q,""r"""',
    '"open',
    "1_0",
    "1,5",
    "true",
    "1" * 400,
    " 7 ",
]
CELLS += ["1" * 5000, "é", "\u2028", "2020-01-01", "[1]", "1j", "\0", "\x0b", "9223372036854775808", "-0", "\ufeff"]


@pytest.mark.filterwarnings("error")
def test_odd_tables_are_read_or_refused_in_one_sentence(tmp_path):
    random, read, refusals = Random(0), 0, []
    for _ in range(500):
        separator, end = random.choice(",,;\t|"), random.choice(["\n", "\r\n", "\r"])
        names = random.sample(["", "a", "a=x", "1", '"n,m"', "v", "y"], k=random.randint(1, 5))
        cells = [*random.sample(CELLS, random.randint(0, 3)), "1", "2", "3.5"]
        rows = [random.choices(cells, k=len(names) + (random.random() < 0.02)) for _ in range(random.randint(0, 14))]
        content = end.join(separator.join(row) for row in [names, *rows]).encode(random.choice(["utf-8", "utf-16"]))
        if content and random.random() < 0.2:
            at = random.randrange(len(content))
            content = content[:at] + random.randbytes(1) + content[at + 1 :]
        (tmp_path / "data.csv").write_bytes(content)
        try:
            table = read_table(tmp_path / "data.csv")
            target = read_target(table, random.choice(list(table.frame.columns)))
            make_design(table, target.name, one_hot=random.random() < 0.5)
            read += 1
        except SpikeSlabError as error:
            refusals.append(str(error))
    assert read > 50
    assert not any("\n" in message for message in refusals)


def test_paths_that_are_refused(tmp_path):
    refused(
        lambda: read_table(tmp_path / "no.csv"), f"path must be a table, but there is no file {tmp_path / 'no.csv'}."
    )
    (tmp_path / "folder.csv").mkdir()
    refused(
        lambda: read_table(tmp_path / "folder.csv"), f"path must be a table, but {tmp_path / 'folder.csv'} is a folder."
    )
    path = write(tmp_path, "a", "data.xlsx")
    refused(
        lambda: read_table(path),
        f"{path} is of an unknown kind: its name must end in .csv, .tsv, .csv.gz, .tsv.gz or .parquet.",
    )
    path = write(tmp_path, "a,b\n1,2\n", "data.csv.gz")
    refused(lambda: read_table(path), "data.csv.gz is not a gzip file, or is cut off.")
    path.write_bytes(gzip.compress(b"a,b\n" + b"1,2\n" * 9)[:-9])
    refused(lambda: read_table(path), "data.csv.gz is not a gzip file, or is cut off.")
