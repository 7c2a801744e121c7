from dataclasses import replace

import numpy as np
import pytest

from bayesadam.tables.estimators.input_noise import LeftOut, calibrated


def rows(count, deviation, seed=0, columns=3, weight=None, fold=None):
    """Left-out rows whose residuals have a deviation that is a function of the inputs; epistemic variance of 0.01."""
    generator = np.random.default_rng(seed)
    inputs = generator.standard_normal((count, columns))
    residual = np.sqrt(0.01 + deviation(inputs) ** 2) * generator.standard_normal(count)
    return LeftOut(
        inputs,
        np.tanh(inputs[:, 0]),
        residual,
        np.full(count, 0.01),
        np.full(count, 0.25),
        np.ones(count) if weight is None else weight,
        generator.permutation(count) % 10 if fold is None else fold,
    )


def growing(inputs):
    return 0.3 * np.exp(0.7 * inputs[:, 0])


def constant(inputs):
    return np.full(len(inputs), 0.5)


@pytest.fixture(scope="module")
def found():
    return calibrated(rows(800, growing), "auto")


class TestNoiseThatDependsOnTheInputs:
    def test_is_found(self, found):
        scales, pattern, _ = found
        new = rows(2_000, growing, seed=1)
        inner = np.abs(new.inputs).max(1) < 2.0
        variance = scales.aleatoric * 0.25 * np.exp(pattern.log_factor(new.inputs, new.mean))[inner]
        logs = np.log(variance / growing(new.inputs)[inner] ** 2)
        assert abs(logs.mean()) < 0.25
        assert logs.std() < 0.4  # that of the log variance itself is 1.2
        assert pattern.strength == scales.strength > 0.6

    def test_variances_of_the_rows_left_out(self, found):
        """They differ from those of the pattern, which has seen the rows, but not by much."""
        scales, pattern, noise = found
        left_out = rows(800, growing)
        seen = scales.aleatoric * left_out.aleatoric * np.exp(pattern.log_factor(left_out.inputs, left_out.mean))
        logs = np.log(noise / seen)
        assert 0.01 < logs.std() < 0.3
        assert abs(logs.mean()) < 0.1

    def test_is_not_extrapolated(self, found):
        pattern = found[1]
        far = pattern.log_factor(np.array([[-1e6, 0, 0], [1e6, 0, 0], [0, 1e6, -1e6]]), np.array([-1e6, 1e6, 0.0]))
        assert pattern.strength * pattern.low <= far[0] < far[1] <= pattern.strength * pattern.high
        assert far[2] <= pattern.strength * pattern.high


class TestConstantNoise:
    def test_is_left_as_it_is(self):
        """More than a standard error of gain is rare where there is nothing to gain, and then it is small."""
        found = [calibrated(rows(300, constant, seed), "auto") for seed in range(8)]
        patterns = [pattern for _, pattern, _ in found if pattern is not None]
        assert len(patterns) <= 4  # each has a probability below 0.16
        new = rows(200, constant, seed=99)
        for pattern in patterns:
            assert pattern.log_factor(new.inputs, new.mean).std() < 0.5
        for scales, _, _ in found:
            assert scales.aleatoric * 0.25 + scales.epistemic * 0.01 == pytest.approx(0.26, rel=0.35)

    def test_on_demand(self):
        known = rows(800, growing)
        scales, pattern, _ = calibrated(known, "constant")
        assert pattern is None
        assert scales.strength == 0.0
        assert calibrated(known, "input")[1] is not None
        scales, pattern, _ = calibrated(rows(400, constant), 0.5)
        assert pattern is None
        assert scales.aleatoric == 1.0


def test_networks_are_judged_by_rows_that_they_have_not_seen():
    """What only rows of the same fold tell of the noise is not learned, though each row tells it of the others."""
    group = np.arange(600) % 10
    loud = np.where(group % 2 == 0, 1.5, 0.2)
    data = rows(600, lambda inputs: np.full(600, 1.0))
    data = replace(data, inputs=3.0 * np.eye(10)[group], mean=np.zeros(600), residual=data.residual * loud)
    together = calibrated(replace(data, fold=group), "auto")[1]
    apart = calibrated(data, "auto")[1]
    low, high = apart.log_factor(3.0 * np.eye(10)[[1, 0]], np.zeros(2))
    assert high - low > 2.5
    assert together is None
    assert calibrated(replace(data, fold=np.zeros(600, dtype=np.int64)), "input")[1] is None
