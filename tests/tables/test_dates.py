"""Dates: how they are written, and the numbers that they become."""

import datetime

import numpy as np
import pyarrow as pa
import pytest

from bayesadam.sklearn import TableEncoder
from bayesadam.tables.encoder.dates import Date, are_steps, as_times, order_of
from bayesadam.tables.encoder.findings import Findings

AMERICAN, EUROPEAN = "month, day, year", "day, month, year"


def column(values):
    return pa.chunked_array([pa.array(values)])


def encode(found, values, findings=None):
    return found.encode(column(values), findings or Findings(lambda row: f"line {row + 2}"))


def test_years_with_gaps():
    """pandas writes them as 2001.0, and reads them as numbers."""
    years = pa.array([2001.0, None, 2005.0])
    encoder = TableEncoder(date=["year"]).fit(pa.table({"year": years}))
    assert encoder.columns_[0].order == "year, month, day without marks"
    for new in (["2001.0", None, "2005.0"], ["2001", "", "2005"]):
        np.testing.assert_array_equal(
            encoder.transform(pa.table({"year": new})), encoder.transform(pa.table({"year": years}))
        )


@pytest.mark.parametrize(
    ("times", "regular"),
    [
        (np.arange("2023-01-02", "2024-02-06", dtype="datetime64[D]"), True),
        (np.arange("2023-01-02", "2024-02-06", dtype="datetime64[D]")[::-1], True),
        (np.arange("2020-01", "2023-01", dtype="datetime64[M]"), True),
        (np.arange("2020-01", "2023-01", 3, dtype="datetime64[M]"), True),
        (np.busday_offset("2023-01-02", np.arange(100)), True),
        (np.datetime64("2023-01-01T00") + np.arange(50), True),
        (np.repeat(np.arange("2023-01-02", "2023-03-06", dtype="datetime64[D]"), 2), False),
        (np.datetime64("2023-01-01T00") + np.arange(50) ** 2, False),
        (np.random.default_rng(0).permutation(np.arange("2023-01", "2024-01", dtype="datetime64[D]")), False),
        (np.array(["2023-01-01", "NaT", "2023-01-03"], dtype="datetime64[D]"), False),
        (np.array(["2023-01-01"], dtype="datetime64[D]"), False),
    ],
)
def test_regular_steps(times, regular):
    assert are_steps(times.astype("datetime64[us]")) == regular


class TestText:
    @pytest.mark.parametrize(
        ("text", "order", "dates"),
        [
            (["2021-03-04", "2021/3/5", "2021.03.06"], "year, month, day", ["2021-03-04", "2021-03-05", "2021-03-06"]),
            (["2021-03", "2021-12"], "year, month, day", ["2021-03-01", "2021-12-01"]),
            (["3/14/2021", "12/4/99"], AMERICAN, ["2021-03-14", "1999-12-04"]),
            (["14/3/2021", "4/12/68"], EUROPEAN, ["2021-03-14", "2068-12-04"]),
            (["1.2.2021", "31.12.69"], EUROPEAN, ["2021-02-01", "1969-12-31"]),
            (["Jan 1 2000", "Feb 2001"], "name of the month, day, year", ["2000-01-01", "2001-02-01"]),
            (["March 3rd, 2020", "Sept. 30 2020"], "name of the month, day, year", ["2020-03-03", "2020-09-30"]),
            (["29 Feb 2020", "1st may 21"], "day, name of the month, year", ["2020-02-29", "2021-05-01"]),
            (["2021-03-04 23:59:59.5"], "year, month, day", ["2021-03-04T23:59:59.5"]),
            (["2021-03-04T01:00+02:00", "2021-03-04 01:00Z"], "year, month, day", ["2021-03-03T23", "2021-03-04T01"]),
            (["2021-03-04 10", "2021-03-04T10-01"], "year, month, day", ["2021-03-04T10", "2021-03-04T11"]),
            (["1/1/0068", "12/31/68"], AMERICAN, ["0068-01-01", "2068-12-31"]),
            (["9:05:15", "12:30 am"], "time of day", ["1970-01-01T09:05:15", "1970-01-01T00:30"]),
            (["4.3.2021 9:05 pm", "5.3.2021 12:00 a.m."], EUROPEAN, ["2021-03-04T21:05", "2021-03-05T00"]),
        ],
    )
    def test_is_read(self, text, order, dates):
        assert order_of(pa.array([*text, "?", "NA"])) == (order, False)
        times = as_times(column([*text, "?", None]), order)
        expected = np.array([*dates, "NaT", "NaT"], dtype="datetime64[us]")
        np.testing.assert_array_equal(times, expected)

    @pytest.mark.parametrize(
        ("text", "day_first", "order", "unsure"),
        [
            (["3/4/2021", "5/6/2021"], False, AMERICAN, True),
            (["3/4/2021", "5/6/2021"], True, EUROPEAN, False),
            (["3.4.2021", "5.6.2021"], False, EUROPEAN, False),
            (["3/4/2021", "5/16/2021"], True, AMERICAN, False),
        ],
    )
    def test_which_is_the_day(self, text, day_first, order, unsure):
        assert order_of(pa.array(text), day_first=day_first) == (order, unsure)

    @pytest.mark.parametrize(
        "text",
        [["2020.01", "2020.5"], ["1-2"], ["1.2.3"], ["30.2.2021", "x"], ["555-1234"], ["red"], ["10:30", "24:10"]],
    )
    def test_is_something_else(self, text):
        assert order_of(pa.array(text)) is None

    def test_no_date_among_dates(self):
        times = as_times(column(["2021-02-28", "2021-02-29", "soon"]))
        np.testing.assert_array_equal(np.isnat(times), [False, True, True])
        np.testing.assert_array_equal(as_times(column(["2020-02-01"]), EUROPEAN), np.datetime64("2020-02-01", "us"))
        findings = Findings()
        encode(
            Date.fit(column(["1.2.20", "1.12.20", "2.12.20"]), "d", EUROPEAN), ["1.2.20", "1.3.20", "1.13.20"], findings
        )
        assert findings.cells[0] == (
            "column 'd': 1 row has cells that are not dates (day, month, year) ('1.13.20' in row 2): they count as "
            "missing"
        )

    def test_numbers_are_dates_if_the_user_says_so(self):
        compact = pa.array(["20210304", "20211231"])
        assert order_of(compact) is None
        order, _ = order_of(compact, wanted=True)
        np.testing.assert_array_equal(
            as_times(column(compact), order), np.array(["2021-03-04", "2021-12-31"], "M8[us]")
        )


class TestFeatures:
    DAYS = np.datetime64("2020-01-01") + np.arange(731)

    def test_by_hand(self):
        found = Date.fit(column(self.DAYS), "d")
        assert (found.parts, found.missing) == (("year", "week"), False)
        assert found.features[:4] == ["d", "d: time of year, sine", "d: time of year, cosine", "d: Monday"]
        codes = encode(found, self.DAYS)
        for row in range(0, 731, 10):
            day = datetime.date(2020, 1, 1) + datetime.timedelta(row)
            angle = 2 * np.pi * (day - datetime.date(day.year, 1, 1)).days / 365.2425
            expected = [(day - datetime.date(1970, 1, 1)).days, np.sin(angle), np.cos(angle)]
            assert codes[row].tolist() == pytest.approx([*expected, *np.eye(7)[day.weekday()]], abs=1e-12)

    def test_times_of_the_day(self):
        times = np.datetime64("2021-05-01T00:00") + np.arange(0, 40, 3).astype("timedelta64[h]").astype(
            "timedelta64[s]"
        )
        found = Date.fit(column(times), "d")
        assert found.parts == ("day",)
        angle = 2 * np.pi * (np.arange(0, 40, 3) % 24) / 24
        np.testing.assert_allclose(encode(found, times)[:, 1:], np.stack([np.sin(angle), np.cos(angle)], 1), atol=1e-9)
        clock = [datetime.time(6), datetime.time(18, 30)]
        assert encode(Date.fit(column(clock), "d"), clock)[:, 0].tolist() == [0.25, 18.5 / 24]

    @pytest.mark.parametrize(
        ("dates", "parts"),
        [
            ([f"{year}-01-01" for year in range(1950, 2000)], ()),
            ([f"2020-{month:02d}-01" for month in range(1, 13)], ("year",)),
            ([f"2020-05-{day:02d}" for day in range(1, 32)], ("week",)),
        ],
    )
    def test_parts_that_training_rows_do_not_tell_apart(self, dates, parts):
        assert Date.fit(column(np.array(dates, dtype="datetime64[D]")), "d").parts == parts

    def test_a_missing_date(self):
        found = Date.fit(column(["1.1.2020", None, "3.1.2020", "?"]), "d", EUROPEAN)
        assert found.features == ["d", "d is missing"]
        days = (np.datetime64("2020-01-01") - np.datetime64("1970-01-01")).astype(int)
        assert encode(found, [None, "2020-01-01"]).tolist() == [[days + 1, 1], [days, 0]]
        whole = Date.fit(column(self.DAYS), "d")
        findings = Findings()
        codes = encode(whole, np.array(["NaT", "2020-01-01"], dtype="datetime64[us]"), findings)
        assert codes[0].tolist() == [whole.median, *[0] * 9]
        assert findings.notes[0].startswith("column 'd': 1 row has missing values")

    def test_far_from_the_training_rows(self):
        findings, dates = (
            Findings(lambda row: f"line {row + 2}"),
            np.array(["2021-01-01", "2040-02-03"], dtype="datetime64[D]"),
        )
        encode(Date.fit(column(self.DAYS), "d"), dates, findings)
        (note,) = findings.notes
        assert "range of 2020-01-01 to 2021-12-31 (2040-02-03 in line 3)" in note

    def test_zones_do_not_matter(self):
        plain = pa.array(self.DAYS.astype("datetime64[ns]"))
        zoned = plain.cast(pa.timestamp("ns", "UTC")).cast(pa.timestamp("ms", "+05:00"))
        found = [TableEncoder().fit(pa.table({"d": values})) for values in (plain, zoned)]
        assert found[0].columns_ == found[1].columns_
        codes = [found[0].transform(pa.table({"d": values})) for values in (plain, zoned)]
        np.testing.assert_array_equal(*codes)
