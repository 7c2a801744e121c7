"""``bayesadam fit``: what it says, what it writes, and that it can be done again."""

import json

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv, parquet

import bayesadam as ba
from bayesadam.report import write_report
from bayesadam.runs import folder
from bayesadam.sklearn import load_estimator
from bayesadam.tabular import Preprocessing, open_table
from cli.conftest import FAST, labels_table, numbers_table, write

FILES = ["config.json", "metrics.json", "model.json", "posterior.safetensors"]
FILES += ["preprocessing.json", "report.html", "report.json"]


def files(path):
    return sorted(file.name for file in path.iterdir())


class TestScreen:
    def test_says_what_was_found(self, fitted, numbers, tmp_path):
        out = fitted("fit", numbers, "--target", "price", "--time", "day", "--out", tmp_path / "run", *FAST)
        for line in (
            "numbers.csv: 120 rows, 7 columns",
            "predict   price: regression, its values are numbers with decimals",
            "from      2 numbers (size, block), 1 category (city), 1 true or false (new)",
            "left out  id: it numbers the rows",
            "left out  day: it determines the held-out rows",
            "held out  12 rows: the rows from day = 2020-02-24 on; 108 are trained on",
            f"the run is in {tmp_path / 'run'}/: open {tmp_path / 'run' / 'report.html'}",
            f"bayesadam predict {tmp_path / 'run'} new.csv -o predictions.csv",
        ):
            assert line in out
        scores = json.loads((tmp_path / "run" / "metrics.json").read_text())["models"]
        for name, row in scores.items():
            (line,) = [line for line in out.split("\n") if name in line and "│" in line]
            assert [float(cell) for cell in line.split("│")[2:-1]] == [float(f"{v:.4g}") for v in row.values()]

    def test_a_column_that_looks_like_a_number_of_the_rows_is_kept(self, fitted, numbers, tmp_path):
        keep = ("--keep", "id", "--time", "block", "--keep", "block", "--drop", "day")
        out = fitted("fit", numbers, "--target", "price", "--out", tmp_path / "run", *keep, *FAST)
        assert "3 numbers (id, size, block)" in out or "numbers (size, block, id)" in out
        assert "left out  day: it is in --drop\n" in out
        assert out.count("left out") == 1

    def test_notes_are_said_once(self, fitted, tmp_path):
        table = numbers_table(120)
        rare = [f"rare {row}" if row % 40 == 0 else f"level {row % 3}" for row in range(120)]
        path = write(table.append_column("c", pa.array(rare)), tmp_path / "t.csv")
        out = fitted("fit", path, "--target", "price", "--drop", "day", "--out", tmp_path / "run", *FAST)
        assert out.count("are taken together as 'other'") == 1

    def test_nothing_but_text_where_it_is_no_terminal(self, command, tmp_path):
        table = labels_table().rename_columns(["[red]a[/]", "b\x1b[31m", "answer"])
        code, out, err = command(
            "fit", write(table, tmp_path / "t.csv"), "--target", "answer", "--out", tmp_path / "run", *FAST
        )
        assert code == 0
        assert all(c.isprintable() or c == "\n" for c in out + err)
        assert "[red]a[/]" in out
        assert [line.split(",")[0] for line in err.splitlines()[:3]] == [f"epoch {i} of 3" for i in (1, 2, 3)]
        assert err.splitlines()[-1] == "report"

    def test_says_how_a_classification_was_found(self, fitted, tmp_path):
        table = labels_table(labels=(2, 7, 4))
        path = tmp_path / "t.parquet"
        parquet.write_table(table, path)
        out = fitted("fit", path, "--target", "answer", "--out", tmp_path / "run", *FAST)
        assert "answer: classification, its values are 3 different whole numbers (if not: --task regression)" in out
        assert "3 classes: 2, 4, 7" in out
        out = fitted("fit", path, "--target", "answer", "--task", "regression", "--out", tmp_path / "other", *FAST)
        assert "answer: regression, as --task says\n" in out
        assert json.loads((tmp_path / "other" / "metrics.json").read_text())["models"]["bayesadam"]["RMSE"] > 0


class TestTargets:
    @pytest.fixture
    def amounts(self, tmp_path):
        rng = np.random.default_rng(0)
        x = rng.uniform(-1, 1, 300)
        amount = np.exp(6 + 2 * x + 0.7 * rng.standard_normal(300))
        return write(pa.table({"x": x, "z": rng.random(300), "amount": amount}), tmp_path / "amounts.csv")

    def test_the_choice_is_told_and_predictions_are_positive(self, fitted, amounts, tmp_path):
        out = fitted("fit", amounts, "--target", "amount", "--out", tmp_path / "run", *FAST)
        sentence = "of the target is modelled, because this describes training rows that were left out better"
        assert " ".join(out.split()).count(sentence) == 1
        fitted("predict", tmp_path / "run", amounts, "-o", tmp_path / "p.csv", "--coverage", 0.99)
        found = csv.read_csv(tmp_path / "p.csv")
        assert min(found["lower"].to_pylist()) >= 0.0
        assert any(
            sentence in note for note in json.loads((tmp_path / "run" / "report.json").read_text())["data"]["notes"]
        )

    def test_the_choice_may_be_made_by_hand(self, fitted, amounts, tmp_path):
        said = {}
        for name, options in {
            "plain": ("--transform", "none"),
            "root": ("--transform", "sqrt"),
            "gamma": ("--likelihood", "gamma"),
        }.items():
            said[name] = fitted("fit", amounts, "--target", "amount", "--out", tmp_path / name, *options, *FAST)
            assert "because this describes" not in said[name]
        assert "modelled" not in said["plain"]
        assert "the square root of the target is modelled; predictions and intervals are in" in said["root"]
        assert "the target is modelled as positive (gamma); predictions" in said["gamma"]
        assert load_estimator(tmp_path / "root").target_transform_ == "sqrt"
        assert load_estimator(tmp_path / "gamma").likelihood_ == "gamma"


class TestRunFolder:
    @pytest.mark.parametrize("name", ["price", "answer"])
    def test_is_complete(self, made, name):
        assert files(made / name) == FILES
        assert not [path for path in made.iterdir() if path.name.startswith(".")]
        assert (made / name / "report.html").read_text().startswith("<!")
        ba.load_posterior(made / name / "posterior.safetensors")

    def test_metrics_are_those_of_the_held_out_rows(self, made):
        preprocessing = Preprocessing.load(made / "price" / "preprocessing.json")
        table = open_table(made / "numbers.csv").read()
        report = json.loads((made / "price" / "report.json").read_text())
        rows = np.array(report["held_out"]["row"]) - 2
        assert len(set(rows)) == 12
        y = table["price"].to_numpy()[rows]
        assert report["held_out"]["y"] == y.tolist()
        mean, std = load_estimator(made / "price").predict(preprocessing.transform(table, rows=rows), return_std=True)
        scores = json.loads((made / "price" / "metrics.json").read_text())["models"]
        assert scores["bayesadam"]["RMSE"] == pytest.approx(np.sqrt(np.mean((mean - y) ** 2)), rel=1e-4)
        assert np.allclose(report["held_out"]["std"], std, rtol=1e-3)
        assert scores["bayesadam"]["NLL"] == pytest.approx(np.mean(report["held_out"]["nll"]), rel=1e-6)
        inside = (np.array(report["held_out"]["lower"]) <= y) & (y <= np.array(report["held_out"]["upper"]))
        assert scores["bayesadam"]["coverage 95%"] == pytest.approx(inside.mean())
        assert set(scores) == {"bayesadam", "linear model", "gradient boosting"}

    def test_report_data(self, made):
        report = json.loads((made / "price" / "report.json").read_text())
        data = report["data"]
        assert (data["rows"], data["train_rows"], data["held_out_rows"]) == (120, 108, 12)
        assert [column["name"] for column in data["columns"]] == ["size", "city", "new", "block"]
        assert data["left_out"] == {"day": "it is in --drop", "id": "it numbers the rows (if it is an input: --keep)"}
        assert sum(data["target_histogram"]["counts"]) == 120
        worst = report["surprises"][0]
        assert worst["nll"] == max(report["held_out"]["nll"])
        line = (made / "numbers.csv").read_text().splitlines()[worst["row"] - 1].split(",")
        assert line[-1] == f"{worst['y']:.6g}"
        assert line[2].strip('"') == worst["values"]["city"]
        assert len(report["weights"]["signal_to_noise"]) == 200
        assert len(report["weights"]["pruning"]["rmse"]) == len(report["weights"]["pruning"]["fraction"]) > 5
        assert report["weights"]["pruning"]["nll"][0] == pytest.approx(np.mean(report["held_out"]["nll"]), rel=1e-5)
        assert len(report["training"]["loss"]) == 2
        assert len(report["training"]["loss"][0]) == 3
        assert report["reproduce"]["command"].startswith("bayesadam fit ")

    def test_of_a_classification(self, made):
        report = json.loads((made / "answer" / "report.json").read_text())
        table = open_table(made / "labels.csv").read()
        assert report["classes"] == ["maybe", "no", "yes"]
        actual = [table["answer"][row - 2].as_py() for row in report["held_out"]["row"]]
        assert [report["classes"][code] for code in report["held_out"]["label"]] == actual
        probs = np.array(report["held_out"]["probs"])
        chosen = probs[np.arange(12), report["held_out"]["label"]]
        assert np.allclose(report["held_out"]["nll"], -np.log(chosen), rtol=1e-4)
        scores = json.loads((made / "answer" / "metrics.json").read_text())["models"]
        assert scores["bayesadam"]["accuracy"] == np.mean(probs.argmax(1) == report["held_out"]["label"])
        assert all({"NLL", "accuracy", "ECE", "Brier", "fit seconds"} == set(row) for row in scores.values())

    def test_the_linear_model_is_good_where_the_data_are_linear(self, fitted, tmp_path):
        rng = np.random.default_rng(0)
        x = rng.normal(size=(400, 2))
        table = pa.table({"a": x[:, 0], "b": x[:, 1], "y": x @ [1.0, 2.0] + 0.5 * rng.normal(size=400)})
        fitted("fit", write(table, tmp_path / "t.csv"), "--target", "y", "--out", tmp_path / "run", *FAST)
        scores = json.loads((tmp_path / "run" / "metrics.json").read_text())["models"]["linear model"]
        assert scores["RMSE"] == pytest.approx(0.5, rel=0.25)
        assert scores["NLL"] == pytest.approx(0.5 * np.log(2 * np.pi * np.e * 0.25), abs=0.25)
        assert 0.85 <= scores["coverage 95%"] <= 1


class TestAgain:
    def test_the_config_gives_the_same(self, fitted, made, tmp_path):
        fitted("fit", "--config", made / "price" / "config.json", "--out", tmp_path / "run")
        first, again = ((path / "posterior.safetensors").read_bytes() for path in (made / "price", tmp_path / "run"))
        assert first == again
        scores = [
            json.loads((path / "metrics.json").read_text())["models"] for path in (made / "price", tmp_path / "run")
        ]
        for model in scores[0]:
            for name, value in scores[0][model].items():
                assert name == "fit seconds" or value == scores[1][model][name]

    def test_an_option_beside_the_config(self, fitted, made, tmp_path):
        fitted("fit", "--config", made / "price" / "config.json", "--out", tmp_path / "run", "--seed", 1)
        assert json.loads((tmp_path / "run" / "config.json").read_text())["settings"]["seed"] == 1
        first, again = ((path / "posterior.safetensors").read_bytes() for path in (made / "price", tmp_path / "run"))
        assert first != again

    def test_the_printed_command_gives_the_same_config(self, fitted, made, tmp_path):
        import shlex

        words = shlex.split(json.loads((made / "price" / "report.json").read_text())["reproduce"]["command"])
        assert words[:2] == ["bayesadam", "fit"]
        assert words[-2:] == ["--out", str(made / "price")]
        fitted(*words[1:-1], tmp_path / "run")
        assert (tmp_path / "run" / "config.json").read_text() == (made / "price" / "config.json").read_text()

    def test_a_time_budget_becomes_epochs(self, fitted, numbers, tmp_path):
        fitted(
            "fit", numbers, "--target", "price", "--drop", "day", "--time-budget", "1", "--members", "2",
            "--out", tmp_path / "run",
        )  # fmt: skip
        settings = json.loads((tmp_path / "run" / "config.json").read_text())["settings"]
        estimator = load_estimator(tmp_path / "run")
        planned = estimator.history_["loss"].shape[1]
        kept = planned > 10 and estimator.stopped_ != "time"  # on a busy machine the time may end before
        assert (settings["time_budget"], settings["epochs"]) == ((None, planned) if kept else (1.0, None))
        assert planned < 2000

    def test_force_replaces_a_run(self, fitted, command, made, tmp_path):
        arguments = ("fit", made / "labels.csv", "--target", "answer", "--out", tmp_path / "run", *FAST)
        fitted(*arguments)
        before = (tmp_path / "run" / "posterior.safetensors").read_bytes()
        code, _, err = command(*arguments)
        assert (code, err.count("\n")) == (2, 1)
        assert "which contains a run: replace it by --force" in err
        fitted(*arguments, "--force", "--seed", 5)
        assert (tmp_path / "run" / "posterior.safetensors").read_bytes() != before
        assert files(tmp_path) == ["run"]

    def test_report_makes_the_page_again(self, fitted, made):
        page = made / "answer" / "report.html"
        before = page.read_text()
        page.unlink()
        out = fitted("report", made / "answer")
        assert out == f"the report is {page}\n"
        assert abs(len(page.read_text()) - len(before)) < 2000


class TestHeldOut:
    def test_groups_stay_together(self, fitted, numbers, tmp_path):
        fitted(
            "fit", numbers, "--target", "price", "--group", "block", "--drop", "day", "--out", tmp_path / "run", *FAST
        )
        report = json.loads((tmp_path / "run" / "report.json").read_text())
        blocks = open_table(numbers).read()["block"].to_numpy()
        held = np.array(report["held_out"]["row"]) - 2
        rest = np.setdiff1d(np.arange(120), held)
        assert not set(blocks[held]) & set(blocks[rest])
        assert "block" in report["data"]["left_out"]

    def test_rows_without_a_target(self, fitted, tmp_path):
        table = numbers_table().drop_columns("day")
        price = table["price"].to_pylist()
        price[5] = price[50] = None
        path = write(table.set_column(5, "price", pa.array(price)), tmp_path / "t.csv")
        out = fitted("fit", path, "--target", "price", "--out", tmp_path / "run", *FAST)
        assert "2 rows without a target left out" in out
        report = json.loads((tmp_path / "run" / "report.json").read_text())
        assert report["data"]["rows"] == 118
        lines = [path.read_text().splitlines()[row - 1] for row in report["held_out"]["row"]]
        assert [float(line.split(",")[-1]) for line in lines] == report["held_out"]["y"]


class TestReport:
    @pytest.mark.parametrize("target", ["answer", "count"])
    def test_of_weights_that_cannot_be_pruned(self, fitted, tmp_path, target):
        table = labels_table(60)
        count = np.random.default_rng(0).poisson(3.0, 60)
        path = write(table.append_column("count", pa.array(count)), tmp_path / "t.csv")
        more = ("--task", "regression", "--likelihood", "poisson") if target == "count" else ()
        small = ("--members", 2, "--epochs", 1)  # of enough weights for Kronecker factors
        fitted("fit", path, "--target", target, "--method", "laplace", "--out", tmp_path / "run", *more, *small)
        assert files(tmp_path / "run") == FILES
        assert list(json.loads((tmp_path / "run" / "report.json").read_text())["weights"]) == ["signal_to_noise"]

    @pytest.mark.parametrize(("part", "name"), [("drivers", "inputs"), ("weights", "weights")])
    def test_a_part_that_fails_loses_no_fit(self, fitted, labels, tmp_path, monkeypatch, part, name):
        def fails(*arguments):
            raise RuntimeError("too difficult")

        monkeypatch.setattr(f"bayesadam.runs.contents.{part}", fails)
        out = fitted("fit", labels, "--target", "answer", "--out", tmp_path / "run", *FAST)
        assert f"the report does not describe the {name}: RuntimeError: too difficult" in " ".join(out.split())
        report = json.loads((tmp_path / "run" / "report.json").read_text())
        assert report[part] == {}
        write_report(tmp_path / "page.html", report)


def test_names_of_the_files_are_known_to_the_folder():
    assert sorted(folder._FILES) == FILES


def test_nan_in_parquet(fitted, tmp_path):
    """A value that JSON lacks must not lose the fit at its end."""
    table = numbers_table().drop_columns(["day"])
    size = np.where(np.arange(120) % 3 == 0, np.nan, np.arange(120) * 0.7)
    parquet.write_table(table.set_column(1, "size", pa.array(size)), tmp_path / "t.parquet")
    fitted("fit", tmp_path / "t.parquet", "--target", "price", "--out", tmp_path / "run", *FAST)
    assert "report.json" in files(tmp_path / "run")


def test_columns_without_a_name(fitted, tmp_path):
    rows = [
        f"{'yes' if i % 3 else 'no'},{i % 7},{'ab'[i % 2] if i % 5 else ''},{'cd'[i // 2 % 2]}\n" for i in range(120)
    ]
    (tmp_path / "t.csv").write_text("y,x,,\n" + "".join(rows))
    out = fitted("fit", tmp_path / "t.csv", "--target", "y", "--out", tmp_path / "run", *FAST)
    assert "2 categories (column 3, column 4)" in out
    fitted("predict", tmp_path / "run", tmp_path / "t.csv", "-o", tmp_path / "o.csv")
