"""The command line and the demo: what they write, and one line where something is wrong."""

import dataclasses
import errno
import importlib.util
import json
import subprocess
import sys

import pytest
import torch
from matplotlib import image

import bayesadam as ba
from bayesadam import cli, commands, demo
from bayesadam.commands.tables import score_table

WITHOUT = """
import importlib.util, sys
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "{0}" else found(name, *rest)
sys.modules["{0}"] = None
sys.argv = ["bayesadam", "demo"]
from bayesadam.cli import main
main()
"""


def process(*arguments, folder):
    return subprocess.run([sys.executable, *arguments], cwd=folder, capture_output=True, text=True, timeout=120)


@pytest.fixture
def command(capsys, monkeypatch):
    """Runs a command in this process: exit code, stdout, stderr."""
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "dumb")

    def run(*arguments):
        with pytest.raises(SystemExit) as stopped:
            commands.app([str(argument) for argument in arguments])
        return stopped.value.code, *capsys.readouterr()

    return run


@pytest.fixture
def no_training(monkeypatch):
    monkeypatch.delattr(demo, "run")


class TestHelp:
    def test_as_a_module(self, tmp_path):
        done = process("-m", "bayesadam", "--help", folder=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        text = " ".join(done.stdout.split())
        for word in ("as easy as Adam", "demo"):
            assert word in text

    def test_of_a_command(self, command):
        code, out, err = command("demo", "--help")
        assert (code, err) == (0, "")
        text = " ".join(out.split())
        for word in ("--out", "--seed", "Vadam and IVON"):
            assert word in text

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

    def test_a_file_for_a_folder(self, tmp_path):
        file = tmp_path / "file"
        file.write_text("mine")
        done = process("-m", "bayesadam", "demo", "--out", "file", folder=tmp_path)
        self.check(done.returncode, done.stdout, done.stderr, "--out must be a folder, got the file 'file'")
        assert file.read_text() == "mine"
        assert list(tmp_path.iterdir()) == [file]

    @pytest.mark.usefixtures("no_training")
    def test_a_folder_below_a_file(self, command, tmp_path):
        (tmp_path / "file").write_text("mine")
        out = tmp_path / "file" / "below"
        message = f"--out must be a folder that can be written to, got {str(out)!r} (Not a directory)"
        self.check(*command("demo", "--out", out), message)

    @pytest.mark.usefixtures("no_training")
    def test_a_folder_that_cannot_be_written_to(self, command, tmp_path, monkeypatch):
        def refuse(**options):
            raise PermissionError(errno.EACCES, "Permission denied")

        monkeypatch.setattr(commands.demo.tempfile, "TemporaryFile", refuse)  # root may write anywhere
        message = f"--out must be a folder that can be written to, got {str(tmp_path)!r} (Permission denied)"
        self.check(*command("demo", "--out", tmp_path), message)
        assert not list(tmp_path.iterdir())

    @pytest.mark.parametrize(
        ("error", "rule"),
        [
            (OSError(errno.ENOSPC, "No space left on device"), "where there is space"),
            (OSError("the posterior file must be elsewhere"), "a folder that can be written to"),
        ],
    )
    def test_a_disk_that_becomes_full(self, command, tmp_path, monkeypatch, error, rule):
        def run(*arguments, **options):
            raise error

        monkeypatch.setattr(demo, "run", run)
        code, _, err = command("demo", "--out", tmp_path)
        assert code == 2
        message = f"bayesadam: --out must be {rule}, got {str(tmp_path)!r} ({error.strerror or error})"
        assert err.split("\n")[-2:] == [message, ""]
        assert "Traceback" not in err

    @pytest.mark.usefixtures("no_training")
    @pytest.mark.parametrize(
        ("arguments", "word"),
        [
            (["demo", "--seed", "-1"], "--seed"),
            (["demo", "--seed", str(2**32)], "--seed"),
            (["demo", "--seed", "one"], "--seed"),
            (["demo", "--unknown"], "--unknown"),
            (["unknown"], "unknown"),
        ],
    )
    def test_usage(self, command, arguments, word, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        code, out, err = command(*arguments)
        assert (code, out) == (2, "")
        assert word in err
        assert "Traceback" not in err
        assert not list(tmp_path.iterdir())


class TestMissingExtras:
    MESSAGE = 'bayesadam: the command line needs an extra: pip install "bayesadam[cli]"\n'

    def test_as_a_process(self, tmp_path):
        done = process("-c", WITHOUT.format("typer"), folder=tmp_path)
        assert (done.returncode, done.stdout, done.stderr) == (2, "", self.MESSAGE)

    @pytest.mark.parametrize("missing", ["typer", "rich"])
    def test_of_the_command_line(self, missing, monkeypatch, capsys):
        monkeypatch.setattr(cli, "find_spec", lambda name: None if name == missing else importlib.util.find_spec(name))
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        assert stopped.value.code == 2
        assert capsys.readouterr() == ("", self.MESSAGE)

    @pytest.mark.usefixtures("no_training")
    @pytest.mark.parametrize(
        ("missing", "package", "extra"), [("sklearn", "scikit-learn", "sklearn"), ("matplotlib", "matplotlib", "plot")]
    )
    def test_of_the_demo(self, missing, package, extra, command, monkeypatch, tmp_path):
        monkeypatch.setattr(
            commands.mistakes, "find_spec", lambda name: None if name == missing else importlib.util.find_spec(name)
        )
        monkeypatch.chdir(tmp_path)
        message = f'bayesadam: this command needs {package}: pip install "bayesadam[{extra}]"\n'
        assert command("demo") == (2, "", message)
        assert not list(tmp_path.iterdir())


FIGURES = ["entropy.png", "regression_band.png", "reliability.png", "signal_to_noise.png"]
POSTERIORS = [f"{data}_{method}.safetensors" for data in ("diabetes", "digits") for method in ("ivon", "vadam")]
COLUMNS = {"diabetes": {"RMSE", "NLL", "95% coverage"}, "digits": {"accuracy", "NLL", "ECE"}}  # among others


@pytest.fixture(scope="module")
def short():
    """The demo with a few steps of training and a few samples."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "MC_SAMPLES", 4)
        patch.setattr(demo, "SPLITS", 2)
        for name, epochs in (("DIGITS", 1), ("DIABETES", 2), ("GAP", 5)):
            patch.setattr(demo, name, dataclasses.replace(getattr(demo, name), epochs=epochs))
        yield


@pytest.fixture(scope="module")
def runs(short, tmp_path_factory):
    """Folder, table and progress of runs with seed 3 (twice) and 4, from different global generators."""
    found = []
    for i, seed in enumerate((3, 3, 4)):
        torch.manual_seed(i)
        state = torch.get_rng_state()
        folder, steps = tmp_path_factory.mktemp("demo") / "new" / "folder", []
        table = demo.run(folder, seed=seed, advance=lambda *step, steps=steps: steps.append(step))
        assert torch.get_rng_state().equal(state)
        found.append((folder, table, steps))
    return found


class TestDemo:
    def test_the_same_seed_gives_the_same_table(self, runs):
        first, second, other = ((folder / "table.json").read_bytes() for folder, _, _ in runs)
        assert first == second
        for data in COLUMNS:
            a, b = (json.loads(table)[data] for table in (first, other))
            assert all(a[method]["NLL"] != b[method]["NLL"] for method in a)

    def test_the_table(self, runs):
        folder, table, _ = runs[0]
        record = json.loads((folder / "table.json").read_text())
        assert record == {"seed": 3, "splits": 2, **table}
        for data, columns in COLUMNS.items():
            assert list(table[data]) == ["Adam", "Vadam", "IVON"]
            for row in table[data].values():
                assert list(row) == list(table[data]["Adam"])
                assert columns <= set(row)
                assert all(0 <= value < 1e3 for value in row.values())

    def test_the_files(self, runs):
        folder, _, _ = runs[0]
        assert sorted(path.name for path in folder.iterdir()) == sorted([*FIGURES, *POSTERIORS, "table.json"])
        for name in FIGURES:
            picture = image.imread(folder / name)
            assert min(picture.shape[:2]) > 500
            assert picture.std() > 0.05
        for name in POSTERIORS:
            q = ba.load_posterior(folder / name)
            network = (demo.DIGITS if name.startswith("digits") else demo.DIABETES).network()
            q.match(network)
            assert all((variance > 0).all() for variance in q.variance.values())

    def test_posteriors_of_the_same_seed_are_the_same(self, runs):
        for name in POSTERIORS:
            first, second, other = (folder.joinpath(name).read_bytes() for folder, _, _ in runs)
            assert first == second != other

    def test_progress_goes_from_start_to_end(self, runs):
        _, _, steps = runs[0]
        tasks = {}
        for what, done, total in steps:
            assert done == tasks.get(what, (0, total))[0] + 1
            tasks[what] = (done, total)
        assert len(tasks) == 7
        assert all(done == total for done, total in tasks.values())

    @pytest.mark.usefixtures("short")
    def test_the_command_prints_the_table(self, command, runs, tmp_path):
        out = tmp_path / "run"
        code, stdout, stderr = command("demo", "--out", out, "--seed", 3)
        assert code == 0
        assert "Vadam" in stderr  # the progress
        folder, table, _ = runs[0]
        assert (out / "table.json").read_bytes() == (folder / "table.json").read_bytes()
        for rows in table.values():
            for method, row in rows.items():
                expected = [method, *(f"{value:.3f}" for value in row.values())]
                assert any(
                    [word.strip("│ ") for word in line.split("│")[1:-1]] == expected for line in stdout.split("\n")
                )
        assert f"table.json, posteriors and figures are in {out}/" in stdout


def test_the_best_of_a_column_is_bold():
    rows = {"a": {"accuracy": 0.9, "NLL": 0.5, "95% width": 1.0}, "b": {"accuracy": 0.8, "NLL": 0.4, "95% width": 2.0}}
    columns = [list(column.cells) for column in score_table("title", rows).columns]
    assert columns == [["a", "b"], ["[bold]0.900[/]", "0.800"], ["0.500", "[bold]0.400[/]"], ["1.000", "2.000"]]
