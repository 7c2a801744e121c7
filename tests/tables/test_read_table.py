"""CSV and Parquet files: what is read, and one line about each mistake."""

import gzip
import io
import os
from contextlib import suppress

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from bayesadam.sklearn import TableError
from bayesadam.tables.encoder import memory
from bayesadam.tables.encoder.read_table import read_table

TABLE = {"a": [1, 2, 3], "b": [0.5, None, -1e-3], "c": ["x", "y, z", "ä"], "d": [True, False, None]}
TEXT = 'a,b,c,d\n1,0.5,x,true\n2,,"y, z",false\n3,-1e-3,ä,\n'


@pytest.fixture
def write(tmp_path):
    def write(content, name="table.csv"):
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


@pytest.mark.parametrize(
    ("content", "name", "delimiter"),
    [
        (TEXT, "table.csv", None),
        ("\ufeff" + TEXT, "table.csv", None),
        (TEXT.replace("\n", "\r\n"), "table.csv", None),
        ("\n\n" + TEXT.replace("\n2", "\n\n2") + "\n\n", "table.csv", None),
        (TEXT.replace("a,b", " a ,b  "), "table.csv", None),
        (TEXT.replace(",", "\t").replace("y\t", "y,"), "table.tsv", None),
        (TEXT.replace(",", ";").replace("y;", "y,"), "table.txt", ";"),
        (gzip.compress(TEXT.encode(), mtime=0), "table.csv.gz", None),
    ],
)
def test_csv_and_parquet(write, content, name, delimiter):
    path = write(content, name)
    file = read_table(path, delimiter=delimiter)
    assert file.table.to_pydict() == TABLE
    assert [str(kind) for kind in file.table.schema.types] == ["int64", "double", "string", "bool"]
    assert file.place(0).startswith("line ")
    parquet.write_table(file.table, path)  # recognised by its content
    assert name.endswith("gz") or read_table(path).table.to_pydict() == TABLE


def test_standard_input(monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(TEXT.encode())))
    assert read_table("-").table.to_pydict() == TABLE


def test_new_rows_are_all_text(write):
    """Their types are those of the training rows: 01 may be a code there, and 1.50 a level."""
    file = read_table(write("a,b\n01,1.50\n2,3\n"), typed=False)
    assert file.table.to_pydict() == {"a": ["01", "2"], "b": ["1.50", "3"]}


def test_whole_numbers_with_leading_zeros_are_text(write):
    file = read_table(write("zip,class,n\n02134,007,10\n12345,010,20\n"))
    assert file.table.to_pydict() == {"zip": ["02134", "12345"], "class": ["007", "010"], "n": [10, 20]}


def test_a_decimal_comma(write):
    """It is found, or given: with it 1.234 is another number, and 0.5 none."""
    path = write("a;b;c;d\n1,5;1.234;0.5;7\n-2,25;8;1.5;8\n")
    for options in ({}, {"delimiter": ";", "decimal": ","}):
        file = read_table(path, **options)
        assert file.decimal == ","
        assert file.table.to_pydict() == {"a": ["1,5", "-2,25"], "b": ["1.234", "8"], "c": ["0.5", "1.5"], "d": [7, 8]}
    assert read_table(path, decimal=".").table["b"].to_pylist() == [1.234, 8.0]


@pytest.mark.parametrize(
    ("content", "name", "found"),
    [
        ("a;b\n1;2\n", "t.csv", ";"),
        ("a\tb\n1\t2\n", "t.csv", "\t"),
        ("a|b|c,d\n1|2|3\n", "t.csv", "|"),
        ("a;b, in m;c\n1;2,5;3\n", "t.csv", ";"),
        ('a;"b;\nc"\n1;x,y\n', "t.csv", ";"),
        ("b;c;a\n0,5;2,5;1\n1,5;3,5;1\n", "t.csv", ";"),
        ("a\tb\n1\t2,5\n1\t3,5\n", "t.csv", "\t"),
        ("a;b\u2028c\n1;2\n", "t.csv", ";"),
        ("sep=;\na;b,c\n1;2\n", "t.csv", ";"),
        ('\ufeff"sep=|"\r\na|b;c;d\r\n1|2\r\n', "t.csv", "|"),
    ],
)
def test_the_delimiter_is_found(write, content, name, found):
    file = read_table(write(content, name))
    assert file.notes == [f"columns are separated by {found!r}"]
    assert set(file.table["a"].to_pylist()) == {1}


@pytest.mark.parametrize("content", ["a,b;c\n1,2\n", "a,b\n1;2,3;4\n", "a\n1;2\n", "sep=,\na,b;c;d\n1,2;3;4\n"])
def test_a_comma_is_kept(write, content):
    assert read_table(write(content)).notes == []


def test_lines_above_the_names_and_a_last_row_with_sums(write):
    """As people export a sheet: a title, an empty line, and totals."""
    file = read_table(write("Sales 2024\n\nRegion;Amount;Share\nNorth;5;1,5\nSouth;7;2,5\nTotal;12;4,0\n"))
    assert file.notes == [
        "columns are separated by ';'",
        "the names of the columns are in line 3, below 'Sales 2024'",
        "the last row is left out, as it is a total ('Total')",
    ]
    assert file.table.to_pydict() == {"Region": ["North", "South"], "Amount": [5, 7], "Share": ["1,5", "2,5"]}
    assert file.place(0) == "line 4"
    with pytest.raises(TableError, match="line 5 must have 2 values, as the header has, got 3$"):
        read_table(write("List\n\na,b\n1,2\n3,4,5\n"))


def test_new_rows_are_all_predicted(write):
    assert read_table(write("kind,n\npart,2\ntotal,3\n"), typed=False).table["kind"].to_pylist() == ["part", "total"]


def test_row_numbers_without_a_name(write):
    """``series.to_csv()`` of pandas."""
    file = read_table(write(",y\n0.126,0.379\n0.5,0.25\n"))
    assert (file.table.to_pydict(), file.notes) == ({"column 1": [0.126, 0.5], "y": [0.379, 0.25]}, [])


def test_a_total_among_others_is_a_row(write):
    assert read_table(write("kind,n\ntotal,1\npart,2\ntotal,3\n")).table.num_rows == 3


@pytest.mark.parametrize("encoding", ["cp1252", "utf-16", "mac-roman"])
def test_other_encodings(write, encoding):
    file = read_table(write("Größe,Preis\n1,€ 5\n2,€ 6\n".encode(encoding)))
    if encoding != "mac-roman":  # which nobody can tell from others for certain
        assert file.table.to_pydict() == {"Größe": [1, 2], "Preis": ["€ 5", "€ 6"]}
        assert file.notes == [f"the text is read as {encoding}, as it is not UTF-8"]
    assert file.table.num_rows == 2


def test_nan_in_parquet_is_a_missing_value(tmp_path):
    from bayesadam.tables.encoder.frames import as_table

    values = pa.array([1.5, np.nan, 2.5], pa.float64())
    columns = {"a": values.cast(pa.float16()), "b": values, "c": values.cast(pa.float32())}
    parquet.write_table(pa.table(columns), tmp_path / "t.parquet")
    table = as_table(read_table(tmp_path / "t.parquet").table)
    assert [column.to_pylist() for column in table.columns] == [[1.5, None, 2.5]] * 3


def test_columns_without_a_name(write):
    file = read_table(write("y,1,,\n1,a,b,\n2,c,,d\n3,,NA,\n"))
    columns = {"y": [1, 2, 3], "1": ["a", "c", None], "column 3": ["b", None, "NA"], "column 4": [None, "d", None]}
    assert file.table.to_pydict() == columns


@pytest.mark.parametrize(
    ("content", "name", "options", "message"),
    [
        (b"\n \n", "t.csv", {}, "{path} must be a CSV or Parquet file, got an empty file"),
        (b"a,b\n", "t.csv", {}, "t.csv must have rows below its header, got none"),
        (b"1.5,2\n3,4\n", "t.csv", {}, "t.csv must have the columns' names in its first line, got the numbers ['1.5'"),
        (b"a,b, a\n1,2,3\n", "t.csv", {}, "t.csv: every column must have a name of its own, got 'a' more than once"),
        (b"a,b\n1,2\n3\n", "t.csv", {}, "t.csv: line 3 must have 2 values, as the header has, got 1"),
        (b"a,b\n1,2\n3,4,5\n", "t.csv", {}, "t.csv: line 3 must have 2 values, as the header has, got 3"),
        (b"PK\x03\x04\0\0\0\0", "t.csv", {}, "t.csv must be a CSV or Parquet file, got neither text nor Parquet"),
        (b"a,b\n1,2\n", "t.parquet", {}, "t.parquet must be a Parquet file, as its name says, got something else"),
        (b"PAR1 and more", "t.parquet", {}, "t.parquet must be a complete Parquet file ("),
        (b"a::b\n1::2\n", "t.csv", {"delimiter": "::"}, "the delimiter must be one character, got '::'"),
        (b"a;b\n1;2\n", "t.csv", {"decimal": "x"}, "the decimal mark must be '.' or ',' and not the delimiter"),
        (b'a,b\n1,"x\n2,3\n4,5\n', "t.csv", {}, "t.csv: every quotation mark must be closed, got one in line 2"),
        (b"\x1f\x8bnothing", "t.csv.gz", {}, "{path} must be a complete file ("),
        (None, "none.csv", {}, "{path} must be a file that can be read (No such file or directory)"),
        (None, "", {}, "{path} must be a CSV or Parquet file, got a folder"),
    ],
)
def test_mistakes(write, tmp_path, content, name, options, message):
    path = tmp_path / name if content is None else write(content, name)
    with pytest.raises(TableError) as raised:
        read_table(path, **options)
    assert str(raised.value).startswith(message.format(path=path))
    assert "\n" not in str(raised.value)


def test_a_cell_of_several_lines_and_a_very_long_one(write):
    file = read_table(write('a,b\n1,"5"" x\n2,3\n"\n'))
    assert file.table.to_pydict() == {"a": [1], "b": ['5" x\n2,3\n']}
    long = "x" * 300_000
    assert read_table(write(f"a,b\n1,{long}\n2,y\n")).table["b"].to_pylist() == [long, "y"]
    assert read_table(write(f'a,b\n1,"{long}"\n2,y\n')).table.num_rows == 2


def test_pipes_are_read(tmp_path):
    import threading

    os.mkfifo(tmp_path / "pipe.csv")
    thread = threading.Thread(target=lambda: (tmp_path / "pipe.csv").write_text(TEXT))
    thread.start()
    assert read_table(tmp_path / "pipe.csv").table.to_pydict() == TABLE
    thread.join()


def test_flipped_bytes_of_a_compressed_file(tmp_path):
    """Whatever part of the file is damaged, it is one error."""
    content = gzip.compress(TEXT.encode(), mtime=0)
    for place in range(2, len(content)):
        (tmp_path / "t.csv.gz").write_bytes(content[:place] + bytes([content[place] ^ 0x55]) + content[place + 1 :])
        with suppress(TableError):
            assert read_table(tmp_path / "t.csv.gz").table.to_pydict() == TABLE


class TestMemory:
    def test_a_table_that_does_not_fit(self, write, monkeypatch):
        monkeypatch.setattr(memory, "available_memory", lambda: 100)
        message = r"^reading table.csv would take 0\.0 GiB of memory, 0\.0 GiB are available: use a file"
        with pytest.raises(memory.NotEnoughMemory, match=message):
            read_table(write(TEXT))

    def test_the_limit_of_a_container_counts(self, tmp_path, monkeypatch):
        limit, used = tmp_path / "memory.max", tmp_path / "memory.current"
        monkeypatch.setattr(memory, "_GROUP", tmp_path)
        used.write_text("60000\n")
        limit.write_text("max\n")
        assert 2**20 < memory.available_memory() < 2**50
        limit.write_text("100000\n")
        assert memory.available_memory() == 40_000

    def test_unknown(self, monkeypatch):
        monkeypatch.setattr(memory, "available_memory", lambda: None)
        memory.require_memory(2**60, "this", "less")
        with pytest.raises(memory.NotEnoughMemory, match=r"^this would take .* more than there can be: less$"):
            memory.require_memory(2.0**70, "this", "less")


def test_a_title_with_the_delimiter(write):
    """Names are as many as the cells of most rows; a header with a name too few stays an error."""
    path = write(b"Sales by region, 2023\nregion,units,price\nnorth,1,2.5\nsouth,3,4.5\n")
    file = read_table(path)
    assert file.table.column_names == ["region", "units", "price"]
    assert file.first_line == 3
    assert file.notes == ["the names of the columns are in line 2, below 'Sales by region, 2023'"]
    with pytest.raises(TableError, match="line 2 must have 2 values, as the header has, got 3"):
        read_table(write(b"a,b\n1,2,3\n4,5,6\n"))
