"""``bayesadam fit``: what it says, what it writes, and that it can be done again."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import csv, parquet

import bayesadam as ba
from bayesadam.sklearn import Settings, TableError, fit_table, load_estimator
from bayesadam.tables.encoder.read_table import read_table
from bayesadam.tables.report import write_report
from bayesadam.tables.report.headline import headline
from bayesadam.tables.report.predicted import predicted
from bayesadam.tables.runs import baselines
from bayesadam.tables.runs.prepare import prepare
from bayesadam.tables.runs.run_folder import FILES
from cli.conftest import FAST, labels_table, numbers_table, write


def files(path):
    return sorted(file.name for file in path.iterdir())


def read(run, name):
    return json.loads((run / f"{name}.json").read_text())


class TestScreen:
    def test_says_what_was_found(self, fitted, numbers, tmp_path):
        out = fitted("fit", numbers, "--target", "price", "--time", "day", "--out", tmp_path / "run", *FAST)
        for line in (
            "numbers.csv: 120 rows, 7 columns",
            "predict   price: regression, its values are numbers with decimals",
            "from      2 numbers (size, block), 1 category (city), 1 true or false (new)",
            "left out  id: it numbers the rows",
            "left out  day: it determines the held-out rows\n",
            "note      to use the day of the week of 'day' as inputs: --keep day\n",
            "held out  12 rows: the rows from day = 2020-02-24 on; 108 are trained on",
            f"the run is in {tmp_path / 'run'}/: open {tmp_path / 'run' / 'report.html'}",
            f"bayesadam predict {tmp_path / 'run'} new.csv -o predictions.csv",
        ):
            assert line in out
        assert read(tmp_path / "run", "report")["unseen"] is None  # rows of the past say nothing of a drift
        scores = read(tmp_path / "run", "metrics")["models"]["bayesadam"]
        (line,) = [line for line in out.split("\n") if line.startswith("RMSE")]
        assert float(line.split()[1]) == float(f"{scores['RMSE']:.4g}")

    def test_nothing_but_text_where_it_is_no_terminal(self, command, tmp_path):
        table = labels_table().rename_columns(["[red]a[/]", "b\x1b[31m", "answer"])
        path = write(table, tmp_path / "t.csv")
        code, out, err = command("fit", path, "--target", "answer", "--out", tmp_path / "run", *FAST)
        assert code == 0
        assert all(c.isprintable() or c == "\n" for c in out + err)
        assert "[red]a[/]" in out
        assert [line.split(",")[0] for line in err.splitlines()[:3]] == [f"epoch {i} of 3" for i in (1, 2, 3)]
        assert err.splitlines()[-1] == "report"

    def test_says_how_a_classification_was_found(self, fitted, tmp_path):
        path = tmp_path / "t.parquet"
        parquet.write_table(labels_table(labels=(2, 7, 4)), path)
        out = fitted("fit", path, "--target", "answer", "--out", tmp_path / "run", *FAST)
        assert "answer: classification, its values are 3 different whole numbers (if not: --task regression)" in out
        assert "3 classes: 2, 4, 7" in out
        out = fitted("fit", path, "--target", "answer", "--task", "regression", "--out", tmp_path / "other", *FAST)
        assert "answer: regression, as it was asked for\n" in out
        assert read(tmp_path / "other", "metrics")["models"]["bayesadam"]["RMSE"] > 0

    def test_the_choice_of_a_transform_or_likelihood(self, fitted, tmp_path, monkeypatch):
        rng = np.random.default_rng(0)
        x = rng.uniform(-1, 1, 300)
        amount = np.exp(6 + 2 * x + 0.7 * rng.standard_normal(300))
        amounts = write(pa.table({"x": x, "z": rng.random(300), "amount": amount}), tmp_path / "amounts.csv")
        choices = {
            "auto": ((), "of the target is modelled, because this describes training rows that were left out better"),
            "root": (("--transform", "sqrt"), "the square root of the target is modelled; predictions and intervals"),
            "gamma": (("--likelihood", "gamma"), "the target is modelled as positive (gamma); predictions"),
        }
        monkeypatch.setattr("bayesadam.tables.runs.fit_table.baselines", baselines.baselines)
        for name, (options, sentence) in choices.items():
            out = fitted("fit", amounts, "--target", "amount", "--out", tmp_path / name, *options, *FAST)
            assert " ".join(out.split()).count(sentence) == 1
            report = read(tmp_path / name, "report")
            assert any(sentence in note for note in report["data"]["notes"])
            assert ("constant have this transform, too" in " ".join(out.split())) == (name != "gamma")
            quoted = {"auto": "func=np.log, ", "root": "func=np.sqrt, ", "gamma": "Ridge())"}[name]
            assert quoted in report["recipes"]["linear model"]
        fitted("predict", tmp_path / "auto", amounts, "-o", tmp_path / "p.csv", "--coverage", 0.99)
        assert min(csv.read_csv(tmp_path / "p.csv")["lower"].to_pylist()) >= 0.0
        assert load_estimator(tmp_path / "root").target_transform_ == "sqrt"
        assert isinstance(load_estimator(tmp_path / "gamma").likelihood_, ba.likelihoods.Gamma)

    def test_rows_count_by_their_weights(self):
        """Those of hardly any weight are far from the others; one of no weight is left out."""
        rng = np.random.default_rng(0)
        x, heavy = rng.normal(size=200), np.arange(200) % 4 > 0
        frame = pd.DataFrame({"x": x, "y": np.where(heavy, x + 0.1 * rng.normal(size=200), 300.0), "w": heavy + 1e-7})
        frame.loc[0, "w"] = 0.0
        settings = Settings("t", "y", weights="w", members=4, epochs=300, transform="none", held_out=0.3)
        result = fit_table(settings, frame=frame)
        assert 0.05 < result.metrics["bayesadam"]["RMSE"] < 0.3
        assert result.metrics["bayesadam"]["CRPS"] < 0.2
        assert result.metrics["bayesadam"]["coverage 95%"] > 0.8
        assert len(result.report["unseen"]["row"]) == 199
        assert 0 not in result.report["unseen"]["row"]
        rows = predicted(result.report["held_out"], "regression")
        (error,) = re.findall("typical error .*?<strong>(.*?)</strong>", str(headline(rows, rows, {})[0]))
        assert float(error) < 0.3
        with pytest.raises(TableError, match="weights must be positive in some rows, got 0 in all 200"):
            prepare(settings, frame.assign(w=0.0))
        notes = result.report["data"]["notes"]
        assert "1 row of weight 0 is left out" in notes
        assert "held-out rows count by their weights in all scores, as training rows do" in notes

    def test_weights_categories_and_dates(self, fitted, tmp_path):
        table = numbers_table().append_column("importance", pa.array(np.arange(120) % 3))
        table = table.set_column(5, "day", pa.array([20200101 + row % 28 for row in range(120)]))
        options = ("--weights", "importance", "--category", "block", "--date", "day")
        path = write(table, tmp_path / "t.csv")
        out = fitted("fit", path, "--target", "PRICE", "--out", tmp_path / "run", *options, *FAST)
        assert "1 number (size), 2 categories (city, block), 1 true or false (new), 1 date (day)" in out
        assert "left out  importance: it has the weights of the rows" in out
        assert "'PRICE' is the column 'price'" in out

    @pytest.mark.parametrize("mark", [";", ","])
    def test_a_decimal_comma_in_weights_and_times(self, tmp_path, mark):
        lines = [mark.join(f'"{value}"' for value in ("x", "y", "w", "t"))]
        for row in range(60):
            numbers = row % 7 + 0.5, row % 5 + 0.25, row % 3 + 0.5, 60.5 - row
            lines.append(mark.join(f'"{number}"'.replace(".", ",") for number in numbers))
        (tmp_path / "t.csv").write_text("\n".join(lines))
        prepared = prepare(Settings(str(tmp_path / "t.csv"), "y", weights="w", time="t"))
        assert prepared.split.held_out.tolist() == list(range(6))
        assert prepared.weights.tolist() == [row % 3 + 0.5 for row in range(60)]

    def test_a_reader_that_has_gone(self, numbers, tmp_path):
        """As with ``| head``: the fit goes on and is whole."""
        words = ["fit", numbers, "--target", "price", "--out", tmp_path / "run", *FAST]
        command = " ".join(map(str, (sys.executable, "-m", "bayesadam", *words))) + " | head -1; exit ${PIPESTATUS[0]}"
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert done.stdout == "numbers.csv: 120 rows, 7 columns\n"
        assert "Error" not in done.stderr
        assert files(tmp_path / "run") == sorted(FILES)

    def test_an_output_on_a_full_disk(self, command, numbers, tmp_path, monkeypatch):
        """The fit goes on and is whole, and its folder is not blamed."""
        with Path("/dev/full").open("w") as full, monkeypatch.context() as patch:
            patch.setattr("sys.stdout", full)
            code, _, err = command("fit", numbers, "--target", "price", "--out", tmp_path / "run", *FAST)
        assert code == 0
        assert err.count("bayesadam: standard output cannot be written to (No space left on device)\n") == 1
        assert files(tmp_path / "run") == sorted(FILES)


class TestRunFolder:
    @pytest.mark.parametrize("name", ["price", "answer"])
    def test_is_complete(self, made, name):
        assert files(made / name) == sorted(FILES)
        assert not [path for path in made.iterdir() if path.name.startswith(".")]
        assert (made / name / "report.html").read_text().startswith("<!")
        ba.load_posterior(made / name / "posterior.safetensors")

    def test_metrics_are_those_of_the_held_out_rows(self, made):
        table = read_table(made / "numbers.csv").table
        held_out = {name: np.array(values) for name, values in read(made / "price", "report")["held_out"].items()}
        rows = held_out["row"] - 2
        assert len(set(rows)) == 12
        y = table["price"].to_numpy()[rows]
        np.testing.assert_array_equal(held_out["y"], y)
        mean, std = load_estimator(made / "price").predict(table.take(rows), return_std=True)
        scores = read(made / "price", "metrics")["models"]
        assert scores["bayesadam"]["RMSE"] == pytest.approx(np.sqrt(np.mean((mean - y) ** 2)), rel=1e-4)
        assert np.allclose(held_out["std"], std, rtol=1e-3)
        assert scores["bayesadam"]["NLL"] == pytest.approx(np.mean(held_out["nll"]), rel=1e-6)
        inside = (held_out["lower"] <= y) & (y <= held_out["upper"])
        assert scores["bayesadam"]["coverage 95%"] == pytest.approx(inside.mean())
        assert set(scores) == {"bayesadam", "linear model", "gradient boosting", "constant"}
        gains = read(made / "price", "report")["gains"]
        gain = scores["constant"]["NLL"] - scores["linear model"]["NLL"]
        assert gains["linear model"][0] == pytest.approx(gain, rel=1e-6)
        assert set(gains) == set(scores) - {"constant"}
        assert set(read(made / "price", "report")["margins"]) == {"linear model", "gradient boosting"}
        assert "the constant ignores the inputs" in (made / "price" / "report.html").read_text()

    def test_of_a_classification(self, made):
        report = read(made / "answer", "report")
        table = read_table(made / "labels.csv").table
        assert report["classes"] == ["maybe", "no", "yes"]
        actual = [table["answer"][row - 2].as_py() for row in report["held_out"]["row"]]
        assert [report["classes"][code] for code in report["held_out"]["label"]] == actual
        probs = np.array(report["held_out"]["probs"])
        chosen = probs[np.arange(12), report["held_out"]["label"]]
        assert np.allclose(report["held_out"]["nll"], -np.log(chosen), rtol=1e-4)
        scores = read(made / "answer", "metrics")["models"]
        assert scores["bayesadam"]["accuracy"] == np.mean(probs.argmax(1) == report["held_out"]["label"])
        assert all({"NLL", "accuracy", "ECE", "Brier", "fit seconds"} == set(row) for row in scores.values())

    def test_report_makes_the_page_again_and_follows_no_link(self, fitted, made, tmp_path):
        page, other = made / "answer" / "report.html", tmp_path / "other.html"
        before = page.read_text()
        page.unlink()
        other.write_text("of somebody else")
        page.symlink_to(other)
        assert fitted("report", made / "answer") == f"the report is {page}\n"
        assert abs(len(page.read_text()) - len(before)) < 2000
        assert other.read_text() == "of somebody else"
        assert not page.is_symlink()

    def test_a_part_of_the_report_that_fails_loses_no_fit(self, fitted, labels, tmp_path, monkeypatch):
        def fails(*arguments, **options):
            raise RuntimeError("too difficult")

        monkeypatch.setattr("bayesadam.tables.runs.report_data.effects", fails)
        fitted("fit", labels, "--target", "answer", "--out", tmp_path / "run", *FAST)
        report = read(tmp_path / "run", "report")
        assert "the report does not describe the inputs: RuntimeError: too difficult" in report["data"]["notes"]
        assert report["explained"] == {}
        write_report(tmp_path / "page.html", report)


class TestAgain:
    def test_the_config_gives_the_same(self, fitted, made, tmp_path):
        first, again = made / "price", tmp_path / "again"
        fitted("fit", "--config", first / "config.json", "--out", again)
        assert str(made) not in (first / "report.json").read_text()  # folders would leak when the page is shared
        assert (again / "posterior.safetensors").read_bytes() == (first / "posterior.safetensors").read_bytes()
        found, expected = (read(run, "metrics")["models"]["bayesadam"] for run in (again, first))
        assert found | {"fit seconds": 0} == expected | {"fit seconds": 0}

    def test_a_config_may_be_edited_and_options_come_first(self, fitted, made, tmp_path):
        text = (made / "answer" / "config.json").read_text()
        assert '"members": 2' in text
        (tmp_path / "config.json").write_text(text.replace('"members": 2', '"members": 3'))
        fitted("fit", "--config", tmp_path / "config.json", "--out", tmp_path / "run", "--seed", 1)
        settings = read(tmp_path / "run", "config")["settings"]
        assert (settings["seed"], settings["members"]) == (1, 3)
        assert len(ba.load_posterior(tmp_path / "run" / "posterior.safetensors").components) == 3

    def test_force_replaces_a_run(self, fitted, command, labels, tmp_path):
        arguments = ("fit", labels, "--target", "answer", "--out", tmp_path / "run", *FAST)
        fitted(*arguments)
        before = (tmp_path / "run" / "posterior.safetensors").read_bytes()
        code, _, err = command(*arguments)
        assert (code, err.count("\n")) == (2, 1)
        assert "which contains a run (to replace it: force)" in err
        fitted(*arguments, "--force", "--seed", 5)
        assert (tmp_path / "run" / "posterior.safetensors").read_bytes() != before
        assert files(tmp_path) == ["labels.csv", "run"]

    def test_from_python(self, fitted, made, tmp_path):
        """The same call with a data frame in place of a file, and without a folder."""
        first, table = made / "price", read_table(made / "numbers.csv").table
        settings = Settings.load(first / "config.json")
        result = fit_table(settings, frame=table.to_pandas())
        assert result.metrics["bayesadam"]["NLL"] == pytest.approx(read(first, "metrics")["models"]["bayesadam"]["NLL"])
        rows = table.slice(0, 9).to_pandas()
        np.testing.assert_allclose(result.estimator.predict(rows), load_estimator(first).predict(rows), rtol=1e-5)


class TestHeldOut:
    def test_groups_stay_together(self, fitted, numbers, tmp_path):
        options = ("--group", "block", "--drop", "day", "--out", tmp_path / "run")
        fitted("fit", numbers, "--target", "price", *options, *FAST)
        report = read(tmp_path / "run", "report")
        blocks = read_table(numbers).table["block"].to_numpy()
        held = np.array(report["held_out"]["row"]) - 2
        assert not set(blocks[held]) & set(blocks[np.setdiff1d(np.arange(120), held)])
        assert "block" in report["data"]["left_out"]

    def test_rows_without_a_target_and_values_that_json_lacks(self, fitted, tmp_path):
        table = numbers_table().drop_columns("day")
        price = table["price"].to_pylist()
        price[5] = price[50] = None
        size = np.where(np.arange(120) % 3 == 0, np.nan, np.arange(120) * 0.7)
        table = table.set_column(5, "price", pa.array(price)).set_column(1, "size", pa.array(size))
        parquet.write_table(table, tmp_path / "t.parquet")
        out = fitted("fit", tmp_path / "t.parquet", "--target", "price", "--out", tmp_path / "run", *FAST)
        assert "2 rows without a target left out" in out
        report = read(tmp_path / "run", "report")
        assert report["data"]["rows"] == 118
        assert [price[row - 1] for row in report["held_out"]["row"]] == report["held_out"]["y"]


def test_advice_is_of_arguments_in_python_and_of_options_in_the_report():
    rows = np.arange(80)
    frame = pd.DataFrame({"code": 2**60 + 12345 * rows**2, "x": rows % 7, "y": rows % 11})
    settings = Settings("t", "y", task="regression", members=1, epochs=1)
    result = fit_table(settings, frame=frame)
    assert any("(if they are counts: likelihood='negative_binomial' or" in note for note in result.notes), result.notes
    notes = result.report["data"]["notes"]
    for advice in (
        "(if they are counts: --likelihood negative_binomial or --likelihood poisson)",
        "(if they are codes: --category code; if they are no input: --drop code)",
    ):
        assert any(note.endswith(advice) for note in notes), notes
