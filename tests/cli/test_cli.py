"""The command line and the demo: what they write, and one line where something is wrong."""

import errno
import gc
import io
import json
import re
import subprocess
import sys
from functools import partial

import numpy as np
import pytest
import torch
from matplotlib import image
from rich.console import Console
from scipy import stats

import bayesadam as ba
from bayesadam.tables import cli, demo
from bayesadam.tables.cli import demo_command
from bayesadam.tables.cli.demo_command import NOTE, TITLES, _table
from bayesadam.tables.cli.screen import score_table

WITHOUT = """
import importlib.util, sys
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "{0}" else found(name, *rest)
sys.modules["{0}"] = None
sys.argv = ["bayesadam", "demo"]
from bayesadam.tables.cli import main
main()
"""


def process(*arguments, folder):
    return subprocess.run([sys.executable, *arguments], cwd=folder, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["fit", "t.csv", "--nope"], "no such option: --nope .*; see bayesadam fit --help"),
        (["nope"], "no such command 'nope'; see bayesadam --help"),
        (["fit", "--target", "y", "--out", "run"], "missing argument 'DATA'; see bayesadam fit --help"),
        (["fit", "t.csv", "--out", "run"], "missing option '--target'; see bayesadam fit --help"),
        (["predict", "run"], "missing argument 'DATA'; see bayesadam predict --help"),
        (["fit", "t.csv", "--members", "many"], "invalid value for '--members': .*; see bayesadam fit --help"),
        (["demo", "--seed", "-1"], "invalid value for '--seed': .*; see bayesadam demo --help"),
        (["demo", "--seed", str(2**31)], "invalid value for '--seed': .*; see bayesadam demo --help"),
        (["report", "one", "two"], r"got unexpected extra argument.*; see bayesadam report --help"),
    ],
)
def test_a_misspelt_command_is_one_line(arguments, told, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["bayesadam", *arguments])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(f"bayesadam: {told}\n", err)
    assert gc.isenabled()


def test_garbage_is_collected_during_the_work(monkeypatch, tmp_path):
    seen = []
    monkeypatch.setattr(sys, "argv", ["bayesadam", "demo", "--out", str(tmp_path)])
    monkeypatch.setattr(demo, "run", lambda *arguments, **options: seen.append(gc.isenabled()) or sys.exit(3))
    with pytest.raises(SystemExit):
        cli.main()
    assert seen == [True]


@pytest.fixture
def no_training(monkeypatch):
    monkeypatch.delattr(demo, "run")


class TestHelp:
    def test_as_a_module(self, tmp_path):
        done = process("-m", "bayesadam", "--help", folder=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        text = " ".join(done.stdout.split())
        for word in ("as easy as Adam", "demo", "--version", "--install-completion"):
            assert word in text

    def test_does_not_wait_for_pytorch(self, tmp_path):
        code = "import sys; sys.argv[1:] = ['fit', '--help']; from bayesadam.tables.cli import main\n"
        code += "try: main()\nexcept SystemExit: assert not {'torch', 'sklearn', 'pandas'} & set(sys.modules)"
        assert process("-c", code, folder=tmp_path).returncode == 0

    def test_version(self, fitted):
        assert fitted("--version") == f"bayesadam {ba.__version__}\n"

    def test_no_command_shows_the_help(self, command):
        code, out, err = command()
        assert code in (0, 2)
        assert "demo" in out + err


class TestMistakes:
    """One line on stderr, exit code 2, nothing written, nothing trained."""

    def check(self, code, out, err, message):
        assert code == 2
        assert err == f"bayesadam: {message}\n"
        assert out == ""

    @pytest.mark.usefixtures("no_training")
    def test_a_file_for_a_folder(self, command, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        file = tmp_path / "file"
        file.write_text("mine")
        self.check(*command("demo", "--out", "file"), "--out must be a folder, got the file 'file'")
        assert file.read_text() == "mine"
        assert list(tmp_path.iterdir()) == [file]

    @pytest.mark.usefixtures("no_training")
    def test_a_folder_that_cannot_be_written_to(self, command, tmp_path, monkeypatch):
        def refuse(**options):
            raise PermissionError(errno.EACCES, "Permission denied")

        monkeypatch.setattr(demo_command.tempfile, "TemporaryFile", refuse)  # root may write anywhere
        message = f"--out must be a folder that can be written to, got {str(tmp_path)!r} (Permission denied)"
        self.check(*command("demo", "--out", tmp_path), message)
        assert not list(tmp_path.iterdir())


class TestMissingExtras:
    MESSAGE = 'bayesadam: the command line needs an extra: pip install "bayesadam[cli]"\n'

    @pytest.mark.parametrize("missing", ["typer", "rich"])
    def test_of_the_command_line(self, missing, tmp_path):
        done = process("-c", WITHOUT.format(missing), folder=tmp_path)
        assert (done.returncode, done.stdout, done.stderr) == (2, "", self.MESSAGE)

    @pytest.mark.usefixtures("no_training")
    def test_of_the_demo(self, command, monkeypatch, tmp_path):
        monkeypatch.setitem(sys.modules, "matplotlib", None)
        monkeypatch.chdir(tmp_path)
        assert command("demo") == (2, "", 'bayesadam: this command needs matplotlib: pip install "bayesadam[all]"\n')
        assert not list(tmp_path.iterdir())


@pytest.fixture
def short(monkeypatch):
    """A demo with a few steps of training."""
    options = {"repetitions": 2, "price_rows": 60, "digit_rows": 200, "epochs": 1, "curve_steps": 20}
    options |= {"estimator": {"members": 2, "epochs": 5}, "processes": 1}
    monkeypatch.setattr(demo, "run", partial(demo.run, **options))


@pytest.mark.usefixtures("short")
class TestDemo:
    def test_files_and_printed_scores(self, command, tmp_path, monkeypatch):
        monkeypatch.setenv("COLUMNS", "80")
        state = torch.get_rng_state()
        code, stdout, stderr = command("demo", "--out", tmp_path / "new" / "folder", "--seed", 3)
        assert code == 0
        assert torch.get_rng_state().equal(state)
        assert "digits" in stderr  # the progress
        out = tmp_path / "new" / "folder"
        assert sorted(path.name for path in out.iterdir()) == ["metrics.json", "prices.csv", "prices.png"]
        record, text = json.loads((out / "metrics.json").read_text()), " ".join(stdout.split())
        assert list(record["prices"][0]) == [demo.LINEAR, demo.QUANTILES, demo.OURS, demo.TRUTH]
        for words in (*TITLES, NOTE):
            assert " ".join(words.split()) in text
        assert "…" not in stdout  # nothing is cut off in a narrow terminal
        assert max(map(len, stdout.split("s. In ")[0].splitlines())) <= 80
        for method, scores in record["digits"][0].items():
            means = [np.mean([row[method][name] for row in record["digits"]]) for name in scores]
            assert " ".join([method, *(f"{value:.4f}" for value in means)]) in text
        assert f"bayesadam fit {out / 'prices.csv'} --target price" in stdout
        header, *rows = (out / "prices.csv").read_text().splitlines()
        assert header == "area,rooms,year,km_to_centre,floor,price"
        assert len(rows) == 60
        assert image.imread(out / "prices.png").std() > 0.05

    def test_numbers_are_those_of_the_seed(self, tmp_path):
        one, same, other = (
            demo.run(tmp_path, seed=seed, advance=lambda *_: None, processes=processes)
            for seed, processes in ((3, 1), (3, 2), (4, 1))
        )
        for record in (one, same, other):
            for scores in (scores for sample in record["curve"] for scores in sample.values()):
                assert scores.pop("seconds") > 0
        assert one == same
        assert one != other


class TestScores:
    @pytest.mark.parametrize("shift", [0.0, 0.5, 3.0])
    def test_differences_are_a_paired_test(self, shift):
        ours, other = np.random.default_rng(0).normal(size=(2, 5))
        ours = ours + shift
        rows = [{"ours": {"x": float(a)}, "other": {"x": float(b)}} for a, b in zip(ours, other, strict=True)]
        names, values = (list(column.cells) for column in _table("t", rows, "ours", ["other"], ".6f").columns)
        name, first, cell = names[2], values[0], values[2]
        assert name == "difference from\nother"
        assert float(first) == pytest.approx(ours.mean(), abs=1e-6)
        test = stats.ttest_rel(ours, other)
        assert ("[bold]" in cell) == (test.pvalue < 0.05)
        mean, error = (float(part.strip("± ")) for part in cell.replace("[bold]", "").replace("[/]", "").split("\n"))
        assert mean / error == pytest.approx(test.statistic, rel=1e-4)

    def test_of_an_interval(self):
        lower, upper, target = np.array([0.0, 0.0, 0.0]), np.array([1.0, 2.0, 3.0]), np.array([0.5, 2.25, -0.5])
        found = demo.score_interval(lower, upper, {"price": target, "inputs": np.array([[50.0], [100.0], [180.0]])})
        expected = (1.0 + (2.0 + 40.0 * 0.25) + (3.0 + 40.0 * 0.5)) / 3.0
        assert found == pytest.approx({"score": expected, "covered": 1 / 3, "small": 1.0, "large": 0.0, "width": 2.0})


def test_the_best_scores_are_bold():
    metrics = {
        "a": {"NLL": 0.5, "accuracy": 0.9, "fit seconds": 1.0},
        "b": {"NLL": 0.4, "accuracy": 0.8, "fit seconds": 2.0},
    }
    columns = [list(column.cells) for column in score_table(metrics).columns]
    names = ["accuracy", "NLL", "fit seconds"]
    assert columns == [names, ["[bold]90.0%[/]", "0.5000", "1.000"], ["80.0%", "[bold]0.4000[/]", "2.000"]]


@pytest.mark.parametrize("width", [52, 60])
def test_scores_in_a_narrow_terminal(width):
    own = {"NLL": 123.456, "RMSE": 54321.1, "CRPS": 0.3, "coverage 95%": 0.95, "fit seconds": 12.3}
    names = ("bayesadam", "linear model", "gradient boosting", "constant")
    console = Console(width=width, file=io.StringIO())
    console.print(score_table({name: {score: (i + 1) * own[score] for score in own} for i, name in enumerate(names)}))
    text = console.file.getvalue()
    for word in ("bayesadam", "coverage", "boosting", "54,300", "108,600", "163,000", "0.900", "36.90"):
        assert word in text
    assert "\u2026" not in text
