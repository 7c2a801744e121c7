"""Bad inputs: one line on stderr, exit code 2, nothing written, no traceback."""

import decimal
import errno
import gzip
import json
import os
import shlex
import shutil
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv, parquet

from bayesadam import commands, files
from bayesadam.tabular import memory
from cli.conftest import FAST, labels_table, numbers_table, write


@pytest.fixture
def refused(command, tmp_path):
    """Runs a command that has to fail: its message. Nothing in the folder may change."""

    def run(*arguments):
        before = snapshot(tmp_path)
        code, out, err = command(*arguments)
        assert code == 2
        assert out == ""
        assert err.startswith("bayesadam: ")
        assert err.endswith("\n")
        assert err.count("\n") == 1
        assert snapshot(tmp_path) == before
        return err[len("bayesadam: ") : -1]

    return run


def snapshot(folder):
    return {path: path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))}


def put(path, values):
    """A table with two sound columns and what is given."""
    columns = {"a": np.arange(60.0) ** 0.5, "b": np.arange(60) % 7}
    csv.write_csv(pa.table({**columns, **values}), path)
    return path


class TestTables:
    """What is wrong with the file."""

    def fit(self, refused, path, *more, target="y"):
        return refused("fit", path, "--target", target, "--out", path.parent / "run", *FAST, *more)

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b"", "must be a CSV or Parquet file, got an empty file"),
            (b"a,y\n", "must have rows below its header, got none"),
            (b"1,2\n3,4\n", "y"),
            (b"0.5,2\n3,4\n", "must have the columns' names in its first line, got the numbers ['0.5', '2']"),
            (b"a,a,y\n1,2,3\n", "every column must have a name of its own, got 'a' more than once"),
            (b"a,y\n1,2\n3\n", "line 3 must have 2 values, as the header has, got 1"),
            (b"\x89PNG\r\n\x1a\n\0\0", "must be a CSV or Parquet file, got neither text nor Parquet"),
            (b"PAR1 and then nothing", "must be a complete Parquet file"),
        ],
    )
    def test_that_are_none(self, refused, tmp_path, content, message):
        path = tmp_path / "t.csv"
        path.write_bytes(content)
        assert message in self.fit(refused, path)

    def test_a_missing_file(self, refused, tmp_path):
        assert self.fit(refused, tmp_path / "t.csv") == f"{tmp_path / 't.csv'} must be a file that exists"

    def test_no_target_column(self, refused, tmp_path):
        message = self.fit(refused, put(tmp_path / "t.csv", {"c": np.arange(60)}))
        assert message == "--target must be a column of t.csv, got 'y'; they are 'a', 'b', 'c'"

    @pytest.mark.parametrize("option", ["--group", "--time", "--drop"])
    def test_no_such_column(self, refused, tmp_path, option):
        path = put(tmp_path / "t.csv", {"y": np.arange(60.0)})
        message = self.fit(refused, path, option, "c").split(": this command would work")[0]
        assert message == f"{option} must be a column of t.csv, got 'c'; they are 'a', 'b', 'y'"

    @pytest.mark.parametrize(
        ("target", "message"),
        [
            (["yes"] * 60, "the target 'y' must have two classes at least, got 'yes' only"),
            (["yes"] * 30 + ["no"] * 29 + ["perhaps"], "must have two rows at least, got one of 'perhaps'"),
            ([None] * 60, "the target 'y' must have values, got none in 60 rows"),
            ([*np.arange(59.0), np.inf], "column 'y' must be finite (below 1e+38), got inf in line 61"),
            ([2.5] * 60, "the target 'y' must have different values, got 2.5 in every row"),
            ([f"name {i}" for i in range(60)], "got text with 60 different values in 60 rows"),
            (["2020-01-01", "2020-01-02"] * 30, "the target 'y' must be numbers or classes, got dates"),
        ],
    )
    def test_targets(self, refused, tmp_path, target, message):
        values = pa.array(target) if target != [None] * 60 else pa.nulls(60, pa.string())
        assert message in self.fit(refused, put(tmp_path / "t.csv", {"y": values}))

    @pytest.mark.parametrize(
        ("target", "largest"),
        [
            (pa.array([2**63 + i % 3 for i in range(60)], pa.uint64()), "9.22337e+18"),
            (pa.array([decimal.Decimal("1" * 31) + i % 3 for i in range(60)]), "1.11111e+30"),
            (pa.array([10.0**31 * (i % 3) for i in range(60)]), "2e+31"),
        ],
    )
    def test_classes_that_are_no_whole_numbers_of_a_computer(self, refused, tmp_path, target, largest):
        parquet.write_table(pa.table({"a": np.arange(60.0) ** 0.5, "y": target}), tmp_path / "t.parquet")
        message = self.fit(refused, tmp_path / "t.parquet", "--task", "classification")
        rule = f"the target 'y' must be below 2**63 where its numbers are classes, got {largest}: "
        assert message.startswith(rule)

    def test_a_compressed_file_that_is_cut(self, refused, tmp_path):
        text = write(numbers_table(3000), tmp_path / "t").read_bytes()
        path = tmp_path / "t.csv.gz"
        path.write_bytes(gzip.compress(text)[:-4000])
        message = self.fit(refused, path, target="price")
        assert message.startswith(f"{path} must be a")  # and --out is not blamed

    @pytest.mark.parametrize("column", ["c", "y"])
    @pytest.mark.parametrize(
        ("text", "shown", "missing"),
        [("-inf", "-inf", "-inf"), ("1E99", "1e+99", "1e+99"), ("1.23456789e99", "1.23457e+99", "1.23456789e+99")],
    )
    def test_infinite_values(self, refused, tmp_path, fitted, column, text, shown, missing):
        numbers = [1.5, *np.arange(58) / 7]
        path = put(tmp_path / "t.csv", {"c": np.arange(60) / 9, "y": np.arange(60.0), column: [*numbers, 777777.5]})
        path.write_text(path.read_text().replace("777777.5", text))
        message, command = self.fit(refused, path).split(": this command would work: ")
        assert message == f"column {column!r} must be finite (below 1e+38), got {shown} in line 61"
        assert command.startswith(f"bayesadam fit {path} --target y ")
        assert f" --missing {missing} --out " in command
        fitted(*shlex.split(command)[1:])
        fitted("predict", tmp_path / "run", path, "-o", tmp_path / "o.csv")

    @pytest.mark.parametrize("text", [" not taken ", "not taken"])
    def test_white_space_around_text_among_numbers(self, refused, tmp_path, fitted, text):
        numbers = [*map(str, np.arange(59) / 7), text]
        path = put(tmp_path / "t.csv", {"c": numbers, "y": np.arange(60.0)})
        message, command = self.fit(refused, path).split(": this command would work: ")
        assert message == "column 'c' must be numbers or text, got 'not taken' in line 61"
        fitted(*shlex.split(command)[1:])

    def test_a_task_that_the_target_is_not_made_for(self, refused, tmp_path):
        path = put(tmp_path / "t.csv", {"y": ["no", "yes"] * 30})
        message, command = self.fit(refused, path, "--task", "regression").split(": this command would work: ")
        assert message == "the target 'y' must be a number in every row, got 'no' in line 2 and 1 other text"
        assert " --task classification " in command
        assert "--missing" not in command

    def test_a_quotation_mark_that_is_not_closed(self, refused, tmp_path, made):
        path = write(numbers_table(), tmp_path / "t.csv")
        lines = path.read_text().replace('"', "").split("\n")
        lines[60] = ",".join([*lines[60].split(",")[:-1], '"7'])
        path.write_text("\n".join(lines))
        message = f"{path}: every quotation mark must be closed, got one in line 61 that is open to the end of the file"
        assert self.fit(refused, path, target="price") == message
        assert refused("predict", made / "price", path, "-o", tmp_path / "o.csv") == message

    @pytest.mark.parametrize("option", ["--group", "--time"])
    def test_nan_where_no_value_may_be_missing(self, refused, tmp_path, option):
        columns = {"a": np.arange(60) ** 0.5, "g": np.append(np.arange(59) // 5 + 0.5, np.nan), "y": np.arange(60.0)}
        parquet.write_table(pa.table(columns), tmp_path / "t.parquet")
        message = self.fit(refused, tmp_path / "t.parquet", option, "g")
        assert message == f"{option} g: the column must have no missing values, got 1"

    def test_text_among_numbers(self, refused, tmp_path):
        path = put(tmp_path / "t.csv", {"c": [*map(str, np.arange(59) / 7), "some"], "y": np.arange(60.0)})
        assert self.fit(refused, path).startswith(
            "column 'c' must be numbers or text, got 'some' in line 61: this command would work: "
        )

    def test_all_that_is_wrong_is_said_at_once(self, refused, tmp_path):
        numbers = [*map(str, np.arange(60) / 7)]
        columns = {"c": ["some", *numbers[1:]], "d": ["it's", *numbers[1:]], "e": [1.5, np.inf, *np.arange(58.0)]}
        target = [*(f"${i}.50" for i in range(59)), "open"]
        path = put(tmp_path / "t.csv", {**columns, "f": ["x"] * 60, "Target": target})
        message = self.fit(refused, path, "--drop", "A", "--keep", "f", "--delimiter", ";", target="target")
        found, proposed = message.split(": this command would work: ")
        assert [part.split(", got")[0].removeprefix(f"{path} ") for part in found.split("; ")[:2]] == [
            "must have columns separated by ';'",
            "--target must be a column of t.csv",
        ]
        for part in ("'open' in line 61", "'some' in line 2", '"it\'s" in line 2', "got inf in line 3"):
            assert part in found
        assert "--drop must be a column of t.csv, got 'A'" in found
        assert "--keep must be a column that can be an input, got 'f': it is the same in all" in found
        for option in ("--target Target", "--missing some", "--missing inf", "--delimiter ,", "--drop a", "--drop f"):
            assert f" {option} " in proposed

    def test_what_nothing_helps_against(self, refused, tmp_path):
        path = put(tmp_path / "t.csv", {"c": ["some", *map(str, np.arange(59) / 7)], "y": [2.5] * 60})
        message = self.fit(refused, path)
        assert message == "the target 'y' must have different values, got 2.5 in every row"

    def test_nothing_to_predict_from(self, refused, tmp_path):
        path = tmp_path / "t.csv"
        csv.write_csv(pa.table({"a": [1] * 60, "b": pa.nulls(60, pa.string()), "y": np.arange(60.0)}), path)
        message = self.fit(refused, path)
        assert message.endswith("(1)'; 'b': all its values are missing)") or "all its values are missing" in message

    def test_too_few_rows(self, refused, tmp_path):
        path = tmp_path / "t.csv"
        csv.write_csv(pa.table({"a": [1.5, 2.5, 7.0], "y": [1.5, 2.0, 2.5]}), path)
        assert self.fit(refused, path).endswith("10 rows to train on and 2 to hold out at least, got 3 and 0")

    def test_one_group(self, refused, tmp_path):
        path = put(tmp_path / "t.csv", {"g": ["x"] * 60, "y": np.arange(60.0)})
        assert "must have two groups at least, got one" in self.fit(refused, path, "--group", "g")


class TestOptions:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (["--method", "magic"], "--method must be one of laplace, "),
            (
                ["--transform", "cube"],
                "--transform must be one of auto, none, log, log1p, sqrt, yeo-johnson, quantile, ",
            ),
            (["--likelihood", "cauchy"], "--likelihood must be one of auto, gaussian, student_t, poisson, negative_"),
            (
                ["--transform", "log", "--likelihood", "gamma"],
                "--transform must be none or auto with --likelihood gamma, got 'log'",
            ),
            (["--task", "ranking"], "--task must be one of regression, classification, got 'ranking'"),
            (["--hidden", "50,x"], "--hidden must be positive whole numbers, such as 50 or 100,50, got '50,x'"),
            (["--hidden", "0"], "--hidden must be positive whole numbers"),
            (["--members", "0"], "--members must be at least 1, got 0"),
            (["--epochs", "-1"], "--epochs must be at least 1, got -1"),
            (["--time-budget", "0"], "--time-budget must be a positive number of seconds, got 0.0"),
            (["--time-budget", "9", "--epochs", "5"], "--time-budget must not be given with --epochs"),
            (["--noise", "loud"], "--noise must be one of auto, constant, input or a positive number, got 'loud'"),
            (["--noise", "-1"], "--noise must be one of auto, constant, input or a positive number, got '-1'"),
            (["--held-out", "0.9"], "--held-out must be in (0, 0.5], got 0.9"),
            (["--seed", "-1"], "--seed must be in [0, 2**32), got -1"),
            (["--device", "cuda:77"], "--device must be an available device, such as cpu, got 'cuda:77' ("),
            (["--device", "abacus"], "--device must be an available device, such as cpu, got 'abacus' ("),
            (["--delimiter", "::"], "--delimiter must be one character, got '::'"),
            (["--group", "block", "--time", "day"], "--group must not be given with --time, got 'block' and 'day'"),
            (["--drop", "price"], "--drop must not be the target, got 'price'"),
            (["--epochs", "9" * 30], f"--epochs must be at most 1,000,000,000, got {'9' * 30}"),
            (["--members", "9" * 30], f"--members must be at most 1,000,000,000, got {'9' * 30}"),
            (["--hidden", "9" * 30], "--hidden must be positive whole numbers"),
            (["--hidden", "9" * 6000], "--hidden must be positive whole numbers"),
            (["--seed", "9" * 30], f"--seed must be in [0, 2**32), got {'9' * 30}"),
            (["--time-budget", "9" * 400], "--time-budget must be a positive number of seconds, got inf"),
            (["--drop", "day", "--epochs", "999999999"], "the losses of 999,999,999 epochs of 20 networks would take "),
            (["--device", "meta"], "--device must be an available device, such as cpu, got 'meta' (it holds no"),
            (["--config", "none.json"], "the config must be a file that exists, got 'none.json'"),
        ],
    )
    def test_fit(self, refused, numbers, tmp_path, options, message):
        found = refused("fit", numbers, "--target", "price", "--out", tmp_path / "run", *options)
        assert found.startswith(message)

    def test_noise_of_a_classification(self, refused, tmp_path):
        path = put(tmp_path / "t.csv", {"a": np.arange(60.0) ** 0.5, "y": ["no", "yes"] * 30})
        found = refused("fit", path, "--target", "y", "--out", tmp_path / "run", "--noise", "input")
        assert found == "--noise must not be given for a classification, got 'input'"

    @pytest.mark.parametrize(
        "settings",
        [
            {"epochs": 10**30},
            {"epochs": 2.5},
            {"epochs": True},
            {"hidden": [1.5]},
            {"hidden": "50"},
            {"data": 3},
            {"drop": [3]},
            {"held_out": "0.1"},
            {"time_budget": True},
            {"missing": [1]},
            {"day_first": 1},
            {"seed": None},
            {"device": None},
        ],
    )
    def test_values_of_a_config(self, refused, numbers, tmp_path, settings):
        path = tmp_path / "config.json"
        record = {"data": str(numbers), "target": "price", **settings}
        files.write_json(path, {"format_version": 1, "settings": record})
        message = refused("fit", "--config", path, "--out", tmp_path / "run")
        assert message.startswith(f"the config must have been written by bayesadam fit, got {str(path)!r} (")

    def test_an_edited_config(self, refused, made, tmp_path):
        text = (made / "price" / "config.json").read_text()
        (tmp_path / "config.json").write_text(text.replace('"seed": 0', '"seed": 1'))
        message = refused("fit", "--config", tmp_path / "config.json", "--out", tmp_path / "run")
        assert message.endswith("(its digest does not match: the file is damaged, or was edited)")

    def test_a_config_without_a_digest(self, command, made, tmp_path):
        record = json.loads((made / "price" / "config.json").read_text())
        files.write_json(tmp_path / "config.json", record, digest=False)
        arguments = ("--config", tmp_path / "config.json", "--seed", 1, "--out", tmp_path / "run")
        code, _, err = command("fit", *arguments)
        assert code == 0
        assert "digest" not in err

    def test_what_is_needed(self, refused, numbers, tmp_path):
        assert refused("fit", numbers, "--target", "price") == "--out must say where the run folder should be"
        assert refused("fit", numbers, "--out", tmp_path / "run") == "--target must say which column to predict"
        assert refused("fit", "--target", "price", "--out", tmp_path / "run").startswith("a table must be given: ")

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ("{", "the config must have been written by bayesadam fit"),
            ('{"format_version": 1, "settings": {"colour": 1}}', "the config must have been written by bayesadam fit"),
            (
                '{"format_version": 9, "settings": {"data": "a", "target": "b"}}',
                "the config must be of format",
            ),
        ],
    )
    def test_config(self, refused, tmp_path, content, message):
        path = tmp_path / "config.json"
        path.write_text(content)
        assert refused("fit", "--config", path, "--out", tmp_path / "run").startswith(message)

    @pytest.mark.parametrize("coverage", ["0", "1", "nan"])
    def test_coverage(self, refused, made, tmp_path, coverage):
        arguments = ("predict", made / "price", made / "numbers.csv", "-o", tmp_path / "o.csv", "--coverage", coverage)
        assert refused(*arguments) == f"--coverage must be in (0, 1), got {float(coverage)!r}"

    @pytest.mark.parametrize(
        ("name", "rule"),
        [("nobody", "be a column of the table"), ("mean", "not have the name of a column of the predictions")],
    )
    def test_copy(self, refused, made, numbers, tmp_path, name, rule):
        lines = numbers.read_text().splitlines()
        path = tmp_path / "with_mean.csv"
        path.write_text("\n".join([lines[0] + ",mean", *(line + ",1" for line in lines[1:])]))
        out = tmp_path / "o.csv"
        message = refused("predict", made / "price", path, "-o", out, "--copy", name)
        assert message == f"--copy must {rule}, got {name!r}"
        assert not out.exists()


class TestPlaces:
    """Where the run or the predictions should go."""

    def test_a_file(self, refused, numbers, tmp_path):
        assert refused("fit", numbers, "--target", "price", "--out", numbers).startswith(
            "--out must be a folder, got the"
        )
        below = numbers / "run"
        message = refused("fit", numbers, "--target", "price", "--drop", "day", "--out", below, *FAST)
        assert message == f"--out must be a folder that can be written to, got {str(below)!r} (Not a directory)"

    @pytest.mark.parametrize("force", [[], ["--force"]])
    def test_a_folder_with_other_things_is_never_replaced(self, refused, numbers, tmp_path, force):
        (tmp_path / "mine").mkdir()
        (tmp_path / "mine" / "thesis.txt").write_text("years of work")
        message = refused("fit", numbers, "--target", "price", "--out", tmp_path / "mine", *FAST, *force)
        assert message.endswith("in which there is 'thesis.txt'")

    def test_a_run_that_was_stopped(self, refused, numbers, tmp_path):
        (tmp_path / ".run.partial" / "checkpoint").mkdir(parents=True)
        (tmp_path / ".run.partial" / "checkpoint" / "chunk-0000.safetensors").write_text("state")
        message = refused("fit", numbers, "--target", "price", "--out", tmp_path / "run", *FAST)
        assert message.endswith("continue it by --resume, or start again by --force")

    def test_predictions_into_a_folder_or_the_table_itself(self, refused, made, numbers, tmp_path):
        assert refused("predict", made / "price", numbers, "-o", tmp_path).startswith(
            "--out must be a file, got the folder"
        )
        assert refused("predict", made / "price", numbers, "-o", numbers).startswith(
            "--out must be another file than the"
        )
        message = refused("predict", made / "price", numbers, "-o", tmp_path / "none" / "o.csv")
        assert message.startswith("--out must be a file that can be written to, got ")


class TestPredict:
    """Tables that are not like the training data, and runs that are damaged."""

    @pytest.fixture
    def run(self, made, tmp_path):
        shutil.copytree(made / "price", tmp_path / "run")
        return tmp_path / "run"

    def predict(self, refused, run, table):
        return refused("predict", run, table, "-o", table.parent / "o.csv")

    def test_missing_columns(self, refused, run, tmp_path):
        path = write(numbers_table().drop_columns(["size", "new"]), tmp_path / "t.csv")
        assert self.predict(refused, run, path) == (
            "the table must have the columns of the training data, it lacks 'size', 'new'"
        )

    def test_text_in_a_column_of_numbers(self, refused, run, tmp_path):
        table = numbers_table()
        size = ["large" if i == 40 else str(v) for i, v in enumerate(table["size"].to_pylist())]
        path = write(table.set_column(1, "size", pa.array(size)), tmp_path / "t.csv")
        expected = "column 'size' must be a number in every row, got "
        assert expected in self.predict(refused, run, path)
        parquet.write_table(table.set_column(1, "size", pa.array(["1"] * 40 + ["large"] * 80)), tmp_path / "t.parquet")
        message = self.predict(refused, run, tmp_path / "t.parquet")
        assert message == f"{expected}'large' in row 41"

    def test_infinite_values(self, refused, run, tmp_path):
        table = numbers_table()
        path = write(table.set_column(1, "size", pa.array([1.0] * 119 + [np.inf])), tmp_path / "t.csv")
        assert self.predict(refused, run, path) == "column 'size' must be finite (below 1e+38), got inf in line 121"

    def test_something_else_than_true_or_false(self, refused, run, tmp_path):
        table = numbers_table()
        path = write(table.set_column(3, "new", pa.array(["true"] * 119 + ["perhaps"])), tmp_path / "t.csv")
        assert self.predict(refused, run, path) == "column 'new' must be true or false, got 'perhaps' in line 121"

    def test_a_row_that_is_cut_far_below(self, refused, run, tmp_path, monkeypatch):
        monkeypatch.setattr("bayesadam.tabular.csv_file._BLOCK", 1024)
        path = write(numbers_table(300), tmp_path / "t.csv")
        path.write_text(path.read_text() + "5,1.5\n")
        assert self.predict(refused, run, path).endswith("line 302 must have 7 values, as the header has, got 2")

    def test_a_compressed_table_that_is_cut(self, refused, run, tmp_path):
        text = write(numbers_table(3000), tmp_path / "t").read_bytes()
        path = tmp_path / "t.csv.gz"
        path.write_bytes(gzip.compress(text)[:-4000])
        assert self.predict(refused, run, path).startswith(f"{path} must be a")

    def test_a_run_that_cannot_be_read(self, refused, run, numbers, monkeypatch):
        def refuse(path):
            raise PermissionError(errno.EACCES, "Permission denied")

        monkeypatch.setattr("bayesadam.runs.folder.read_estimator", refuse)
        message = self.predict(refused, run, numbers)
        assert message.startswith(f"the run {str(run)!r} must be complete, ")
        assert message.endswith("cannot be read: Permission denied")

    def test_predictions_that_are_no_numbers(self, refused, run, numbers, monkeypatch):
        found = pa.table({"mean": [1.0, 2.0, float("nan")]})
        monkeypatch.setattr("bayesadam.runs.predicting._predictions", lambda *arguments: found)
        message = self.predict(refused, run, numbers)
        assert message.startswith("the prediction must be finite in every row, got mean nan in line 4: ")

    def test_no_rows(self, refused, run, numbers):
        numbers.write_text(numbers.read_text().splitlines()[0] + "\n")
        assert self.predict(refused, run, numbers).endswith("must have rows below its header, got none")

    def test_no_run(self, refused, numbers, tmp_path):
        message = f"the run must be a folder that bayesadam fit has written, got {str(tmp_path)!r}"
        assert self.predict(refused, tmp_path, numbers) == message
        message = f"the run must be a folder that bayesadam fit has written, got {str(tmp_path / 'none')!r}"
        assert self.predict(refused, tmp_path / "none", numbers) == message
        assert refused("report", tmp_path / "none") == message

    @pytest.mark.parametrize("name", ["posterior.safetensors", "model.json", "preprocessing.json"])
    def test_half_deleted(self, refused, run, numbers, name):
        (run / name).unlink()
        assert self.predict(refused, run, numbers) == f"the run {str(run)!r} must be complete, it lacks {name}"

    @pytest.mark.parametrize("name", ["posterior.safetensors", "model.json", "preprocessing.json"])
    @pytest.mark.parametrize("left", [0.0, 0.5, 0.99])
    def test_truncated(self, refused, run, numbers, name, left):
        content = (run / name).read_bytes()
        (run / name).write_bytes(content[: int(left * len(content))])
        message = self.predict(refused, run, numbers)
        assert message.startswith(f"the run {str(run)!r} must be complete, ")
        assert name in message

    def test_the_posterior_of_another_run(self, refused, made, run, numbers):
        shutil.copy(made / "answer" / "posterior.safetensors", run / "posterior.safetensors")
        assert "posterior.safetensors" in self.predict(refused, run, numbers)

    @pytest.mark.parametrize(("name", "version"), [("preprocessing.json", 1), ("model.json", 1)])
    def test_of_another_version(self, refused, run, numbers, name, version):
        record = json.loads((run / name).read_text())
        key = "version" if name == "model.json" else "format_version"
        assert record[key] == version
        files.write_json(run / name, {**record, key: 99})
        message = self.predict(refused, run, numbers)
        assert f"its version is 99, not {version}" in message

    def test_a_posterior_of_another_version(self, refused, run, numbers):
        path = run / "posterior.safetensors"
        content = path.read_bytes()
        assert content.count(b'version\\": 1') == 1
        path.write_bytes(content.replace(b'version\\": 1', b'version\\": 9'))
        assert "its version is 9, not 1" in self.predict(refused, run, numbers)

    def test_report_data_that_is_damaged(self, refused, run):
        (run / "report.json").write_text("{}")
        assert "report.json cannot be read" in refused("report", run)
        (run / "report.json").unlink()
        assert refused("report", run) == f"the run {str(run)!r} must be complete, it lacks report.json"

    def test_report_data_of_another_run(self, refused, made, run):
        shutil.copy(made / "answer" / "report.json", run / "report.json")
        message = refused("report", run)
        rule = f"the run {str(run)!r} must be complete, report.json cannot be read: it belongs to another model"
        assert message == rule

    def test_report_data_without_a_digest(self, refused, run):
        record = json.loads((run / "report.json").read_text())
        files.write_json(run / "report.json", record, digest=False)
        assert "report.json cannot be read: its version is another, or it has no digest" in refused("report", run)


class TestResources:
    """A disk or a memory that is full."""

    @pytest.mark.parametrize("what", ["write_report", "write_json"])
    def test_a_full_disk_while_fitting(self, command, numbers, tmp_path, monkeypatch, what):
        def full(*arguments, **options):
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(f"bayesadam.runs.fitting.{what}", full)
        out = tmp_path / "run"
        code, _, err = command("fit", numbers, "--target", "price", "--drop", "day", "--out", out, *FAST)
        assert code == 2
        message = f"bayesadam: --out must be where there is space, got {str(out)!r} (No space left on device)"
        assert err.splitlines()[-1] == message
        assert list(tmp_path.iterdir()) == [numbers]

    @pytest.mark.parametrize("name", ["o.csv", "o.parquet"])
    def test_a_file_that_may_not_grow(self, made, tmp_path, name):
        """What the system says when writing, without a disk to fill: a limit on the size of files."""
        rows = 2_000
        write(numbers_table(rows), tmp_path / "t.csv")
        code = (
            "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000));"
            "from bayesadam.cli import main; main()"
        )
        arguments = ["predict", made / "price", "t.csv", "-o", name]
        done = subprocess.run(
            [sys.executable, "-c", code, *map(str, arguments)],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == f"bayesadam: --out must be a file that can be written to, got '{name}' (File too large)\n"
        assert os.listdir(tmp_path) == ["t.csv"]

    def test_a_table_that_does_not_fit(self, refused, numbers, tmp_path, monkeypatch):
        monkeypatch.setattr(memory, "available_memory", lambda: 1000)
        message = refused("fit", numbers, "--target", "price", "--drop", "day", "--out", tmp_path / "run", *FAST)
        assert message.startswith(f"reading {numbers} would take 0.0 GiB of memory, 0.0 GiB are available")

    def test_networks_that_do_not_fit(self, refused, numbers, tmp_path):
        arguments = ("fit", numbers, "--target", "price", "--drop", "day", "--out", tmp_path / "run")
        message = refused(*arguments, "--hidden", "1000000,1000000")
        assert message.startswith("training 20 networks of 1,000,0")
        assert message.endswith("GiB are available: use smaller --hidden or fewer --members")

    def test_memory_that_ends_while_training(self, command, numbers, tmp_path, monkeypatch):
        from bayesadam.runs import fitting

        def full(*arguments):
            raise RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 7 bytes.\nstack")

        monkeypatch.setattr(fitting, "_train", full)
        code, _, err = command("fit", numbers, "--target", "price", "--drop", "day", "--out", tmp_path / "run", *FAST)
        assert code == 2
        assert err.startswith("bayesadam: there is not enough memory: use fewer rows, columns, --members or smaller")
        assert err.count("\n") == 1
        assert list(tmp_path.iterdir()) == [numbers]

    @pytest.mark.parametrize(
        ("missing", "package", "extra"),
        [("pyarrow", "pyarrow", "sklearn"), ("sklearn", "scikit-learn", "sklearn"), ("bokeh", "bokeh", "report")],
    )
    def test_a_missing_extra(self, refused, numbers, tmp_path, monkeypatch, missing, package, extra):
        monkeypatch.setattr(commands.mistakes, "find_spec", lambda name: None if name == missing else object())
        message = refused("fit", numbers, "--target", "price", "--out", tmp_path / "run")
        assert message == f'this command needs {package}: pip install "bayesadam[{extra}]"'


def test_a_faulty_library_is_no_mistake_of_the_user(numbers, tmp_path, monkeypatch):
    """An error of ours keeps its traceback, and leaves nothing half-written either."""
    from bayesadam.runs import fitting

    def broken(*arguments):
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(fitting, "predict_held_out", broken)
    arguments = ["fit", numbers, "--target", "price", "--drop", "day", "--out", tmp_path / "run", *FAST]
    with pytest.raises(ZeroDivisionError, match="ours"):
        commands.app([str(argument) for argument in arguments])
    assert list(tmp_path.iterdir()) == [numbers]


@pytest.mark.parametrize("option", [("--transform", "log"), ("--likelihood", "auto")])
def test_a_classification_has_no_transform(refused, tmp_path, option):
    path = write(labels_table(), tmp_path / "t.csv")
    message = refused("fit", path, "--target", "answer", "--out", tmp_path / "run", *option)
    assert message == f"{option[0]} must be left out of a classification, got {option[1]!r}"


def test_labels_that_are_all_in_one_split(refused, tmp_path):
    table = labels_table().sort_by("answer").append_column("t", pa.array(np.arange(120)))
    path = write(table, tmp_path / "t.csv")
    message = refused(
        "fit", path, "--target", "answer", "--time", "t", "--held-out", "0.5", "--out", tmp_path / "run", *FAST
    )
    assert message.startswith("every class must have training rows, got none of ")
