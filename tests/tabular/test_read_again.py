"""The file of the training rows, whose types are found, means the same when it is read again as text, for predictions."""

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
