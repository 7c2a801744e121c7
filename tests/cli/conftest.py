"""Tables, and runs that are trained for a moment."""

import json

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv

from bayesadam.tables.cli.app import app

FAST = ("--members", 2, "--epochs", 3, "--hidden", 8)


def numbers_table(rows=120, seed=0):
    """A regression with every kind of column."""
    rng = np.random.default_rng(seed)
    size = np.round(rng.normal(50, 20, rows), 2)
    city = rng.choice(["Rome", "Oslo", "Köln"], rows)
    size[3] = np.nan
    return pa.table(
        {
            "id": np.arange(rows),
            "size": pa.array(size, from_pandas=True),
            "city": city,
            "new": rng.random(rows) < 0.5,
            "block": rng.integers(0, 12, rows),
            "day": pa.array(np.datetime64("2020-01-01") + np.arange(rows) // 2),
            "price": np.round(3 * np.nan_to_num(size, nan=50) + 40 * (city == "Rome") + rng.normal(0, 5, rows), 2),
        }
    )


def labels_table(rows=120, seed=0, labels=("no", "yes", "maybe")):
    """A classification."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 2))
    code = (x[:, 0] > 0).astype(int) + (x[:, 0] + x[:, 1] > 1) * (len(labels) > 2)
    return pa.table({"a": x[:, 0], "b": x[:, 1], "answer": pa.array([labels[c] for c in code])})


@pytest.fixture(autouse=True)
def short_fits(monkeypatch, few_trees):
    """Pages and other models take a second: those of the runs in ``made`` are real, and have tests of their own."""
    monkeypatch.setattr(
        "bayesadam.tables.runs.fit_table.write_report", lambda path, data: path.write_text(json.dumps(data))
    )
    monkeypatch.setattr("bayesadam.tables.runs.fit_table.baselines", lambda *data, **options: {})


@pytest.fixture
def command(capsys, monkeypatch):
    """Runs a command in this process: exit code, stdout, stderr."""
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "dumb")

    def run(*arguments):
        with pytest.raises(SystemExit) as stopped:
            app([str(argument) for argument in arguments])
        return stopped.value.code, *capsys.readouterr()

    return run


@pytest.fixture
def fitted(command):
    """Runs a command that has to succeed: stdout."""

    def run(*arguments):
        code, out, err = command(*arguments)
        assert code == 0, err
        return out

    return run


def write(table, path):
    csv.write_csv(table, path)
    return path


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """A folder with tables and one run of each kind; only to be read."""
    folder = tmp_path_factory.mktemp("made")
    numbers = write(numbers_table(), folder / "numbers.csv")
    labels = write(labels_table(), folder / "labels.csv")
    for name, table, target, more in (("price", numbers, "price", ("--drop", "day")), ("answer", labels, "answer", ())):
        arguments = ["fit", table, "--target", target, "--out", folder / name, *more, *FAST]
        with pytest.raises(SystemExit) as stopped:
            app([str(argument) for argument in arguments])
        assert stopped.value.code == 0
    return folder


@pytest.fixture
def numbers(tmp_path):
    return write(numbers_table(), tmp_path / "numbers.csv")


@pytest.fixture
def labels(tmp_path):
    return write(labels_table(), tmp_path / "labels.csv")
