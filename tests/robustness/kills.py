"""Kills processes at random moments while they write: what is there is the old or the new, and the next call goes on.

``python tests/robustness/kills.py [kills] [seed]`` prints, for each task, how many were killed before it was done, what
was found at once, and what was wrong. Exit code 1 if anything was. Half of the kills come after a random time, the
others before a random operation on a file.
"""

import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path

import torch

import bayesadam as ba
from bayesadam import files, population, runs
from bayesadam.files import DamagedFile
from bayesadam.runs import RunError, fitting
from bayesadam.sklearn import load_estimator, training
from robustness.damaged_runs import quick, tables

EVENTS = {"open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.chmod", "os.truncate"}


class Silent(runs.Watcher):
    """A watcher that says nothing, or stops the fit after an epoch."""

    def __init__(self, until=None):
        self.until = until

    def epoch(self, status):
        if status.epoch == self.until:
            raise KeyboardInterrupt


class Task:
    """Something that writes into a folder.

    ``prepare`` is done once, before; ``start`` before every kill; ``do`` is killed. ``look`` says what is there at
    once, "old" or "new", and ``again`` is the next call, after which ``left`` must be all that is in the folder.
    """

    left: tuple[str, ...] = ()

    def __init__(self, folder):
        self.folder = folder
        self.own = folder / "own"

    def prepare(self):
        pass

    def start(self):
        shutil.rmtree(self.own, ignore_errors=True)
        self.own.mkdir()

    def look(self):
        return "anything"

    def again(self):
        self.do()

    def found(self):
        """What the end must be the same in."""


def estimator(seed):
    from bayesadam.sklearn import BayesianMLPRegressor

    generator = torch.Generator().manual_seed(0)
    x = torch.randn((40, 3), generator=generator).numpy()
    model = BayesianMLPRegressor("ensemble", members=3, hidden=(40,), epochs=2, random_state=seed)
    return model.fit(x, x[:, 0]), x


class Save(Task):
    """``save`` of an estimator over another one."""

    left = ("model.json", "posterior.safetensors")

    def prepare(self):
        for name, seed in (("old", 0), ("new", 1)):
            estimator(seed)[0].save(self.folder / name)

    def start(self):
        shutil.rmtree(self.own, ignore_errors=True)
        shutil.copytree(self.folder / "old", self.own)
        self.model = load_estimator(self.folder / "new")

    def do(self):
        self.model.save(self.own)

    def look(self):
        found = load_estimator(self.own)
        for name in ("old", "new"):
            same = load_estimator(self.folder / name)
            if found.random_state == same.random_state and all(
                torch.equal(value, same.posterior_.tensors()[key]) for key, value in found.posterior_.tensors().items()
            ):
                return name
        return "neither"

    def found(self):
        return (self.own / "posterior.safetensors").read_bytes(), (self.own / "model.json").read_bytes()


class SavePosterior(Task):
    """``save`` of a posterior of some megabytes over another one."""

    left = ("q.safetensors",)

    def start(self):
        super().start()
        self.q = {name: self.posterior(value) for name, value in (("old", 0.0), ("new", 1.0))}
        self.q["old"].save(self.own / "q.safetensors")

    def posterior(self, value):
        mean = {"w": torch.full((500, 1000), value)}
        return ba.DiagonalGaussian(mean, mean)

    def do(self):
        self.q["new"].save(self.own / "q.safetensors")

    def look(self):
        read = ba.load_posterior(self.own / "q.safetensors").mean["w"]
        return next((name for name, q in self.q.items() if torch.equal(q.mean["w"], read)), "neither")

    def found(self):
        return (self.own / "q.safetensors").read_bytes()


class Fit(Task):
    """``bayesadam fit`` into a new folder."""

    left = ("run",)
    force = False

    def prepare(self):
        tables(self.folder)

    def settings(self, seed=0, **more):
        told = {"hidden": (4,), "members": 2, "epochs": 6, "seed": seed, **more}
        return runs.Settings(str(self.folder / "numbers.csv"), "y", **told)

    def do(self):
        runs.fit(self.settings(), self.own / "run", Silent(), force=self.force)

    def again(self):
        out = self.own / "run"
        if runs.settle(out):
            return
        stopped = runs.resumable(out)
        if stopped is None:
            if not (out.exists() and self.look() == "new"):
                self.do()
            return
        settings = runs.Settings.load(stopped / "config.json")
        runs.fit(settings, out, Silent(), resume=stopped)

    def look(self):
        out = self.own / "run"
        try:
            estimator = runs.Run(out).load()[1]
        except RunError:
            return "neither" if out.exists() else "old"  # there was none
        return "old" if estimator.random_state == 1 else "new"

    def found(self):
        names = ("posterior.safetensors", "model.json", "preprocessing.json")
        config = json.loads((self.own / "run" / "config.json").read_text())
        return [(self.own / "run" / name).read_bytes() for name in names], config, sorted(os.listdir(self.own / "run"))


class Force(Fit):
    """``bayesadam fit --force`` where there is a run."""

    force = True

    def prepare(self):
        super().prepare()
        runs.fit(self.settings(1), self.folder / "old", Silent())

    def start(self):
        super().start()
        shutil.copytree(self.folder / "old", self.own / "run")


class Resume(Fit):
    """``bayesadam fit --resume`` of a run that was stopped by Ctrl-C."""

    def prepare(self):
        super().prepare()
        runs.fit(self.settings(), self.folder / "old", Silent(4))

    def start(self):
        super().start()
        shutil.copytree(self.folder / "old", self.own / "run")

    def do(self):
        out = self.own / "run"
        runs.settle(out)
        stopped = runs.resumable(out)
        runs.fit(runs.Settings.load(stopped / "config.json"), out, Silent(), resume=stopped)

    def look(self):
        out = self.own / "run"
        return "old" if runs.Run(out).load()[1].interrupted_ else "new"


class Population(Task):
    """``population.train`` with checkpoints."""

    left = ("chunk-0000.safetensors",)

    def do(self):
        x = torch.linspace(-1.0, 1.0, 40)[:, None]
        models = population.initialize(lambda: torch.nn.Linear(1, 1), seeds=range(3))
        nets = population.train(
            models,
            (x, 2.0 * x),
            likelihood=ba.Gaussian(10.0),
            method="vadam",
            epochs=12,
            batch_size=10,
            lr=0.01,
            checkpoint=self.own,
        )
        self.rows = {name: value.tolist() for name, value in nets.rows.items()}

    def found(self):
        return self.rows


TASKS = (Save, SavePosterior, Fit, Force, Resume, Population)


def child(action, *, folder, at=None, report=None):
    """Do something in another process, which may kill itself before operation ``at``, or report their number."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, 1)
        if report is None:
            os.dup2(nothing, 2)
        seen, root = [0], str(folder)

        def hook(event, arguments):
            if event in EVENTS and str(arguments[0]).startswith(root):
                seen[0] += 1
                if seen[0] == at:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(hook)
        action()
        if report is not None:
            report.write_text(str(seen[0]))
        code = 0
    finally:
        os._exit(code)


def wait(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def run(kills, seed=0):
    """How often each task was killed and what was found; descriptions of what was wrong.

    It changes the library's settings, and is for a process of its own.
    """
    counts, wrong = Counter(), []
    rng = random.Random(seed)
    training.STATUS_EVERY = -1.0  # else the history tells when it was looked at
    fitting.baselines = lambda *arguments, **options: {}
    with tempfile.TemporaryDirectory() as name, quick(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number, kind in enumerate(TASKS):
            task = kind(Path(name) / kind.__name__)
            task.folder.mkdir()
            task.prepare()
            report = Path(name) / "events"
            task.start()
            begin = time.monotonic()
            if wait(child(task.do, folder=task.own, report=report)) != 0:
                raise RuntimeError(f"{kind.__name__} must work when it is not killed")
            length, events = time.monotonic() - begin, int(report.read_text())
            task.start()
            task.do()
            expected = task.found()
            for trial in range(kills // len(TASKS) + (number < kills % len(TASKS))):
                task.start()
                moment, at = rng.uniform(0.0, length), None
                if trial % 2:
                    moment, at = 60.0, rng.randint(1, events)
                pid = child(task.do, folder=task.own, at=at)
                if at is None:
                    time.sleep(moment)
                    os.kill(pid, signal.SIGKILL)
                killed = wait(pid) != 0
                where = f"{kind.__name__}, trial {trial}, " + (f"operation {at}" if at else f"{moment:.3f} s")
                try:
                    look = task.look()
                    task.again()
                    if look == "neither":
                        wrong.append(f"{where}: neither the old nor the new")
                    if task.found() != expected:
                        wrong.append(f"{where}: another end")
                    left = sorted(name for name in os.listdir(task.own) if not files.is_temporary(name))
                    if tuple(left) != task.left:
                        wrong.append(f"{where}: left {left}")
                except (Exception, DamagedFile) as error:
                    look = "an error"
                    wrong.append(f"{where}: {type(error).__name__}: {error}")
                counts[kind.__name__, "killed" if killed else "done before", look] += 1
    return counts, wrong


def main():
    kills, seed = (int(value) for value in (*sys.argv[1:], *("200", "0")[len(sys.argv) - 1 :]))
    torch.set_num_threads(1)
    counts, wrong = run(kills, seed)
    for key, count in sorted(counts.items()):
        print(f"{count:5}  {', '.join(key)}")
    for line in wrong:
        print(line[:400])
    print(f"{kills} kills: {len(wrong)} wrong")
    return bool(wrong)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    sys.exit(main())
