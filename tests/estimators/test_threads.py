"""How many threads a fit or a prediction uses."""

import threading

import pytest
import torch

from bayesadam.sklearn import BayesianMLPRegressor
from bayesadam.sklearn.threads import MANY, threads_for, torch_threads_for


@pytest.fixture
def two_threads(set_threads):
    set_threads(2)


@pytest.mark.parametrize(("rows", "threads"), [(10, 1), (MANY, 1), (MANY + 1, 2)])
def test_few_rows_have_one_thread(two_threads, rows, threads):
    with pytest.raises(KeyboardInterrupt), threads_for(rows):
        assert torch.get_num_threads() == threads
        raise KeyboardInterrupt
    assert torch.get_num_threads() == 2


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


def test_predictions_at_a_time_leave_the_number_as_it_was(two_threads):
    """The second one is in a thread that starts while PyTorch is limited, and ends last."""
    begun, first_has_ended, seen = threading.Event(), threading.Event(), []

    def second():
        with torch_threads_for(10):
            begun.set()
            first_has_ended.wait(10.0)
        seen.append(torch.get_num_threads())

    other = threading.Thread(target=second)
    later = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
    with torch_threads_for(10):
        with torch_threads_for(10):
            pass
        assert torch.get_num_threads() == 1
        other.start()
        begun.wait(10.0)
    first_has_ended.set()
    other.join()
    later.start()
    later.join()
    assert torch.get_num_threads() == 2
    assert seen == [2, 2]
