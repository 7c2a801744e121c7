"""Ctrl-C: what is done is kept, and the fit goes on from there to the same end."""

import json
import shutil
import signal

import numpy as np
import pytest

from bayesadam.commands import screen
from bayesadam.files import write_json
from bayesadam.runs import baselines, fitting
from bayesadam.tabular import open_table

LONG = ("--members", 2, "--epochs", 12, "--hidden", 8, "--drop", "day")


@pytest.fixture
def stop_after(monkeypatch):
    """Presses Ctrl-C once an epoch is done."""
    shown = screen.Screen.epoch

    def stop(epoch):
        def watch(self, status):
            shown(self, status)
            if status.epoch == epoch:
                signal.raise_signal(signal.SIGINT)

        monkeypatch.setattr(screen.Screen, "epoch", watch if epoch else shown)

    return stop


def arguments(table, out):
    return ("fit", table, "--target", "price", "--out", out, *LONG)


class TestOnce:
    def test_keeps_a_whole_run(self, fitted, numbers, tmp_path, stop_after):
        run = tmp_path / "run"
        stop_after(4)
        out = fitted(*arguments(numbers, run))
        assert "stopped after 4 epochs" in out
        assert f"bayesadam fit --out {run} --resume" in out
        assert json.loads((run / "config.json").read_text())["interrupted"] is True
        assert (run / "checkpoint").is_dir()
        assert (run / "report.html").is_file()
        assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
        fitted("predict", run, numbers, "-o", tmp_path / "o.csv")
        assert len(open_table(tmp_path / "o.csv").read()) == 120
        history = json.loads((run / "report.json").read_text())["training"]["loss"]
        assert len(history[0]) == 4

    def test_resume_ends_where_the_fit_would_have_ended(self, fitted, numbers, tmp_path, stop_after):
        stop_after(4)
        fitted(*arguments(numbers, tmp_path / "run"))
        stop_after(None)
        out = fitted("fit", "--out", tmp_path / "run", "--resume")
        assert "stopped" not in out
        fitted(*arguments(numbers, tmp_path / "whole"))
        first, second = ((tmp_path / name / "posterior.safetensors").read_bytes() for name in ("run", "whole"))
        assert first == second
        config = json.loads((tmp_path / "run" / "config.json").read_text())
        assert config == json.loads((tmp_path / "whole" / "config.json").read_text())
        assert not (tmp_path / "run" / "checkpoint").exists()

    def test_resume_with_the_same_options(self, fitted, command, numbers, tmp_path, stop_after):
        run = tmp_path / "run"
        stop_after(4)
        fitted(*arguments(numbers, run))
        stop_after(None)
        before = {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()}
        code, out, err = command(*arguments(numbers, run), "--resume", "--seed", 1)
        assert (code, out) == (2, "")
        assert err == "bayesadam: --resume goes on as the fit began: --seed must be 0, got 1\n"
        assert before == {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()}
        fitted(*arguments(numbers, run), "--resume")

    def test_other_data(self, fitted, command, numbers, tmp_path, stop_after):
        run = tmp_path / "run"
        stop_after(4)
        fitted(*arguments(numbers, run))
        stop_after(None)
        before = {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()}
        numbers.write_text(numbers.read_text().replace("Oslo", "Rome"))
        code, _, err = command("fit", "--out", run, "--resume")
        assert (code, err.count("\n")) == (2, 1)
        assert err.startswith("bayesadam: --resume needs the table of the stopped fit, got another table in ")
        assert before == {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()}
        assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


class TestElsewhere:
    def test_after_training(self, command, fitted, numbers, tmp_path, monkeypatch):
        """The checkpoint of the whole training is kept."""

        def stop(*arguments, **options):
            raise KeyboardInterrupt

        monkeypatch.setattr(fitting, "baselines", stop)
        code, _, err = command(*arguments(numbers, tmp_path / "run"))
        assert code == 130
        kept, go_on = tmp_path / ".run.partial", f"bayesadam fit --out {tmp_path / 'run'} --resume goes on"
        assert err.splitlines()[-1] == f"bayesadam: stopped; what is done is kept in {kept}: {go_on}"
        assert not (tmp_path / "run").exists()
        code, _, err = command(*arguments(numbers, tmp_path / "run"))
        assert code == 2
        assert "continue it by --resume, or start again by --force" in err
        monkeypatch.setattr(fitting, "baselines", baselines.baselines)
        fitted("fit", "--out", tmp_path / "run", "--resume")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["numbers.csv", "run"]

    def test_while_reading(self, command, numbers, tmp_path, monkeypatch):
        def stop(*arguments):
            raise KeyboardInterrupt

        monkeypatch.setattr(fitting, "prepare_or_propose", stop)
        assert command(*arguments(numbers, tmp_path / "run")) == (
            130,
            "",
            "bayesadam: stopped; nothing was written\n",
        )
        assert list(tmp_path.iterdir()) == [numbers]

    def test_while_predicting(self, command, made, tmp_path, monkeypatch):
        def stop(*arguments, **options):
            raise KeyboardInterrupt

        monkeypatch.setattr("bayesadam.runs.predicting._predictions", stop)
        code, out, err = command("predict", made / "price", made / "numbers.csv", "-o", tmp_path / "o.csv")
        assert (code, out, err) == (130, "", "bayesadam: stopped; nothing was written\n")
        assert list(tmp_path.iterdir()) == []


class TestKilled:
    """What a fit leaves that was killed when Ctrl-C would not have been heard; ``robustness/kills.py`` has the rest."""

    def test_when_all_was_done_but_the_rename(self, fitted, command, numbers, tmp_path):
        run, partial = tmp_path / "run", tmp_path / ".run.partial"
        fitted(*arguments(numbers, run))
        run.rename(partial)
        assert fitted("fit", "--out", run, "--resume") == f"the fit was finished before; the run is in {run}/\n"
        assert sorted(path.name for path in tmp_path.iterdir()) == ["numbers.csv", "run"]
        run.rename(partial)
        fitted("predict", run, numbers, "-o", tmp_path / "o.csv")
        run.rename(partial)
        code, _, err = command(*arguments(numbers, run))
        assert (code, err.endswith("which contains a run: replace it by --force\n")) == (2, True)
        assert not partial.exists()

    def test_before_the_first_checkpoint(self, fitted, numbers, tmp_path):
        fitted(*arguments(numbers, tmp_path / "whole"))
        expected = (tmp_path / "whole" / "posterior.safetensors").read_bytes()
        for more in (("fit", "--out", tmp_path / "run", "--resume"), arguments(numbers, tmp_path / "run")):
            partial = tmp_path / ".run.partial"
            partial.mkdir()
            record = json.loads((tmp_path / "whole" / "config.json").read_text())
            write_json(partial / "config.json", {**record, "complete": False, "interrupted": True}, indent=1)
            fitted(*more)
            assert (tmp_path / "run" / "posterior.safetensors").read_bytes() == expected
            assert not partial.exists()
            shutil.rmtree(tmp_path / "run")


def test_nothing_to_resume(command, made, numbers, tmp_path):
    for out in (tmp_path / "run", made / "price"):
        code, _, err = command("fit", "--out", out, "--resume")
        assert (code, err) == (2, f"bayesadam: --resume needs a fit that was stopped, there is none in '{out}'\n")
    assert np.all([path == numbers for path in tmp_path.iterdir()])
