"""How many threads a fit uses."""

import pytest
import torch

from bayesadam.sklearn import BayesianMLPRegressor
from bayesadam.sklearn.threads import MANY, threads_for


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


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
