"""What the report says of the inputs: verdicts with the number of rows in mind, charts, and groups of rows."""

import math

import numpy as np
import pytest
from scipy import stats

from bayesadam.report import curve, inputs, slices, write_report

IMPORTANCE = [
    {"name": "<b>area</b>", "nll": 1.5, "error": 0.1, "spread": 0.02},
    {"name": "city", "nll": -0.01, "error": 0.02, "spread": math.log(1.5)},
]


def held(scale, rows=300, shift=0.0):
    """Rows whose standard deviations are ``scale`` times what they should be."""
    y = np.random.default_rng(rows).normal(size=rows)
    return {"pit": stats.norm.cdf(y / scale + shift).tolist()}, int((np.abs(y) < 1.96 * scale).sum())


class TestVerdict:
    def test_89_percent_of_28_rows_is_neither_good_nor_bad(self):
        text = curve.intervals({}, 25, 28, 0.95)
        low, high = stats.binomtest(25, 28).proportion_ci(method="wilson")
        assert text == f"which says little: of all rows they may cover anything from {low:.0%} to {high:.0%}"

    @pytest.mark.parametrize(
        ("scale", "text"),
        [(1.0, "as they should, at this level and all others"), (0.7, "too narrow"), (1.5, "wider than need be")],
    )
    def test_intervals_of_another_width(self, scale, text):
        found, inside = held(scale)
        assert text in curve.intervals(found, inside, 300, 0.95)

    def test_a_level_that_holds_does_not_excuse_the_others(self):
        """Heavy tails: 95% intervals hold 95%, and 50% intervals much more."""
        rows = 400
        y = np.random.default_rng(0).standard_t(2, rows)
        scale = np.quantile(np.abs(y), 0.95) / 1.96
        text = curve.intervals({"pit": stats.norm.cdf(y / scale).tolist()}, round(0.95 * rows), rows, 0.95)
        assert text.startswith("but those of other levels are too wide: ")

    def test_calibrated_models_are_rarely_accused(self):
        accused = 0
        for seed in range(400):
            pit = np.random.default_rng(seed).random(60)
            inside = int((np.abs(pit - 0.5) < 0.475).sum())
            text = curve.intervals({"pit": pit.tolist()}, inside, 60, 0.95)
            accused += not text.startswith(("as they should", "which says little"))
        assert accused <= 400 * 0.05 + 3 * math.sqrt(400 * 0.05 * 0.95)

    def test_probabilities(self):
        generator = np.random.default_rng(1)
        confidence = generator.uniform(0.5, 1.0, 2_000)
        right = (generator.random(2_000) < confidence).astype(float)
        assert curve.probabilities(confidence, right) == "as sure as it should be"
        assert curve.probabilities(np.sqrt(confidence), right) == "too sure of itself"
        right = (generator.random(2_000) < confidence.mean()).astype(float)  # whatever the confidence
        text = curve.probabilities(confidence, right)
        assert text.startswith("as sure as it should be on average, but not everywhere: of the 200 rows")
        assert "from" in curve.probabilities(confidence[:30], (confidence[:30] > 0.6).astype(float))


PARTS = [
    {"name": "area", "values": f"{i} to {i + 1}", "rows": 40, "right": right} for i, right in enumerate((38, 37, 39))
]


class TestSlices:
    def test_few_misses_in_many_groups_are_chance(self):
        found = slices.slices([{**PARTS[0], "right": 34}, *PARTS])
        assert found[0].p == pytest.approx(stats.binom.cdf(34, 40, 0.95))  # all others are likelier
        assert found[0].p < 0.05  # alone it would be called more than chance
        text = slices.table(found, "regression")["sentence"]
        assert text.startswith("4 groups of rows were compared with what the model promises; none of them differs")
        most = max(k for k in range(38) if 2 * stats.binom.cdf(k, 40, 0.95) <= 0.05 / 4)
        assert text.endswith(f"In a group of 40 rows, coverage of {most / 40:.0%} or less would have been noticed.")

    def test_a_group_that_fails_is_named(self):
        found = slices.slices([*PARTS, {"name": "city", "values": "Rome", "rows": 50, "right": 30}])
        table = slices.table(found, "regression")
        assert "1 of them differ" in table["sentence"]
        assert "cover 60% of the 50 rows with city Rome (promised: 95%)" in table["sentence"]
        assert table["rows"][0][:5] == ("city", "Rome", "50", "60%", "95%")
        assert [row[-1] for row in table["rows"]] == [True, False, False, False]

    def test_classes(self):
        part = {"name": "area", "values": "1 to 2", "rows": 100, "right": 60, "expected": 90.0, "variance": 8.0}
        found = slices.slices([part])
        assert found[0].p == pytest.approx(2 * stats.norm.sf(30 / math.sqrt(8.0)))
        assert (
            "the predicted class is right in 60% of the 100 rows" in slices.table(found, "classification")["sentence"]
        )


@pytest.mark.parametrize("task", ["regression", "classification"])
def test_the_page_has_all_of_it(task, tmp_path):
    shared = {"epistemic": [1.0, 2.0], "std": [3.0, 4.0], "mean": [5.0, 7.0]}
    classes = [{"label": c, "mean": [0.2, 0.4], "low": [0.1, 0.3], "high": [0.3, 0.5]} for c in (0, 1)]
    more = shared if task == "regression" else {"classes": classes}
    dependence = [
        {"name": "<b>area</b>", "at": ["1", "2"], "order": [1.0, 2.0], **more},
        {"name": "city", "at": ["Rome", "<i>Oslo</i>"], "order": None, **more},
        {"name": "sold", "at": ["2024-01-01", "2024-05-01"], "order": [0.0, 121.0], **more},
        {"name": "constant", "at": ["1"], "order": [1.0], **more},
    ]
    parts = PARTS
    if task == "classification":
        parts = [part | {"expected": 38.0, "variance": 2.0} for part in parts]
    drivers = {"rows": 80, "importance": IMPORTANCE, "dependence": dependence, "slices": parts}
    data = {"version": 1, "task": task, "target": "price", "classes": ["no", "yes"], "drivers": drivers}
    write_report(tmp_path / "report.html", data)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    for text in ("Effect of &lt;b&gt;area", "Effect of city", "Effect of sold", "What it depends on", "Where it fails"):
        assert text in page
    assert "<b>area" not in page
    assert "Effect of constant" not in page
    charts = inputs.importance(IMPORTANCE, task)
    assert charts[0].rows[0] == ("<b>area</b>", "1.50", "0.200")
    assert charts[1].rows[0] == ("city", "50%" if task == "regression" else "0.405")
