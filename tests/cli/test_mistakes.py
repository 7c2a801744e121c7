"""Bad inputs: one line on stderr, exit code 2, nothing written, no traceback."""

import errno
import gzip
import json
import re
import resource
import shutil

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from bayesadam.files import write_json
from bayesadam.tables.cli import main
from bayesadam.tables.cli.app import app
from cli.conftest import FAST, labels_table, numbers_table, write


@pytest.fixture
def refused(command, tmp_path):
    """Runs a command that has to fail: its message. Nothing in the folder may change."""

    def run(*arguments):
        before = snapshot(tmp_path)
        code, out, err = command(*arguments)
        assert (code, out) == (2, "")
        assert re.fullmatch("bayesadam: .*\n", err)
        assert snapshot(tmp_path) == before
        return err[len("bayesadam: ") : -1]

    return run


def snapshot(folder):
    return {path: path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))}


class TestTables:
    """What is wrong with the file; the messages themselves are tested with the tables."""

    def fit(self, refused, path, *more, target="y"):
        return refused("fit", path, "--target", target, "--out", path.parent / "run", *FAST, *more)

    def test_a_target_that_is_not_there(self, refused, tmp_path):
        path = tmp_path / "t.csv"
        path.write_text("a,b,yy\n1,2,3\n")
        message = "target must be a column of the table, got 'y' (did you mean 'yy'?); the columns are 'a', 'b', 'yy'"
        assert self.fit(refused, path) == message

    @pytest.mark.parametrize("option", [("--transform", "log"), ("--likelihood", "gamma"), ("--noise", "input")])
    def test_what_a_classification_lacks(self, refused, tmp_path, option):
        path = write(labels_table(), tmp_path / "t.csv")
        message = self.fit(refused, path, *option, target="answer")
        assert message == f"{option[0][2:]} is for numbers to predict, but 'answer' has classes"


CONFIG = "the config must be like one of bayesadam fit, got {path!r} ("


def config(**settings):
    return json.dumps({"format_version": 1, "settings": {"data": "t.csv", "target": "y", **settings}})


class TestOptions:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (["--method", "magic"], "invalid value for '--method'"),
            (["--transform", "log", "--likelihood", "gamma"], "the fit is not possible: target_transform must be"),
            (["--hidden", "50,x"], "invalid value for '--hidden': it must be positive whole numbers"),
            (["--members", "0"], "invalid value for '--members'"),
            (["--time-budget", "0"], "the fit is not possible: time_budget must be a positive, finite number, got 0.0"),
            (["--noise", "-1"], "the fit is not possible: noise must be one of"),
            (
                ["--noise", "input", "--likelihood", "gamma"],
                "the fit is not possible: noise must be 'auto' with --like",
            ),
            (["--noise", "1e-12"], "the fit is not possible: the gradient of member 0 must be finite"),
            (["--held-out", "0.9"], "invalid value for '--held-out'"),
            (["--held-out", "0"], "the share of the held-out rows must be in (0, 0.5], got 0.0"),
            (["--seed", "-1"], "invalid value for '--seed'"),
            (["--device", "abacus"], "the fit is not possible: device must be one that PyTorch can use, got"),
            (["--device", "hpu"], "the fit is not possible: device must be one that PyTorch can use, got"),
            (["--delimiter", "::"], "the delimiter must be one character, got '::'"),
            (["--group", "block", "--time", "day"], "a group must not be given with time, got ('block', 'day')"),
            (["--drop", "price"], "the target 'price' must not also be given as drop"),
            (["--drop", "day", "--keep", "day"], "a column must not be both dropped and used, got 'day'"),
            (["--weights", "area", "--noise", "0.3"], "weights must not be given with the method 'anchored', which"),
            (["--weights", "city"], "weights must be numbers of at least 0 in every row, got '"),
            (["--config", "none.json"], "the config 'none.json' must be a file that can be read: No such file"),
        ],
    )
    def test_fit(self, command, numbers, tmp_path, options, message, monkeypatch, capsys):
        monkeypatch.setattr("sys.argv", ["bayesadam", *map(str, self.words(numbers, tmp_path)), *options])
        with pytest.raises(SystemExit) as stopped:
            main()
        assert stopped.value.code == 2
        assert capsys.readouterr().err.splitlines()[-1].startswith(f"bayesadam: {message}")
        assert list(tmp_path.iterdir()) == [numbers]

    def words(self, numbers, tmp_path):
        return "fit", numbers, "--target", "price", "--out", tmp_path / "run"

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ("{", f"{CONFIG}Expecting property name"),
            ("[]", f"{CONFIG}pop expected"),
            ('{"format_version": 9, "settings": {}}', f"{CONFIG}its format version must be 1, got 9"),
            (config(colour=1), f"{CONFIG}Settings.__init__() got an"),
            (config(delimiter=5), f"{CONFIG}the setting delimiter must"),
            (config(drop=[3]), f"{CONFIG}the setting drop must"),
            (config(method="magic"), "invalid value for '--method': "),
        ],
    )
    def test_config(self, tmp_path, content, message, monkeypatch, capsys):
        path = tmp_path / "config.json"
        path.write_text(content)
        monkeypatch.setattr("sys.argv", ["bayesadam", "fit", "--config", str(path), "--out", str(tmp_path / "run")])
        with pytest.raises(SystemExit) as stopped:
            main()
        assert stopped.value.code == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("bayesadam: " + message.replace("{path!r}", repr(str(path))))
        assert list(tmp_path.iterdir()) == [path]

    def test_predict(self, refused, made, tmp_path):
        table = numbers_table()
        table = table.append_column("mean", table["price"]).append_column("tags", pa.array([["a"]] * len(table)))
        parquet.write_table(table, tmp_path / "t.parquet")
        for option, value, message in (
            ("--copy", "nobody", "a column to copy must be one of the table, got 'nobody'"),
            ("--copy", "mean", "a column to copy must not have the name of a prediction, got 'mean'"),
            ("--copy", "tags", "a CSV file holds numbers, text or dates, got 'tags' (list<element: string>)"),
            ("--coverage", "1", "coverage and quantiles must be in (0, 1), got (1.0,)"),
            ("--quantiles", "0.5,1", "coverage and quantiles must be in (0, 1), got (0.95, 0.5, 1.0)"),
        ):
            options = ("-o", tmp_path / "o.csv", option, value)
            assert refused("predict", made / "price", tmp_path / "t.parquet", *options) == message


class TestPlaces:
    """Where the run or the predictions should go."""

    def test_of_a_run(self, refused, command, numbers, tmp_path):
        arguments = ("fit", numbers, "--target", "price", "--drop", "day", *FAST, "--out")
        assert refused(*arguments, numbers).startswith("the run must be a folder with a name, got the file ")
        (tmp_path / "mine").mkdir()
        (tmp_path / "mine" / "thesis.txt").write_text("years of work")
        for force in ((), ("--force",)):
            message = refused(*arguments, tmp_path / "mine", *force)
            assert message.endswith("in which there is 'thesis.txt'")
        code, _, err = command(*arguments, numbers / "run")
        rule = f"--out must be a folder that can be written to, got {str(numbers / 'run')!r} (Not a directory)"
        assert (code, err) == (2, f"bayesadam: {rule}\n")

    def test_of_predictions(self, refused, made, numbers, tmp_path):
        (tmp_path / "run").symlink_to(made / "price")
        for out, message in (
            (tmp_path, "--out must be a file, got the folder"),
            (numbers, "--out must be another file than the table"),
            (tmp_path / "none" / "o.csv", "--out must be a file that can be written to, got "),
            (made / "price" / "model.json", "--out must be outside of the run, got "),
            (tmp_path / "run" / "new.csv", "--out must be outside of the run, got "),
        ):
            assert refused("predict", made / "price", numbers, "-o", out).startswith(message)


class TestNames:
    """Names of files that are too long, or that would control the terminal."""

    def test_escape_codes(self, made, command, tmp_path, monkeypatch, capsys):
        """In every message, of success and of failure, also of typer."""
        evil = "\x1b]0;gone\x07\x1b[2J\x9b31m\u202e"
        table = numbers_table()
        names = [evil + name if name == "size" else name for name in table.column_names]
        path = write(table.rename_columns(names), tmp_path / f"{evil}.csv")
        run, out = tmp_path / f"{evil}run", tmp_path / f"{evil}o.csv"
        for arguments in (
            ("fit", path, "--target", "price", "--drop", "day", "--out", run, *FAST),
            ("fit", path, "--target", evil, "--out", tmp_path / "other", *FAST),
            ("fit", path, "--target", "price", "--out", run, *FAST),
            ("predict", run, path, "-o", out),
            ("predict", run, path, "-o", tmp_path / evil / evil),
            ("predict", made / "price", tmp_path / f"{evil}none.csv"),
            ("predict", made / "price", path),
            ("predict", evil, path),
            ("report", run),
            ("report", evil),
            (evil,),
            ("fit", path, f"--{evil}"),
            ("fit", "--config", evil),
        ):
            monkeypatch.setattr("sys.argv", ["bayesadam", *map(str, arguments)])
            with pytest.raises(SystemExit):
                main()
            text = "".join(capsys.readouterr())
            assert text
            assert not [c for c in text if not (c.isprintable() or c == "\n")], arguments
        assert out.exists()


class TestPredict:
    """Tables that are not like the training data, and runs that are damaged."""

    @pytest.fixture
    def run(self, made, tmp_path):
        shutil.copytree(made / "price", tmp_path / "run")
        return tmp_path / "run"

    @pytest.fixture
    def predict(self, refused, run, tmp_path):
        return lambda table: refused("predict", run, table, "-o", tmp_path / "o.csv")

    def test_a_compressed_table_that_is_cut(self, predict, refused, tmp_path):
        text = write(numbers_table(3000), tmp_path / "t").read_bytes()
        path = tmp_path / "t.csv.gz"
        path.write_bytes(gzip.compress(text)[:-4000])
        assert predict(path).startswith(f"{path} must be a complete file")
        message = refused("fit", path, "--target", "price", "--out", tmp_path / "new")
        assert message.startswith(f"{path} must be a complete file")  # and --out is not blamed

    def test_predictions_that_are_no_numbers(self, predict, numbers, monkeypatch):
        found = {"mean": np.array([1.0, 2.0, np.nan])}
        monkeypatch.setattr("bayesadam.tables.runs.predict_table._regression", lambda *arguments: found)
        assert predict(numbers).startswith("the prediction must be finite in every row, got mean nan in line 4: ")

    def test_no_run(self, refused, numbers, tmp_path):
        for path in (tmp_path, tmp_path / "none"):
            message = f"the run must be a folder that bayesadam fit has written, got {str(path)!r}"
            assert refused("predict", path, numbers, "-o", tmp_path / "o.csv") == message
            assert refused("report", path) == message

    def test_files_that_nobody_may_read(self, predict, run, numbers, monkeypatch):
        """The run is to blame, not the place of the predictions."""

        def refuse(path, **options):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))

        monkeypatch.setattr("bayesadam.tables.runs.run_folder.load_estimator", refuse)
        assert predict(numbers).startswith(f"the run {str(run)!r} must be readable, got Permission denied for ")

    def test_files_that_are_none(self, refused, run, numbers, tmp_path):
        """A pipe or a device would never end."""
        for name, command in (
            ("model.json", ("predict", run, numbers, "-o", tmp_path / "o.csv")),
            ("posterior.safetensors", ("predict", run, numbers, "-o", tmp_path / "o.csv")),
            ("report.json", ("report", run)),
        ):
            content = (run / name).read_bytes()
            (run / name).unlink()
            (run / name).symlink_to("/dev/zero")
            assert "Not a regular file" in refused(*command)
            (run / name).unlink()
            (run / name).write_bytes(content)

    def test_report_data(self, refused, run):
        text = (run / "report.json").read_text()
        (run / "report.json").write_text(text.replace("0", "1", 1))
        assert "a file cannot be read: report.json must be what" in refused("report", run)
        write_json(run / "report.json", json.loads(text) | {"version": 1})
        path = str(run / "report.json")
        assert refused("report", run) == f"the version of {path!r} must be 3, got 1"
        (run / "report.json").unlink()
        assert refused("report", run) == f"the run {str(run)!r} must be complete, it lacks report.json"


class TestResources:
    """A disk or a memory that is full, and packages that are missing."""

    def fit(self, numbers, out):
        return "fit", numbers, "--target", "price", "--drop", "day", "--out", out, *FAST

    @pytest.mark.parametrize(
        ("what", "error", "message"),
        [
            ("write_report", OSError(errno.ENOSPC, "No space left"), "--out must be where there is space, got "),
            ("write_json", OSError(errno.ENOSPC, "No space left"), "--out must be where there is space, got "),
            (
                "_train",
                RuntimeError("CPUAllocator: not enough memory.\nstack"),
                "there is not enough memory: use fewer",
            ),
        ],
    )
    def test_that_end_while_fitting(self, command, numbers, tmp_path, monkeypatch, what, error, message):
        def full(*arguments, **options):
            raise error

        monkeypatch.setattr(f"bayesadam.tables.runs.fit_table.{what}", full)
        code, _, err = command(*self.fit(numbers, tmp_path / "run"))
        assert code == 2
        assert err.splitlines()[-1].startswith(f"bayesadam: {message}")
        assert list(tmp_path.iterdir()) == [numbers]

    @pytest.mark.parametrize("name", ["o.csv", "o.parquet"])
    def test_a_file_that_may_not_grow(self, refused, made, tmp_path, name):
        """What the system says when writing, without a disk to fill: a limit on the size of files."""
        path = write(numbers_table(2_000), tmp_path / "t.csv")
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
        try:
            message = refused("predict", made / "price", path, "-o", tmp_path / name)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        out = str(tmp_path / name)
        assert message == f"--out must be a file that can be written to, got {out!r} (File too large)"

    def test_a_faulty_library_is_no_mistake_of_the_user(self, numbers, tmp_path, monkeypatch):
        """An error of ours keeps its traceback, and leaves nothing half-written either."""

        def broken(*arguments):
            raise ZeroDivisionError("ours")

        monkeypatch.setattr("bayesadam.tables.runs.fit_table.predict_held_out", broken)
        with pytest.raises(ZeroDivisionError, match="ours"):
            app([str(argument) for argument in self.fit(numbers, tmp_path / "run")])
        assert list(tmp_path.iterdir()) == [numbers]
