"""Verdicts on uncertainty, with the number of rows in mind, and groups of rows that fail."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from bayesadam.likelihoods import Poisson
from bayesadam.predictive import GaussianPredictive, MixturePredictive
from bayesadam.tables.estimators.target_transform import LimitedGaussian
from bayesadam.tables.report.predicted import PredictedClasses, PredictedNumbers, predicted
from bayesadam.tables.report.verdict import failures, verdict
from bayesadam.tables.runs.evaluation import predict_held_out


def numbers(error, scale):
    """Rows whose predictive standard deviations are all ``scale``."""
    zero, one = np.zeros_like(error), np.full_like(error, scale)
    return PredictedNumbers(error, zero, one, zero, -1.96 * one, 1.96 * one, stats.norm.cdf(error / scale), zero)


def binary(confidence, right):
    """Rows of two classes, of which the first is always predicted."""
    probs = np.stack([confidence, 1.0 - confidence], axis=1)
    return PredictedClasses((1 - right).astype(np.intp), probs, confidence, confidence, confidence)


class TestIntervals:
    def test_89_percent_of_28_rows_is_neither_good_nor_bad(self):
        error = np.append(0.9 * stats.norm.ppf((np.arange(25) + 0.5) / 25), [3.0, -3.0, 3.0])
        low, high = stats.binomtest(25, 28).proportion_ci(method="wilson")
        text = verdict(numbers(error, 1.0))
        assert text == f"which says little: of all rows anything from {low:.0%} to {high:.0%} may be inside"

    @pytest.mark.parametrize(("scale", "text"), [(1.0, "as they should"), (0.7, "too narrow"), (1.5, "too wide")])
    def test_intervals_of_another_width(self, scale, text):
        assert text in verdict(numbers(np.random.default_rng(300).normal(size=300), scale))

    def test_a_level_that_holds_does_not_excuse_the_others(self):
        """Heavy tails: 95% intervals hold 95%, and 50% intervals much more."""
        error = np.random.default_rng(0).standard_t(2, 400)
        text = verdict(numbers(error, np.quantile(np.abs(error), 0.95) / 1.96))
        assert text.startswith("but those of other levels are too wide: ")

    def test_an_average_that_holds_does_not_excuse_the_rest(self):
        """95% of all rows are inside, but the narrow intervals are too narrow, and the wide ones too wide."""
        generator = np.random.default_rng(0)
        claimed = np.repeat([0.6, 1.4], 1200)
        error = 0.7 * generator.normal(size=2400)
        text = verdict(numbers(error, claimed))
        assert text.startswith("as they should on average, but not everywhere: of the ")
        assert text.endswith("are inside, where they are too narrow")

    @pytest.mark.parametrize("rate", [0.5, 2.0])
    def test_targets_with_probabilities_of_their_own(self, rate):
        """Intervals of counts, or of what is never negative and often 0, cover more than 95%, and rightly so."""
        generator, rows = np.random.default_rng(0), 4_000
        log_rate = torch.full((1, rows), math.log(rate), dtype=torch.float64)
        counts = MixturePredictive(log_rate, Poisson()), generator.poisson(rate, rows)
        moments = torch.tensor([rate - 1.0, 0.5, 0.5], dtype=torch.float64)[:, None].expand(3, rows)
        rain = LimitedGaussian(GaussianPredictive(*moments), torch.tensor(0.0))
        for pred, y in (counts, (rain, generator.normal(rate - 1.0, 1.0, rows).clip(0.0))):
            found = predicted(predict_held_out(pred, y) | {"row": y}, "regression")
            assert found.inside.mean() > 0.96
            assert verdict(found) == "as they should"

    def test_counts_whose_intervals_hold_by_their_ends_alone(self):
        """The probability at the ends of intervals of whole numbers counts in part."""
        rows = numbers(np.zeros(600), 1.0)
        pit = np.concatenate([np.full(540, 0.5), np.full(60, 0.99)])
        text = verdict(replace(rows, pit=pit))
        assert text == "less than they promise (90% if rows on their ends count in part): they are too narrow"


class TestProbabilities:
    def test_verdicts(self):
        generator = np.random.default_rng(1)
        confidence = generator.uniform(0.5, 1.0, 2_000)
        right = (generator.random(2_000) < confidence).astype(int)
        assert verdict(binary(confidence, right)) == "as sure as it should be"
        assert verdict(binary(np.sqrt(confidence), right)) == "too sure of itself"
        right = (generator.random(2_000) < confidence.mean()).astype(int)  # whatever the confidence
        text = verdict(binary(confidence, right))
        assert text.startswith("as sure as it should be on average, but not everywhere: of the ")
        assert "from" in verdict(binary(confidence[:30], (confidence[:30] > 0.6).astype(int)))

    def test_one_surprising_mistake_is_no_verdict(self):
        """Nearly all rows are sure, so that the number of mistakes is small wherever they are."""
        confidence = np.concatenate([np.full(500, 0.9995), np.full(60, 0.8)])
        right = np.ones(560, dtype=int)
        right[0] = 0
        right[500:512] = 0
        assert verdict(binary(confidence, right)) == "as sure as it should be"
        assert verdict(binary(np.ones(50), np.ones(50, dtype=int))) == "as sure as it should be"

    def test_calibrated_models_are_rarely_accused(self):
        accused = 0
        for seed in range(300):
            generator = np.random.default_rng(seed)
            confidence = 1.0 - 0.5 * generator.beta(0.3, 3.0, 400)  # most are very sure
            right = (generator.random(400) < confidence).astype(int)
            accused += not verdict(binary(confidence, right)).startswith(("which says", "as sure as it should be"))
            accused += "not everywhere" in verdict(binary(confidence, right))
        assert accused <= 300 * 0.06 + 3 * math.sqrt(300 * 0.06 * 0.94)


PARTS = [
    {"name": "area", "values": f"{i} to {i + 1}", "rows": 40, "right": right, "expected": 38.0}
    for i, right in enumerate((38, 37, 39))
]


class TestFailures:
    def test_few_misses_in_many_groups_are_chance(self):
        """34 of 40 alone would be called more than chance."""
        assert stats.binom.cdf(34, 40, 0.95) < 0.05
        found = failures([{**PARTS[0], "right": 34}, *PARTS * 5], "regression")
        assert found["rows"] == []
        assert found["sentence"] == (
            "None of 16 groups of rows, by values of the inputs, are inside their intervals less often than promised, "
            "beyond chance."
        )

    def test_only_groups_that_fail_are_listed_the_worst_first(self):
        rome, oslo = (
            {"name": "city", "values": city, "rows": 50, "right": r, "expected": 47.5}
            for city, r in (("Rome", 35), ("Oslo", 30))
        )
        found = failures([*PARTS, rome, oslo, {**rome, "values": "Bern", "right": 50}], "regression")
        assert found["rows"] == [("city", "Oslo", "50", "60%", "95%"), ("city", "Rome", "50", "70%", "95%")]
        assert found["sentence"].startswith("2 of 6 groups of rows")

    def test_classes(self):
        good = {"name": "area", "values": "1 to 2", "rows": 100, "right": 91, "expected": 90.0}
        bad = good | {"values": "2 to 3", "right": 60}
        found = failures([good, bad, good | {"right": 100}], "classification")
        assert found["rows"] == [("area", "2 to 3", "100", "60%", "90%")]
        assert "predicted right" in found["sentence"]
