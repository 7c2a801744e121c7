"""How many threads a fit or a prediction uses."""

import os
import threading
import warnings

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_info, threadpool_limits

from bayesadam.sklearn import BayesianMLPClassifier, BayesianMLPRegressor, neg_crps, neg_nll
from bayesadam.tables.estimators.threads import MANY, threads_for
from processes import PROCESSES

pytestmark = pytest.mark.usefixtures("few_trees")


@pytest.fixture
def two_threads(set_threads):
    """Every number is 2. That of BLAS is set by a thread that ends, since the last one to set it has to end or unset it
    before another one can (threadpoolctl 3.8).
    """
    openmp, blas = numbers_of("openmp"), numbers_of("blas")
    set_threads(2)
    set_numbers({2}, {2})
    yield
    set_numbers(openmp, blas)


def set_numbers(openmp, blas):
    threadpool_limits(max(openmp), "openmp")
    thread = threading.Thread(target=threadpool_limits, args=(max(blas), "blas"))
    thread.start()
    thread.join()


def numbers_of(*apis):
    return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] in apis}


@pytest.mark.parametrize(("rows", "threads"), [(10, 1), (MANY, 1), (MANY + 1, 2)])
def test_few_rows_have_one_thread(two_threads, rows, threads):
    with pytest.raises(KeyboardInterrupt), threads_for(rows):
        assert torch.get_num_threads() == threads
        assert numbers_of("blas", "openmp") == {threads}
        raise KeyboardInterrupt
    assert torch.get_num_threads() == 2
    assert numbers_of("blas", "openmp") == {2}


def test_a_fit_has_one_thread_and_leaves_the_number_as_it_was(two_threads, curve):
    seen = []
    model = BayesianMLPRegressor(epochs=2, members=2, random_state=0)
    model.fit(*curve, on_epoch=lambda status: seen.append(torch.get_num_threads()))
    assert set(seen) == {1}
    assert torch.get_num_threads() == 2


def test_a_prediction_has_one_thread_and_leaves_the_number_as_it_was(two_threads, curve, monkeypatch):
    model = BayesianMLPRegressor(epochs=2, members=2, random_state=0).fit(*curve)
    seen, predictions = [], model._all_predictions

    def recorded(part):
        seen.append(torch.get_num_threads())
        return predictions(part)

    monkeypatch.setattr(model, "_all_predictions", recorded)
    model.predict(curve[0])
    assert seen == [1]
    assert torch.get_num_threads() == 2


def test_fits_at_a_time_leave_the_numbers_as_they_were(two_threads):
    """The second one is in a thread that starts while everything is limited, and ends last."""
    begun, first_has_ended, seen = threading.Event(), threading.Event(), []

    def second():
        with threads_for(10):
            begun.set()
            first_has_ended.wait(10.0)
        seen.append((torch.get_num_threads(), numbers_of("blas")))

    other = threading.Thread(target=second)
    later = threading.Thread(target=lambda: seen.append((torch.get_num_threads(), numbers_of("blas"))))
    with threads_for(10):
        with threads_for(10):
            pass
        assert torch.get_num_threads() == 1
        other.start()
        begun.wait(10.0)
    first_has_ended.set()
    other.join()
    later.start()
    later.join()
    assert torch.get_num_threads() == 2
    assert seen == [(2, {2}), (2, {2})]


def everything_of(model, x, y):
    """Call all public methods that compute predictions."""
    model.predict(x)
    model.score(x, y)
    if isinstance(model, BayesianMLPClassifier):
        model.predict_proba(x)
        model.predict_log_proba(x)
        return
    model.predict(x, return_std=True)
    model.predict(x, quantiles=[0.1, 0.9])
    model.predict_interval(x)
    if model.likelihood == "gaussian":
        model.predict_interval(x, method="cross")
    model.sample_y(x, 20)
    neg_nll(model, x, y)
    neg_crps(model, x, y)


def predicts_after_a_fork(kind, options, x, y):
    """Use two threads, fork, and do everything again in the child, which has no second thread."""
    warnings.simplefilter("ignore", DeprecationWarning)  # of newer versions of Python, about the fork
    torch.set_num_threads(2)
    model = kind(members=2, epochs=2, random_state=0, **options).fit(x[:60], y[:60])
    torch.rand(10**6).exp()
    everything_of(model, x, y)
    child = os.fork()
    if child == 0:
        everything_of(model, x, y)
        if kind is BayesianMLPClassifier:
            model.predict(np.repeat(x, 1 + MANY // len(x), axis=0))
            model.fit(x[:60], y[:60])
        os._exit(0)
    os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


@pytest.mark.parametrize(
    ("kind", "options", "rows"),
    [
        (BayesianMLPRegressor, {}, 2_000),
        (BayesianMLPRegressor, {"likelihood": "log_normal"}, 600),
        (BayesianMLPClassifier, {}, 2_000),
    ],
)
def test_everything_works_after_a_fork(kind, options, rows):
    generator = np.random.default_rng(0)
    x = generator.standard_normal((rows, 3))
    y = np.exp(x[:, 0] + 0.1 * generator.standard_normal(rows))
    y = y if kind is BayesianMLPRegressor else np.digitize(y, [0.5, 2.0])
    process = PROCESSES.Process(target=predicts_after_a_fork, args=(kind, options, x, y))
    process.start()
    process.join(40.0)
    code = process.exitcode
    process.kill()
    assert code == 0
