"""What the function returns, and the widths at the start, in any type: nothing is rounded, and no text is a number."""

import math
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
import torch

import bayesadam as ba


def bowl(x):
    return ((x - 1.0) ** 2).sum()


@pytest.mark.parametrize(
    "convert",
    [
        lambda values: values.tolist(),
        lambda values: tuple(values.tolist()),
        lambda values: [np.float64(value) for value in values],
        lambda values: [torch.tensor(value, requires_grad=True) for value in values],
        lambda values: [Fraction(float(value)) for value in values],
        lambda values: torch.tensor(values, requires_grad=True),
        lambda values: values[::-1].copy()[::-1],
        lambda values: values.astype(">f8"),
        lambda values: values.astype(object),
        pd.Series,
    ],
    ids=["list", "tuple", "numbers", "tensors", "fractions", "tensor", "reversed", "big endian", "objects", "Series"],
)
def test_values_of_many_points_are_not_rounded(convert):
    def values(points):
        return ((points - 1.0) ** 2).sum(1) + 1.0

    expected = ba.minimize(values, np.zeros(2), vectorized=True, maxfev=300)
    found = ba.minimize(lambda points: convert(values(points)), np.zeros(2), vectorized=True, maxfev=300)
    assert (found.x == expected.x).all()
    assert found.fun == expected.fun


def test_values_of_many_points_beyond_float32():
    found = ba.minimize(lambda points: [1e60 * float(bowl(x)) for x in points], np.zeros(2), vectorized=True)
    assert found.x == pytest.approx([1.0, 1.0], abs=1e-5)


@pytest.mark.parametrize("vectorized", [False, True])
@pytest.mark.parametrize(("huge", "shown"), [(10**400, "inf"), (-(10**400), "-inf"), (Fraction(10**400, 3), "inf")])
def test_integers_beyond_float64_are_infinite(huge, shown, vectorized):
    def f(x):
        return [huge] * len(x) if vectorized else huge

    with pytest.raises(FloatingPointError, match=f"f must be finite .*got {shown} at x ="):
        ba.minimize(f, np.zeros(2), vectorized=vectorized)
    assert ba.minimize(f, np.zeros(2), vectorized=vectorized, nonfinite="skip", maxfev=3).fun == math.inf


@pytest.mark.parametrize(
    "std",
    [
        np.array([3.0, 0.1])[::-1],
        np.array([0.1, 3.0], dtype=">f8"),
        (np.float64(0.1), 3),
        [torch.tensor(0.1, dtype=torch.float64), 3.0],
        torch.tensor([0.1, 3.0], dtype=torch.float64, requires_grad=True),
        pd.Series([0.1, 3.0]),
    ],
    ids=repr,
)
def test_the_width_at_the_start_may_be_of_any_type(std):
    assert ba.minimize(bowl, np.zeros(2), maxfev=1, std=std).std.tolist() == [0.1, 3.0]


def test_values_that_are_not_finite():
    def f(x):
        return math.nan if x[0] > 0.5 else math.inf if x[0] > 0.3 else float(bowl(x))

    with pytest.raises(FloatingPointError, match="f must be finite .*got (nan|inf) at x ="):
        ba.minimize(f, np.zeros(2))
    found = ba.minimize(f, np.zeros(2), nonfinite="skip")
    assert found.x == pytest.approx([0.3, 1.0], abs=1e-2)
    with pytest.raises(FloatingPointError, match="got -inf"):
        ba.minimize(lambda x: -math.inf, np.zeros(2))


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (lambda x: x, r"f must return a number, got values of shape \(3,\)"),
        (lambda x: torch.zeros(2, 2), r"f must return a number, got values of shape \(2, 2\)"),
        (lambda x: None, "f must return a number, got None"),
        (lambda x: "2", "f must return a number, got '2'"),
        (lambda x: b"2", "f must return a number, got b'2'"),
        (lambda x: np.array("2"), "f must return a number, got array"),
        (lambda x: 1j, "f must return a number, got 1j"),
    ],
)
def test_functions_that_return_no_number(returned, message):
    with pytest.raises(ValueError, match=message):
        ba.minimize(returned, np.zeros(3))


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (lambda x: x, r"f must return numbers of shape \(1,\), got values of shape \(1, 3\)"),
        (lambda x: x.sum(), r"f must return numbers of shape \(1,\), got values of shape \(\)"),
        (lambda x: None, r"f must return numbers of shape \(1,\), got None"),
        (lambda x: x.sum(1) * 1j, r"f must return numbers of shape \(1,\), got array\(\[0\.\+0\.j"),
        (lambda x: torch.tensor([1j]), r"f must return numbers of shape \(1,\), got tensor\(\[0\.\+1\.j"),
        (lambda x: ["2"], r"f must return numbers of shape \(1,\), got \['2'\]"),
        (lambda x: [None], r"f must return numbers of shape \(1,\), got \[None\]"),
        (lambda x: [[1.0], [1.0, 2.0]], r"f must return numbers of shape \(1,\), got \[\[1.0\], \[1.0, 2.0\]\]"),
    ],
)
def test_batched_functions_that_return_something_else(returned, message):
    with pytest.raises(ValueError, match=message):
        ba.minimize(returned, np.zeros(3), vectorized=True)
