"""Processes that end while they write: what is there is the old or the new, and the next call goes on.

A process is not really killed. From an operation on a file on, every operation in the folder raises an error, so that
nothing can be put in order, and the files are those that a kill would leave.
"""

import shutil
import sys
from contextlib import suppress

import numpy as np
import pytest
import torch

import bayesadam as ba
from bayesadam.sklearn import BayesianMLPRegressor, RunError, load_estimator
from bayesadam.tables.report import write_report
from bayesadam.tables.report.write import VERSION
from bayesadam.tables.runs.run_folder import load_run, new_run, reserve, rewrite_report

EVENTS = {"open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.chmod", "os.truncate", "shutil.rmtree"}


class Killed(BaseException):
    """The process has ended."""


class Hook:
    """Counts the operations in a folder, and refuses all from one on; hooks can only be added."""

    folder, last, count = None, 0, 0

    def __call__(self, event, arguments):
        if self.folder and event in EVENTS and str(arguments[0]).startswith(self.folder):
            self.count += 1
            if self.count > self.last:
                raise Killed


HOOK = Hook()


@pytest.fixture(scope="module", autouse=True)
def hook():
    sys.addaudithook(HOOK)


def killed_after(operations, folder, action):
    """Whether an action was ended after so many operations, before it was done."""
    HOOK.folder, HOOK.last, HOOK.count = str(folder), operations, 0
    try:
        action()
    except Killed:
        return True
    finally:
        HOOK.folder = None
    return False


def every_kill(folder, start, action):
    """Start anew and end the action after 0, 1, 2, ... operations, until it is done before."""
    operations, killed = 0, True
    while killed:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        start()
        killed = killed_after(operations, folder, action)
        yield killed
        operations += 1
    assert operations > 3


def test_saving_an_estimator_over_another(tmp_path):
    x = np.random.default_rng(0).normal(size=(40, 3))
    models = [
        BayesianMLPRegressor("ensemble", members=2, epochs=2, random_state=seed).fit(x, x[:, 0]) for seed in (0, 1)
    ]
    before, after = (model.predict(x) for model in models)
    folder = tmp_path / "own"
    for killed in every_kill(folder, lambda: models[0].save(folder), lambda: models[1].save(folder)):
        found = load_estimator(folder).predict(x)
        assert np.allclose(found, after) or (killed and np.allclose(found, before))
        models[1].save(folder)
        assert np.allclose(load_estimator(folder).predict(x), after)


def test_saving_a_posterior_and_a_page_over_others(tmp_path, monkeypatch):
    old, new = (ba.DiagonalGaussian({"w": torch.full((9,), value)}, {"w": torch.ones(9)}) for value in (1.0, 2.0))
    folder = tmp_path / "own"
    path, page = folder / "q.safetensors", folder / "report.html"
    for _ in every_kill(folder, lambda: old.save(path), lambda: new.save(path)):
        assert ba.load_posterior(path).mean["w"][0] in (1.0, 2.0)
    monkeypatch.setattr("bayesadam.tables.report.page.render", lambda data: "<html>new</html>")
    data = {"version": VERSION}
    for _ in every_kill(folder, lambda: page.write_text("old"), lambda: write_report(page, data)):
        assert page.read_text() == "old" or page.read_text().rstrip().endswith("</html>")


def use_next(name, out):
    """Use the path as the next command does; that the run of the test has no model is another matter."""
    if name == "fit":
        with suppress(RunError):
            reserve(out, force=False)
    else:
        with pytest.raises(RunError):
            {"predict": load_run, "report": rewrite_report}[name](out)


@pytest.mark.parametrize("name", ["fit", "predict", "report"])
@pytest.mark.parametrize("old", [None, {"config.json": "old", "metrics.json": "old"}])
def test_writing_a_run(tmp_path, name, old):
    """Whoever uses the path next finds the old run or the new one, and removes what is left beside it."""
    folder = tmp_path / "own"
    out = folder / "run"
    new = {"config.json": "new", "metrics.json": "new"}

    def start():
        if old is not None:
            out.mkdir()
        for file in old or ():
            (out / file).write_text("old")

    def action():
        reserve(out, force=True)
        with new_run(out, force=True) as temporary:
            for file in new:
                (temporary / file).write_text("new")

    found = []
    for _ in every_kill(folder, start, action):
        use_next(name, out)
        found.append({file.name: file.read_text() for file in out.iterdir()} if out.exists() else None)
        assert list(folder.iterdir()) == ([out] if out.exists() else [])
    assert all(run in (old, new) for run in found)
    assert found[0] == old
    assert found[-1] == new
