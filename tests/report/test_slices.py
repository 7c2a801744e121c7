"""The test of many groups of rows."""

import numpy as np

from bayesadam.report import slices


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
        assert slices.holm(p) == rejected
