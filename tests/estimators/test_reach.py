import numpy as np
import pytest

from bayesadam.tables.estimators.linear import Reach


def test_the_variance_beyond_is_that_of_least_squares():
    x = np.random.default_rng(0).standard_normal((4_000, 5))
    reach = Reach.of(x, np.ones(4_000))
    far = 40.0 * np.random.default_rng(1).standard_normal((20, 5))
    exact = 1.0 / 4_000 + (far @ np.linalg.inv(x.T @ x) * far).sum(1)
    np.testing.assert_allclose(reach.leverage(far), exact, rtol=0.15)


def test_nearly_all_rows_are_within_reach():
    x = np.random.default_rng(0).standard_normal((1_000, 3))
    reach = Reach.of(x, np.ones(1_000))
    assert (reach.leverage(x) == 0.0).mean() == pytest.approx(0.99, abs=0.002)
    assert (np.diff(reach.leverage(np.arange(5.0, 100.0)[:, None] * np.ones(3))) > 0).all()


def test_rows_of_little_weight_do_not_extend_it():
    x = np.random.default_rng(0).standard_normal((210, 3))
    alone = Reach.of(x, np.ones(210))
    both = Reach.of(np.concatenate([x, x + 50.0]), np.repeat([1.0, 1e-9], 210))
    assert both.square == alone.square
    assert both.rows == pytest.approx(210.0)
