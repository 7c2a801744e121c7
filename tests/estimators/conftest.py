import numpy as np
import pytest


@pytest.fixture(scope="package")
def curve():
    """A curve with noise of 0.1 in units of thousands: ``(x, y)``."""
    generator = np.random.default_rng(0)
    x = generator.uniform(-3.0, 3.0, (160, 2))
    y = 5_000.0 + 1_000.0 * (np.sin(x[:, 0]) + 0.3 * x[:, 1] + 0.1 * generator.standard_normal(160))
    return x, y


@pytest.fixture(scope="package")
def blobs():
    """Three classes that overlap a little: ``(x, labels)``, labels are text."""
    generator = np.random.default_rng(1)
    codes = np.arange(150) % 3
    x = generator.standard_normal((150, 4)) + 2.5 * np.eye(3, 4)[codes]
    return x, np.array(["ash", "beech", "cedar"])[codes]
