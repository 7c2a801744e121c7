"""From columns to a matrix: each type by hand, the same for rows that come later, and what is left out and why."""

import datetime
import decimal
import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from sklearn.base import clone

from bayesadam.sklearn import TableEncoder, TableError
from bayesadam.tables.encoder.column_types import Category, Number, Text, Truth
from bayesadam.tables.encoder.dates import Date
from bayesadam.tables.encoder.findings import Findings
from bayesadam.tables.encoder.table_target import read_target


def learn(columns, **options):
    return TableEncoder(**{"keep": (), **options}).fit(pa.table(columns))


def codes(encoder, columns, findings=None):
    return encoder.encode(pa.table(columns), findings or Findings())


class TestNumbers:
    def test_by_hand(self):
        found = learn({"a": [3.0, 1.0, 2.0, 10.0]})
        assert found.columns_ == (Number("a", 2.5, False, 1.0, 10.0),)
        assert found.get_feature_names_out().tolist() == ["a"]
        assert codes(found, {"a": [0.0, None, 4.0, -1e6]})[:, 0].tolist() == [0.0, 2.5, 4.0, -1e6]

    def test_a_missing_value_is_the_median_and_is_said(self):
        found = learn({"a": [1.0, None, 3.0, 2.0, float("nan")]})
        assert found.get_feature_names_out().tolist() == ["a", "a is missing"]
        assert codes(found, {"a": [None, float("nan"), 3.0]}).tolist() == [[2.0, 1.0], [2.0, 1.0], [3.0, 0.0]]

    @pytest.mark.parametrize(
        "values",
        [
            pa.array([5, 7, 1], pa.uint8()),
            pa.array([5.0, 7.0, 1.0], pa.float32()),
            pa.array([decimal.Decimal("5.00"), decimal.Decimal("7.00"), decimal.Decimal("1.00")]),
            pa.array(["5", " 7.0", "1e0"]),
        ],
    )
    def test_stored_in_any_way(self, values):
        found, expected = learn({"a": values}), learn({"a": [5.0, 7.0, 1.0]})
        assert found.columns_ == expected.columns_
        assert codes(found, {"a": values}).tolist() == codes(expected, {"a": [5.0, 7.0, 1.0]}).tolist()

    def test_in_a_file_with_another_decimal_mark(self):
        found = learn({"a": [1.0, 2.0, 4.0]}, missing=["none"]).reading(",", ["gone"])
        assert codes(found, {"a": ["1,5", "none", "gone"]}).tolist() == [[1.5], [2.0], [2.0]]

    WRITTEN = (
        (["1,5", "2,25", "4"], [1.5, 2.25, 4], ",", "", "'1,5' in row 0 is read as 1.5, as 40 of 60 are written"),
        (["12", "9", "1,048.41"], [12, 9, 1048.41], ".", "", "'1,048.41' in row 2 is read as 1048.41, as 20 of"),
        (["1.048,41", "2.000,00"], [1048.41, 2000], ",", "", "'1.048,41' in row 0 is read as 1048.41"),
        (["12", "1 000", "2 000 000"], [12, 1000, 2e6], ".", "", "'1 000' in row 1 is read as 1000, as 40 of 60"),
        (["$101.60", "-$5", "($7.50)"], [101.6, -5, -7.5], ".", "$", "'$101.60' in row 0 is read as 101.6"),
        (["506.17-", "12.00"], [-506.17, 12], ".", "", "'506.17-' in row 0 is read as -506.17"),
        (["1,20,000", "85,000"], [120000, 85000], ".", "", "'1,20,000' in row 0 is read as 120000"),
        (["3 kg", "4.5kg"], [3, 4.5], ".", "kg", "'3 kg' in row 0 is read as 3"),
        (["5", "?", "N/A", "6"], [5, None, None, 6], ".", "", "'?' in row 1 means a missing value (20 rows); 'N/A' in"),
    )

    @pytest.mark.parametrize(("values", "numbers", "mark", "unit", "note"), WRITTEN)
    def test_written_otherwise(self, values, numbers, mark, unit, note):
        table = {"a": values * 20, "b": np.arange(20.0 * len(values)) ** 2}
        found, expected = learn(table), learn({**table, "a": numbers * 20})
        assert (found.columns_[0].decimal, found.columns_[0].unit) == (mark, unit)
        np.testing.assert_array_equal(codes(found, table), codes(expected, {**table, "a": numbers * 20}))
        assert found.notes(pa.table(table))[0].startswith(f"column 'a': {note}")

    def test_new_rows_without_the_unit(self):
        new = codes(learn({"a": ["$5", "$6.50", "$7"]}), {"a": ["8", "$9", None]})
        assert new[:, 0].tolist() == [8.0, 9.0, 6.5]


class TestTruth:
    def test_by_hand(self):
        found = learn({"a": [True, False, None]})
        assert found.columns_ == (Truth("a", True),)
        expected = [[1.0, 0.0], [0.0, 0.0], [0.5, 1.0]]
        for values in ([True, False, None], ["True", "FALSE", None], [1, 0, None], ["1", "0", "?"]):
            assert codes(found, {"a": values}).tolist() == expected


class TestCategories:
    def test_by_hand(self):
        table = {"c": ["b"] * 4 + ["a"] * 3 + ["rare", None]}
        found = learn(table)
        assert found.columns_ == (Category("c", ("b", "a"), True, True),)
        assert found.get_feature_names_out().tolist() == ["c = b", "c = a", "c = other", "c is missing"]
        new = codes(found, {"c": ["a", " b ", "rare", "new", None]})
        assert new.tolist() == [[0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 1, 0], [0, 0, 1, 0], [0, 0, 0, 1]]
        assert found.notes(pa.table(table)) == [
            "column 'c': levels of fewer than 3 training rows are taken together as 'other'"
        ]

    def test_a_new_level_where_there_was_no_other(self):
        found = learn({"c": ["a"] * 3 + ["b"] * 3})
        assert codes(found, {"c": ["b", "new", None]}).tolist() == [[0, 1], [0, 0], [0, 0]]

    def test_codes_with_leading_zeros(self):
        """Postal codes are no numbers: 02134 is not near 02135."""
        rows = [f"{code:05d}" for code in (2134, 2135, 12345) for _ in range(20)]
        found = learn({"zip": rows, "a": np.arange(60.0) ** 2})
        assert found.columns_[0] == Category("zip", ("02134", "02135", "12345"), False, False)
        many = learn({"zip": [f"{i * 37:05d}" for i in range(200)] * 2, "a": np.arange(400.0) ** 2})
        assert isinstance(many.columns_[0], Text)

    def test_categories_of_a_data_frame_are_no_quantities(self):
        shops = 7 * np.arange(600) % 1_057  # 151 shops
        found = TableEncoder().fit(pd.DataFrame({"shop": pd.Categorical(shops), "sales": shops + 0.5}))
        assert [column.kind for column in found.columns_] == ["category", "number"]
        rare = TableEncoder(keep=()).fit(pd.DataFrame({"shop": pd.Categorical(range(300)), "sales": shops[:300] + 0.5}))
        assert rare.left_out_["shop"].startswith("it numbers the rows")

    def test_numbers_that_the_user_calls_a_category(self):
        values = [1, 2, 3, 4] * 9
        assert isinstance(learn({"a": values}).columns_[0], Number)
        found = learn({"a": values}, category=["a"])
        assert found.columns_ == (Category("a", ("1", "2", "3", "4"), False, False),)
        assert found.notes(pa.table({"a": values})) == ["column 'a' is a category (if it is a quantity: keep=['a'])"]
        assert codes(found, {"a": ["02", "3.0", "x"]}).tolist() == [[0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]]

    @pytest.mark.parametrize(
        ("training", "new", "level"),
        [
            (pa.array([1.0, 2.0, None] * 4), ["2.0", "2", "2.00"], "2"),
            (pa.array([1.5, 2.0, None] * 4), ["1.50", "1.5"], "1.5"),
            (pa.array([True, False, None] * 4), ["True", "TRUE", "true"], "true"),
            (pa.array(["True", "False", None] * 4), [True, "True"], "True"),
            (pa.array(["1.0", "2.0", None] * 4), [1.0, 1], "1.0"),
            (pa.array(["1.1", "1.10", "2"] * 4), ["1.10"], "1.10"),
            (pa.array(["007", "010", None] * 4), ["007", 7], "007"),
            (pa.array(["007", "010", None] * 4), ["7", "0007"], None),
            (pa.array(["12345678901234567890", "5", None] * 4), ["12345678901234567891", "1e1"], None),
        ],
    )
    def test_levels_that_are_written_otherwise(self, training, new, level):
        """As pandas writes whole numbers with gaps, and truth values; no level where the digits differ."""
        found = learn({"a": training}, category=["a"])
        place = [] if level is None else [found.get_feature_names_out().tolist().index(f"a = {level}")]
        for value in new:
            row = codes(found, {"a": [value]})[0]
            assert np.flatnonzero(row).tolist() == place
        if not pa.types.is_string(training.type):
            assert codes(found, {"a": ["NA"]}).tolist() == codes(found, {"a": pa.array([None], pa.string())}).tolist()

    def test_an_identifier_with_few_values_and_gaps(self):
        (column,) = learn({"shop_id": [1.0, 2.0, 3.0, None] * 9}).columns_
        assert column == Category("shop_id", ("1", "2", "3"), False, True)


class TestText:
    NAMES = tuple(f"{street} {kind} {number}" for street in ("Oak", "Elm", "Main") for kind in ("St", "Ave")
                  for number in range(30))  # fmt: skip

    def test_many_levels_become_numbers(self):
        found = learn({"street": self.NAMES * 2})
        (column,) = found.columns_
        assert (column.kind, column.name) == ("text", "street")
        assert found.get_feature_names_out()[0] == "street: text 1"
        near = codes(found, {"street": ["Oak St 5", "Oak Str. 5", "Main Ave 29", None]})
        distances = np.linalg.norm(near - near[0], axis=1)
        assert 0 < distances[1] < 0.7 * distances[2]
        assert not near[3].any()

    def test_of_different_rows_is_kept_only_if_wanted(self):
        names = list(self.NAMES)
        assert "different in every row" in learn({"a": names, "b": np.arange(180.0) ** 2}).left_out_["a"]
        assert learn({"a": names}, keep=["a"]).columns_[0].kind == "text"


class TestFindings:
    FOUND = learn({"c": ["a"] * 3 + ["b"] * 3, "n": [1.0, 2.0, 4.0] * 2, "t": [True, False] * 3})

    def test_are_said(self):
        findings = Findings(lambda row: f"line {row + 2}")
        new = {
            "c": ["x", "a", "y", "a", "b"],
            "n": ["1", None, "5.7", "oops", "2"],
            "t": ["true", None, "1", "no", "0"],
        }
        codes(self.FOUND, new, findings)
        missing = "missing values, of which the training rows had none (they are replaced by typical values)"
        assert findings.cells == [
            "column 'n': 1 row has cells that are not finite numbers ('oops' in line 5): they count as missing",
            f"column 'n': 2 rows have {missing}",
            "column 't': 1 row has cells that are not true or false ('no' in line 5): they count as missing",
            f"column 't': 2 rows have {missing}",
        ]
        assert findings.others == [
            "column 'c': 2 rows have categories that are rare or absent in the training rows ('x' in line 2, 'y' in "
            "line 4): they are taken as 'other'",
            "column 'n': 1 row has values far outside of the training rows' range of 1 to 4 (5.7 in line 4): do not "
            "rely on the predictions there, nor on their intervals",
        ]

    @pytest.mark.parametrize(
        ("training", "new", "message"),
        [
            ([1.0, 2.0, 4.0], ["1,5", "2,5"], r"must hold finite numbers, got '1,5' in row 0, '2,5' in row 1"),
            ([1.0, 2.0, 4.0], [np.inf], "must hold finite numbers, got 'inf' in row 0"),
            ([1.0, 2.0, 4.0], [datetime.date(2020, 1, 1)], "must hold finite numbers, got '2020-01-01' in row 0"),
            (["$5", "$6.50", "$7"], ["€5", "€7"], r"must hold numbers in '\$', got '€5' in row 0"),
            ([True, False], ["maybe"], "must hold true or false, got 'maybe' in row 0"),
        ],
    )
    def test_a_column_of_something_else(self, training, new, message):
        with pytest.raises(TableError, match=f"^column 'a' {message}"):
            codes(learn({"a": training}), {"a": new})

    def test_columns_that_are_missing_are_all_named(self):
        with pytest.raises(
            TableError, match=r"^the table must have .* it lacks 'c', 't' \(.* add empty columns of their names\)$"
        ):
            codes(self.FOUND, {"n": [1.0], "more": [2]})
        with pytest.raises(TableError, match=r"it lacks 'c', 'n', 't'$"):  # the wrong table
            codes(self.FOUND, {"more": [2]})

    def test_a_column_that_is_spelt_in_another_way_is_named(self):
        message = r"^the table must have the columns.*, it lacks 'c' \(rename its column ' C '\)$"
        with pytest.raises(TableError, match=message):
            codes(self.FOUND, {"n": [1.0], "t": ["x"], " C ": ["a"]})

    def test_text_among_the_numbers_of_the_training_rows(self):
        values = [str(number) for number in np.random.default_rng(0).normal(size=50)]
        values[17] = "many"
        found, findings = learn({"a b": values}), Findings()
        assert found.columns_[0].missing
        codes(found, {"a b": values}, findings)
        assert findings.notes == [
            "column 'a b': 1 row has cells that are not finite numbers ('many' in row 17): they count as missing"
        ]


class TestChoice:
    """What each column is taken for."""

    N = 200
    COUNT = np.arange(N)
    NOISE = np.random.default_rng(0).normal(size=N)
    LEFT_OUT = (
        ("nothing", pa.nulls(N, pa.string()), "all its values are missing"),
        ("same", np.full(N, 7), "it is the same in all training rows (7)"),
        ("far", 1e39 * (1 + COUNT % 7), "all its numbers are infinite or above 1e+38"),
        ("same", np.full(N, True), "it is the same in all training rows (True)"),
        ("nr", COUNT, "it numbers the rows"),
        ("nr", COUNT + COUNT // 10, "it numbers the rows"),
        ("customer_id", COUNT * 7919 % 100_003, "it is an identifier by its name, with 200 different values"),
        ("customerId", COUNT // 2 * 31, "it is an identifier by its name, with 100 different values"),
        ("name", [f"name {i}" for i in range(N)], "it is text that is different in every row, like a name or an "),
        ("parts", [[i] for i in range(N)], "it is of the type list<item: int64>, which is neither numbers nor text"),
        ("order", 100_000 + COUNT * 3 // 2, "it numbers the rows, from 100000 on"),
        ("order", np.append(100_000 + COUNT[:-5], 100_000 + COUNT[3:8]), "it numbers the rows, from 100000 on"),
        ("order", [str(i) for i in 100_000 + COUNT], "it numbers the rows, from 100000 on"),
        ("weight", [f"{i} {'kg' if i % 2 else 'lb'}" for i in range(N)], "it is numbers in several units ('kg', 'lb')"),
        ("day", [datetime.date(2020, 1, 1)] * N, "it is the same in all training rows (datetime.date(2020, 1, 1))"),
    )
    USED = (
        ("year", 1900 + COUNT, Number),
        ("order", COUNT[::-1].copy(), Number),
        ("paid", COUNT * 7919 % 100_003, Number),
        ("body_mass_index", COUNT * 7 % 40, Number),
        ("shop_id", COUNT % 5, Category),
        ("grade", ["1", "2", "3"] * 66 + ["1", "2"], Category),
        ("town", [f"town {i % 150}" for i in range(N)], Text),
        ("mixed", ["1", "<2", "3", ">4"] * 50, Category),
        ("yes", ["true", "false"] * 100, Truth),
        ("day", [datetime.date(2020, 1, 1) + datetime.timedelta(i) for i in range(N)], Date),
        ("day", [f"{1 + i % 28}.{1 + i % 12}.2020" for i in range(N)], Date),
        ("when", [f"{i % 24:02d}:{i % 60:02d}" for i in range(N)], Date),
    )

    @pytest.mark.parametrize(("name", "values", "reason"), LEFT_OUT)
    def test_left_out(self, name, values, reason):
        found = learn({name: values, "noise": self.NOISE})
        assert found.left_out_[name].startswith(reason)
        assert [column.name for column in found.columns_] == ["noise"]

    @pytest.mark.parametrize(("name", "values", "kind"), USED)
    def test_used(self, name, values, kind):
        assert type(learn({name: values, "noise": self.NOISE}).columns_[0]) is kind

    @pytest.mark.parametrize(("name", "values"), [("day", COUNT), ("dose_id", COUNT * 7919 % 100_003)])
    def test_kept(self, name, values):
        for keep in ((name,), None):  # None: all columns of numbers
            found = TableEncoder(keep=keep).fit(pa.table({name: values, "a": self.NOISE}))
            assert [(column.name, type(column)) for column in found.columns_] == [(name, Number), ("a", Number)]

    def test_dates_that_the_user_names(self):
        days = {"d": [20210301 + i % 28 for i in range(60)], "a": self.NOISE[:60]}
        assert isinstance(learn(days).columns_[0], Number)
        assert isinstance(learn(days, date=["d"]).columns_[0], Date)
        with pytest.raises(TableError, match="^a column of dates must hold dates, got .* in 'a'$"):
            learn(days, date=["a"])

    def test_mistakes(self):
        with pytest.raises(TableError, match=r"^a column to keep must be a possible input, got 'b': it is the same"):
            learn({"a": self.NOISE, "b": np.full(self.N, 7)}, keep=("b",))
        with pytest.raises(TableError, match=r"predict from, got none \('a': it is the same in all"):
            learn({"a": np.ones(10)})
        with pytest.raises(TableError, match="^the table must have the columns that are named, it lacks 'z'$"):
            learn({"a": self.NOISE}, drop=["z"])
        frame = pd.DataFrame({"x": [1.0, 2.0, 3.0], "z": [1.0, 5.0, 3.0]})
        for options, both in (({"drop": ["x"]}, "dropped and used"), ({"date": ["x"]}, "a category and a date")):
            with pytest.raises(TableError, match=f"^a column must not be both {both}, got 'x'"):
                TableEncoder(category=["x"], **options).fit(frame)
        for name, value in {"missing": "-999", "drop": pd.Index(["a"]), "keep": np.array(["a", "b"])}.items():
            with pytest.raises(ValueError, match=f"^{name} must be a list, got "):
                learn({"a": self.NOISE}, **{name: value})

    def test_missing_values_that_the_user_names(self):
        table = {"a": [1.0, -999.0, 3.0, 5.0], "b": ["x", " none yet ", "-999.0", "x"]}
        for mark in ("-999", -999, np.float64(-999)):
            found = learn(table, missing=[mark, "none yet"], category=["b"])
            assert found.columns_[0].missing
            assert codes(found, table)[:, :2].tolist() == [[1, 0], [3, 1], [3, 0], [5, 0]]
            assert codes(found, table)[:, -1].tolist() == [0, 1, 1, 0]

    def test_a_missing_value_in_numbers_with_a_decimal_comma(self):
        table = {"a": ["1,5", "-999,0", "3,5", "9,999"], "b": [1.0, 2.0, 4.0, 5.0]}
        found = learn(table, missing=["-999", "9999", "4.0"])
        assert codes(found, table)[:, :2].tolist() == [[1.5, 0], [3.5, 1], [3.5, 0], [9.999, 0]]
        assert codes(found, table)[:, 2:].tolist() == [[1, 0], [2, 0], [2, 1], [5, 0]]

    def test_whole_numbers_follow_a_column_with_commas(self):
        found = learn({"a": [1, 2, 4] * 9, "b": ["1,5", "2,5", "3,5"] * 9, "c": [0.5, 1.5, 4.5] * 9})
        assert [column.decimal for column in found.columns_] == [",", ",", "."]
        assert codes(found, {"a": ["2,5"], "b": ["2,5"], "c": ["2.5"]}).tolist() == [[2.5, 2.5, 2.5]]

    def test_types_that_are_not_for_this(self):
        parts, lengths = [[i % 3] for i in range(self.N)], pa.array(self.COUNT, pa.duration("s"))
        table = {"a": self.NOISE, "parts": parts, "t": lengths}
        for option, name in (("category", "parts"), ("date", "parts"), ("date", "t")):
            with pytest.raises(TableError, match=f"^column '{name}' must be numbers, text or dates, got (list|dur)"):
                learn(table, **{option: [name]})
        with pytest.raises(TableError, match="^column 'c' must be numbers, text or dates, got list<item: int64>"):
            codes(learn({"c": ["x", "y"] * 9}), {"c": [[1]]})

    def test_an_ambiguous_column_follows_one_with_commas(self):
        numbers = range(11, 40)
        found = learn(
            {mark: [f"{n}{mark}{n}{more}" for n in numbers] for mark, more in ((".", ""), (",", ""), (" ", "0"))}
        )
        assert [column.decimal for column in found.columns_] == [".", ",", ","]


def test_is_a_transformer_and_is_saved_exactly():
    frame = pd.DataFrame(
        {
            "size": [1.5, np.nan, 2.5, 4.0] * 10,
            "city": ["Rome", "Oslo", None, "Rome"] * 10,
            "street": [f"{'abcdefgh'[i // 2 % 8] * 3} street {i // 2 % 35}" for i in range(40)],
            "new": [True, False] * 20,
            "day": pd.date_range("2021-01-01", periods=40),
            "id": range(40),
        }
    )
    encoder = clone(TableEncoder(keep=["size"], drop=("id",), missing=["none"])).fit(frame)
    record = json.loads(json.dumps(encoder.to_json()))
    again = TableEncoder.from_json(record)
    assert again.columns_ == encoder.columns_
    assert again.left_out_ == encoder.left_out_ == {"id": "it is dropped"}
    np.testing.assert_array_equal(
        again.transform(frame[["street", "day", "new", "city", "size"]]), encoder.transform(frame)
    )
    assert again.get_params() == {**encoder.get_params(), "keep": ("size",), "missing": ("none",)}


@pytest.mark.parametrize("start", [0, 1000, 1990, 5000])
@pytest.mark.parametrize(("bad", "missing"), [("n/a", ()), ("-", ()), ("n/a", ("n/a",)), ("many", ("many",))])
def test_numbers_with_a_decimal_are_not_dates(start, bad, missing):
    """1013.2 is not February of the year 1013, and a mark that the user names does not make a category of it."""
    values = [f"{start + number / 10:.1f}" for number in range(60)] * 3
    values[7] = bad
    found = TableEncoder(missing=missing).fit(pa.table({"pressure": values}))
    assert [column.kind for column in found.columns_] == ["number"]
    matrix = found.transform(pa.table({"pressure": values}))
    assert matrix[50, 0] == start + 5.0
    assert matrix[7, 1] == 1.0  # missing


def test_dates_without_a_day_are_dates():
    for mark in "-/":
        values = [f"2021{mark}{1 + number % 12:02d}" for number in range(60)]
        assert [column.kind for column in TableEncoder().fit(pa.table({"month": values})).columns_] == ["date"]


def test_a_text_that_makes_a_category_of_numbers_is_noted():
    table = pa.table({"a": ["1,5", "2,5", "6.0"] * 9, "b": ["x", "y", "z"] * 9})
    assert TableEncoder().fit(table).notes(table) == [
        "column 'a' is a category, as '6.0' in row 2 is no number with the decimal mark ',' (9 of 27 cells are none)"
    ]


@pytest.mark.parametrize(
    ("numbers", "where"),
    [
        ([40, 50, -999, 60, -999], "-999 in row 2 (2 of 5 rows)"),
        ([0.5, 9999, 0.7], "9999 in row 1 (1 of 3 rows)"),
        ([40, 90, 99, 60], ""),
        ([40, 50, -998, 60], ""),
    ],
)
def test_a_code_of_a_missing_value_is_noted(numbers, where):
    table = pa.table({"humidity": numbers})
    said = f"{where} is far from all others; if it means a missing value: missing=['{where.split(' ')[0]}']"
    notes = [f"column 'humidity': {said}"] if where else []
    assert TableEncoder().fit(table).notes(table) == notes
    assert read_target("humidity", table.column("humidity"), "regression").cautions == tuple(notes)
