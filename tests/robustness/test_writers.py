"""Several writers and readers of one folder at a time; threads, whose locks are those of processes."""

import shutil
import sys
import threading

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv

from bayesadam import files
from bayesadam.sklearn import BayesianMLPRegressor, Settings, fit_table, load_estimator
from bayesadam.tables.runs.run_folder import load_run, new_run, rewrite_report

pytestmark = [
    pytest.mark.usefixtures("frequent_switches"),
    pytest.mark.skipif(sys.platform == "win32", reason="folders are not locked"),
]
TINY = {"members": 2, "hidden": (4,), "epochs": 2}


def together(*functions):
    """Call the functions in threads, each until the first one has ended."""
    errors, ended = [], threading.Event()

    def work(function):
        try:
            for _ in range(40):
                function()
                if ended.is_set():
                    break
        except Exception as error:
            errors.append(error)
        finally:
            ended.set()

    threads = [threading.Thread(target=work, args=(function,)) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def test_estimators(tmp_path):
    x = np.linspace(-1, 1, 60).reshape(20, 3)
    models = [BayesianMLPRegressor(**TINY, random_state=seed).fit(x, x[:, 0]) for seed in range(2)]
    expected = [model.predict(x) for model in models]
    models[0].save(tmp_path)

    def read():
        found = load_estimator(tmp_path)
        assert np.array_equal(found.predict(x), expected[found.random_state])

    together(*(lambda model=model: model.save(tmp_path) for model in models), read)
    read()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.json", "posterior.safetensors"]


def test_runs(tmp_path, monkeypatch):
    monkeypatch.setattr("bayesadam.tables.runs.fit_table.write_report", lambda path, data: path.write_text("page"))
    monkeypatch.setattr("bayesadam.tables.runs.run_folder.write_report", lambda path, data: None)
    size = np.random.default_rng(0).normal(50, 20, 80)
    csv.write_csv(pa.table({"size": size, "y": 2 * size}), tmp_path / "table.csv")
    for seed in range(2):
        settings = Settings(str(tmp_path / "table.csv"), "y", **TINY, seed=seed)
        fit_table(settings, out=tmp_path / str(seed))
    out = shutil.copytree(tmp_path / "0", tmp_path / "run")

    def replace(seed):
        with new_run(out, force=True) as folder:
            shutil.copytree(tmp_path / str(seed), folder, dirs_exist_ok=True)

    together(lambda: replace(0), lambda: replace(1), lambda: load_run(out), lambda: rewrite_report(out))
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".run-")]


def test_readers_do_not_wait_for_each_other(tmp_path):
    with files.locked(tmp_path, shared=True), files.locked(tmp_path, shared=True):
        pass
    with files.locked(tmp_path / "none"), files.locked(tmp_path / "none"):
        pass
