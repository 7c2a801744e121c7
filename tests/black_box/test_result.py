"""The result of a minimisation: a mapping as in SciPy, and the value of a noisy function."""

import pickle
from itertools import pairwise

import numpy as np
import pytest

import bayesadam as ba


def bowl(x):
    return ((x - 1.0) ** 2).sum()


def test_the_result_is_a_mapping_like_scipys():
    optimize = pytest.importorskip("scipy.optimize")
    found, other = (ba.minimize(bowl, np.zeros(2), maxfev=20) for _ in range(2))
    scipys = optimize.OptimizeResult(found)
    assert list(found) == list(found.keys()) == list(scipys)
    assert all(one is other for one, other in zip(found.values(), scipys.values(), strict=True))
    assert all(value is found[name] for name, value in found.items())
    assert len(found) == len(scipys) == 11
    assert "x" in found
    assert "jac" not in found
    assert found.get("x") is found.x
    assert found.get("jac", 7) == 7
    assert found == found
    assert found != other
    assert found in {found}
    assert pickle.loads(pickle.dumps(found)).nfev == found.nfev


def test_the_value_of_a_noisy_function_is_the_mean_at_x():
    generator, seen, steps = np.random.default_rng(0), [], []

    def f(x):
        seen.append((x.copy(), bowl(x) + generator.standard_normal()))
        return seen[-1][1]

    found = ba.minimize(
        f,
        np.full(3, -2.0),
        maxfev=100,
        pairs=8,
        callback=lambda intermediate_result: steps.append((intermediate_result, len(seen))),
    )
    assert found.fun == pytest.approx(np.mean([value for x, value in seen if (x == found.x).all()]))
    for (_, first), (step, last) in pairwise(steps):  # the first step, whose points are evaluated twice, is left out
        assert last - first == 16
        assert step.fun == pytest.approx(np.mean([value for _, value in seen[first:last]]))
