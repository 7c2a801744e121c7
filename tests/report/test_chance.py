"""The tests behind the report's verdicts, against SciPy."""

import numpy as np
import pytest
from scipy import stats

from bayesadam.report import chance


@pytest.mark.parametrize(("successes", "trials"), [(0, 5), (25, 28), (28, 28), (190, 200), (17, 40)])
def test_shares(successes, trials):
    expected = stats.binomtest(successes, trials).proportion_ci(method="wilson")
    assert chance.share_range(successes, trials) == pytest.approx((expected.low, expected.high))
    for p in (0.5, 0.95):
        tails = stats.binom.cdf(successes, trials, p), stats.binom.sf(successes - 1, trials, p)
        assert chance.binomial_p(successes, trials, p) == pytest.approx(min(1.0, 2.0 * min(tails)))


@pytest.mark.parametrize("power", [1.0, 0.6, 1.5])
@pytest.mark.parametrize("count", [15, 80, 500])
def test_uniform_values(count, power):
    values = np.random.default_rng(count).random(count) ** power
    expected = stats.kstest(values, "uniform")
    p, at, share = chance.uniform_p(values)
    assert abs(share - at) == pytest.approx(expected.statistic)
    assert p == pytest.approx(expected.pvalue, rel=0.03, abs=1e-3)


def test_values_that_are_too_even_to_be_random_are_uniform():
    p, _, _ = chance.uniform_p((np.arange(50) + 0.5) / 50)
    assert p == 1.0


def test_chi_squared_and_normal():
    assert chance.chi_squared_p(21.0, 10) == pytest.approx(stats.chi2.sf(21.0, 10))
    assert chance.normal_p(-1.7) == pytest.approx(2 * stats.norm.sf(1.7))


def test_holm_is_a_slow_loop():
    generator = np.random.default_rng(0)
    for _ in range(50):
        p = (generator.random(6) ** 3).tolist()
        left, rejected = set(range(6)), [False] * 6
        while left:
            least = min(left, key=lambda i: p[i])
            if p[least] > 0.05 / len(left):
                break
            rejected[least] = True
            left.remove(least)
        assert chance.holm(p) == rejected
