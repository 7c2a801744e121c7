"""From columns to a matrix: each kind by hand, the same for rows that come later, and what is left out and why."""

import dataclasses
import datetime
import decimal
import json

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bayesadam.tabular import Findings, Inputs, Preprocessing, TableError, Target, describe, numbers_of
from bayesadam.tabular.columns import Category, Number, Truth
from bayesadam.tabular.dates import Date

TARGET = Target("y", "regression", "")


def learn(columns, rows=None, **options):
    length = len(next(iter(columns.values())))
    return Preprocessing.fit(pa.table({**columns, "y": np.zeros(length)}), TARGET, rows=rows, **options)


def matrix(preprocessing, columns, findings=None):
    """The codes, not standardised."""
    width = len(preprocessing.inputs.features)
    plain = dataclasses.replace(preprocessing, mean=(0.0,) * width, std=(1.0,) * width)
    return plain.transform(pa.table(columns), findings=findings)


class TestNumbers:
    VALUES = (3.0, 1.0, 2.0, 10.0)

    def test_by_hand(self):
        found = learn({"a": self.VALUES})
        scale = np.sqrt(np.mean((np.array(self.VALUES) - 4.0) ** 2))
        assert found.inputs.columns == (Number("a", 2.5, False, 1.0, 10.0),)
        assert found.mean == (4.0,)
        assert found.std == (pytest.approx(scale, rel=1e-15),)
        assert found.inputs.features == ["a"]
        new = found.transform(pa.table({"a": [0.0, None, 4.0, -1e6]}))
        assert new.dtype == np.float32
        np.testing.assert_allclose(new[:, 0], [-4.0 / scale, -1.5 / scale, 0.0, (-1e6 - 4.0) / scale], rtol=1e-7)

    def test_a_missing_value_is_the_median_and_is_said(self):
        found = learn({"a": [1.0, None, 3.0, 2.0, float("nan")]})
        assert found.inputs.features == ["a", "a is missing"]
        new = matrix(found, {"a": [None, float("nan"), 3.0]})
        assert new.tolist() == [[2.0, 1.0], [2.0, 1.0], [3.0, 0.0]]
        filled, absent = [1.0, 2.0, 3.0, 2.0, 2.0], [0.0, 1.0, 0.0, 0.0, 1.0]
        assert found.mean == pytest.approx((np.mean(filled), np.mean(absent)))
        assert found.std == pytest.approx((np.std(filled), np.std(absent)))

    def test_a_unix_time_to_the_second(self):
        seconds = 1.7e9 + np.arange(1000.0)
        found = learn({"a": seconds + 0.5})
        difference = np.diff(found.transform(pa.table({"a": seconds}))[:, 0]) * found.std[0]
        assert np.allclose(difference, 1.0, atol=1e-3)
        assert np.diff(seconds.astype(np.float32)).max() > 50  # what single precision would make of them

    @pytest.mark.parametrize(
        "values",
        [
            pa.array([5, 7, 1], pa.uint8()),
            pa.array([5.0, 7.0, 1.0], pa.float32()),
            pa.array([decimal.Decimal("5.00"), decimal.Decimal("7.00"), decimal.Decimal("1.00")]),
            pa.array(["5", " 7.0", "1e0"]),
            pa.array([5, 7, 1]).dictionary_encode(),
        ],
    )
    def test_stored_in_any_way(self, values):
        found = learn({"a": pa.concat_arrays([values] * 1)})
        expected = learn({"a": [5.0, 7.0, 1.0]})
        assert found.inputs.columns == expected.inputs.columns
        assert matrix(found, {"a": values}).tolist() == matrix(expected, {"a": [5.0, 7.0, 1.0]}).tolist()

    @pytest.mark.parametrize(("value", "text"), [(np.inf, "inf"), (-np.inf, "-inf"), (1e39, "1e+39")])
    def test_infinite(self, value, text):
        message = rf"^column 'a' must be finite \(below 1e\+38\), got {text.replace('+', '.')} in row 3$"
        with pytest.raises(TableError, match=message):
            learn({"a": [1.0, 2.0, value, value]})
        found = learn({"a": [1.0, 2.0, 3.0, 5.0]})
        with pytest.raises(TableError, match=message):
            matrix(found, {"a": [1.0, 2.0, value]})

    def test_far_beyond_the_training_rows(self):
        found = learn({"a": [1e-30, 2e-30, 5e-30]})
        with pytest.raises(TableError, match=r"^column 'a' must be near the training values, got 1e\+10 in row 2$"):
            found.transform(pa.table({"a": [0.0, 1e10]}))

    def test_text(self):
        found = learn({"a": [1.0, 2.0, 4.0]})
        with pytest.raises(TableError, match=r"^column 'a' must be a number in every row, got 'many' in row 2$"):
            matrix(found, {"a": ["1", "many", "x"]})
        message = r"^column 'a' must be a number with a decimal point in every row, got '1,5' in row 1$"
        with pytest.raises(TableError, match=message):
            matrix(found, {"a": ["1,5"]})
        assert matrix(found.reading(","), {"a": ["1,5"]}).tolist() == [[1.5]]
        with pytest.raises(TableError, match=r"^column 'a' must be a number in every row, got the type date32"):
            matrix(found, {"a": [datetime.date(2020, 1, 1)]})


class TestTruth:
    def test_by_hand(self):
        found = learn({"a": [True, False, None]})
        assert found.inputs.columns == (Truth("a", True),)
        assert found.inputs.features == ["a", "a is missing"]
        expected = [[1.0, 0.0], [0.0, 0.0], [0.5, 1.0]]
        assert matrix(found, {"a": [True, False, None]}).tolist() == expected
        assert matrix(found, {"a": ["True", "FALSE", None]}).tolist() == expected
        assert matrix(found, {"a": [1, 0, None]}).tolist() == expected

    def test_something_else(self):
        found = learn({"a": [True, False]})
        with pytest.raises(TableError, match=r"^column 'a' must be true or false, got 'maybe' in row 2$"):
            matrix(found, {"a": ["true", "maybe"]})


class TestCategories:
    VALUES = ("b",) * 4 + ("a",) * 3 + ("rare", None)

    def test_by_hand(self):
        found = learn({"c": self.VALUES})
        assert found.inputs.columns == (Category("c", ("b", "a"), True, True),)
        assert found.inputs.features == ["c = b", "c = a", "c = other", "c is missing"]
        new = matrix(found, {"c": ["a", " b ", "rare", "new", None]})
        assert new.tolist() == [[0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 1, 0], [0, 0, 1, 0], [0, 0, 0, 1]]
        assert found.notes() == ["column 'c': levels of fewer than 3 training rows are taken together as 'other'"]

    def test_a_new_level_where_there_was_no_other(self):
        found = learn({"c": ["a"] * 3 + ["b"] * 3})
        assert matrix(found, {"c": ["b", "new", None]}).tolist() == [[0, 1], [0, 0], [0, 0]]
        assert found.notes() == []

    def test_of_every_type_of_text(self):
        array = pa.array(["a", "b"] * 3)
        expected = learn({"c": array}).inputs.columns
        for kind in (pa.large_string(), pa.dictionary(pa.int32(), pa.string())):
            assert learn({"c": array.cast(kind)}).inputs.columns == expected

    @pytest.mark.parametrize("values", [["005", "12", "+7", "-3"], ["5.0", "12.00", "7", "-3."]])
    def test_whole_numbers_however_they_are_written(self, values):
        found = learn({"store_id": [5, 12, 7, -3] * 4})
        assert found.inputs.columns[0].levels == ("-3", "12", "5", "7")
        new = matrix(found, {"store_id": [*values, None, "8", "5x"]})
        assert new.argmax(1)[:4].tolist() == [2, 1, 3, 0]
        assert new.sum(1).tolist() == [1, 1, 1, 1, 0, 0, 0]
        text = learn({"store_id": ["005", "x"] * 4})
        assert matrix(text, {"store_id": ["005", "5"]}).sum(1).tolist() == [1, 0]


class TestFindings:
    def test_are_counted_over_chunks_and_said_once(self):
        found = learn({"c": ["a"] * 3 + ["b"] * 3, "n": [1.0, 2.0, 4.0] * 2, "t": [True, False] * 3})
        findings = Findings()
        for first in (0, 3):
            chunk = pa.table({"c": ["x", "a", f"y{first}"], "n": [1.0, None, 1.0], "t": ["true", None, "1"]})
            found.transform(chunk, findings=findings, place=lambda row, first=first: f"line {first + row + 2}")
        assert findings.notes() == [
            "column 'n': 2 rows have missing values, of which the training rows had none (they are replaced by typical "
            "values)",
            "column 't': 2 rows have missing values, of which the training rows had none (they are replaced by typical "
            "values)",
            "column 'c': 4 rows have categories that are rare or absent in the training rows ('x' in line 2, 'y0' in "
            "line 4, 'y3' in line 7): they are taken as 'other'",
        ]

    def test_numbers_far_from_those_of_the_training_rows(self):
        found = learn({"n": [-1.0, 0.0, 3.0, 2.0]})
        findings = Findings()
        for first, values in ((0, [5.0, -3.0, None]), (3, [5.1, 1e6]), (5, [-3.5])):
            chunk = pa.table({"n": pa.array(values, pa.float64())})
            found.transform(chunk, findings=findings, place=lambda row, first=first: f"line {first + row + 2}")
        assert findings.notes()[1:] == [
            "column 'n': 3 rows have values far outside of the training rows' range of -1 to 3 (5.1 in line 5): do "
            "not rely on the predictions there, nor on their intervals"
        ]

    def test_nothing(self):
        found = learn({"c": ["a"] * 3 + ["b"] * 3, "n": [1.0, None, 4.0] * 2})
        findings = Findings()
        found.transform(pa.table({"c": ["a"], "n": pa.array([None], pa.float64())}), findings=findings)
        assert findings.notes() == []


class TestChoice:
    """What each column is taken for."""

    N = 200
    COUNT = np.arange(N)
    NOISE = np.random.default_rng(0).normal(size=N)
    LEFT_OUT = (
        ("nothing", pa.nulls(N), "all its values are missing"),
        ("nothing", pa.nulls(N, pa.string()), "all its values are missing"),
        ("same", np.full(N, 7), "it is the same in all training rows (7)"),
        (
            "big",
            2**63 + np.arange(N, dtype=np.uint64),
            f"its {N} different values cannot be told apart in double precision",
        ),
        ("same", np.full(N, "x"), "it is the same in all training rows ('x')"),
        ("same", np.full(N, True), "it is the same in all training rows (True)"),
        ("nr", COUNT, "it numbers the rows"),
        ("nr", COUNT + 1.0, "it numbers the rows"),
        ("nr", COUNT + COUNT // 10, "it numbers the rows"),
        ("customer_id", COUNT * 7919 % 100_003, "it is an identifier by its name, with 200 different values"),
        ("customerId", COUNT // 2 * 31, "it is an identifier by its name, with 100 different values"),
        ("row_index", COUNT * 7919 % 100_003, "it is an identifier by its name, with 200 different values"),
        ("__index_level_0__", COUNT * 7919 % 100_003, "it is an identifier by its name, with 200 different values"),
        ("Index", COUNT * 7919 % 100_003, "it is an identifier by its name, with 200 different values"),
        ("name", [f"name {i}" for i in range(N)], "it is text that is different in every row, like a name or an "),
        ("zip", [f"z{i % 150}" for i in range(N)], "it is text with 150 different values in 200 rows"),
        ("parts", [[i] for i in range(N)], "it is of the type list<item: int64>, which is neither numbers nor text"),
        ("order", 100_000 + COUNT, "it numbers the rows, from 100000 on"),
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
        ("air quality index", COUNT * 7919 % 100_003, Number),
        ("store_id", COUNT % 5, Category),
        ("code", [str(i % 5) for i in range(N)], Category),
        ("text", [str(x) for x in NOISE], Number),
        ("flag", COUNT % 2 == 0, Truth),
        ("flag", [True, None] * (N // 2), Truth),
        ("same or missing", pa.array([1.0, None] * (N // 2)), Number),
        ("colour", ["red", "green"] * (N // 2), Category),
        ("digits", COUNT % 3, Number),
        ("block", COUNT // 10, Number),
        ("hundreds", 100 * COUNT, Number),
        ("age", [str(i % 5) if i % 7 else "?" for i in range(N)], Number),
        ("price", [f"${i % 5}" for i in range(N)], Number),
        ("rank", [f"{i % 4}{('st', 'nd', 'rd', 'th')[i % 4]}" for i in range(N)], Category),
        ("size", [f"{i % 4}+" if i % 4 == 3 else str(i % 4) for i in range(N)], Category),
        ("when", [f"{1 + i % 28}.{1 + i // 28}.2021" for i in range(N)], Date),
        ("took", pa.array(COUNT * 7919 % 100_003, pa.duration("s")), Number),
    )

    @pytest.mark.parametrize(("name", "values", "reason"), LEFT_OUT)
    def test_left_out(self, name, values, reason):
        found = learn({name: values, "a": self.NOISE})
        assert [column.name for column in found.inputs.columns] == ["a"]
        assert list(found.inputs.left_out) == [name]
        assert found.inputs.left_out[name].startswith(reason)

    @pytest.mark.parametrize(("name", "values", "kind"), USED)
    def test_used(self, name, values, kind):
        found = learn({name: values})
        assert [(column.name, type(column)) for column in found.inputs.columns] == [(name, kind)]
        assert not found.inputs.left_out

    def test_the_training_rows_decide(self):
        values = np.where(np.arange(200) < 150, 1.0, self.NOISE)
        assert not learn({"a": values, "b": self.NOISE}, rows=np.arange(150)).types.get("a")
        found = learn({"b": np.where(np.arange(200) < 150, self.NOISE, 1e6)}, rows=np.arange(150))
        assert found.inputs.columns == learn({"b": self.NOISE[:150]}).inputs.columns

    def test_gaps_of_held_out_rows_do_not_hide_a_row_number(self):
        rows = np.sort(np.random.default_rng(0).permutation(200)[:120])
        assert (
            learn({"nr": np.arange(200), "a": self.NOISE}, rows=rows).inputs.left_out["nr"].startswith("it numbers the")
        )

    @pytest.mark.parametrize(("name", "values"), [("day", COUNT), ("dose_id", COUNT * 7919 % 100_003)])
    def test_kept(self, name, values):
        assert "(if it is an input: `keep`)" in learn({name: values, "a": self.NOISE}).inputs.left_out[name]
        found = learn({name: values, "a": self.NOISE}, keep=(name,))
        assert [(column.name, type(column)) for column in found.inputs.columns] == [(name, Number), ("a", Number)]
        assert not found.inputs.left_out

    def test_what_cannot_be_kept(self):
        message = r"^`keep` must be a column that can be an input, got 'b': it is the same in all training rows \(7\)$"
        with pytest.raises(TableError, match=message):
            learn({"a": self.NOISE, "b": np.full(self.N, 7)}, keep=("b",))

    @pytest.mark.parametrize(
        ("values", "numbers", "decimal", "unit", "note"),
        [
            (["1,5", "2,25", "4"], [1.5, 2.25, 4], ",", "", "'1,5' in row 1 is read as 1.5, as 40 of 60 are written"),
            (
                ["12", "999", "1,048.41"],
                [12, 999, 1048.41],
                ".",
                "",
                "'1,048.41' in row 3 is read as 1048.41, as 20 of",
            ),
            (["1.048,41", "2.000,00"], [1048.41, 2000], ",", "", "'1.048,41' in row 1 is read as 1048.41"),
            (["12", "1 000", "2 000 000"], [12, 1000, 2e6], ".", "", "'1 000' in row 2 is read as 1000, as 40 of 60"),
            (["$101.60", "-$5", "($7.50)"], [101.6, -5, -7.5], ".", "$", "'$101.60' in row 1 is read as 101.6"),
            (["€ 12", "€ 1.234,5"], [12, 1234.5], ",", "€", "'€ 12' in row 1 is read as 12"),
            (["12 %", "7%"], [12, 7], ".", "%", "'12 %' in row 1 is read as 12"),
            (["3 kg", "4.5kg"], [3, 4.5], ".", "kg", "'3 kg' in row 1 is read as 3"),
            (
                ["5", "?", "N/A", "6"],
                [5, None, None, 6],
                ".",
                "",
                "'?' in row 2 means a missing value (20 rows); 'N/A' in",
            ),
        ],
    )
    def test_numbers_written_otherwise(self, values, numbers, decimal, unit, note):
        table = {"a": values * 20, "b": np.arange(20.0 * len(values)) ** 2}
        found = learn(table)
        expected = learn({**table, "a": numbers * 20})
        assert found.inputs.columns[0] == dataclasses.replace(expected.inputs.columns[0], decimal=decimal, unit=unit)
        assert (found.mean, found.std) == (expected.mean, expected.std)
        assert np.array_equal(
            found.transform(pa.table(table)), expected.transform(pa.table({**table, "a": numbers * 20}))
        )
        (told,) = found.notes(pa.table(table))
        assert told.startswith(f"column 'a': {note}")
        target = numbers_of("y", pa.chunked_array([values * 20]), None)
        np.testing.assert_array_equal(target.to_numpy(), np.array(numbers * 20, dtype=float))

    def test_what_decides_on_the_decimal_mark(self):
        """A column that does not tell follows those that do."""
        values = [f"{i + 1},{100 + i}" for i in range(60)]
        assert learn({"a": values}).inputs.columns[0].median == pytest.approx(30_629.5)
        assert learn({"a": values}, decimal=",").inputs.columns[0].median == pytest.approx(30.6295)
        assert learn({"a": values, "b": ["1,5", "2,5"] * 30}).inputs.columns[0].median == pytest.approx(30.6295)

    def test_new_rows_in_another_unit(self):
        found = learn({"a": ["$5", "$6.50", "$7"]})
        assert matrix(found, {"a": ["8", "$9", None]})[:, 0].tolist() == [8.0, 9.0, 6.5]
        with pytest.raises(TableError, match=r"^column 'a' must be a number in '\$' in every row, got '€7' in row 2$"):
            matrix(found, {"a": ["$5", "€7"]})

    @pytest.mark.parametrize("values", [["1,2", "red", "blue"], ["1,2,3", "2,3", "x"], ["1.234", "2.345", "3.456"]])
    def test_text_that_is_none_of_that(self, values):
        assert learn({"a": values * 20}).inputs.columns[0].name == "a"

    def test_text_among_numbers(self):
        values = [str(x) for x in self.NOISE]
        values[17] = "many"
        message = r"^column 'a b' must be numbers or text, got 'many' in row 18$"
        with pytest.raises(TableError, match=message) as raised:
            learn({"a b": values})
        assert raised.value.remedy == {"missing": ("many",)}
        values[30:34] = ["few", "some", "most", "many"]
        message = r"^column 'a b' must be numbers or text, got 'many' in row 18 and 3 other texts; column 'c' must be "
        with pytest.raises(TableError, match=message) as raised:
            learn({"a b": values, "c": [*self.NOISE[1:], np.inf]})
        assert raised.value.remedy == {"drop": ("a b",), "missing": ("inf",)}

    def test_a_category_that_is_mostly_numbers(self):
        columns = {"a": ["1", "2", "3", "4+"] * 9, "b": ["x", "y", "1"] * 12, "c": ["1", "<1", "2", "3", "4", ">4"] * 6}
        found = learn(columns)
        assert {type(column) for column in found.inputs.columns} == {Category}
        assert found.notes(pa.table(columns)) == [
            "column 'a' is a category, as '4+' in row 4 is no number (if it means a missing value: `missing` '4+')",
            "column 'c' is a category, as '<1' in row 2 and 1 other text is no number (if it means a missing value: "
            "`missing` '<1')",
        ]

    def test_whole_numbers_that_are_a_category(self):
        table = pa.table({"store_id": np.arange(200) % 5, "y": np.zeros(200)})
        note = "column 'store_id' is a category, as it is an identifier by its name (if it is a quantity: `keep`)"
        assert Preprocessing.fit(table, TARGET).notes(table) == [note]
        kept = Preprocessing.fit(table, TARGET, keep=["store_id"])
        assert isinstance(kept.inputs.columns[0], Number)
        assert kept.notes(table) == []

    def test_many_infinite_values(self):
        values = self.NOISE.copy()
        for large, remedy in (
            ([np.inf, -np.inf, 1e99, np.inf], {"missing": ("-inf", "1e+99", "inf")}),
            ([np.inf, -np.inf, 1e99, 1e98], {"drop": ("a",)}),
        ):
            values[:4] = large
            with pytest.raises(TableError, match=r"^column 'a' must be finite .*, got inf in row 1$") as raised:
                learn({"a": values})
            assert raised.value.remedy == remedy

    def test_text_among_dates(self):
        values = ["2020-01-05", "2020-02-06", "soon"] * 20
        with pytest.raises(TableError, match=r"^column 'a' must be dates or text, got 'soon' in row 3$") as raised:
            learn({"a": values})
        assert raised.value.remedy == {"missing": ("soon",)}

    def test_nothing_left(self):
        with pytest.raises(
            TableError, match=r"predict from, got none \('y': it is the target; 'a': it is the same in all"
        ):
            learn({"a": np.ones(10)})
        with pytest.raises(TableError, match=r"predict from, got none \('y': it is the target\)$"):
            Preprocessing.fit(pa.table({"y": np.ones(10)}), TARGET)


class TestCheck:
    FOUND = learn({"a": [1.0, 2.0, 4.0], "b": [1.0, 5.0, 4.0], "c": [1, 1, 1]})

    def test_missing_columns_are_all_named(self):
        with pytest.raises(TableError, match=r"^the table must have .* it lacks 'a', 'b'$"):
            self.FOUND.check(["c", "d"])

    def test_others_are_noted(self):
        assert self.FOUND.check(["b", "a"]) == []
        assert self.FOUND.check(["b", "a", "c", "y", "d", "e"]) == [
            "columns that are not in the training data are ignored: 'd', 'e'",
            "the target 'y' is there and is not looked at",
        ]

    def test_their_order_does_not_matter(self):
        columns = {"a": [7.0, 1.0], "b": [2.0, 3.0], "d": [0, 0]}
        assert np.array_equal(matrix(self.FOUND, columns), matrix(self.FOUND, dict(reversed(columns.items()))))


COLUMNS = st.one_of(
    st.builds(Number, st.text(), st.floats(-1e38, 1e38), st.booleans()),
    st.builds(Truth, st.text(), st.booleans()),
    st.builds(Date, st.text(), st.just("day, month, year"), st.floats(-1e5, 1e5), st.booleans(), st.just(("week",))),
    st.builds(Number, st.text(), st.floats(-1e38, 1e38), st.booleans(), decimal=st.just(","), unit=st.text()),
    st.builds(Category, st.text(), st.lists(st.text(), unique=True).map(tuple), st.booleans(), st.booleans()),
)


class TestJson:
    @given(
        columns=st.lists(COLUMNS).map(tuple),
        scales=st.lists(st.floats(1e-300, 1e38)).map(tuple),
        left_out=st.dictionaries(st.text(), st.text()),
        classes=st.one_of(
            st.just(()), st.lists(st.integers()).map(tuple), st.lists(st.text()).map(tuple), st.just((False, True))
        ),
    )
    @settings(max_examples=50, deadline=None)
    def test_is_exact(self, columns, scales, left_out, classes):
        written = (";", ("none yet",)) if classes else (None, ())
        target = Target("y", "regression", "so", classes)
        found = Preprocessing(target, Inputs(columns, left_out), scales, scales[::-1], *written)
        again = Preprocessing.from_json(json.loads(json.dumps(found.to_json())))
        assert again == found
        assert [type(label) for label in again.target.classes] == [type(label) for label in classes]

    def test_another_version(self):
        record = {**TestCheck.FOUND.to_json(), "format_version": 2}
        with pytest.raises(ValueError, match=r"^the preprocessing must have been .*\(its version is 2, not 1\)$"):
            Preprocessing.from_json(record)

    def test_the_format_is_stable(self):
        """What the first version with this format wrote."""
        size = {"kind": "number", "name": "size", "median": 2.0, "missing": True, "least": 1.0, "largest": 4.0}
        day = {"kind": "date", "name": "day", "order": "day, month, year", "median": 18661.5, "missing": False}
        record = {
            "format_version": 1,
            "target": {"name": "y", "task": "regression", "why": "its values are numbers", "classes": []},
            "columns": [
                {**size, "decimal": ".", "unit": ""},
                {"kind": "true or false", "name": "new", "missing": True},
                {"kind": "category", "name": "city", "levels": ["Oslo", "Rome"], "other": True, "missing": False},
                {**day, "parts": [], "least": 18659.0, "largest": 18671.0},
            ],
            "left_out": {"id": "its values are row numbers"},
            "mean": [2.25, 0.25, 0.625, 0.25, 0.5, 0.5, 0.0, 18663.25],
            "std": [1.5, 0.5, 0.5, 0.5, 0.5, 0.5, 1.0, 5.0],
            "delimiter": ";",
            "missing": ["none yet"],
        }
        found = Preprocessing.from_json(record)
        table = {"size": [1.0, None], "new": [True, None], "city": ["Rome", "Bern"], "day": ["1.2.2021", "5.2.2021"]}
        expected = [
            [-5 / 6, -0.5, 0.75, -0.5, -1.0, 1.0, 0.0, -0.85],
            [-1 / 6, 1.5, -0.25, 1.5, -1.0, -1.0, 1.0, -0.05],
        ]
        np.testing.assert_allclose(found.transform(pa.table(table)), expected, rtol=1e-6)

    @pytest.mark.parametrize("record", [{}, [], None, {"format_version": 1}, {"format_version": 1, "columns": [{}]}])
    def test_something_else(self, record):
        with pytest.raises(ValueError, match="^the preprocessing must have been written by bayesadam \\("):
            Preprocessing.from_json(record)


class TestDescription:
    def test_of_numbers(self):
        found = describe(Number("a", 0.0, True), pa.chunked_array([[1.0, None, 3.0, 10.0]]))
        assert found == {"name": "a", "kind": "number", "missing": 0.25, "summary": "1 to 10, median 3"}

    def test_of_dates(self):
        column = Date.fit(pa.chunked_array([["1.2.2021", None, "3.1.2020"]]), "d", str, "day, month, year")
        found = describe(column, pa.chunked_array([["1.2.2021", None, "3.1.2020", "4.1.2020"]]))
        assert found == {"name": "d", "kind": "date", "missing": 0.25, "summary": "2020-01-03 to 2021-02-01"}

    def test_of_categories(self):
        values = pa.chunked_array([["b"] * 5 + ["a"] * 3 + ["c", "d", None, None]])
        assert describe(Category("c", ("b", "a"), True, True), values) == {
            "name": "c",
            "kind": "category",
            "missing": pytest.approx(1 / 6),
            "summary": "4 levels: b (50%), a (30%), c (10%) and 1 more",
        }
        assert describe(Truth("t", False), pa.chunked_array([[True, True, False, True]]))["summary"] == (
            "true (75%), false (25%)"
        )
