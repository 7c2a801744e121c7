"""The target: what it is taken for, its labels, and what cannot be predicted."""

import datetime
import decimal

import numpy as np
import pyarrow as pa
import pytest

from bayesadam.tabular import TableError, Target, numbers_of


def column(values):
    return pa.chunked_array([values])


def find(values, task=None):
    return Target.find("y", column(values), task)


@pytest.mark.parametrize(
    ("values", "task", "why"),
    [
        ([0.5, 1.0, 2.5], "regression", "its values are numbers with decimals"),
        (list(range(11)), "regression", "its values are 11 different whole numbers"),
        (list(range(10)) * 2, "classification", "its values are 10 different whole numbers"),
        ([2**62, 2**62 + 1] * 2, "classification", "its values are 2 different whole numbers"),
        (["a", "b"] * 2, "classification", "its values are text"),
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
        ([*range(20)] * 2, "classification"),
    ):
        target = find(values, task)
        assert (target.task, target.why) == (task, "as `task` says")


@pytest.mark.parametrize(
    ("values", "classes"),
    [
        ([3, -1, 10, 3, -1, 10], (-1, 3, 10)),
        ([3.0, 1.0, 3.0, 1.0], (1, 3)),
        (pa.array([3, 1, 3, 1], pa.uint8()), (1, 3)),
        (["10", "9", "9", "10"], ("10", "9")),
        ([" b", "a", "b ", "a"], ("a", "b")),
        ([True, False, True, False], (False, True)),
    ],
)
def test_classes_are_the_original_labels(values, classes):
    target = find(values)
    assert target.classes == classes
    assert [type(label) for label in target.classes] == [type(label) for label in classes]
    codes = target.encode(column(values))
    assert codes.dtype == np.int64
    plain = pa.array(values).to_pylist()
    assert [target.classes[code] for code in codes] == [v.strip() if isinstance(v, str) else v for v in plain]
    with pytest.raises(TableError, match=r"^the target 'y' must be one of its classes, got 'c' in row 2$"):
        find(["a", "b"] * 2).encode(column(["a", "c"]))


@pytest.mark.parametrize(
    ("values", "task", "message"),
    [
        (["a"] * 5, None, "the target 'y' must have two classes at least, got 'a' only"),
        ([2.5] * 5, None, "the target 'y' must have different values, got 2.5 in every row"),
        ([2**62 + i for i in range(20)], None, "the target 'y' must have different values in double precision, got 20"),
        (["a", "a", "b", "c", "b"], None, "every class of the target 'y' must have two rows at least, got one of 'c'"),
        ([f"text {i}" for i in range(20)], None, "the target 'y' must be numbers or classes, got text with 20 diff"),
        (list(range(20)), "classification", "the target 'y' must have fewer classes, got 20 in 20 rows"),
        ([0.5, 1.5, 1.0], "classification", "the target 'y' must be text, truth values or whole numbers for `task`"),
        (
            [decimal.Decimal("1" * 31) + i % 3 for i in range(60)],
            "classification",
            "the target 'y' must be below 2**63",
        ),
        ([1.5, -np.inf], "regression", "column 'y' must be finite (below 1e+38), got -inf in row 2"),
        (["1", "x"], "regression", "column 'y' must be a number in every row, got 'x' in row 2"),
        ([datetime.date(2020, 1, 1)] * 3, None, "the target 'y' must be numbers or classes, got dates: make numbers"),
        ([[1], [2]], None, "the target 'y' must be numbers or classes, got the type list<item: int64>"),
        ([1.5, 2.5], "ranking", "`task` must be one of regression, classification, got 'ranking'"),
    ],
)
def test_what_cannot_be_predicted(values, task, message):
    with pytest.raises(TableError) as raised:
        find(values, task)
    assert str(raised.value).startswith(message)
    if "'c'" in message:
        assert raised.value.remedy == {"missing": ("c",)}


class TestText:
    """Text that says numbers; how numbers may be written is tested with the inputs."""

    def test_of_few_levels_is_classes(self):
        values = column(["1", "2"] * 20)
        assert numbers_of("y", values, None) is values
        assert numbers_of("y", values, "regression").to_pylist() == [1.0, 2.0] * 20
        prices = column(["$1", "$2"] * 20)
        assert numbers_of("y", prices, "classification") is prices
        assert numbers_of("y", prices, None).to_pylist() == [1.0, 2.0] * 20

    def test_that_is_none(self):
        for values in (["yes", "no"] * 9, ["+", "-"] * 9, [f"name {i}" for i in range(30)], [None, None]):
            text = column(pa.array(values, pa.string()))
            assert numbers_of("y", text, None) is text

    @pytest.mark.parametrize(
        ("values", "task", "message", "remedy"),
        [
            (
                [*map(str, range(30)), "open"],
                None,
                "a number in every row, got 'open' in row 31",
                {"missing": ("open",)},
            ),
            (["$5", "€6", "$7.5"], None, r"numbers in one unit, got '\$', '€'", {}),
            (["yes", "no"] * 9, "regression", "a number in every row, got 'no' in row 2", {"task": "classification"}),
            (["x", "y"], "regression", "a number in every row, got 'x' in row 1", {}),
            (["1", "x"] * 9, "regression", "a number in every row, got 'x' in row 2", {"missing": ("x",)}),
        ],
    )
    def test_among_numbers(self, values, task, message, remedy):
        with pytest.raises(TableError, match=f"^the target 'y' must be {message}") as raised:
            numbers_of("y", column(values), task)
        assert raised.value.remedy == remedy
