"""Texts that look equal: values, names of columns, classes and groups; and whole numbers that float64 does not hold."""

import unicodedata

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import csv

from bayesadam.sklearn import BayesianMLPClassifier, BayesianMLPRegressor, Settings, TableEncoder
from bayesadam.tables.encoder.findings import Findings
from bayesadam.tables.encoder.frames import is_table
from bayesadam.tables.encoder.read_table import read_table
from bayesadam.tables.estimators.rows import weighed
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
    def test_are_equal_in_values_and_names(self):
        encoder = TableEncoder(keep=[decomposed("Größe")]).fit(table().select(["Größe", "ville"]))
        findings = Findings()
        assert np.array_equal(encoder.encode(table(decomposed), findings), encoder.encode(table(), Findings()))
        assert findings.notes == []
        other = TableEncoder(keep=[]).fit(table(decomposed))
        assert other.columns_ == TableEncoder(keep=[]).fit(table()).columns_

    def test_are_one_value_that_is_missing(self):
        encoder = TableEncoder(missing=[decomposed("Genève")]).fit(table().select(["Größe", "ville"]))
        assert encoder.columns_[1].levels == ("Bern", "Zürich")

    def test_are_equal_in_files(self, tmp_path):
        csv.write_csv(table(decomposed), tmp_path / "t.csv")
        prepared = prepare(Settings(str(tmp_path / "t.csv"), "Größe", task="regression", drop=("classe",)))
        assert prepared.settings.target == "Größe"
        model = BayesianMLPRegressor(**SHORT).fit(table().select(["ville"]).to_pandas(), np.arange(60.0))
        found, notes = predict_table(model, read_table(tmp_path / "t.csv"), copy=[decomposed("classe")])
        assert found.column_names[0] == "classe"
        assert notes == ["columns that are no inputs are ignored: 'Größe'"]

    def test_are_one_class_and_one_group(self):
        mixed = [decomposed(city) if row % 5 else city for row, city in enumerate(CITIES[np.arange(60) % 3])]
        prepared = prepare(Settings("t", "city"), pd.DataFrame({"x": np.arange(60) % 7, "city": mixed}))
        assert prepared.target.classes == ("Bern", "Genève", "Zürich")
        x = np.random.default_rng(0).normal(size=(60, 2))
        assert BayesianMLPClassifier(**SHORT).fit(x, mixed).classes_.tolist() == ["Bern", "Genève", "Zürich"]
        assert weighed(x, x, None, mixed)[3].tolist() == CITIES[np.arange(60) % 3].tolist()

    def test_labels_of_one_spelling_are_kept(self):
        """Else scores of scikit-learn, which compares labels with predictions, would be 0."""
        x, labels = np.random.default_rng(0).normal(size=(60, 2)), [decomposed(city) for city in CITIES] * 20
        model = BayesianMLPClassifier(**SHORT).fit(x, labels)
        assert set(model.classes_) == set(labels)
        model.partial_fit(x, CITIES.tolist() * 20)
        assert set(model.predict(x)) <= set(labels)

    def test_are_one_name_in_a_frame_of_numbers(self):
        frame = pd.DataFrame({"Größe": np.arange(60.0), "é": np.ones(60)})
        model = BayesianMLPRegressor(**SHORT).fit(frame, np.arange(60.0))
        assert np.array_equal(model.predict(frame.rename(columns=decomposed)), model.predict(frame))


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
    model = BayesianMLPRegressor(**SHORT).fit(x, 10.0 * (np.arange(60) % 3))
    assert [column.kind for column in model.inputs_.columns_] == ["category", "number"]


def test_many_whole_numbers_that_are_not_exact_are_noted():
    column = {"code": pa.array(2**60 + np.random.default_rng(0).integers(0, 2**60, 60)), "x": np.arange(60) % 7}
    encoder, findings = TableEncoder(keep=[]).fit(pa.table(column)), Findings()
    encoder.encode(pa.table(column), findings)
    assert [own.kind for own in encoder.columns_] == ["number", "number"]
    (note,) = findings.cells
    assert note.startswith("column 'code': 60 rows have whole numbers beyond 2**53 (")
    assert note.endswith("whose last digits are lost (if they are codes: category; if they are no input: drop)")
