"""Increasing functions: values, inverses and slopes, inside and beyond the ends."""

import json
import math

import numpy as np
import pytest
import torch
from sklearn.preprocessing import PowerTransformer

from bayesadam.functional.monotone import Identity, Log, Log1p, PiecewiseLinear, SquareRoot, YeoJohnson, monotone

F64 = torch.float64
FUNCTIONS = [
    Identity(),
    Log(),
    Log(high=5.0),
    Log1p(high=4.0),
    SquareRoot(low=0.3),
    YeoJohnson(0.3),
    YeoJohnson(0.0, 1.0, 3.0),
    YeoJohnson(2.0, -1.0, 0.5),
    YeoJohnson(-1.0, 1.0, 2.0, low=-3.0, high=8.0),
    YeoJohnson(2.5, low=-3.0, high=8.0, least=0.0),
    PiecewiseLinear([0.0, 1.0, 2.0, 5.0], [-2.0, 0.0, 0.5, 3.0]),
]


def points(function):
    values = torch.linspace(0.01, 12.0, 97, dtype=F64)
    return values if function.least == 0.0 else values - 6.0


@pytest.mark.parametrize("function", FUNCTIONS, ids=repr)
class TestEveryFunction:
    def test_the_inverse_gives_the_argument_back(self, function):
        torch.testing.assert_close(function.inverse(function(points(function))), points(function), rtol=1e-9, atol=1e-9)

    def test_it_increases_by_its_slope(self, function):
        values = points(function).requires_grad_()
        (slope,) = torch.autograd.grad(function(values).sum(), values)
        assert (function(values).diff() > 0).all()
        torch.testing.assert_close(function.log_slope(values.detach()), slope.log())

    def test_it_is_made_again_from_json(self, function):
        told = json.loads(json.dumps(function.numbers(), allow_nan=False))
        same = monotone(function.name, told)
        assert torch.equal(same(points(function)), function(points(function)))
        assert (same.low, same.high, same.least) == (function.low, function.high, function.least)


def test_tangents_continue_value_and_slope():
    function = Log(high=5.0)
    assert function(torch.tensor(8.0, dtype=F64)).item() == pytest.approx(math.log(5.0) + 3.0 / 5.0)
    assert function.inverse(torch.tensor(math.log(5.0) + 2.0, dtype=F64)).item() == pytest.approx(15.0)
    root = SquareRoot(low=0.25)
    assert root(torch.tensor(0.0, dtype=F64)).item() == pytest.approx(0.25)
    assert root.log_slope(torch.tensor(-3.0, dtype=F64)).item() == pytest.approx(0.0)


def test_yeo_johnson_is_that_of_scikit_learn():
    values = np.random.default_rng(0).gamma(1.5, 2.0, 200) - 1.0
    theirs = PowerTransformer("yeo-johnson", standardize=False).fit(values[:, None])
    ours = YeoJohnson(float(theirs.lambdas_[0]))
    np.testing.assert_allclose(ours(torch.from_numpy(values)), theirs.transform(values[:, None])[:, 0], rtol=1e-12)


def test_small_numbers_keep_their_digits():
    assert Log1p()(torch.tensor(1e-18, dtype=F64)).item() == 1e-18
    assert Log1p().inverse(torch.tensor(1e-18, dtype=F64)).item() == 1e-18


def test_a_logarithm_has_no_value_for_what_is_not_positive():
    assert Log()(torch.tensor([0.0, -1.0], dtype=F64)).tolist() == [-math.inf, -math.inf]
    assert Log().inverse(torch.tensor([-math.inf], dtype=F64)).tolist() == [0.0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Log(high=-1.0), "high must be above low, 0.0, got -1.0"),
        (lambda: YeoJohnson(1.0, 0.0, 0.0), "scale must be positive, got 0.0"),
        (lambda: PiecewiseLinear([0.0, 0.0], [1.0, 2.0]), "knots must be two or more increasing numbers"),
        (lambda: PiecewiseLinear([0.0, 1.0], [1.0]), "values must be two or more increasing numbers"),
        (lambda: PiecewiseLinear([0.0, 1.0], [1.0, 2.0, 3.0]), "values must be as many as the knots, 2, got 3"),
        (lambda: monotone("cube", {}), "name must be one of .* got 'cube'"),
    ],
)
def test_numbers_that_make_no_function(make, message):
    with pytest.raises(ValueError, match=message):
        make()
