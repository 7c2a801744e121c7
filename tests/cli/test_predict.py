"""``bayesadam predict``: one row of predictions for every row, whatever the table has besides."""

import io
import sys
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import csv, parquet

from bayesadam.likelihoods import StudentT
from bayesadam.predictive import GaussianPredictive, MixturePredictive
from bayesadam.sklearn import BayesianMLPRegressor, load_estimator
from bayesadam.tables import cli
from bayesadam.tables.encoder.read_table import read_table
from bayesadam.tables.runs import predict_table as module
from bayesadam.tables.runs.predict_table import predict_table
from cli.conftest import FAST, labels_table, numbers_table, write


def rows(run):
    """The table that a run was fitted to, with all its columns."""
    return read_table(run.parent / ("numbers.csv" if run.name == "price" else "labels.csv")).table


class TestRegression:
    @pytest.mark.parametrize("name", ["out.csv", "out.parquet"])
    def test_is_what_the_estimator_says(self, fitted, made, tmp_path, name):
        out = fitted("predict", made / "price", made / "numbers.csv", "-o", tmp_path / name)
        assert f"predictions of 120 rows are in {tmp_path / name}\n" in out
        table = read_table(tmp_path / name).table
        assert table.column_names == ["mean", "std", "lower", "upper"]
        found = load_estimator(made / "price").predictive(rows(made / "price"))
        lower, upper = found.quantile([0.025, 0.975])
        for column, expected in zip(table.columns, (found.mean, found.variance.sqrt(), lower, upper), strict=True):
            assert np.allclose(column.to_numpy(), expected, rtol=1e-4)

    @pytest.mark.parametrize("method", ["bayes", "cross"])
    def test_intervals(self, fitted, made, tmp_path, method):
        out, options = tmp_path / "o.parquet", ("--coverage", 0.8, "--interval", method)
        fitted("predict", made / "price", made / "numbers.csv", "-o", out, *options)
        table = parquet.read_table(out)
        assert table.column_names == ["mean", "std", "lower", "upper"]
        expected = load_estimator(made / "price").predict_interval(rows(made / "price"), 0.8, method=method)
        found = np.stack([table["lower"].to_numpy(), table["upper"].to_numpy()], axis=1)
        np.testing.assert_allclose(found, expected, rtol=1e-4)

    def test_narrow_intervals_around_large_numbers(self, fitted, made, tmp_path, monkeypatch):
        seconds = 1.7e9 + torch.linspace(0.0, 1_000.0, 120, dtype=torch.float64)
        narrow = GaussianPredictive(seconds, torch.zeros(120).double(), torch.full((120,), 9.0).double())
        monkeypatch.setattr(BayesianMLPRegressor, "predictive", lambda self, X: narrow)
        fitted("predict", made / "price", made / "numbers.csv", "-o", tmp_path / "out.csv")
        table = read_table(tmp_path / "out.csv").table
        lower, upper = narrow.quantile([0.025, 0.975])
        for column, expected in zip(table.columns, (seconds, torch.full((120,), 3.0), lower, upper), strict=True):
            np.testing.assert_allclose(column.to_numpy(), expected, rtol=0.0, atol=0.001)
        assert len(str(table["mean"][1].as_py())) <= 15  # not more digits than the interval's width gives sense to

    @pytest.mark.parametrize(("degrees", "name"), [(1.5, "out.csv"), (0.8, "out.parquet")])
    def test_a_moment_that_does_not_exist_is_not_written(self, fitted, made, tmp_path, monkeypatch, degrees, name):
        outputs = torch.linspace(-5.0, 5.0, 120, dtype=torch.float64) + torch.tensor([[-0.5], [0.5]])
        heavy = MixturePredictive(outputs, StudentT(degrees, scale=0.1))
        monkeypatch.setattr(BayesianMLPRegressor, "predictive", lambda self, X: heavy)
        fitted("predict", made / "price", made / "numbers.csv", "-o", tmp_path / name)
        table = read_table(tmp_path / name).table
        assert table.column_names == ["mean", "std", "lower", "upper"]
        assert table["std"].null_count == 120
        np.testing.assert_allclose(table["mean"], outputs.mean(0), atol=1e-5)
        for found, level in ((table["lower"], 0.025), (table["upper"], 0.975)):
            np.testing.assert_allclose(found, heavy.quantile(level), rtol=1e-4)

    def test_chunks_change_nothing(self, made, monkeypatch):
        estimator, file = load_estimator(made / "price"), read_table(made / "numbers.csv", typed=False)
        whole, _ = predict_table(estimator, file)
        monkeypatch.setattr(module, "ROWS", 7)
        seen = []
        parts, _ = predict_table(estimator, file, advance=seen.append)
        assert seen == [*range(7, 120, 7), 120]
        for name in whole.column_names:
            np.testing.assert_allclose(parts[name], whole[name], rtol=1e-5)

    def test_a_missing_column_may_be_empty(self, command, fitted, made, tmp_path):
        table = numbers_table(30, seed=5)
        for name in ("size", "city", "new"):
            path, out = write(table.drop_columns([name]), tmp_path / "t.csv"), tmp_path / "o.csv"
            code, _, err = command("predict", made / "price", path, "-o", out)
            assert code == 2
            assert f"it lacks {name!r} (to predict without it: add an empty column of this name)" in err
            empty = table.drop_columns([name]).append_column(name, pa.nulls(30, pa.string()))
            fitted("predict", made / "price", write(empty, path), "-o", out)
            assert read_table(out).table.num_rows == 30

    def test_quantiles_and_standard_streams(self, fitted, made, monkeypatch):
        content = (made / "numbers.csv").read_bytes()
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))
        out = io.TextIOWrapper(io.BytesIO())
        with monkeypatch.context() as patch:
            patch.setattr("sys.stdout", out)
            fitted("predict", made / "price", "-", "--quantiles", "0.1,0.9")
        found = csv.read_csv(io.BytesIO(out.buffer.getvalue()))
        assert found.column_names == ["mean", "std", "lower", "upper", "quantile_0.1", "quantile_0.9"]
        expected = load_estimator(made / "price").predict(rows(made / "price"), quantiles=[0.1, 0.9])
        np.testing.assert_allclose(np.stack([found["quantile_0.1"], found["quantile_0.9"]], 1), expected, rtol=1e-6)

    def test_cells_that_cannot_be_read_are_named(self, fitted, made, tmp_path):
        lines = (made / "numbers.csv").read_text().splitlines()
        lines[3] = lines[3].replace(lines[3].split(",")[1], "large")
        (tmp_path / "t.csv").write_text("\n".join(lines))
        out = fitted("predict", made / "price", tmp_path / "t.csv", "-o", tmp_path / "o.csv")
        assert (
            "column 'size': 1 row has cells that are not finite numbers ('large' in line 4): they count as missing"
            in out
        )
        assert read_table(tmp_path / "o.csv").table.num_rows == 120

    @pytest.mark.parametrize("suffix", ["csv", "parquet"])
    def test_columns_are_copied(self, fitted, made, tmp_path, suffix):
        table = numbers_table(30, seed=5).drop_columns(["id", "price"])
        table = table.append_column("no", pa.array(range(30))).append_column("given", pa.array(["a", None, "c"] * 10))
        path = tmp_path / f"t.{suffix}"
        (csv.write_csv if suffix == "csv" else parquet.write_table)(table, path)
        out = fitted("predict", made / "price", path, "-o", tmp_path / f"a.{suffix}")
        assert "ignored: 'no', 'given'" in out
        keep = ["--copy", "given", "--copy", "no", "--copy", table.column_names[0], "--copy", "no"]
        out = fitted("predict", made / "price", path, "-o", tmp_path / f"b.{suffix}", *keep)
        assert "ignored" not in out
        plain, kept = (read_table(tmp_path / f"{name}.{suffix}").table for name in "ab")
        assert kept.column_names == ["given", "no", table.column_names[0], *plain.column_names]
        assert kept.select(plain.column_names).equals(plain)
        assert kept["no"].to_pylist() == list(range(30))
        assert kept["given"].to_pylist() == ["a", None, "c"] * 10

    def test_text_that_begins_like_a_formula(self, fitted, made, tmp_path):
        """It is copied as it is, and the user is told; numbers and telephone numbers are no formulas."""
        cells = {
            "link": ['=HYPERLINK("http://a.b")', "safe", "@SUM(1)"],
            "first": ["+cmd|' /C calc'!A0", "-x", "\t=1"],
            "phone": ["+49 30 1234", "-", "-12,5"],
            "number": [-1.5, 2.0, -3e-9],
            "=head": ["a", "b", "c"],
        }
        table = numbers_table(30, seed=5).drop_columns(["id", "price"])
        for name, values in cells.items():
            table = table.append_column(name, pa.array(values * 10))
        path = write(table, tmp_path / "t.csv")
        copied = [word for name in cells for word in ("--copy", name)]
        out = fitted("predict", made / "price", path, "-o", tmp_path / "o.csv", *copied)
        notes = [line for line in out.splitlines() if "formulas" in line]
        assert [line.split("'")[1] for line in notes] == ["link", "first", "=head"]
        assert read_table(tmp_path / "o.csv", typed=False).table["link"].to_pylist() == cells["link"] * 10
        assert "formulas" not in fitted("predict", made / "price", path, "-o", tmp_path / "o.parquet", *copied)


class TestClassification:
    def test_is_what_the_estimator_says(self, fitted, made, tmp_path):
        fitted("predict", made / "answer", made / "labels.csv", "-o", tmp_path / "o.parquet")
        table = parquet.read_table(tmp_path / "o.parquet")
        names = [f"probability_{label}" for label in ("maybe", "no", "yes")]
        assert table.column_names == ["predicted", *names, "entropy", "mutual_information"]
        found = load_estimator(made / "answer").predictive(rows(made / "answer"))
        probs = np.stack([table[name].to_numpy() for name in names], 1)
        assert np.allclose(probs, found.probs, rtol=1e-4, atol=1e-6)
        assert np.allclose(probs.sum(1), 1, atol=1e-5)
        assert table["predicted"].to_pylist() == [("maybe", "no", "yes")[code] for code in probs.argmax(1)]
        assert np.allclose(table["entropy"].to_numpy(), -(probs * np.log(probs)).sum(1), rtol=1e-3)
        assert (table["mutual_information"].to_numpy() <= table["entropy"].to_numpy() + 1e-6).all()

    def test_classes_have_no_intervals(self, command, made, tmp_path):
        arguments = ("predict", made / "answer", made / "labels.csv", "-o", tmp_path / "o.csv", "--interval", "cross")
        code, _, err = command(*arguments)
        assert (code, list(tmp_path.iterdir())) == (2, [])
        assert "intervals and quantiles are those of a number, but this run predicts classes" in err

    def test_labels_are_those_of_the_table(self, fitted, tmp_path):
        path = tmp_path / "t.parquet"
        table = labels_table(labels=(False, True))
        parquet.write_table(table, path)
        fitted("fit", path, "--target", "answer", "--out", tmp_path / "run", *FAST[:2], "--epochs", 100)
        fitted("predict", tmp_path / "run", path, "-o", tmp_path / "o.parquet")
        predicted = parquet.read_table(tmp_path / "o.parquet")["predicted"]
        assert predicted.type == pa.bool_()
        assert np.mean(predicted.to_numpy() == table["answer"].to_numpy()) > 0.8


@pytest.mark.parametrize(("encoding", "name"), [("ascii", "gr\\xf6\\xdfe"), ("latin-1", "größe")])
def test_output_in_any_encoding(tmp_path, monkeypatch, encoding, name):
    write(labels_table().rename_columns(["größe", "数", "答え"]), tmp_path / "t.csv")
    for target, code in (("無", 2), ("答え", None)):
        stdout, stderr = (io.TextIOWrapper(io.BytesIO(), encoding=encoding) for _ in range(2))
        monkeypatch.setattr(sys, "stdout", stdout)
        monkeypatch.setattr(sys, "stderr", stderr)
        words = ["fit", tmp_path / "t.csv", "--target", target, "--out", tmp_path / "run", *FAST]
        monkeypatch.setattr(sys, "argv", ["bayesadam", *map(str, words)])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        assert stopped.value.code == code
    stdout.flush()
    text = stdout.buffer.getvalue().decode(encoding)
    assert "\\u7b54\\u3048" in text
    assert name in text


def test_how_the_file_was_written_is_remembered(fitted, tmp_path):
    """Delimiter, decimal mark, units, the order of dates and texts that mean a missing value."""
    rng = np.random.default_rng(0)
    sizes = rng.gamma(3, 400, 60)
    lines = [
        f"{size:.1f}:{size / 7:,.2f} EUR:{1 + row % 9}/{1 + row % 5}/2021:{size:.2f}" for row, size in enumerate(sizes)
    ]
    lines[4] = f"none:7 EUR:1/1/2021:{sizes[4]:.2f}"
    german = [line.translate(str.maketrans(",.", ".,")) for line in ("size:rent:since:price", *lines)]
    german[9] = german[9].replace(german[9].split(":")[0], "not said", 1)
    (tmp_path / "t.csv").write_text("\n".join(german) + "\n")
    options = ("--delimiter", ":", "--decimal", ",", "--missing", "not said", "--day-first")
    fitted("fit", tmp_path / "t.csv", "--target", "price", "--out", tmp_path / "run", *options, *FAST)
    columns = {column.name: column for column in load_estimator(tmp_path / "run").inputs_.columns_}
    assert {columns["size"].decimal, columns["rent"].decimal} == {","}
    assert (columns["rent"].unit, columns["since"].order) == ("EUR", "day, month, year")

    (tmp_path / "new.csv").write_text("\n".join(line.rpartition(":")[0] for line in german[:20]) + "\n")
    out = fitted("predict", tmp_path / "run", tmp_path / "new.csv", "-o", tmp_path / "a.csv", "--delimiter", ":")
    assert "predictions of 19 rows" in out
    english = [line.translate(str.maketrans(",.", ".,")).replace(":", ",") for line in german[:20]]
    english = [line.rpartition(",")[0] for line in english if line.count(",") == 3]  # without thousands
    (tmp_path / "other.csv").write_text("\n".join(english) + "\n")
    more = ("--decimal", ".", "--delimiter", ",")
    fitted("predict", tmp_path / "run", tmp_path / "other.csv", "-o", tmp_path / "b.csv", *more)
    kept = [row for row, line in enumerate(german[1:20]) if "." not in line]
    first, second = csv.read_csv(tmp_path / "a.csv"), csv.read_csv(tmp_path / "b.csv")
    assert len(kept) == len(second) > 5
    assert np.allclose(first["mean"].to_numpy()[kept], second["mean"].to_numpy(), rtol=1e-5)


def test_copied_columns_of_every_type_that_a_csv_file_can_hold(tmp_path):
    table = pa.table({"price": pa.array([Decimal("1.50"), None]), "code": pa.array(["a", "b"]).dictionary_encode()})
    module.write_predictions(table, tmp_path / "o.csv")
    assert (tmp_path / "o.csv").read_text() == '"price","code"\n1.50,"a"\n,"b"\n'
