"""The search for a minimum, against minima that are known."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bayesadam.calibration.search import least, least_within


@settings(max_examples=30, deadline=None)
@given(st.floats(-3, 3), st.integers(0, 30))
def test_the_bracket_shrinks_by_the_golden_ratio(place, steps):
    found, value = least(lambda x: abs(math.log(x) - place), math.exp(-3), math.exp(3), steps)
    assert abs(math.log(found) - place) <= 6 * 0.6181**steps + 1e-9
    assert value == abs(math.log(found) - place)


def test_every_point_is_asked_for_once():
    asked = []
    least(lambda x: asked.append(x) or (x - 2) ** 2, 0.1, 10.0, 12)
    assert len(asked) == len(set(asked)) == 14
    assert all(0.1 < x < 10.0 for x in asked)


def test_at_an_edge():
    assert least(lambda x: x, 0.5, 2.0, 40)[0] == pytest.approx(0.5)
    assert least(lambda x: -x, 0.5, 2.0, 40)[0] == pytest.approx(2.0)
    assert least(lambda x: 0.0, 0.5, 2.0, 40)[0] == pytest.approx(0.5)


@pytest.mark.parametrize("power", [-19, 0, 7])
def test_the_bracket_moves_to_the_minimum(power):
    found, _ = least_within(lambda x: abs(math.log10(x) - power), (1e-2, 1e2), (1e-20, 1e20), 30)
    assert math.log10(found) == pytest.approx(power, abs=1e-4)


def test_the_bracket_stays_within_its_limits():
    asked = []
    assert least_within(lambda x: asked.append(x) or x, (0.1, 10.0), (5e-4, 20.0), 30)[0] == pytest.approx(5e-4)
    assert least_within(lambda x: asked.append(x) or -x, (0.1, 10.0), (5e-4, 20.0), 30)[0] == pytest.approx(20.0)
    assert min(asked) >= 5e-4
    assert max(asked) <= 20.0
    asked.clear()
    least_within(lambda x: asked.append(x) or math.inf, (0.1, 10.0), (5e-4, 20.0), 30)
    assert len(asked) == 32  # a function that has no values is not searched further


def test_numbers_that_are_infinite_lose():
    found, _ = least(lambda x: math.inf if x > 1.5 else -x, 1.0, 2.0, 40)
    assert found == pytest.approx(1.5)
