"""Time budgets: a fit keeps to them in all of its parts, and says what it leaves out.

Times are those of the processor, which a fit on a busy machine has less of than the clock shows.
"""

import time
import warnings

import numpy as np
import pytest

from bayesadam.sklearn import BayesianMLPClassifier, BayesianMLPRegressor
from bayesadam.tables.estimators import clock
from bayesadam.tables.estimators.clock import Clock, OutOfTimeError
from bayesadam.tables.estimators.plan import plan
from bayesadam.tables.estimators.trees import classification_trees


@pytest.fixture
def now(monkeypatch):
    """A list with the present time, which stands still otherwise."""
    present = [100.0]
    monkeypatch.setattr(clock.time, "monotonic", lambda: present[0])
    return present


class TestClock:
    def test_without_a_limit(self, now):
        free = Clock()
        now[0] += 1e9
        free.require(1e9)
        assert not free.limited
        assert not free.part(0.1).limited

    def test_parts(self, now):
        whole = Clock(10.0)
        now[0] += 2.0
        part = whole.part(0.25)
        assert (whole.left, part.left) == (8.0, 2.0)
        part.require(2.0)
        with pytest.raises(OutOfTimeError):
            part.require(2.1)
        part.left_out.append("trees")
        assert whole.left_out == ["trees"]

    def test_rounds_that_would_take_too_long_do_not_begin(self, now):
        def fits(seconds):
            check = Clock(10.0).rounds(5)
            for number in range(5):
                check()
                now[0] += seconds
                yield number

        whole = Clock(100.0)
        assert whole.gathered("trees", fits(2.0)) == [0, 1, 2, 3, 4]
        assert whole.left_out == []
        assert whole.gathered("trees", fits(2.1)) == [0]
        assert whole.left_out == ["trees"]


def test_boosted_trees_end_within_a_fit():
    generator = np.random.default_rng(0)
    x, labels, divided = generator.normal(size=(1_000, 5)), np.arange(1_000) % 40, plan(1_000, 4, np.arange(1_000), 0)
    begin = time.process_time()
    with pytest.raises(OutOfTimeError):
        list(classification_trees(x, labels, 40, np.ones(1_000), divided, Clock(0.5)))
    assert time.process_time() - begin < 1.0


@pytest.mark.parametrize(("classes", "rows", "columns"), [(40, 1_200, 4), (0, 1_200, 800)])
def test_the_whole_fit_keeps_to_its_budget(classes, rows, columns):
    """Beside what is always done: the posteriors, and the calibration on all rows left out."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(rows, columns))
    model = BayesianMLPClassifier if classes else BayesianMLPRegressor
    y = generator.integers(0, classes, rows) if classes else x[:, 0]
    begin = time.process_time()
    with pytest.warns(UserWarning, match="to keep to the time budget, the fit leaves out: .*boosted trees"):
        fitted = model(time_budget=0.5, random_state=0).fit(x, y)
    assert time.process_time() - begin < 1.3 * 0.5 + 10.0
    assert np.isfinite(fitted.predict(x[:5])).all()


def test_nothing_is_left_out_of_a_fit_that_has_time(curve):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fits = [
            BayesianMLPRegressor(members=2, epochs=20, random_state=0, time_budget=t).fit(*curve) for t in (None, 1e4)
        ]
    np.testing.assert_allclose(*(model.predict(curve[0]) for model in fits), rtol=1e-10)
