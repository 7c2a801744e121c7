"""The file of the training rows means the same when it is read again as text, without the types that were found."""

import numpy as np
import pyarrow as pa
import pytest

from bayesadam.tabular import Inputs, Preprocessing, Target, open_table


@pytest.fixture
def read_twice(tmp_path):
    """Writes a CSV file, fits its inputs, and returns them with their codes in both readings."""

    def read_twice(cells, rows=60, **options):
        lines = [",".join(f'"{texts[row % len(texts)]}"' for texts in cells.values()) for row in range(rows)]
        (tmp_path / "t.csv").write_text("\n".join([",".join(cells), *lines]) + "\n")
        file = open_table(tmp_path / "t.csv", **options)
        table = file.read()
        fitted = Inputs.fit(table, decimal=file.decimal)
        # As a run does, through JSON.
        record = Preprocessing(Target("y", "regression", ""), fitted, (), ()).to_json()
        inputs = Preprocessing.from_json(record).inputs
        types = {column.name: column.type for column in inputs.columns}
        again = pa.concat_tables(chunk for _, chunk in open_table(tmp_path / "t.csv", **options).chunks(types))
        return inputs, inputs.codes(table), inputs.codes(again)

    return read_twice


def test_a_decimal_comma_in_another_column(read_twice):
    """Numbers with a decimal point keep it, and text that could be either follows the column with commas."""
    inputs, first, second = read_twice({"a": ["1.685", "8.25"], "b": ["4,1", "5,25"], "c": ["1,500", "2,750"]})
    assert [column.decimal for column in inputs.columns] == [".", ",", ","]
    assert first[:2].tolist() == [[1.685, 4.1, 1.5], [8.25, 5.25, 2.75]]
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize(
    "texts",
    [
        ["10:30:15", "00:00:00", ""],
        ["2021-03-04 10", "2021-03-05 23", "NA"],
        ["2021-03-04T10:30+01", "2021-03-04T10:30-11"],
        ["2021-03-04 10+01", "2021-03-04 10Z"],
        ["2021-03-04T10:30+0130", "2021-03-04T10:30-01:30", "NA"],
        ["2021-03-04 10:30:15.125", "2021-03-04 10:30:15.5"],
        ["0001-01-01", "0068-02-03", "0099-12-31", "9999-12-31"],
    ],
)
def test_dates_and_times(read_twice, texts):
    inputs, first, second = read_twice({"t": texts, "a": ["1.5", "2.5", "7", "8.5"]})
    assert inputs.columns[0].kind == "date"
    np.testing.assert_array_equal(first, second)
    assert len(np.unique(first[:, 0])) >= len(texts) - 1


def test_texts_that_mean_a_missing_value_among_numbers_only(read_twice):
    """In columns of text they are levels, as an empty cell is not."""
    cells = {
        "number": ["1.5", "NA", "2.5", "-nan"],
        "whole": ["1", "#N/A", "1", "2"],
        "money": ["$5", "N/A", "$6.5", "null"],
        "date": ["2021-03-04", "#NA", "2021-03-05", "NaN"],
        "truth": ["true", "NULL", "false", "n/a"],
        "id": ["3", "NA", "4", "4"],
        "land": ["NA", "", "null", "DE"],
    }
    inputs, first, second = read_twice(cells)
    kinds = ["number", "number", "number", "date", "true or false", "category", "category"]
    assert [column.kind for column in inputs.columns] == kinds
    assert all(column.missing for column in inputs.columns)
    assert (inputs.columns[-2].levels, inputs.columns[-1].levels) == (("4", "3"), ("DE", "NA", "null"))
    np.testing.assert_array_equal(first, second)
