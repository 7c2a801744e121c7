"""Texts that look equal: values, names of columns, classes and groups; and whole numbers that float64 does not hold."""

import unicodedata

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import csv

from bayesadam.sklearn import BayesianMLPRegressor, Settings, TableEncoder
from bayesadam.tables.encoder.findings import Findings
from bayesadam.tables.encoder.frames import is_table
from bayesadam.tables.encoder.read_table import read_table
from bayesadam.tables.runs.predict_table import predict_table
from bayesadam.tables.runs.prepare import prepare

SHORT = {"members": 2, "hidden": (4,), "epochs": 2, "random_state": 0}
CITIES = np.array(["Zürich", "Genève", "Bern"])


def decomposed(text):
    """Return a text that looks the same: with combining accents, and marks that take no space."""
    return unicodedata.normalize("NFD", text).replace("e", "e\u200b") + "\ufeff"


def table(written=str):
    rows = np.arange(60)
    columns = {"Größe": rows % 7, "ville": [written(city) for city in CITIES[rows % 3]], "classe": CITIES[rows % 2]}
    return pa.table({written(name): values for name, values in columns.items()})


class TestTextsThatLookEqual:
    def test_are_equal_in_files(self, tmp_path):
        csv.write_csv(table(decomposed), tmp_path / "t.csv")
        prepared = prepare(Settings(str(tmp_path / "t.csv"), "Größe", task="regression", drop=("classe",)))
        assert prepared.settings.target == "Größe"
        model = BayesianMLPRegressor(**SHORT).fit(table().select(["ville"]).to_pandas(), np.arange(60.0))
        found, notes = predict_table(model, read_table(tmp_path / "t.csv"), copy=[decomposed("classe")])
        assert found.column_names[0] == "classe"
        assert notes == ["columns that are no inputs are ignored: 'Größe'"]


IDS = 1234567890123456789 + np.array([0, 1, 2])
ROWS = IDS[np.arange(60) % 3]


@pytest.mark.parametrize(
    "column", [ROWS, ROWS.astype(str), [10 * int(value) for value in ROWS], pa.array(ROWS).cast(pa.decimal128(19, 0))]
)
def test_few_whole_numbers_that_are_not_exact_are_categories(column, tmp_path):
    frame = pd.DataFrame({"code": pd.Series(column), "x": np.arange(60) % 7})
    assert is_table(frame)
    csv.write_csv(pa.table(frame.astype(str)), tmp_path / "t.csv")
    for keep in (None, []):
        for given in (frame, read_table(tmp_path / "t.csv").table):
            encoder = TableEncoder(keep=keep).fit(given)
            assert [own.kind for own in encoder.columns_] == ["category", "number"]
            matrix = encoder.encode(read_table(tmp_path / "t.csv", typed=False).table, Findings())
            assert np.array_equal(matrix[:, :3], np.eye(3)[np.arange(60) % 3])


def test_whole_numbers_that_are_not_exact_in_a_matrix():
    x = np.stack([ROWS, np.arange(60)], axis=1)
    assert not is_table(x % 2**53)
    model = BayesianMLPRegressor(**SHORT).fit(x, 10.5 * (np.arange(60) % 3))
    assert [column.kind for column in model.inputs_.columns_] == ["category", "number"]


def test_many_whole_numbers_that_are_not_exact_are_noted():
    column = {"code": pa.array(2**60 + np.random.default_rng(0).integers(0, 2**60, 60)), "x": np.arange(60) % 7}
    encoder, findings = TableEncoder(keep=[]).fit(pa.table(column)), Findings()
    encoder.encode(pa.table(column), findings)
    assert [own.kind for own in encoder.columns_] == ["number", "number"]
    (note,) = findings.cells
    assert note.startswith("column 'code': 60 rows have whole numbers beyond 2**53 (")
    assert note.endswith(
        "whose last digits are lost (if they are codes: category=['code']; if they are no input: drop=['code'])"
    )
