"""Ctrl-C: the networks so far become a whole run, and what cannot be whole is not there."""

import json
import signal

import pytest

from bayesadam.tables.cli import screen
from bayesadam.tables.encoder.read_table import read_table
from cli.conftest import FAST


def interrupt(*arguments, **options):
    raise KeyboardInterrupt


@pytest.fixture
def fit(command, numbers, tmp_path):
    return lambda *more: command("fit", numbers, "--target", "price", "--drop", "day", "--out", tmp_path / "run", *more)


def test_in_training_keeps_a_whole_run(fit, fitted, numbers, tmp_path, monkeypatch):
    shown = screen.Screen.epoch

    def stop(self, status):
        shown(self, status)
        if status.epoch == 4:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(screen.Screen, "epoch", stop)
    code, out, err = fit("--members", 2, "--epochs", 12, "--hidden", 8)
    assert code == 0, err
    assert "Ctrl-C ended the training after 4 epochs; the networks are the best until then\n" in out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["numbers.csv", "run"]
    run = tmp_path / "run"
    assert json.loads((run / "metrics.json").read_text())["interrupted"] is True
    fitted("predict", run, numbers, "-o", tmp_path / "o.csv")
    assert read_table(tmp_path / "o.csv").table.num_rows == 120


def test_after_training_leaves_out_the_other_models(fit, tmp_path, monkeypatch):
    monkeypatch.setattr("bayesadam.tables.runs.fit_table.baselines", interrupt)
    code, out, err = fit(*FAST)
    assert code == 0, err
    assert "linear model and gradient boosting were not trained, because of Ctrl-C" in out
    assert list(json.loads((tmp_path / "run" / "metrics.json").read_text())["models"]) == ["bayesadam"]


@pytest.mark.parametrize("where", ["prepare", "write_report"])
def test_elsewhere_leaves_nothing(fit, numbers, tmp_path, monkeypatch, where):
    monkeypatch.setattr(f"bayesadam.tables.runs.fit_table.{where}", interrupt)
    code, _, err = fit(*FAST)
    assert (code, err.splitlines()[-1]) == (130, "bayesadam: stopped; nothing was written")
    assert list(tmp_path.iterdir()) == [numbers]


def test_while_predicting(command, made, tmp_path, monkeypatch):
    monkeypatch.setattr("bayesadam.tables.runs.predict_table._regression", interrupt)
    result = command("predict", made / "price", made / "numbers.csv", "-o", tmp_path / "o.csv")
    assert result == (130, "", "bayesadam: stopped; nothing was written\n")
    assert list(tmp_path.iterdir()) == []
