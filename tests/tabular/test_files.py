"""CSV and Parquet files: what is read, in which chunks, and one line about each mistake."""

import gzip
import os

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from bayesadam.tabular import NotEnoughMemory, TableError, csv_file, file, memory, open_table, table_writer
from bayesadam.tabular.numbers import as_numbers

TABLE = {"a": [1, 2, 3], "b": [0.5, None, -1e-3], "c": ["x", "y, z", "ä"], "d": [True, False, None]}
TEXT = 'a,b,c,d\n1,0.5,x,true\n2,,"y, z",false\n3,-1e-3,ä,\n'


@pytest.fixture
def write(tmp_path):
    def write(content, name="table.csv"):
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(csv_file, "_BLOCK", 512)
    monkeypatch.setattr(file, "CHUNK_ROWS", 10)
    monkeypatch.setattr(csv_file, "CHUNK_ROWS", 10)


def types(table):
    return {name: str(kind) for name, kind in zip(table.schema.names, table.schema.types, strict=True)}


class TestReading:
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
    def test_csv_and_parquet(self, write, content, name, delimiter):
        path = write(content, name)
        table = open_table(path, delimiter).read()
        assert table.to_pydict() == TABLE
        assert types(table) == {"a": "int64", "b": "double", "c": "string", "d": "bool"}
        parquet.write_table(table, path)  # recognised by its content
        assert name.endswith("gz") or open_table(path).read().to_pydict() == TABLE

    def test_a_decimal_comma(self, write):
        """It is found, or given: with it 1.234 is another number, and 0.5 none."""
        content = "a;b;c;d\n1,5;1.234;0.5;x\n-2,25;8;1.5;1,5\n"
        columns = {"a": [1.5, -2.25], "b": ["1.234", "8"], "c": ["0.5", "1.5"], "d": ["x", "1,5"]}
        for options in ((), (";", ",")):
            file = open_table(write(content), *options)
            assert file.read().to_pydict() == columns
            assert file.decimal == ","
        ((_, chunk),) = file.chunks({"a": pa.float64(), "d": None})
        assert chunk.to_pydict() == {"a": ["1,5", "-2,25"], "d": ["x", "1,5"]}
        assert open_table(file.path, decimal=".").read()["b"].to_pylist() == [1.234, 8.0]

    @pytest.mark.parametrize(
        ("content", "name", "usual", "found"),
        [
            ("a;b\n1;2\n", "t.csv", None, ";"),
            ("a\tb\n1\t2\n", "t.csv", None, "\t"),
            ("a|b|c,d\n1|2|3\n", "t.csv", ";", "|"),
            ("a,b\n1,2\n", "t.csv", ";", ","),
            ("a;b, in m;c\n1;2,5;3\n", "t.csv", None, ";"),
            ('a;"b;\nc"\n1;x,y\n', "t.csv", None, ";"),
            ("sep=;\na;b,c\n1;2\n", "t.csv", None, ";"),
            ('\ufeff"sep=|"\r\na|b;c;d\r\n1|2\r\n', "t.csv", None, "|"),
        ],
    )
    def test_the_delimiter_is_found(self, write, content, name, usual, found):
        file = open_table(write(content, name), usual=usual)
        assert file.delimiter == found
        assert file.notes == [f"columns are separated by {found!r}"]
        assert file.read()["a"].to_pylist() == [1]

    @pytest.mark.parametrize(
        "content", ["a,b;c\n1,2\n", "a,b\n1;2,3;4\n", "a\n1;2\n", "sep=,\na,b;c;d\n1,2\n", "a,b\n1\n"]
    )
    def test_a_comma_is_kept(self, write, content):
        file = open_table(write(content))
        assert (file.delimiter, file.notes) == (",", [])

    def test_lines_above_the_names_count(self, write):
        file = open_table(write('sep=:\n\r\na:"b\nc"\n1:2\n3\n'), usual=":")
        assert (file.place(0), file.notes) == ("line 5", [])  # what is usual is nothing to say
        with pytest.raises(TableError, match="line 6 must have 2 values, as the header has, got 1$"):
            file.read()

    @pytest.mark.parametrize("encoding", ["cp1252", "utf-16"])
    def test_other_encodings(self, write, encoding):
        file = open_table(write("Größe,Preis\n1,€ 5\n2,€ 6\n".encode(encoding)))
        assert file.read().to_pydict() == {"Größe": [1, 2], "Preis": ["€ 5", "€ 6"]}
        ((_, chunk),) = file.chunks({"Preis": None})
        assert chunk["Preis"].to_pylist() == ["€ 5", "€ 6"]
        assert file.notes == [f"the text is read as {encoding}, as it is not UTF-8"]

    @pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
    def test_texts_that_mean_a_missing_value(self, tmp_path, name):
        """Whatever white space is around them; marks such as NA are text beside other text."""
        table = pa.table({"a": ["1", "none yet", "3"], "b": ["x", "NA", "none yet"], "c": ["x", " none yet ", " rare"]})
        with table_writer(tmp_path / name) as write:
            write(table)
        file = open_table(tmp_path / name, missing=["none yet", " rare "])
        numbers = [1, None, 3] if name == "t.csv" else ["1", None, "3"]
        texts = {"b": ["x", "NA", None], "c": ["x", None, None]}
        assert file.read().to_pydict() == {"a": numbers, **texts}
        ((_, chunk),) = file.chunks({"a": pa.float64(), "b": None, "c": pa.string()})
        assert chunk.to_pydict() == {"a": ["1", None, "3"], **texts}

    @pytest.mark.parametrize("stored", [pa.float32(), pa.int64(), pa.decimal128(6, 1), pa.string()], ids=str)
    def test_numbers_that_mean_a_missing_value(self, tmp_path, write, stored):
        """They are recognised in any form, but not with a unit."""
        values = pa.array([1, -999, None, 9], pa.int64())
        column = values.cast(pa.decimal128(19, 0)).cast(stored) if pa.types.is_decimal(stored) else values.cast(stored)
        parquet.write_table(pa.table({"a": column, "b": ["x", "-999 m", "-9.99e2", "-999"]}), tmp_path / "t.parquet")
        cells = ["1,x", "-999.0,-999 m", ",-9.99e2", "9,-999"]
        for path in (write("a,b\n" + "\n".join(cells) + "\n"), tmp_path / "t.parquet"):
            file = open_table(path, missing=["-999"])
            ((_, chunk),) = file.chunks({"a": pa.float64(), "b": None})
            for table in (file.read(), chunk):
                assert [value is None for value in table["a"].to_pylist()] == [False, True, True, False]
                assert table["b"].to_pylist() == ["x", "-999 m", None, None]

    def test_nan_in_parquet_is_a_missing_value(self, tmp_path):
        values = pa.array([1.5, np.nan, 2.5], pa.float64())
        columns = {"a": values.cast(pa.float16()), "b": values, "c": pa.chunked_array([values.dictionary_encode()])}
        parquet.write_table(pa.table(columns), tmp_path / "t.parquet")
        file = open_table(tmp_path / "t.parquet")
        ((_, chunk),) = file.chunks(dict.fromkeys(file.columns))
        for found in (file.read(), chunk):
            assert [column.to_pylist() for column in found.columns] == [[1.5, None, 2.5]] * 3

    @pytest.mark.usefixtures("small_blocks")
    @pytest.mark.parametrize(
        ("early", "late", "kind"),
        [
            ("1", "2.5", "double"),
            ("1.5", "x", "string"),
            ("", "2", "int64"),
            ("true", "2", "string"),
            ("2020-01-01", "2020-01-01 10:00:00", "timestamp[s]"),
            ("2020-01-01", "soon", "string"),
        ],
    )
    def test_the_type_is_that_of_all_rows(self, write, early, late, kind):
        rows = [early] * 500 + [late] + [early] * 100
        table = open_table(write("a,b\n" + "".join(f"{i},{row}\n" for i, row in enumerate(rows)))).read()
        assert types(table) == {"a": "int64", "b": kind}
        assert table["a"].to_pylist() == list(range(601))
        assert table["b"].null_count == (600 if not early else 0)
        assert table["b"].cast(pa.string())[500].as_py().replace(".0", "").startswith(late)

    def test_columns_without_a_name(self, write):
        file = open_table(write("y,1,,\n1,a,b,\n2,c,,d\n3,,NA,\n"))
        columns = {"y": [1, 2, 3], "1": ["a", "c", None], "column 3": ["b", None, "NA"], "column 4": [None, "d", None]}
        assert file.read().to_pydict() == columns
        ((_, chunk),) = file.chunks({"column 4": None, "y": None})
        assert chunk.to_pydict() == {"column 4": [None, "d", None], "y": ["1", "2", "3"]}


@pytest.mark.usefixtures("small_blocks")
class TestChunks:
    KINDS = {"c": pa.string(), "a": pa.float64()}  # noqa: RUF012

    @pytest.fixture(params=["csv", "parquet"])
    def opened(self, request, tmp_path):
        table = pa.table(
            {"a": np.arange(1000.0), "b": np.zeros(1000), "c": pa.array([None, *(str(i) for i in range(999))])}
        )
        path = tmp_path / f"table.{request.param}"
        with table_writer(path) as write:
            write(table)
        return open_table(path), table

    def test_are_the_table(self, opened, monkeypatch):
        from bayesadam.tabular import parquet_file

        monkeypatch.setattr(parquet_file, "CHUNK_ROWS", 10)
        source, table = opened
        parts = list(source.chunks(self.KINDS))
        found = pa.concat_tables([part for _, part in parts])
        assert found["c"].to_pylist() == table["c"].to_pylist()
        assert as_numbers(found["a"], "a").tolist() == table["a"].to_pylist()
        assert max(len(part) for _, part in parts) <= 10
        assert [first for first, _ in parts] == np.cumsum([0, *(len(part) for _, part in parts)])[:-1].tolist()


class TestMistakes:
    """The message starts with the path or the option and is one line."""

    @pytest.mark.parametrize(
        ("content", "name", "options", "message"),
        [
            (b"\n \n", "t.csv", (), "{} must be a CSV or Parquet file, got an empty file"),
            (b"a,b\n", "t.csv", (), "{} must have rows below its header, got none"),
            (
                b"1.5,2\n3,4\n",
                "t.csv",
                (),
                "{} must have the columns' names in its first line, got the numbers ['1.5', ",
            ),
            (b"a,b, a\n1,2,3\n", "t.csv", (), "{}: every column must have a name of its own, got 'a' more than once"),
            (b"a,b\n1,2\n3\n", "t.csv", (), "{}: line 3 must have 2 values, as the header has, got 1"),
            (b"a,b\n1,2\n3,4,5\n", "t.csv", (), "{}: line 3 must have 2 values, as the header has, got 3"),
            (b"a,b\n1,\x81\n", "t.csv", (), "{} must be text in UTF-8, or a Parquet file"),
            (b"PK\x03\x04\0\0\0\0", "t.csv", (), "{} must be a CSV or Parquet file, got neither text nor Parquet"),
            (b"a,b\n1,2\n", "t.parquet", (), "{} must be a Parquet file, as its name says, got something else"),
            (b"PAR1 and more", "t.parquet", (), "{} must be a complete Parquet file ("),
            (b"a::b\n1::2\n", "t.csv", ("::",), "`delimiter` must be one character, got '::'"),
            (b"a;b\n1;2\n", "t.csv", (";", "x"), "`decimal` must be '.' or ',' and not the `delimiter`, got 'x'"),
            (b"a,b\n1,2\n", "t.csv", (",", ","), "`decimal` must be '.' or ',' and not the `delimiter`, got ','"),
            (b"a;b\n1;2\n", "t.csv", (",",), "{} must have columns separated by ',', got one column, 'a;b'"),
            (None, "none.csv", (), "{} must be a file that exists"),
            (None, "", (), "{} must be a CSV or Parquet file, got a folder"),
            (None, "pipe", (), "{} must be a regular file, since it is read several times, got a pipe"),
        ],
    )
    def test_content(self, write, tmp_path, content, name, options, message):
        os.mkfifo(tmp_path / "pipe")
        path = tmp_path / name if content is None else write(content, name)
        with pytest.raises(TableError) as raised:
            open_table(path, *options).read()
        assert str(raised.value).startswith(message.format(path))
        assert "\n" not in str(raised.value)
        assert raised.value.remedy == ({"delimiter": ";"} if "got one column" in message else {})

    def test_latin_1_far_below(self, write, small_blocks):
        path = write(b"a,b\n" + b"1,x\n" * 400_000 + b"1,\xe4\n")
        with pytest.raises(TableError, match="must be text in UTF-8, which column 'b' is not$"):
            open_table(path).read()

    @pytest.mark.parametrize(
        ("block", "suffix", "encoding", "column"),
        [(64, "", "utf-8", "a,"), (2**20, ".gz", "utf-16", "a,b,"), (64, ".gz", "utf-8", ""), (64, "", "utf-16", "")],
    )
    def test_a_quotation_mark_that_is_not_closed(self, write, monkeypatch, block, suffix, encoding, column):
        """Otherwise the rest of the file would be the value of one cell."""
        monkeypatch.setattr(csv_file, "_BLOCK", block)
        below = '"say ""hi""","a\nb",5" pipe\n' * 30
        text = "a,b,c\n1,x,y\n" + below + f'{column}"x\n' + "2,x,y\n" * 100
        content = text.encode(encoding)
        file = open_table(write(gzip.compress(content) if suffix else content, "t.csv" + suffix))
        message = r"every quotation mark must be closed, got one in line 63 that is open to the end of the file$"
        with pytest.raises(TableError, match=message):
            file.read()
        with pytest.raises(TableError, match=message):
            list(file.chunks({"a": None}))

    def test_a_last_cell_of_several_lines(self, write):
        path = write('a,b\n1,"5"" x\n2,3\n"\n')
        file = open_table(path)
        assert file.read().to_pydict() == {"a": [1], "b": ['5" x\n2,3\n']}
        assert [len(part) for _, part in file.chunks({"a": None})] == [1]

    def test_a_value_that_is_too_long(self, write, monkeypatch):
        monkeypatch.setattr(csv_file, "_BLOCK", 64)
        with pytest.raises(TableError, match="no value may be longer than 8 MB$"):
            open_table(write('a,b\n1,"x\n' + "2,y\n" * 100 + '"\n')).read()

    @pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
    def test_a_table_that_does_not_fit(self, name, tmp_path, monkeypatch):
        path = tmp_path / name
        with table_writer(path) as write:
            write(pa.table({"a": np.random.default_rng(0).normal(size=10_000)}))
        monkeypatch.setattr(memory, "available_memory", lambda: 100_000)
        message = r"would take 0\.0 GiB of memory, 0\.0 GiB are available: use a file with fewer rows or columns$"
        with pytest.raises(NotEnoughMemory, match=message):
            open_table(path).read()
        monkeypatch.setattr(memory, "available_memory", lambda: 1_000_000)
        assert len(open_table(path).read()) == 10_000


class TestMemory:
    def test_the_limit_of_a_container_counts(self, tmp_path, monkeypatch):
        limit, used = tmp_path / "max", tmp_path / "current"
        monkeypatch.setattr(memory, "_LIMITS", {str(limit): str(used)})
        used.write_text("60000\n")
        limit.write_text("max\n")
        assert 2**20 < memory.available_memory() < 2**50
        limit.write_text("100000\n")
        assert memory.available_memory() == 40_000

    def test_unknown(self, monkeypatch):
        monkeypatch.setattr(memory, "available_memory", lambda: None)
        memory.require_memory(2**60, "this", "less")
        with pytest.raises(NotEnoughMemory, match=r"^this would take .* more than there can be: less$"):
            memory.require_memory(2.0**70, "this", "less")


class TestWriting:
    TABLE = pa.table({"a": [1, 2], "b": ["x", "y"]})

    @pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
    def test_parts_make_one_table(self, tmp_path, name):
        path = tmp_path / name
        path.write_text("older")
        with table_writer(path) as write:
            write(self.TABLE)
            write(self.TABLE)
            assert path.read_text() == "older"
        assert open_table(path).read().to_pydict() == {"a": [1, 2, 1, 2], "b": ["x", "y", "x", "y"]}
        assert list(tmp_path.iterdir()) == [path]

    @pytest.mark.parametrize(("name", "error"), [("t.csv", OSError), ("t.parquet", KeyboardInterrupt)])
    def test_an_error_leaves_nothing_and_what_was_there(self, tmp_path, name, error):
        path = tmp_path / name
        path.write_text("older")
        with pytest.raises(error), table_writer(path) as write:
            write(self.TABLE)
            raise error
        assert path.read_text() == "older"
        assert list(tmp_path.iterdir()) == [path]
