"""Processes that end while they write: what is there is the old or the new, and the next call goes on.

A process is not really killed. From an operation on a file on, every operation in the folder raises an error, so that
nothing can be put in order, and the files are those that a kill would leave.
"""

import shutil
import sys

import numpy as np
import pytest
import torch

import bayesadam as ba
from bayesadam.report import write_report
from bayesadam.report.write import VERSION
from bayesadam.sklearn import BayesianMLPRegressor, load_estimator
from bayesadam.sklearn.runs.run_folder import new_run

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
    monkeypatch.setattr("bayesadam.report.page.render", lambda data: "<html>new</html>")
    data = {"version": VERSION}
    for _ in every_kill(folder, lambda: page.write_text("old"), lambda: write_report(page, data)):
        assert page.read_text() == "old" or page.read_text().rstrip().endswith("</html>")


def test_replacing_a_run(tmp_path):
    folder = tmp_path / "own"
    out = folder / "run"

    def start():
        out.mkdir()
        (out / "config.json").write_text("old")

    def action():
        with new_run(out, force=True) as temporary:
            (temporary / "config.json").write_text("new")
            (temporary / "model.json").write_text("new")

    whole = ({"config.json": "old"}, {"config.json": "new", "model.json": "new"})
    for _ in every_kill(folder, start, action):
        places = {path: {file.name: file.read_text() for file in path.iterdir()} for path in folder.iterdir()}
        # Between two renames the old run has another name, and none has its own.
        assert places.get(out, whole[0]) in whole
        assert out in places or whole[0] in places.values()
