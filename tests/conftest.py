"""What holds for all tests: threads, and random numbers that do not depend on which tests ran before."""

import os
import random
import signal
import sys

import numpy as np
import pytest
import torch

# The tensors of most tests are small, and threads that compete for two cores only wait for each other.
torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))


# A shell ignores interrupts for what it runs in the background, and so would all processes that tests start and stop.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup():
    """The global generators, from which ``torch.nn`` draws weights, start anew before every test and its fixtures."""
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002
    random.seed(0)


@pytest.fixture
def set_threads():
    """Set the number of PyTorch's threads until the end of the test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.fixture
def set_default_dtype():
    """Set PyTorch's default dtype until the end of the test."""
    yield torch.set_default_dtype
    torch.set_default_dtype(torch.float32)


@pytest.fixture(scope="module")
def few_trees():
    """Estimators fit eight trees and not sixty, for tests of what does not depend on their number."""
    from bayesadam.tables.estimators.trees import BOOSTING

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(BOOSTING, "n_estimators", 8)
        yield


@pytest.fixture
def frequent_switches():
    """Let threads take turns as often as possible."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)
