"""Numbers as people write them."""

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv

from bayesadam.tables.encoder.csv_numbers import MISSING, are_codes, are_plain, decimal_of, numbers_in, read_numbers

ODD, MARK = "odd", "mark"
TEXTS = [
    ("1", 1, 1),
    ("-1.5", -1.5, ODD),
    ("+.5", 0.5, ODD),
    ("5.", 5, ODD),
    ("1,5", ODD, 1.5),
    ("0,123", ODD, 0.123),
    ("1,234", 1234, 1.234),
    ("1.234", 1.234, 1234),
    ("1,234.5", 1234.5, ODD),
    ("1.234,5", ODD, 1234.5),
    ("1,234,567", 1234567, ODD),
    ("1,23,456", 123456, ODD),
    ("1,20,000.5", 120000.5, ODD),
    ("1.20.000", ODD, 120000),
    ("506.17-", -506.17, ODD),
    ("7 kg-", -7, -7),
    ("5-star", ODD, ODD),
    ("12,34.5", ODD, ODD),
    ("1 234", 1234, 1234),
    ("1\u202f234\u00a0567", 1234567, 1234567),
    ("1'234", 1234, 1234),
    ("2e3", 2000, 2000),
    ("1.5E-3", 0.0015, ODD),
    ("\u22127", -7, -7),
    ("(7)", -7, -7),
    ("$ 7", 7, 7),
    ("-$7", -7, -7),
    ("$-7", -7, -7),
    ("US$7", 7, 7),
    ("7 €", 7, 7),
    ("CHF 7", 7, 7),
    ("7%", 7, 7),
    ("7 km/h", 7, 7),
    ("inf", ODD, ODD),
    ("1e99", ODD, ODD),
    ("80 µg/m3", 80, 80),
    ("12 m²", 12, 12),
    ("?", MARK, MARK),
    ("N/A", MARK, MARK),
    ("\u2013", MARK, MARK),
    ("many", ODD, ODD),
    ("INV100", ODD, ODD),
    ("5-6", ODD, ODD),
    ("7 kg net weight", ODD, ODD),
    ("2020-01-01", ODD, ODD),
    (None, np.nan, np.nan),
]


@pytest.mark.parametrize("decimal", [".", ","])
def test_by_hand(decimal):
    found = read_numbers(pa.array([text for text, _, _ in TEXTS]), decimal)
    for row, (text, point, comma) in enumerate(TEXTS):
        expected = point if decimal == "." else comma
        told = ODD if found.odd[row] else MARK if found.marked[row] else found.values[row]
        assert told == expected or (told != told and expected != expected), text
        if isinstance(told, str):
            assert np.isnan(found.values[row])


def test_units():
    units = {"1 ?": "", "$1 2": "$", "1% 2": "%", "1kg 2kg ?": "kg", "1kg 2": None, "1kg 2lb": None, "$1 €2": None}
    for texts, unit in units.items():
        assert read_numbers(pa.array(texts.split())).unit == unit, texts


def test_the_decimal_mark():
    marks = {
        "1,5 2": ",",
        "1.5 2": ".",
        "1,234 2": None,
        "1,234 0,5": ",",
        "1,234 1.5": ".",
        "1,5 a b c": None,
        "": None,
    }
    for texts, mark in marks.items():
        assert decimal_of(pa.array(texts.split(), pa.string())) == mark, texts


def test_marks_in_any_case():
    marks = pa.array([text.upper() for text in MISSING])
    assert read_numbers(marks).marked.all()


def test_what_is_missing_for_arrow_is_missing():
    assert {text.lower() for text in csv.ConvertOptions().null_values} <= set(MISSING)


def test_leading_zeros_make_codes():
    for texts, codes in (
        ("02134 12345", True),
        ("12345 2134", False),
        ("0.5 1", False),
        ("007 x", False),
        ("0 1", False),
    ):
        assert are_codes(pa.array(texts.split())) is codes
        assert are_plain(pa.array(texts.split())) is (not codes and "x" not in texts)


def test_columns_of_any_type():
    for values in (
        [1.5, None, 2.0],
        ["1.5", "oops", "2"],
        ["1.5 kg", "?", "2 kg"],
        [1.5, np.inf, 2.0],
        [1.5, np.nan, 2.0],
    ):
        np.testing.assert_array_equal(numbers_in(pa.chunked_array([values])), [1.5, np.nan, 2.0])
    np.testing.assert_array_equal(numbers_in(pa.chunked_array([["1 kg", "2 lb"]]), unit="kg"), [1.0, np.nan])
    durations = pa.chunked_array([pa.array([90_000, None], pa.duration("ms"))])
    np.testing.assert_array_equal(numbers_in(durations), [90.0, np.nan])
    np.testing.assert_array_equal(numbers_in(pa.chunked_array([["1,5", "1.5"]]), ","), [1.5, np.nan])
