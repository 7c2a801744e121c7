"""From columns to a matrix: each kind by hand, the same for rows that come later, and what is left out and why."""

import dataclasses
import datetime
import decimal
import json

import numpy as np
import pyarrow as pa
import pytest

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

    def test_with_another_decimal_mark(self):
        assert matrix(learn({"a": [1.0, 2.0, 4.0]}).reading(","), {"a": ["1,5"]}).tolist() == [[1.5]]


@pytest.mark.parametrize(
    ("training", "new", "message"),
    [
        ([1.0, 2.0, 3.0], [1.0, -np.inf], r"finite \(below 1e\+38\), got -inf in row 2$"),
        ([1.0, 2.0, 3.0], [1.0, 1e39], r"finite \(below 1e\+38\), got 1e.39 in row 2$"),
        ([1e-30, 2e-30, 5e-30], [0.0, 1e10], r"near the training values, got 1e\+10 in row 2$"),
        ([1.0, 2.0, 4.0], ["1", "many", "x"], "a number in every row, got 'many' in row 2$"),
        ([1.0, 2.0, 4.0], ["1,5"], "a number with a decimal point in every row, got '1,5' in row 1$"),
        ([1.0, 2.0, 4.0], [datetime.date(2020, 1, 1)], "a number in every row, got the type date32"),
        (["$5", "$6.50", "$7"], ["$5", "€7"], r"a number in '\$' in every row, got '€7' in row 2$"),
        ([True, False], ["true", "maybe"], "true or false, got 'maybe' in row 2$"),
    ],
)
def test_new_rows_that_cannot_be_read(training, new, message):
    with pytest.raises(TableError, match=f"^column 'a' must be {message}"):
        learn({"a": training}).transform(pa.table({"a": new}))


class TestTruth:
    def test_by_hand(self):
        found = learn({"a": [True, False, None]})
        assert found.inputs.columns == (Truth("a", True),)
        assert found.inputs.features == ["a", "a is missing"]
        expected = [[1.0, 0.0], [0.0, 0.0], [0.5, 1.0]]
        assert matrix(found, {"a": [True, False, None]}).tolist() == expected
        assert matrix(found, {"a": ["True", "FALSE", None]}).tolist() == expected
        assert matrix(found, {"a": [1, 0, None]}).tolist() == expected


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
        missing = (
            "2 rows have missing values, of which the training rows had none (they are replaced by typical values)"
        )
        assert findings.notes() == [
            f"column 'n': {missing}",
            f"column 't': {missing}",
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


class TestChoice:
    """What each column is taken for."""

    N = 200
    COUNT = np.arange(N)
    NOISE = np.random.default_rng(0).normal(size=N)
    LEFT_OUT = (
        ("nothing", pa.nulls(N, pa.string()), "all its values are missing"),
        ("same", np.full(N, 7), "it is the same in all training rows (7)"),
        (
            "big",
            2**63 + np.arange(N, dtype=np.uint64),
            f"its {N} different values cannot be told apart in double precision",
        ),
        ("same", np.full(N, True), "it is the same in all training rows (True)"),
        ("nr", COUNT, "it numbers the rows"),
        ("nr", COUNT + COUNT // 10, "it numbers the rows"),
        ("customer_id", COUNT * 7919 % 100_003, "it is an identifier by its name, with 200 different values"),
        ("customerId", COUNT // 2 * 31, "it is an identifier by its name, with 100 different values"),
        ("row_index", COUNT * 7919 % 100_003, "it is an identifier by its name, with 200 different values"),
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
        ("store_id", COUNT % 5, Category),
        ("code", [str(i % 5) for i in range(N)], Category),
        ("text", [str(x) for x in NOISE], Number),
        ("flag", [True, None] * (N // 2), Truth),
        ("same or missing", pa.array([1.0, None] * (N // 2)), Number),
        ("block", COUNT // 10, Number),
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

    WRITTEN = (
        (["1,5", "2,25", "4"], [1.5, 2.25, 4], ",", "", "'1,5' in row 1 is read as 1.5, as 40 of 60 are written"),
        (["12", "9", "1,048.41"], [12, 9, 1048.41], ".", "", "'1,048.41' in row 3 is read as 1048.41, as 20 of"),
        (["1.048,41", "2.000,00"], [1048.41, 2000], ",", "", "'1.048,41' in row 1 is read as 1048.41"),
        (["12", "1 000", "2 000 000"], [12, 1000, 2e6], ".", "", "'1 000' in row 2 is read as 1000, as 40 of 60"),
        (["$101.60", "-$5", "($7.50)"], [101.6, -5, -7.5], ".", "$", "'$101.60' in row 1 is read as 101.6"),
        (["€ 12", "€ 1.234,5"], [12, 1234.5], ",", "€", "'€ 12' in row 1 is read as 12"),
        (["3 kg", "4.5kg"], [3, 4.5], ".", "kg", "'3 kg' in row 1 is read as 3"),
        (["5", "?", "N/A", "6"], [5, None, None, 6], ".", "", "'?' in row 2 means a missing value (20 rows); 'N/A' in"),
    )

    @pytest.mark.parametrize(("values", "numbers", "decimal", "unit", "note"), WRITTEN)
    def test_numbers_written_otherwise(self, values, numbers, decimal, unit, note):
        table = {"a": values * 20, "b": np.arange(20.0 * len(values)) ** 2}
        found, expected = learn(table), learn({**table, "a": numbers * 20})
        assert found.inputs.columns[0] == dataclasses.replace(expected.inputs.columns[0], decimal=decimal, unit=unit)
        assert (found.mean, found.std) == (expected.mean, expected.std)
        codes = expected.transform(pa.table({**table, "a": numbers * 20}))
        np.testing.assert_array_equal(found.transform(pa.table(table)), codes)
        (told,) = found.notes(pa.table(table))
        assert told.startswith(f"column 'a': {note}")
        target = numbers_of("y", pa.chunked_array([values * 20]), None)
        np.testing.assert_array_equal(target.to_numpy(), np.array(numbers * 20, dtype=float))

    def test_new_rows_without_the_unit(self):
        assert matrix(learn({"a": ["$5", "$6.50", "$7"]}), {"a": ["8", "$9", None]})[:, 0].tolist() == [8.0, 9.0, 6.5]

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
        for last, remedy in ((np.inf, {"missing": ("-inf", "1e+99", "inf")}), (1e98, {"drop": ("a",)})):
            values[:4] = [np.inf, -np.inf, 1e99, last]
            with pytest.raises(TableError, match=r"^column 'a' must be finite .*, got inf in row 1$") as raised:
                learn({"a": values})
            assert raised.value.remedy == remedy

    def test_nothing_left(self):
        message = r"predict from, got none \('y': it is the target; 'a': it is the same in all"
        with pytest.raises(TableError, match=message):
            learn({"a": np.ones(10)})


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


class TestJson:
    @pytest.mark.parametrize("classes", [(), (3, -1), ("a", "ü"), (False, True)])
    def test_is_exact(self, classes):
        columns = (
            Number("a", 0.1 + 0.2, True, -1e-300, 1e38),
            Number('\u2028"x', -0.0, False, decimal=",", unit="m²"),
            Truth("t", True),
            Date("d", "day, month, year", 1e5 + 1 / 3, False, ("week",)),
            Category("", ("b", "a", ""), True, False),
        )
        scales = (1e-300, 1 / 3, 1e38)
        target = Target("y", "regression", "so", classes)
        found = Preprocessing(target, Inputs(columns, {"id": "why"}), scales, scales[::-1], ";", ("none yet",))
        again = Preprocessing.from_json(json.loads(json.dumps(found.to_json())))
        assert again == found
        assert [type(label) for label in again.target.classes] == [type(label) for label in classes]

    @pytest.mark.parametrize("record", [{}, [], None, {"format_version": 99}, {"format_version": 5, "columns": [{}]}])
    def test_something_else(self, record):
        with pytest.raises(ValueError, match="^the preprocessing must "):
            Preprocessing.from_json(record)


class TestDescription:
    def test_of_numbers_and_truth_values(self):
        found = describe(Number("a", 0.0, True), pa.chunked_array([[1.0, None, 3.0, 10.0]]))
        assert found == {"name": "a", "kind": "number", "missing": 0.25, "summary": "1 to 10, median 3"}
        found = describe(Truth("t", False), pa.chunked_array([[True, True, False, True]]))
        assert found["summary"] == "true (75%), false (25%)"

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
