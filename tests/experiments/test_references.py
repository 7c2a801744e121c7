"""Numbers in tables, and the mathematics of the experiments against slow references."""

import numpy as np
import pandas as pd
import pytest
from scipy.integrate import quad
from scipy.special import expit

from experiments.logistic_regression import Gaussian, expectations, mf_exact, negative_elbo
from experiments.tables import Number, markdown

pytestmark = pytest.mark.nightly


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (Number(3.9312, 0.264), "3.93 ± 0.26"),
        (Number(3.9312, 0.4), "3.9 ± 0.4"),
        (Number(1234.5, 120.0), "1230 ± 120"),
        (Number(-0.0001, None, 2), "0.00"),
        (Number(None), "-"),
        (Number.of([1.0, 2.0, 3.0]), "2.0 ± 0.6"),
        (Number.of([1.0, 2.0, 3.0], sd=True, decimals=1), "2.0 ± 1.0"),
        (Number.less([3.0, 5.0], [1.0, 1.0], ddof=0), "3.0 ± 0.7"),
    ],
)
def test_numbers(number, text):
    assert str(number) == text
    table = markdown(pd.DataFrame([["a|b", number, None]], columns=["data", "ours", "paper"], dtype=object))
    assert table == f"| data | ours | paper |\n| --- | ---: | ---: |\n| a\\|b | {text} | - |"


@pytest.mark.parametrize(("mean", "sd"), [(0.3, 1e-3), (-1.0, 1.0), (2.0, 4.5), (-60.0, 30.0)])
def test_expectations_of_the_logistic_function(mean, sd):
    found = expectations(np.array([mean]), np.array([sd]))
    for value, of in ((found.softplus, lambda z: np.logaddexp(0, z)), (found.sigmoid, expit)):
        exact = quad(
            lambda t, of=of: of(mean + sd * t) * np.exp(-t * t / 2) / np.sqrt(2 * np.pi), -12, 12, epsabs=1e-13
        )
        assert value.item() == pytest.approx(exact[0], rel=1e-9, abs=1e-12)


def test_mf_exact_is_the_optimum_of_the_bound():
    rng = np.random.default_rng(0)
    x, y, prior = rng.standard_normal((30, 3)), rng.integers(2, size=30).astype(float), np.full(3, 0.5)
    best = mf_exact(x, y, prior)
    least = negative_elbo(best, x, y, prior)
    for step in (1e-3 * np.eye(3)).repeat(2, 0) * np.array([1, -1, 1, -1, 1, -1])[:, None]:
        assert negative_elbo(Gaussian(best.mean + step, best.deviation), x, y, prior) > least
        assert negative_elbo(Gaussian(best.mean, best.deviation * np.exp(step)), x, y, prior) > least
