"""The command line and the demo: what they write, and one line where something is wrong."""

import dataclasses
import errno
import importlib.util
import json
import re
import runpy
import sys

import numpy as np
import pytest
import torch
from matplotlib import image
from scipy import stats

import bayesadam as ba
from bayesadam import cli, commands, demo
from bayesadam.commands.tables import score_table
from bayesadam.demo import digits, effort, prices, sentences


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["fit", "t.csv", "--nope"], "no such option: --nope .*; see bayesadam fit --help"),
        (["nope"], "no such command 'nope'; see bayesadam --help"),
        (["predict"], "missing argument 'run'; see bayesadam predict --help"),
        (["fit", "t.csv", "--members", "many"], "invalid value for '--members': .*; see bayesadam fit --help"),
        (["methods", "one"], r"got unexpected extra argument.*; see bayesadam methods --help"),
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


@pytest.fixture
def no_training(monkeypatch):
    monkeypatch.delattr(demo, "run")


class TestHelp:
    def test_as_a_module(self, monkeypatch, capsys):
        monkeypatch.setattr(sys, "argv", ["bayesadam", "--help"])
        with pytest.raises(SystemExit) as stopped:
            runpy.run_module("bayesadam", run_name="__main__")
        assert not stopped.value.code
        out, err = capsys.readouterr()
        assert err == ""
        for word in ("as easy as Adam", "demo"):
            assert word in " ".join(out.split())

    def test_of_a_command(self, command):
        code, out, err = command("demo", "--help")
        assert (code, err) == (0, "")
        for word in ("--out", "--seed", "--quick", "digits"):
            assert word in " ".join(out.split())


class TestMistakes:
    """One line on stderr, exit code 2, nothing written, nothing trained."""

    @pytest.mark.usefixtures("no_training")
    def test_places(self, command, tmp_path, monkeypatch):
        (tmp_path / "file").write_text("mine")

        def refuse(**options):
            raise PermissionError(errno.EACCES, "Permission denied")

        monkeypatch.setattr(commands.demo.tempfile, "TemporaryFile", refuse)  # root may write anywhere
        rule = "--out must be a folder that can be written to, got"
        for out, message in (
            (tmp_path / "file", f"--out must be a folder, got the file {str(tmp_path / 'file')!r}"),
            (tmp_path / "file" / "below", f"{rule} {str(tmp_path / 'file' / 'below')!r} (Not a directory)"),
            (tmp_path, f"{rule} {str(tmp_path)!r} (Permission denied)"),
        ):
            assert command("demo", "--out", out) == (2, "", f"bayesadam: {message}\n")
        assert [path.name for path in tmp_path.iterdir()] == ["file"]

    def test_a_disk_that_becomes_full(self, command, tmp_path, monkeypatch):
        def run(*arguments, **options):
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(demo, "run", run)
        code, _, err = command("demo", "--out", tmp_path)
        message = f"bayesadam: --out must be where there is space, got {str(tmp_path)!r} (No space left on device)"
        assert (code, err.splitlines()[-1]) == (2, message)


class TestMissingExtras:
    MESSAGE = 'bayesadam: the command line needs an extra: pip install "bayesadam[cli]"\n'

    @pytest.mark.parametrize("missing", ["typer", "rich"])
    def test_of_the_command_line(self, missing, monkeypatch, capsys):
        monkeypatch.setattr(cli, "find_spec", lambda name: None if name == missing else importlib.util.find_spec(name))
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        assert stopped.value.code == 2
        assert capsys.readouterr() == ("", self.MESSAGE)

    @pytest.mark.usefixtures("no_training")
    def test_of_the_demo(self, command, monkeypatch, tmp_path):
        monkeypatch.setattr(commands.mistakes, "find_spec", lambda name: None if name == "matplotlib" else object())
        message = 'bayesadam: this command needs matplotlib: pip install "bayesadam[plot]"\n'
        assert command("demo", "--out", tmp_path / "demo") == (2, "", message)
        assert not list(tmp_path.iterdir())


PARTS = ["prices", "digits", "curve", "curve, IVON"]
FIGURES = ["curve.png", "digits.png", "prices.png", "weights.png"]
OTHERS = ["digits_ivon.safetensors", "metrics.json", "prices.csv", "report.txt"]
SHORT = dataclasses.replace(
    demo.QUICK, price_rows=60, digit_rows=200, epochs=1, curve_steps=20, estimator={"members": 2, "epochs": 5}
)


@pytest.fixture(scope="module")
def short():
    """The demo with a few steps of training."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "QUICK", SHORT)
        patch.setattr(prices, "SIZES", {"max_iter": [5]})
        patch.setattr(digits, "MC_SAMPLES", 4)
        yield


@pytest.fixture(scope="module")
def made_once(short, tmp_path_factory):
    """Folder, numbers and progress of a demo."""
    state = torch.get_rng_state()
    folder, steps = tmp_path_factory.mktemp("demo") / "new" / "folder", []
    record = demo.run(folder, seed=3, advance=lambda *step: steps.append(step), effort=SHORT)
    assert torch.get_rng_state().equal(state)
    return folder, record, steps


class TestDemo:
    def test_the_files(self, made_once):
        folder, record, steps = made_once
        assert {what: done / total for what, done, total in steps} == dict.fromkeys(PARTS, 1.0)
        assert sorted(path.name for path in folder.iterdir()) == sorted([*FIGURES, *OTHERS])
        written = json.loads((folder / "metrics.json").read_text())
        assert written == json.loads(json.dumps(record))
        assert written["sentences"] == sentences.summary(written)
        for name in FIGURES:
            picture = image.imread(folder / name)
            assert min(picture.shape[:2]) > 500
            assert picture.std() > 0.05
            assert (picture[0, 0] == 1).all()  # white, and not transparent: readable on a dark page
        q = ba.load_posterior(folder / "digits_ivon.safetensors")
        assert q.num_weights == record["digits"]["report"]["total"]["num_weights"]
        assert "determine" in (folder / "report.txt").read_text()
        header, *rows = (folder / "prices.csv").read_text().splitlines()
        assert header == "area,rooms,year,km_to_centre,floor,price"
        assert len(rows) == SHORT.price_rows

    @pytest.mark.usefixtures("short")
    def test_the_command_prints_sentences_and_numbers(self, command, made_once, tmp_path, monkeypatch):
        monkeypatch.setenv("COLUMNS", "80")
        out = tmp_path / "run"
        torch.manual_seed(17)  # of no importance
        code, stdout, stderr = command("demo", "--quick", "--out", out, "--seed", 3)
        assert code == 0
        assert "digits" in stderr  # the progress
        folder, record, _ = made_once
        for name in OTHERS:  # the same seed gives the same
            assert (out / name).read_bytes() == (folder / name).read_bytes()
        text = " ".join(stdout.split())
        for number, sentence in enumerate(record["sentences"], start=1):
            assert f"{number}. {sentence}" in text
        assert "…" not in stdout.split("In " + str(out))[0]  # nothing is cut off in a narrow terminal
        for method, row in record["digits"]["rows"].items():
            assert " ".join([method, *(f"{value:.4f}" for value in row.values())]) in text
        for method, row in record["prices"]["rows"].items():
            assert f"{method} {row['score']:.1f} {row['covered']:.1%}" in text
        assert f"bayesadam fit {out / 'prices.csv'} --target price" in stdout


@pytest.mark.parametrize(
    ("number", "place", "low", "level", "high"),
    [
        (
            0,
            ("prices", "differences", prices.LINEAR, "score"),
            "better than the l",
            "level with the l",
            "worse than the l",
        ),
        (
            1,
            ("digits", "differences", digits.SCALED, "NLL"),
            "better than it in NLL",
            "level with it in NLL",
            "worse than it",
        ),
        (
            1,
            ("digits", "differences", digits.SCALED, "accuracy"),
            "is worse than Adam",
            "is level with Adam",
            "is better",
        ),
        (2, ("digits", "pruned differences", sentences.PRUNED, "accuracy"), "(beyond", "(within", "(beyond chance)"),
    ],
)
def test_sentences_say_what_the_numbers_say(made_once, number, place, low, level, high):
    """Also where that is nothing to be proud of."""
    record = json.loads(json.dumps(made_once[1]))
    difference = record
    for name in place:
        difference = difference[name]
    for t, words in ((-1.5, low), (-0.9, level), (0.9, level), (1.5, high)):
        difference["t"] = t
        assert words in sentences.summary(record)[number]


class TestScores:
    def test_differences_are_a_paired_test(self):
        generator = np.random.default_rng(0)
        ours, other = generator.normal(size=(2, 5))
        rows = [{"ours": {"x": float(a)}, "other": {"x": float(b)}} for a, b in zip(ours, other, strict=True)]
        found = effort.differences(rows, "ours", "other")["x"]
        test = stats.ttest_rel(ours, other)
        assert found["mean"] / found["standard error"] == pytest.approx(test.statistic)
        interval = test.confidence_interval()
        assert abs(found["t"]) == pytest.approx(abs(found["mean"]) / (0.5 * (interval.high - interval.low)))

    def test_of_an_interval(self):
        lower, upper, target = np.array([0.0, 0.0, 0.0]), np.array([1.0, 2.0, 3.0]), np.array([0.5, 2.25, -0.5])
        expected = (1.0 + (2.0 + 40.0 * 0.25) + (3.0 + 40.0 * 0.5)) / 3.0
        assert prices.interval_score(lower, upper, target) == pytest.approx(expected)


def test_the_best_of_a_column_is_bold():
    rows = {"a": {"accuracy": 0.9, "NLL": 0.5, "95% width": 1.0}, "b": {"accuracy": 0.8, "NLL": 0.4, "95% width": 2.0}}
    columns = [list(column.cells) for column in score_table("title", rows).columns]
    assert columns == [["a", "b"], ["[bold]0.900[/]", "0.800"], ["0.500", "[bold]0.400[/]"], ["1.000", "2.000"]]
