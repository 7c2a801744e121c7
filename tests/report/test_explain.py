"""Importance and effects of inputs, and groups of rows, with predictions that are a formula of the columns."""

import numpy as np
import pandas as pd
import pytest
import torch

from bayesadam.predictive import ClassificationPredictive, GaussianPredictive
from bayesadam.tables.runs import explain

ROWS = 240


@pytest.fixture(scope="module")
def inputs():
    generator = np.random.default_rng(0)
    size = generator.normal(50, 20, ROWS).round(1)
    size[:20] = np.nan
    columns = {
        "size": size,
        "city": np.array(["Rome", "Oslo", "Rome", "Bern"])[np.arange(ROWS) % 4],
        "sold": pd.Timestamp("2024-01-01") + pd.to_timedelta(generator.integers(0, 90, ROWS), "D"),
    }
    return pd.DataFrame(columns)


def matrix(inputs):
    """One column for the size, two for the city and one for the date."""
    days = (inputs["sold"] - inputs["sold"].min()).dt.days
    city = inputs["city"]
    return np.stack([inputs["size"].fillna(50.0), city == "Rome", city == "Oslo", days], axis=1).astype(np.float64)


PARTS = [slice(0, 1), slice(1, 3), slice(3, 4)]


def formula(classes=False):
    """The mean is the size / 10, the standard deviation is 3 for Rome and 1 elsewhere."""

    def predictive(rows):
        mean, std = torch.from_numpy(rows[:, 0] / 10.0), torch.from_numpy(np.where(rows[:, 1] == 1.0, 3.0, 1.0))
        if classes:
            logits = torch.stack([mean - 5.0, 5.0 - mean], dim=1)
            return ClassificationPredictive(torch.stack([2.0 * logits, 3.0 * logits]).log_softmax(-1))
        return GaussianPredictive(mean, 0.25 * std.square(), 0.75 * std.square())

    return predictive


def drawn(inputs, classes=False):
    """What the formula says of the rows themselves, and targets that are drawn from it."""
    pred = formula(classes)(matrix(inputs))
    generator = np.random.default_rng(1)
    if classes:
        return pred, (generator.random(ROWS) < pred.probs[:, 1].numpy()).astype(np.int64)
    return pred, pred.mean.numpy() + pred.variance.sqrt().numpy() * generator.standard_normal(ROWS)


def explained(inputs, classes=False):
    y = drawn(inputs, classes)[1]
    return explain.effects(inputs, y, matrix(inputs), PARTS, formula(classes), 0, classes=classes)


class TestRegression:
    def test_rows_count_by_their_weights(self, inputs):
        """The others have targets that are far away, beside which no shuffle would matter."""
        pred, y = drawn(inputs)
        weight = np.where(np.arange(ROWS) % 2, 1.0, 1e-12)
        y = np.where(weight == 1.0, pred.mean.numpy(), 1e4)
        found = explain.effects(inputs, y, matrix(inputs), PARTS, formula(), 0, weight=weight, classes=False)
        (size,) = (entry for entry in found["importance"] if entry["name"] == "size")
        assert 2.0 < size["gain"] < 4.0
        city = next(entry for entry in found["dependence"] if entry["name"] == "city")
        heavy = np.sort(np.random.default_rng(0).permutation(ROWS)[: explain.BACKGROUND])
        heavy = heavy[weight[heavy] == 1.0]
        expected = matrix(inputs)[heavy, 0].mean() / 10.0
        assert city["curves"][0]["mean"] == pytest.approx([expected] * 3, rel=1e-6)

    def test_the_inputs_that_matter_come_first(self, inputs):
        found = explained(inputs)["importance"]
        assert found[0]["name"] == "size"
        by_name = {entry["name"]: entry for entry in found}
        assert by_name["sold"]["gain"] == by_name["sold"]["error"] == pytest.approx(0.0, abs=1e-6)
        assert by_name["city"]["gain"] == pytest.approx(0.0, abs=1e-6)  # it changes the width only
        # The variance of the error grows by twice that of the size, which is 4 without missing values.
        before = np.sqrt(5.0)
        assert by_name["size"]["gain"] == pytest.approx(np.sqrt(before**2 + 2 * 4.0 * 220 / 240) - before, abs=0.35)
        assert by_name["size"]["gain"] > 2 * by_name["size"]["error"] > 0.0

    def test_effects_are_those_of_the_formula(self, inputs):
        effects = {entry["name"]: entry for entry in explained(inputs)["dependence"]}
        size = effects["size"]
        assert len(size["at"]) == explain.GRID
        np.testing.assert_allclose(size["curves"][0]["mean"], np.array(size["order"]) / 10.0)
        assert [float(text) for text in size["at"]] == size["order"]
        low, high = np.array(size["curves"][0]["bands"]).swapaxes(0, 1)
        np.testing.assert_allclose(high[0] - low[0], 2.0 * (high[1] - low[1]))
        city = effects["city"]
        assert (city["order"], city["kind"]) == (None, "category")
        assert city["at"][0] == "Rome"  # the most frequent one
        low, high = np.array(city["curves"][0]["bands"][0])
        np.testing.assert_allclose(high - low, [12.0, 4.0, 4.0])
        sold = effects["sold"]
        assert (sold["kind"], sold["at"]) == ("date", sorted(sold["at"]))
        assert sold["at"][0].startswith("2024-01-0")

    def test_groups_of_rows_are_counted(self, inputs):
        pred, y = drawn(inputs)
        y[np.arange(ROWS) % 4 == 1] += 8.0  # of Oslo
        lower, upper = (values.numpy() for values in pred.quantile([0.025, 0.975]))
        found = explain.groups(inputs, ["size", "city"], {"y": y, "lower": lower, "upper": upper})
        inside = (lower <= y) & (y <= upper)
        parts = {(part["name"], part["values"]): part for part in found}
        oslo = parts["city", "Oslo"]
        assert oslo["rows"] == 60
        assert oslo["right"] == inside[np.arange(ROWS) % 4 == 1].sum() < 5
        assert parts["size", "missing"]["rows"] == 20
        numbers = [part for (name, values), part in parts.items() if name == "size" and values != "missing"]
        assert len(numbers) == explain.PARTS
        assert sum(part["rows"] for part in numbers) == ROWS - 20
        assert sum(part["right"] for part in numbers) + parts["size", "missing"]["right"] == inside.sum()


def test_classes(inputs):
    found = explained(inputs, classes=True)
    assert found["importance"][0]["name"] == "size"
    effect = next(entry for entry in found["dependence"] if entry["name"] == "size")
    (curve,) = effect["curves"]
    assert curve["label"] == 1
    assert curve["mean"][0] > 0.9 > 0.1 > curve["mean"][-1]
    order = np.array(effect["order"]) / 10.0 - 5.0
    draws = [1.0 / (1.0 + np.exp(2.0 * factor * order)) for factor in (2.0, 3.0)]
    np.testing.assert_allclose(curve["bands"], [np.quantile(draws, [0.05, 0.95], axis=0)], rtol=1e-6)
    pred, label = drawn(inputs, classes=True)
    probs = pred.probs.numpy()
    rome = next(
        part for part in explain.groups(inputs, ["city"], {"probs": probs, "label": label}) if part["values"] == "Rome"
    )
    rows = np.arange(ROWS) % 2 == 0
    assert rome["expected"] == pytest.approx(probs[rows].max(1).sum())
    assert rome["right"] == (probs[rows].argmax(1) == label[rows]).sum()


def test_columns_without_two_values_have_no_effect(inputs):
    constant = inputs.assign(size=np.nan, city=None)
    found = explain.effects(constant, np.zeros(ROWS), matrix(inputs), PARTS, formula(), 0, classes=False)
    assert len(found["importance"]) == 3
    assert [entry["name"] for entry in found["dependence"]] == ["sold"]
    predictions = {"y": np.zeros(ROWS), "lower": np.zeros(ROWS), "upper": np.ones(ROWS)}
    (group,) = explain.groups(constant, ["city"], predictions)
    expected = {"name": "city", "values": "missing", "rows": ROWS, "right": ROWS}
    assert group == expected | {"expected": pytest.approx(0.95 * ROWS)}


@pytest.mark.parametrize("classes", [False, True])
def test_the_work_is_bounded_for_many_inputs(inputs, classes):
    """Of 203 inputs those are looked at that tell something of the target; the others keep their rows."""
    noise = np.random.default_rng(3).normal(size=(ROWS, 200))
    wide = pd.concat([pd.DataFrame(noise).add_prefix("noise"), inputs], axis=1)
    parts = [slice(j, j + 1) for j in range(200)] + [slice(part.start + 200, part.stop + 200) for part in PARTS]
    asked = []

    def predictive(rows):
        asked.append(len(rows))
        return formula(classes)(rows[:, 200:])

    y, encoded = drawn(inputs, classes)[1], np.concatenate([noise, matrix(inputs)], axis=1)
    found = explain.effects(wide, y, encoded, parts, predictive, 0, classes=classes)
    assert len(found["importance"]) == explain.PREDICTIONS // (explain.SHUFFLES * explain.FEWEST)
    assert found["importance"][0]["name"] == "size"
    assert sum(asked) < 1.5 * explain.PREDICTIONS
    assert {entry["gain"] for entry in found["importance"] if entry["name"].startswith("noise")} == {0.0}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (10115, "10115"),
        (np.int64(2021), "2021"),
        (np.float64(0.5), "0.5"),
        (np.float32(0.25), "0.25"),
        (10000.0, "10000"),
        (15140.0, "15140"),
        (0.30000000000000004, "0.3"),
        (1234.5678, "1235"),
        (12345.678, "12346"),
        (-98765.4321, "-98765"),
        (0.000123456, "0.0001235"),
        (20.0 / 3.0, "6.667"),
        (1.23456e-12, "1.235e-12"),
        (float("inf"), "inf"),
        (2.5e20, "250000000000000000000"),
        (pd.Timestamp("2024-05-01"), "2024-05-01"),
        (pd.Timestamp("2024-05-01 08:15"), "2024-05-01 08:15"),
        (pd.NaT, "–"),  # noqa: RUF001
        (pd.NA, "–"),  # noqa: RUF001
        (np.float64("nan"), "–"),  # noqa: RUF001
        (True, "True"),
        (np.bool_(True), "True"),
        (None, "–"),  # noqa: RUF001
        ("01067", "01067"),
    ],
)
def test_texts_of_values(value, text):
    assert explain.text_of(value) == text


def test_effects_of_words():
    """Rows with the word "sea" are dearer by 10: their effect is that of the mean row with the word."""
    count = 90
    texts = [f"flat {('sea', 'city', 'wood')[i % 3]} view {i}" for i in range(count)]
    inputs = pd.DataFrame({"about": texts})
    sea = np.arange(count) % 3 == 0
    matrix = np.stack([sea, np.arange(count) / count], axis=1).astype(float)
    targets = 10.0 * sea

    def predictive(rows):
        mean = torch.from_numpy(10.0 * rows[:, 0])
        return GaussianPredictive(mean, torch.ones_like(mean), torch.ones_like(mean))

    (entry,) = explain.effects(inputs, targets, matrix, [slice(0, 2)], predictive, 0, classes=False, texts=["about"])[
        "dependence"
    ]
    assert entry["order"] is None
    assert set(entry["at"]) == {"sea", "city", "wood"}  # words of all rows tell nothing
    assert dict(zip(entry["at"], entry["curves"][0]["mean"], strict=True)) == pytest.approx(
        {"sea": 10.0, "city": 0.0, "wood": 0.0}
    )
