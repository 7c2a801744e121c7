"""The target: what it is taken for, its labels, and what cannot be predicted."""

import datetime

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from bayesadam.sklearn import TableError
from bayesadam.tables.encoder.table_target import numbers_of_text, read_target


def find(values, task=None):
    return read_target("y", pa.chunked_array([values]), task)


@pytest.mark.parametrize(
    ("values", "task", "why"),
    [
        ([0.5, 1.0, 2.5], "regression", "its values are numbers with decimals"),
        (list(range(11)), "regression", "its values are 11 different whole numbers"),
        (list(range(10)) * 2, "classification", "its values are 10 different whole numbers"),
        ([2**62, 2**62 + 1] * 2, "classification", "its values are 2 different whole numbers"),
        (["a", "b"] * 2, "classification", "its values are text"),
        (["1", "2"] * 20, "classification", "its values are text"),
        (["$1", "$2"] * 20, "regression", "its values are 2 different whole numbers"),
        ([-0.0, *range(10)] * 2, "classification", "its values are 10 different whole numbers"),
        (["007", "010", "0123"] * 20, "classification", "its values are text"),
        ([True, False] * 2, "classification", "its values are true or false"),
    ],
)
def test_the_task_is_found(values, task, why):
    target = find(values)
    assert (target.name, target.task, target.why) == ("y", task, why)
    assert bool(target.classes) == (task == "classification")


def test_the_task_may_be_said():
    for values, task in (
        ([1, 2] * 3, "regression"),
        (["1", "2.5"], "regression"),
        ([True, False], "regression"),
        ([*range(20)] * 2, "classification"),
        (["$1", "$2"] * 3, "classification"),
    ):
        target = find(values, task)
        assert (target.task, target.why) == (task, "as it was asked for")


@pytest.mark.parametrize(
    ("values", "classes"),
    [
        ([3, -1, 10, 3, -1, 10], (-1, 3, 10)),
        ([3.0, 1.0, 3.0, None, 1.0], (1, 3)),
        (pa.array([3, 1, 3, 1], pa.uint8()), (1, 3)),
        (["10", "9", "9", None, "9"] * 2, ("10", "9")),
        (["007", "010", "007", "010"], ("007", "010")),
        ([" b", "a", "b ", "a"], ("a", "b")),
        ([True, False, True, False], (False, True)),
    ],
)
def test_classes_are_the_original_labels(values, classes):
    target = find(values)
    assert target.classes == classes
    assert [type(label) for label in target.classes] == [type(label) for label in classes]
    plain = [v.strip() if isinstance(v, str) else v for v in pa.array(values).to_pylist()]
    assert [target.classes[code] for code in target.values[target.known]] == [v for v in plain if v is not None]
    assert target.known.tolist() == [v is not None for v in plain]


def test_missing_values_and_a_class_of_one_row():
    target = find(["a", "b", None, "a", "b", "odd"])
    assert target.classes == ("a", "b")
    assert target.values.tolist() == [0, 1, -1, 0, 1, -1]
    assert target.notes == ["classes of a single row are left out ('odd' in row 5)", "1 row without a target left out"]
    target = find(["€ 1.234,5", "€ 7,25", "?", None])
    assert target.values[:2].tolist() == [1234.5, 7.25]
    assert target.notes == [
        "column 'y': '€ 1.234,5' in row 0 is read as 1234.5, as 2 of 4 are written; '?' in row 2 means a missing value "
        "(1 row)",
        "2 rows without a target left out",
    ]


@pytest.mark.parametrize(
    ("values", "task", "message"),
    [
        ([None, None], None, "the target 'y' must have values, got none in 2 rows"),
        (["a"] * 5, None, "the target 'y' must have different values, got 'a' in every row"),
        ([5] * 6, None, "the target 'y' must have different values, got '5' in every row"),
        (["a"] * 5 + ["b"], None, "the target 'y' must have two classes with two rows each at least, got 'a', 'b'"),
        ([2.5] * 5, None, "the target 'y' must have different values, got 2.5 in every row"),
        ([f"text {i}" for i in range(20)], None, "the target 'y' must be numbers or classes, got text with 20 diff"),
        (list(range(20)), "classification", "the target 'y' must have fewer classes, got 20 in 20 rows"),
        ([0.5, 1.5, 1.0], "classification", "the target 'y' must be text, truth values or whole numbers for a classif"),
        ([1.5, -np.inf], "regression", "the target 'y' must be a finite number in every row, got -inf in row 1"),
        (
            [1.0, 2.0, np.nan] * 2,
            None,
            "the target 'y' must be a finite number in every row, got nan in row 2 and 1 ot",
        ),
        ([1.0, np.inf] * 2, "classification", "the target 'y' must be a finite number in every row, got inf in row 1"),
        (
            ["1", "2", "on request"],
            "regression",
            "the target 'y' must be a finite number in every row, got 'on request' in row 2; if it means a missing "
            "value: missing=['on request']",
        ),
        ([*map(str, range(30)), "open"], None, "the target 'y' must be a finite number in every row, got 'open' in"),
        (["$5", "€6", "$7.5"], None, "the target 'y' must be numbers in one unit, got '$', '€'"),
        ([datetime.date(2020, 1, 1)] * 3, None, "the target 'y' must be numbers or classes, got dates: make numbers"),
        ([[1], [2]], None, "the target 'y' must be numbers or classes, got the type list<item: int64>"),
        ([1.5, 2.5], "ranking", "task must be one of regression, classification, got 'ranking'"),
    ],
)
def test_what_cannot_be_predicted(values, task, message):
    with pytest.raises(TableError) as raised:
        find(values, task)
    assert str(raised.value).startswith(message)


def test_text_targets_in_python():
    prices = ["$1,234.50", "$7", "$8.25"]
    for values in (prices, np.array(prices), pd.Series(prices)):
        assert numbers_of_text(values).tolist() == [1234.5, 7.0, 8.25]
    with pytest.raises(TableError, match=r"got 'on request' in row 3$"):  # an estimator has no argument for it
        numbers_of_text([*prices, "on request"])
    for values in ([1.0, 2.0], np.ones((2, 2)), np.array([1, 2.5], dtype=object)):
        assert numbers_of_text(values) is values
    for values in (np.array(["2020"], "M8[Y]"), pd.Series(pd.to_datetime(["2020"], utc=True)), pd.to_timedelta([1])):
        with pytest.raises(TableError, match=r"classes, got (dates|durations): make numbers of them"):
            numbers_of_text(values)
