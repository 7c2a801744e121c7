"""The target: what it is taken for, its labels, and what cannot be predicted."""

import datetime

import numpy as np
import pyarrow as pa
import pytest

from bayesadam.tabular import TableError, Target, numbers_of


def find(values, task=None):
    return Target.find("y", pa.chunked_array([values]), task)


class TestTask:
    @pytest.mark.parametrize(
        ("values", "task", "why"),
        [
            ([0.5, 1.0, 2.5], "regression", "its values are numbers with decimals"),
            (list(range(11)), "regression", "its values are 11 different whole numbers"),
            (list(range(10)) * 2, "classification", "its values are 10 different whole numbers"),
            ([1.0, 2.0, 1.0, 2.0], "classification", "its values are 2 different whole numbers"),
            ([2**62, 2**62 + 1] * 2, "classification", "its values are 2 different whole numbers"),
            (["a", "b"] * 2, "classification", "its values are text"),
            ([True, False] * 2, "classification", "its values are true or false"),
        ],
    )
    def test_found(self, values, task, why):
        target = find(values)
        assert (target.name, target.task, target.why) == ("y", task, why)
        assert bool(target.classes) == (task == "classification")

    @pytest.mark.parametrize(
        ("values", "task"),
        [
            ([1, 2] * 3, "regression"),
            ([True, False], "regression"),
            (["1", "2.5"], "regression"),
            (list(range(20)) * 2, "classification"),
        ],
    )
    def test_said(self, values, task):
        target = find(values, task)
        assert (target.task, target.why) == (task, "as `task` says")

    def test_numbers_that_are_equal_in_double_precision(self):
        rule = "the target 'y' must have different values in double precision"
        with pytest.raises(TableError, match=f"^{rule}, got 20 whole numbers that are all 4.61169e[+]18 there"):
            find([2**62 + i for i in range(20)])


class TestClasses:
    @pytest.mark.parametrize(
        ("values", "classes"),
        [
            ([3, -1, 10, 3, -1, 10], (-1, 3, 10)),
            ([3.0, 1.0, 3.0, 1.0], (1, 3)),
            (pa.array([3, 1, 3, 1], pa.uint8()), (1, 3)),
            (["b", "a", "b", "a"], ("a", "b")),
            (["10", "9", "9", "10"], ("10", "9")),
            ([" b", "a", "b ", "a"], ("a", "b")),
            ([True, False, True, False], (False, True)),
        ],
    )
    def test_are_the_original_labels(self, values, classes):
        target = find(values)
        assert target.classes == classes
        assert [type(label) for label in target.classes] == [type(label) for label in classes]
        codes = target.encode(pa.chunked_array([values]))
        assert codes.dtype == np.int64
        plain = pa.array(values).to_pylist()
        assert [target.classes[code] for code in codes] == [v.strip() if isinstance(v, str) else v for v in plain]

    def test_a_label_that_is_none(self):
        target = find(["a", "b"] * 2)
        with pytest.raises(TableError, match=r"^the target 'y' must be one of its classes, got 'c' in row 2$"):
            target.encode(pa.chunked_array([["a", "c"]]))


class TestRefusals:
    @pytest.mark.parametrize(
        ("values", "task", "message"),
        [
            (["a"] * 5, None, "the target 'y' must have two classes at least, got 'a' only"),
            ([3] * 5, None, "the target 'y' must have two classes at least, got '3' only"),
            ([2.5] * 5, None, "the target 'y' must have different values, got 2.5 in every row"),
            (
                ["a", "a", "b", "b", "c"],
                None,
                "every class of the target 'y' must have two rows at least, got one of 'c'",
            ),
            (
                [f"text {i}" for i in range(20)],
                None,
                "the target 'y' must be numbers or classes, got text with 20 different values in 20 rows",
            ),
            (
                list(range(20)),
                "classification",
                "the target 'y' must have fewer classes, got 20 in 20 rows",
            ),
            (
                [0.5, 1.5, 1.0],
                "classification",
                "the target 'y' must be text, truth values or whole numbers for `task` classification, got 0.5",
            ),
            ([1.5, np.inf], None, "column 'y' must be finite (below 1e+38), got inf in row 2"),
            ([1.5, -np.inf], "regression", "column 'y' must be finite (below 1e+38), got -inf in row 2"),
            (["1", "x"], "regression", "column 'y' must be a number in every row, got 'x' in row 2"),
            (
                [datetime.date(2020, 1, 1)] * 3,
                None,
                "the target 'y' must be numbers or classes, got dates: make numbers of them",
            ),
            ([[1], [2]], None, "the target 'y' must be numbers or classes, got the type list<item: int64>"),
            ([1.5, 2.5], "ranking", "`task` must be one of regression, classification, got 'ranking'"),
        ],
    )
    def test_message(self, values, task, message):
        with pytest.raises(TableError) as raised:
            find(values, task)
        assert str(raised.value) == message

    @pytest.mark.parametrize(
        ("values", "remedy"),
        [(["a", "b", "a", "b", "c"], {"missing": ("c",)}), (["a", "a", "b"], {}), (["a", "b", "c"], {})],
    )
    def test_two_classes_must_be_left(self, values, remedy):
        with pytest.raises(TableError, match="every class of the target 'y' must have two rows at least") as raised:
            find(values, None)
        assert raised.value.remedy == remedy


class TestText:
    """Text that says numbers; how numbers may be written is tested with the inputs."""

    def test_of_few_levels_is_classes(self):
        values = pa.chunked_array([["1", "2"] * 20])
        assert numbers_of("y", values, None) is values
        assert numbers_of("y", values, "regression").to_pylist() == [1.0, 2.0] * 20
        prices = pa.chunked_array([["$1", "$2"] * 20])
        assert numbers_of("y", prices, "classification") is prices
        assert numbers_of("y", prices, None).to_pylist() == [1.0, 2.0] * 20

    def test_that_is_none(self):
        for values in (["yes", "no"] * 9, ["+", "-"] * 9, [f"name {i}" for i in range(30)], [None, None]):
            column = pa.chunked_array([pa.array(values, pa.string())])
            assert numbers_of("y", column, None) is column

    def test_among_numbers(self):
        values = [str(i / 7) for i in range(30)]
        values[4] = "open"
        with pytest.raises(
            TableError, match=r"^the target 'y' must be a number in every row, got 'open' in row 5$"
        ) as e:
            numbers_of("y", pa.chunked_array([values]), None)
        assert e.value.remedy == {"missing": ("open",)}
        with pytest.raises(TableError, match=r"must be numbers in one unit, got '\$', '€'$"):
            numbers_of("y", pa.chunked_array([["$5", "€6", "$7.5"]]), None)

    @pytest.mark.parametrize(
        ("values", "remedy"),
        [
            (["yes", "no"] * 9, {"task": "classification"}),
            (["x", "y"], {}),
            (["1", "x"] * 9, {"missing": ("x",)}),
        ],
    )
    def test_that_is_no_number_at_all_is_never_taken_as_missing(self, values, remedy):
        with pytest.raises(TableError, match="^the target 'y' must be a number in every row, got ") as raised:
            numbers_of("y", pa.chunked_array([values]), "regression")
        assert raised.value.remedy == remedy
