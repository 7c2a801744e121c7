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


FOLDER = Path(__file__).parent
SLOW = [
    "optim/test_contract_distributed.py",
    "estimators/test_regressor.py",
    "test_docs.py",
    "robustness/test_robustness.py",
    "experiments/test_experiments.py",
    "cli/test_cli.py",
    "experiments/test_mnist.py",
    "optim/test_digits.py",
    "estimators/test_classifier.py",
]
"""Files whose tests take longest, the longest first: a process that ends with one of them lets the others wait."""


def pytest_collection_modifyitems(items):
    if missing := [name for name in SLOW if not (FOLDER / name).exists()]:
        raise pytest.UsageError(f"SLOW in tests/conftest.py must be files in tests, got {missing}")
    places = {FOLDER / name: place for place, name in enumerate(SLOW)}
    items.sort(key=lambda item: places.get(item.path, len(SLOW)))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup():
    """The global generators, from which ``torch.nn`` draws weights, start anew before every test and its fixtures."""
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002
    random.seed(0)
