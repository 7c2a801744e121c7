"""The data of a report, from a table and predictions that are a formula, to the page."""

import json
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats

from bayesadam.likelihoods import StudentT
from bayesadam.predictive import ClassificationPredictive, GaussianPredictive, MixturePredictive
from bayesadam.sklearn import Settings, TableEncoder
from bayesadam.tables.encoder.read_table import TableFile
from bayesadam.tables.encoder.splits import Split
from bayesadam.tables.encoder.table_target import Target
from bayesadam.tables.report import write_report
from bayesadam.tables.runs import report_data as module
from bayesadam.tables.runs.evaluation import predict_held_out
from bayesadam.tables.runs.explain import effects
from bayesadam.tables.runs.report_data import report_data

ROWS = 300


def table():
    generator = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "postcode": generator.integers(10_000, 15_141, ROWS),
            "area": generator.uniform(20, 200, ROWS).round(1) / 3,
            "sold": pd.Timestamp("2024-01-01") + pd.to_timedelta(generator.integers(0, 500, ROWS), "D"),
            "city": np.where(generator.random(ROWS) < 0.05, None, np.array(["Rome", "Oslo"])[np.arange(ROWS) % 2]),
            "new": np.arange(ROWS) % 3 == 0,
        }
    )


def made(held_out=60, classes=(), calibrated=True):
    """The report's data for prices of about 2,000 per square metre, or for flats that are dear or cheap."""
    inputs = table()
    mean = 2_000.0 * inputs["area"].to_numpy()
    probs = np.stack(
        [1.0 / (1.0 + np.exp((mean - 90_000) / 20_000)), 1.0 / (1.0 + np.exp((90_000 - mean) / 20_000))], 1
    )
    generator = np.random.default_rng(1)
    y = mean + 20_000.0 * generator.standard_normal(ROWS)
    targets = (generator.random(ROWS) < probs[:, 1]).astype(np.int64) if classes else y

    def predictive(rows):
        center = 2_000.0 * torch.from_numpy(rows.matrix[:, 1])
        if classes:
            chances = torch.sigmoid((center - 90_000) / 20_000)
            return ClassificationPredictive(torch.stack([1 - chances, chances], dim=1).log()[None])
        return GaussianPredictive(center, torch.full_like(center, 1e8), torch.full_like(center, 3e8))

    def columns(rows):
        if classes:
            label, own = targets[rows], probs[rows]
            entropy = -(own * np.log(own)).sum(1)
            nll = -np.log(own[np.arange(len(rows)), label])
            return {"label": label, "probs": own, "entropy": entropy, "mutual_information": 0 * entropy, "nll": nll}
        std, center = np.full(len(rows), 20_000.0), mean[rows]
        found = {"y": y[rows], "mean": center, "std": std, "epistemic_std": 0.5 * std, "nll": (y[rows] - center) ** 2}
        found |= {"lower": center - 1.96 * std, "upper": center + 1.96 * std}
        return found | {"pit": stats.norm.cdf(y[rows], center, std)}

    order = np.arange(held_out), np.arange(held_out, ROWS)
    estimator = SimpleNamespace(predictive=predictive, calibration_={"error": np.array([0.3])})
    return report_data(
        prepare(inputs, targets, order[0], classes),
        Settings("/home/somebody/flats.csv", "price"),
        estimator,
        columns(order[0]),
        (order[1], columns(order[1])) if calibrated else None,
        {"bayesadam": {"NLL": 1.0}},
        {"margins": {}, "gains": {}},
        {"training": 1.23456789},
    )


def prepare(inputs, targets, held_out, classes):
    """What is prepared from a file with these inputs."""
    encoder = TableEncoder().fit(inputs)
    task = "classification" if classes else "regression"
    return SimpleNamespace(
        file=TableFile("flats.csv", None, first_line=2),
        inputs=inputs,
        rows=np.arange(ROWS),
        split=Split(np.setdiff1d(np.arange(ROWS), held_out), held_out, "a random part"),
        target=Target("price", task, "", classes, targets, []),
        y=targets,
        encoder=encoder,
        matrix=encoder.transform(inputs),
        weights_of=lambda rows: None,
        left_out={},
        notes=["a note"],
    )


@pytest.mark.parametrize("classes", [(), ("cheap", "dear")])
def test_it_becomes_a_page(classes, tmp_path):
    data = json.loads(json.dumps(made(classes=classes), allow_nan=False))
    write_report(tmp_path / "report.html", data)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    for text in ("Effect of area", "Where it fails", "60 held-out rows", "Computed on the held-out rows.", "2024-0"):
        assert text in page
    assert data["explained"]["importance"][0]["name"] == "area"
    assert len(data["held_out"]["row"]) == 60
    assert len(data["unseen"]["row"]) == ROWS
    write_report(tmp_path / "report.html", json.loads(json.dumps(made(classes=classes, calibrated=False))))
    assert "also determine" not in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "also determine" in page
    assert "somebody" not in page  # folders are nobody's business


def test_rows_that_are_drawn_are_said_to_be(monkeypatch, tmp_path):
    monkeypatch.setattr(module, "MAX_POINTS", 50)
    data = made(classes=("cheap", "dear"))
    write_report(tmp_path / "report.html", json.loads(json.dumps(data)))
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    for text in (
        "On 50 held-out rows, drawn at random from 60, bayesadam is right",
        "On 50 rows that its networks had not seen, drawn at random from 300 (most of them also determine the "
        "scale of its uncertainty), it is",
        "numbers are counts of 50 held-out rows, drawn at random from 60:",
        "Judged by 50 rows that the networks had not seen, drawn at random from 300:",
    ):
        assert text in page


def test_columns_are_described_for_people():
    described = {column["name"]: column for column in made()["data"]["columns"]}
    inputs = table()
    codes = inputs["postcode"]
    assert described["postcode"]["summary"].startswith(f"{codes.min()} to {codes.max()}, median 1")
    assert described["sold"] == {
        "name": "sold",
        "kind": "date",
        "missing": 0.0,
        "summary": f"{inputs['sold'].min():%Y-%m-%d} to {inputs['sold'].max():%Y-%m-%d}",
    }
    assert described["city"]["summary"].startswith("2 levels: ")
    assert described["city"]["missing"] == pytest.approx(inputs["city"].isna().mean())
    assert described["new"]["kind"] == "true or false"
    assert all(len(text) <= 7 for text in described["area"]["summary"].replace(",", "").split())


def test_surprises_are_the_least_probable_rows():
    data = made()
    worst = int(np.argmax(data["held_out"]["nll"]))
    first = data["surprises"][0]
    assert len(data["surprises"]) == 10
    assert first["row"] == data["held_out"]["row"][worst] == worst + 2
    assert float(first["y"].replace(",", "")) == pytest.approx(data["held_out"]["y"][worst], abs=500)
    assert first["values"]["sold"] == f"{table()['sold'][worst]:%Y-%m-%d}"
    wrong = made(classes=("cheap", "dear"))["surprises"]
    assert 0 < len(wrong) <= 10
    for row in wrong:  # only classes that were thought less probable than not
        assert float(row["y"].split("(")[1].rstrip("%)")) < 50.0


def test_without_a_mean_there_is_the_median():
    """Student's t with up to 1 degree of freedom has no mean."""
    area = table()[["area"]]
    matrix = area.to_numpy().copy()

    def predictive(rows):
        center = torch.tensor(rows[:, 0])
        return MixturePredictive(torch.stack([center - 1.0, center + 1.0]), StudentT(0.8, scale=0.1))

    found = predict_held_out(predictive(matrix), matrix[:, 0])
    np.testing.assert_allclose(found["mean"], matrix[:, 0], atol=1e-3)
    found = effects(area, matrix[:, 0], matrix, [slice(0, 1)], predictive, 0, classes=False)
    assert found["importance"][0]["gain"] > 10
    curve = found["dependence"][0]["curves"][0]
    assert np.all(np.diff(curve["mean"]) > 0)
