"""What holds for all tests: threads, and random numbers that do not depend on which tests ran before."""

import os
import random
import signal
from pathlib import Path

import numpy as np
import pytest
import torch

# The tensors of most tests are small, and threads that compete for two cores only wait for each other.
torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))


# A shell ignores interrupts for what it runs in the background, and so would all processes that tests start and stop.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


SLOW = [
    "optim/test_compiled.py",
    "test_experiments.py",
    "test_tuning.py",
    "bayes_by_backprop/test_compiled.py",
    "estimators/test_regressor.py",
    "test_digits.py",
    "test_uci_table1.py",
    "test_mnist.py",
    "optim/test_contract_distributed.py",
    "test_cli.py",
    "test_docs.py",
    "estimators/test_classifier.py",
]
"""Files whose tests take longest, the longest first: a process that ends with one of them lets the others wait."""


def pytest_collection_modifyitems(items):
    places = {Path(__file__).parent / name: place for place, name in enumerate(SLOW)}
    items.sort(key=lambda item: places.get(item.path, len(SLOW)))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup():
    """The global generators, from which ``torch.nn`` draws weights, start anew before every test and its fixtures."""
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002
    random.seed(0)
