"""What the run keeps of its inputs: importance, effects and groups of rows, with an estimator that is a formula."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

from bayesadam.predictive import ClassificationPredictive, GaussianPredictive
from bayesadam.sklearn import BayesianMLPRegressor, TableEncoder
from bayesadam.sklearn.runs import explain
from bayesadam.sklearn.runs.evaluation import predict_held_out
from bayesadam.sklearn.runs.report_data import signal_to_noise
from bayesadam.sklearn.tables.encoder import Encoded

ROWS = 240


class Formula:
    """The mean is the number's standardised value, the standard deviation is 3 for Rome and 1 elsewhere."""

    def __init__(self, encoder, matrix, classes=False):
        features = encoder.get_feature_names_out().tolist()
        self.number, self.rome, self.classes = features.index("size"), features.index("city = Rome"), classes
        self.center, self.scale = matrix[:, self.number].mean(), matrix[:, self.number].std()

    def predictive(self, encoded):
        x = torch.from_numpy(encoded.matrix)
        center = (x[:, self.number] - self.center) / self.scale
        if self.classes:
            logits = torch.stack([center, -center], dim=1)
            return ClassificationPredictive(torch.stack([2.0 * logits, 3.0 * logits]).log_softmax(-1))
        std = torch.where(x[:, self.rome] > 0.5, 3.0, 1.0)
        return GaussianPredictive(center, 0.25 * std.square(), 0.75 * std.square())


@pytest.fixture(scope="module")
def table():
    generator = np.random.default_rng(0)
    size = generator.normal(50, 20, ROWS).round(1)
    size[:20] = np.nan
    columns = {
        "size": size,
        "city": np.array(["Rome", "Oslo", "Rome", "Bern"])[np.arange(ROWS) % 4],
        "sold": pd.Timestamp("2024-01-01") + pd.to_timedelta(generator.integers(0, 90, ROWS), "D"),
        "price": generator.normal(size=ROWS),
    }
    return pa.Table.from_pandas(pd.DataFrame(columns), preserve_index=False)


def made(table, classes=False, wrong=False):
    """The report's part on inputs, of targets that are drawn from what the formula says."""
    encoder = TableEncoder(drop=["price"], keep=()).fit(table)
    encoded = Encoded(encoder.transform(table), encoder)
    formula = Formula(encoder, encoded.matrix, classes)
    pred = formula.predictive(encoded)
    generator = np.random.default_rng(1)
    if classes:
        y = (generator.random(ROWS) < pred.probs[:, 1].numpy()).astype(np.int64)
    else:
        y = pred.mean.numpy() + pred.variance.sqrt().numpy() * generator.standard_normal(ROWS)
        if wrong:
            y[np.arange(ROWS) % 4 == 1] += 8.0  # of Oslo
    held_out = predict_held_out(pred, y)
    return explain.explain(formula, encoded, table, held_out, 0), held_out


class TestRegression:
    def test_the_inputs_that_matter_come_first(self, table):
        found, held_out = made(table)
        by_name = {entry["name"]: entry for entry in found["importance"]}
        assert set(by_name) == {"size", "city", "sold"}
        for name, what in (("sold", "nll"), ("sold", "error"), ("sold", "spread"), ("size", "spread")):
            assert by_name[name][what] == pytest.approx(0.0, abs=1e-6)
        # Half of the rows get the other of two deviations, whose logarithms are log 3 apart.
        assert by_name["city"]["spread"] == pytest.approx(0.5 * np.log(3.0), abs=0.1)
        assert by_name["size"]["nll"] > 2 * by_name["size"]["error"] > 0.0
        assert by_name["city"]["nll"] > 2 * by_name["city"]["error"] > 0.0
        assert held_out["nll"].shape == (ROWS,)

    def test_effects_are_those_of_the_formula(self, table):
        found, _ = made(table)
        effects = {entry["name"]: entry for entry in found["dependence"]}
        size = effects["size"]
        assert len(size["at"]) == explain.GRID
        slope = np.diff(size["mean"]) / np.diff(size["order"])
        np.testing.assert_allclose(slope, slope[0], rtol=1e-3)  # a line
        np.testing.assert_allclose(np.array(size["std"]) / size["epistemic"], 2.0)
        city = effects["city"]
        assert city["order"] is None
        assert city["at"][0] == "Rome"  # the most frequent one
        np.testing.assert_allclose(city["std"][0] / np.array(city["std"][1:]), 3.0, rtol=1e-6)
        assert effects["sold"]["at"][0].startswith("2024-01-0")

    def test_groups_of_rows_are_counted(self, table):
        found, held_out = made(table, wrong=True)
        inside = (held_out["lower"] <= held_out["y"]) & (held_out["y"] <= held_out["upper"])
        parts = {(part["name"], part["values"]): part for part in found["slices"]}
        oslo = parts["city", "Oslo"]
        assert oslo["rows"] == 60
        assert oslo["right"] == inside[np.arange(ROWS) % 4 == 1].sum() < 5
        assert parts["size", "missing"]["rows"] == 20
        numbers = [part for (name, values), part in parts.items() if name == "size" and values != "missing"]
        assert len(numbers) == explain.PARTS
        assert sum(part["rows"] for part in numbers) == ROWS - 20
        assert sum(part["right"] for part in numbers) + parts["size", "missing"]["right"] == inside.sum()

    def test_few_rows_say_nothing(self, table):
        assert made(table)[0]
        assert explain.explain(None, Encoded(np.zeros((30, 3))), table[:30], {}, 0) == {}


def test_classes(table):
    found, held_out = made(table, classes=True)
    assert found["importance"][0]["name"] == "size"
    effect = next(entry for entry in found["dependence"] if entry["name"] == "size")
    (curve,) = effect["classes"]
    assert curve["label"] == 1
    assert curve["mean"][0] > 0.9 > 0.1 > curve["mean"][-1]
    assert all(low <= mean <= high for low, mean, high in zip(curve["low"], curve["mean"], curve["high"], strict=True))
    rome = next(part for part in found["slices"] if part["values"] == "Rome")
    rows = np.arange(ROWS) % 2 == 0
    assert rome["expected"] == pytest.approx(held_out["probs"][rows].max(1).sum())
    assert rome["right"] == (held_out["probs"][rows].argmax(1) == held_out["label"][rows]).sum()


def test_the_work_is_bounded(table, monkeypatch):
    monkeypatch.setattr(explain, "PREDICTIONS", 80)
    monkeypatch.setattr(explain, "FEWEST", 40)
    found, _ = made(table)
    assert len(found["importance"]) == 2  # of three inputs those that go with the mean


@pytest.mark.parametrize(("method", "known"), [("laplace", True), ("ensemble", False)])
def test_signal_to_noise_of_weights_that_have_a_variance(method, known):
    generator = np.random.default_rng(0)
    x = generator.normal(size=(60, 3))
    options = {"members": 2, "epochs": 2, "random_state": 0, "target_transform": "none"}
    model = BayesianMLPRegressor(method, **options).fit(x, x[:, 0])
    found = signal_to_noise(model.posterior_)
    assert bool(found) is known
    assert not known or (np.diff(found["signal_to_noise"]) >= 0).all()
