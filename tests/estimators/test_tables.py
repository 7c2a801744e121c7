"""Estimators of data frames, and of arrays with text or gaps."""

import datetime

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from bayesadam.sklearn import BayesianMLPClassifier, BayesianMLPRegressor, TableEncoder, TableError, load_estimator
from bayesadam.tables.encoder.frames import as_table, is_table

pytestmark = pytest.mark.usefixtures("few_trees")
TINY = {"members": 2, "hidden": (5,), "epochs": 5, "random_state": 0}
ROWS = 90


def frame(rows=ROWS, seed=0):
    rng = np.random.default_rng(seed)
    size = rng.normal(50, 20, rows)
    size[::7] = np.nan
    return pd.DataFrame(
        {
            "size": size,
            "rooms": pd.array(rng.integers(1, 6, rows), dtype="Int64").copy(),
            "city": rng.choice(["Rome", "Oslo", "Köln"], rows),
            "grade": pd.Categorical(rng.integers(1, 4, rows)),
            "new": rng.random(rows) < 0.5,
            "sold": pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 900, rows), "D"),
            "price": [f"${value:,.2f}" for value in rng.gamma(2, 900, rows)],
        }
    )


TARGET = np.random.default_rng(1).normal(size=ROWS)


@pytest.fixture(scope="module")
def model():
    return BayesianMLPRegressor(**TINY).fit(frame(), TARGET)


class TestFrames:
    def test_every_kind_of_column(self, model):
        kinds = {column.name: column.kind for column in model.inputs_.columns_}
        assert kinds == {
            "size": "number",
            "rooms": "number",
            "city": "category",
            "grade": "category",
            "new": "true or false",
            "sold": "date",
            "price": "number",
        }
        assert model.inputs_.get_feature_names_out()[:4].tolist() == [
            "size",
            "size is missing",
            "rooms",
            f"city = {frame()['city'].mode()[0]}",
        ]
        assert model.n_features_in_ == 7
        assert model.feature_names_in_.tolist() == list(kinds)
        assert np.isfinite(model.predict(frame(20, seed=5))).all()

    def test_saved_and_read_with_noise_that_depends_on_the_inputs(self, tmp_path):
        """Its pattern is one of the numbers that the columns are turned into, of which there are more than columns."""
        rng = np.random.default_rng(0)
        rows = pd.DataFrame({"size": np.linspace(-1, 1, 200), "city": rng.choice(["Rome", "Oslo", "Bern"], 200)})
        loud = np.exp(3.0 * rows["size"]) * rng.standard_normal(200)
        model = BayesianMLPRegressor(noise="input", **{**TINY, "epochs": 40}).fit(rows, loud)
        assert model.noise_ == "input"
        model.save(tmp_path)
        read = load_estimator(tmp_path)
        np.testing.assert_allclose(read.predict(rows, True), model.predict(rows, True), rtol=1e-6)

    def test_new_rows_may_be_stored_otherwise(self, model):
        usual = frame(20, seed=5)
        other = usual.assign(
            size=usual["size"].astype(object),
            rooms=usual["rooms"].astype(float),
            city=usual["city"].astype("category"),
            grade=usual["grade"].astype(int),
            new=usual["new"].astype(object),
            sold=usual["sold"].dt.strftime("%Y-%m-%d"),
            price=usual["price"].str.lstrip("$"),
        )
        np.testing.assert_array_equal(model.predict(other), model.predict(usual))
        np.testing.assert_array_equal(model.predict(pa.Table.from_pandas(usual)), model.predict(usual))

    def test_rows_of_weight_0_are_not_learned_from(self):
        weight = np.ones(ROWS)
        weight[80:] = 0
        x = frame()
        x.loc[85, "size"], x.loc[83:, "city"] = 1e6, "Rome Airport"
        found = BayesianMLPRegressor(**TINY).fit(x, TARGET, sample_weight=weight)
        assert found.inputs_.columns_ == BayesianMLPRegressor(**TINY).fit(x[:80], TARGET[:80]).inputs_.columns_

    def test_what_is_left_out_is_said(self):
        x = frame().assign(name=[f"name {row}" for row in range(ROWS)], same=3)
        match = (
            r"^columns are left out: 'name' \(it is text .*\(if it is an input: keep=\['name'\]\)\); encoder=TableEnc"
        )
        with pytest.warns(UserWarning, match=match):
            model = BayesianMLPRegressor(**TINY).fit(x, TARGET)
        assert list(model.inputs_.left_out_) == ["name", "same"]
        assert model.n_features_in_ == 9

    def test_an_encoder_with_options(self, tmp_path):
        encoder = TableEncoder(drop=["size"], category=["rooms"], keep=(), missing=[np.int64(-999), np.nan])
        encoder.set_output(transform="pandas")
        model = BayesianMLPRegressor(encoder=encoder, **TINY).fit(frame(), TARGET)
        assert {column.name: column.kind for column in model.inputs_.columns_}["rooms"] == "category"
        assert model.inputs_.left_out_ == {"size": "it is dropped"}
        assert not hasattr(encoder, "columns_")
        model.save(tmp_path)
        again = load_estimator(tmp_path)
        assert (again.encoder.category, again.encoder.missing) == (("rooms",), ("-999", "nan"))
        np.testing.assert_array_equal(again.predict(frame(20)), model.predict(frame(20)))

    def test_a_cell_that_cannot_be_read_is_named(self, model):
        new, filled = frame(20, seed=5).astype({"price": object}), frame(20, seed=5).astype({"price": object})
        new.loc[3, "price"], filled.loc[3, "price"] = "on request", None
        with pytest.warns(UserWarning, match=r"^column 'price': 1 row has cells .* \('on request' in row 3\)"):
            found = model.predict(new)
        with pytest.warns(UserWarning, match=r"^column 'price': 1 row has missing values, of which the training rows"):
            np.testing.assert_array_equal(found, model.predict(filled))

    def test_columns_are_found_by_their_names(self, model):
        new = frame(20, seed=5)
        more = new.assign(more="x")[["more", *new.columns[::-1]]]
        np.testing.assert_array_equal(model.predict(more), model.predict(new))
        with pytest.raises(TableError, match=r"it lacks 'city' \(to predict without it: add an empty column"):
            model.predict(new.drop(columns="city"))

    def test_an_array_has_no_names(self, model):
        with pytest.raises(TableError, match=r"^the table must have the columns, with their names, .* it lacks 'size'"):
            model.predict(frame(20).to_numpy())

    @pytest.mark.filterwarnings("ignore:column 'size'. 1 row has values far outside")
    def test_numbers_that_are_too_far_away(self, model):
        far = frame(20, seed=5)
        far.loc[2, "size"] = 1e30
        with pytest.raises(TableError, match=r"^X must be near the training inputs, got 1e\+30 in row 2"):
            model.predict(far)

    def test_text_with_many_levels_is_an_input(self):
        """A town has a level of its own, and a hundred towns are too many for a column each."""
        rng = np.random.default_rng(0)
        level = {
            f"{kind} {'abcdefghij'[i] * 3}{i}": 5.0 * (kind == "South") for kind in ("North", "South") for i in range(9)
        }
        names = [f"{town} {suffix}" for town in level for suffix in ("East", "West", "Hill", "Bay", "Lake", "Old")]
        towns = rng.choice(names, 200)
        y = np.array([level[" ".join(town.split()[:2])] for town in towns]) + 0.1 * rng.standard_normal(200)
        rows = pd.DataFrame({"town": towns, "x": rng.normal(size=200)})
        model = BayesianMLPRegressor(members=2, epochs=200, random_state=0).fit(rows[:150], y[:150])
        assert model.inputs_.columns_[0].kind == "text"
        assert np.sqrt(np.mean((model.predict(rows[150:]) - y[150:]) ** 2)) < 0.5 * np.std(y)


def test_targets_that_are_text(tmp_path):
    """Prices as on the command line, and classes with leading zeros as they are written."""
    rows, prices = frame(), [f"${1000 + 10 * target:,.2f}" for target in TARGET]
    model = BayesianMLPRegressor(**TINY).fit(rows, prices)
    numbers = np.array([float(price[1:].replace(",", "")) for price in prices])
    np.testing.assert_array_equal(model.predict(rows), BayesianMLPRegressor(**TINY).fit(rows, numbers).predict(rows))
    classes = np.array(["007", "010", "0123"])[np.arange(ROWS) % 3]
    classifier = BayesianMLPClassifier(**TINY).fit(rows, classes)
    assert set(classifier.predict(rows)) <= {"007", "010", "0123"}


class TestArrays:
    GAPS = np.where(
        np.arange(3 * ROWS).reshape(ROWS, 3) % 11 == 0, np.nan, np.random.default_rng(2).normal(size=(ROWS, 3))
    )

    def test_gaps(self, tmp_path):
        model = BayesianMLPRegressor(**TINY).fit(self.GAPS, TARGET)
        assert model.inputs_.get_feature_names_out().tolist() == [
            f"x{i}{more}" for i in range(3) for more in ("", " is missing")
        ]
        codes = model.inputs_.transform(self.GAPS)
        absent = np.isnan(self.GAPS)
        np.testing.assert_array_equal(codes[:, ::2], np.where(absent, np.nanmedian(self.GAPS, axis=0), self.GAPS))
        np.testing.assert_array_equal(codes[:, 1::2], absent)
        model.save(tmp_path)
        again = load_estimator(tmp_path)
        np.testing.assert_array_equal(again.predict(self.GAPS), model.predict(self.GAPS))
        np.testing.assert_array_equal(model.predict(self.GAPS.tolist()), model.predict(self.GAPS))

    def test_a_gap_where_training_rows_had_none(self):
        whole = np.nan_to_num(self.GAPS)
        model = BayesianMLPRegressor(**TINY).fit(whole, TARGET)
        assert model.inputs_ is None
        new, filled = whole[:5].copy(), whole[:5].copy()
        new[2, 1], filled[2, 1] = np.nan, whole[:, 1].mean()
        with pytest.warns(UserWarning, match=r"^column 1: 1 row has missing values, of which"):
            found = model.predict(new)
        np.testing.assert_allclose(found, model.predict(filled), rtol=1e-5)

    def test_text_and_numbers(self):
        rows = [[["red", "blue"][i % 2], i * 0.5, None if i % 5 == 0 else i] for i in range(40)]
        model = BayesianMLPRegressor(**TINY).fit(rows, np.arange(40.0))
        assert [column.kind for column in model.inputs_.columns_] == ["category", "number", "number"]
        np.testing.assert_array_equal(model.predict(np.array(rows, dtype=object)), model.predict(rows))


class TestWhatIsATable:
    @pytest.mark.parametrize(
        "numbers",
        [
            [[1, 2], [3, 4]],
            np.array([[1, 2.5], [3, 4]], dtype=object),
            pd.DataFrame({"a": [1, 2], "b": [0.5, 1.5], "c": [True, False]}),
            pd.DataFrame({"a": pd.array([1, 2], dtype="Int64"), "b": np.array([1, 2], dtype=object)}),
            pd.DataFrame([[1, 2], [3, 4]], columns=["a", "a"]),
            pa.table({"a": [1, 2], "b": [True, False]}),
            pd.Series([1.0, np.nan]),
            [[1, 2], [3]],
        ],
    )
    def test_numbers_take_the_way_they_always_took(self, numbers):
        assert not is_table(numbers)

    @pytest.mark.parametrize(
        "table",
        [
            np.array([[1.0, np.nan]]),
            np.array([["2020-01-01"]], dtype="datetime64[D]"),
            [[1, None]],
            [["a", 1]],
            pd.DataFrame({"a": [1.0, None]}),
            pd.DataFrame({"a": pd.array([1, None], dtype="Int64")}),
            pd.DataFrame({"a": pd.Categorical([1, 2])}),
            pd.DataFrame({"a": pd.to_datetime(["2020-01-01"])}),
            pd.DataFrame({"a": pd.to_timedelta([1, 2], "s")}),
            pa.table({"a": [1, None]}),
            pa.table({"a": [datetime.date(2020, 1, 1)]}),
        ],
    )
    def test_all_else_is_one(self, table):
        assert is_table(table)

    @pytest.mark.parametrize("more", [{}, {"text": ["a", "b"]}])
    def test_complex_numbers(self, more):
        with pytest.raises(ValueError, match="^Complex data not supported"):
            BayesianMLPRegressor().fit(pd.DataFrame({"a": [1.0, 2j], **more}), [0.0, 1.0])

    def test_objects_of_several_types(self):
        months = pd.period_range("2020-01", periods=3, freq="M")
        ages = pd.cut([1.0, 3.0, np.nan], [0.0, 2.0, 4.0])
        table = as_table(pd.DataFrame({"a": [1, "x", None], "b": months, "c": ages, "d": ["", "\t ", "x "]}))
        assert table.to_pydict() == {
            "a": ["1", "x", None],
            "b": ["2020-01", "2020-02", "2020-03"],
            "c": ["(0.0, 2.0]", "(2.0, 4.0]", None],
            "d": [None, None, "x "],
        }
        assert TableEncoder().fit(table.select(["b"])).columns_[0].kind == "date"

    @pytest.mark.parametrize("fill", [0.0, np.nan])
    def test_sparse_columns_are_dense_ones(self, fill):
        data = frame()
        numbers = np.where(np.arange(ROWS) % 3 == 0, np.arange(ROWS) / 7, fill)
        dense, sparse = (data.assign(s=values) for values in (numbers, pd.arrays.SparseArray(numbers, fill_value=fill)))
        assert as_table(sparse).equals(as_table(dense))
        assert {column.name: column.kind for column in TableEncoder().fit(dense).columns_}["s"] == "number"


def test_new_categories_and_far_values_are_named_as_on_the_command_line():
    frame = pd.DataFrame({"size": np.arange(60.0) / 7, "city": ["Oslo", "Rome", "Bern"] * 20})
    model = BayesianMLPRegressor(members=2, epochs=2, random_state=0).fit(frame, frame["size"])
    new = pd.DataFrame({"size": [3.0, 900.0], "city": ["Paris", "Rome"]})
    with pytest.warns(UserWarning, match=r"('Paris' in row 0)(.|\n)*'size': 1 row has values far|far .*'Paris'"):
        model.predict(new)
