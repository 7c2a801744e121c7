"""What is held out: rows at random, whole groups, or the last in time."""

import datetime

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bayesadam.sklearn import TableError
from bayesadam.tables.encoder.splits import group_split, random_split, require_all_classes, time_split


def column(values):
    return pa.chunked_array([values])


def check(split, rows):
    together = np.concatenate([split.training, split.held_out])
    assert np.array_equal(np.sort(together), np.arange(rows))
    assert (np.diff(split.training) > 0).all()
    assert (np.diff(split.held_out) > 0).all()


class TestRandom:
    @given(rows=st.integers(40, 500), fraction=st.floats(0.1, 0.5), seed=st.integers(0, 2**32 - 1))
    @settings(max_examples=50, deadline=None)
    def test_is_a_part_of_that_size(self, rows, fraction, seed):
        split = random_split(rows, fraction, seed)
        check(split, rows)
        assert len(split.held_out) == round(fraction * rows)

    @pytest.mark.parametrize("labels", [None, np.repeat([0, 1], [30, 10])])
    def test_every_row_has_the_same_chance(self, labels):
        counts = np.zeros(40)
        for seed in range(2000):
            counts[random_split(40, 0.2, seed, labels).held_out] += 1
        assert (np.abs(counts - 400) < 4.5 * np.sqrt(400 * 0.8)).all()

    def test_classes_have_the_same_share(self):
        labels = np.repeat([0, 1, 2, 3], [600, 300, 90, 10])
        np.random.default_rng(0).shuffle(labels)
        split = random_split(1000, 0.2, 3, labels)
        check(split, 1000)
        assert np.bincount(labels[split.held_out]).tolist() == [120, 60, 18, 2]
        assert not np.array_equal(split.held_out, random_split(1000, 0.2, 4, labels).held_out)


class TestCopies:
    @given(values=st.lists(st.integers(0, 40), min_size=30, max_size=120), labelled=st.booleans())
    @settings(max_examples=50, deadline=None)
    def test_stay_together(self, values, labelled):
        copies = np.array(values)
        try:
            split = random_split(
                len(copies), 0.2, 0, copies % 2 if labelled and len(set(copies % 2)) == 2 else None, copies
            )
        except TableError:
            return
        check(split, len(copies))
        assert not set(copies[split.training]) & set(copies[split.held_out])
        different = len(set(values))
        assert len(set(copies[split.held_out])) == round(0.2 * different)


class TestGroups:
    @given(sizes=st.lists(st.integers(1, 30), min_size=12, max_size=60), seed=st.integers(0, 100))
    @settings(max_examples=50, deadline=None)
    def test_stay_together(self, sizes, seed):
        groups = np.repeat([f"g{i}" for i in range(len(sizes))], sizes)
        try:
            split = group_split(column(groups), "g", 0.2, seed)
        except TableError:
            assert sum(sizes) < 60
            return
        check(split, len(groups))
        assert not set(groups[split.training]) & set(groups[split.held_out])
        assert abs(len(split.held_out) - 0.2 * len(groups)) <= max(sizes)
        assert split.how == f"{len(set(groups[split.held_out]))} of the {len(sizes)} groups of 'g', at random"


class TestTime:
    @pytest.mark.parametrize(
        "times",
        [
            np.arange(100)[::-1].copy(),
            np.arange(100.0)[::-1] - 50,
            [datetime.date(2020, 1, 1) + datetime.timedelta(days=99 - i) for i in range(100)],
        ],
    )
    def test_the_last(self, times):
        split = time_split(column(times), "t", 0.1)
        check(split, 100)
        assert split.held_out.tolist() == list(range(10))
        assert split.how == f"the rows from t = {times[9]} on"

    def test_the_same_time_stays_together(self):
        split = time_split(column(np.repeat([3, 1, 2], 20)), "t", 0.1)
        assert split.held_out.tolist() == list(range(20))
        split = time_split(column(np.repeat([1, 2], [10, 90])), "t", 0.1)
        assert split.training.tolist() == list(range(10))

    @pytest.mark.parametrize(("day_first", "last"), [(False, "3/1/2021"), (True, "1/11/2021")])
    def test_dates_that_are_text(self, day_first, last):
        times = ["1/11/2021", "3/1/2021", "2/10/2021"] * 10
        split = time_split(column(times), "t", 0.1, day_first=day_first)
        assert {times[row] for row in split.held_out} == {last}


@pytest.mark.parametrize(
    ("split", "message"),
    [
        (lambda: group_split(column(["a"] * 50), "g", 0.1, 0), "the column of groups 'g' must have two groups"),
        (
            lambda: group_split(column(["a", None, "b"]), "g", 0.1, 0),
            "the column of groups 'g' must have no missing values",
        ),
        (
            lambda: time_split(column(["May"] * 50), "t", 0.1),
            "the column of times 't' must be numbers or dates, got 'May'",
        ),
        (
            lambda: group_split(column([[1], [2]] * 25), "g", 0.1, 0),
            r"the column of groups 'g' must be numbers, text or dates, got list<item: int64> \(",
        ),
        (lambda: time_split(column([1] * 50), "t", 0.1), "the column of times 't' must have two times"),
    ],
)
def test_mistakes(split, message):
    with pytest.raises(TableError, match=f"^{message}"):
        split()


def test_too_few_rows():
    with pytest.raises(TableError, match=r"10 rows to train on and 2 to hold out at least, got 9 and 1$"):
        random_split(10, 0.1, 0)
    check(random_split(12, 0.17, 0), 12)


def test_a_class_that_is_held_out_altogether():
    labels = np.repeat([0, 1, 2], 20)
    split = time_split(column(np.arange(60)), "t", 1 / 3)
    message = r"^every class must have training rows, got none of 'high', which are all held out$"
    with pytest.raises(TableError, match=message):
        require_all_classes(split, labels, ("low", "middle", "high"))
    require_all_classes(split, labels % 2, ("low", "middle"))
