"""Damages run folders at random and uses them: one line of refusal, or what the whole run would have given.

``python tests/robustness/damaged_runs.py [trials] [seed]`` prints how many of each damaged file were refused and how
many used, and every other error. Exit code 1 if there is one.
"""

import io
import json
import random
import shutil
import sys
import tempfile
import warnings
from collections import Counter
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import csv

from bayesadam import commands, files, runs
from bayesadam.population import checkpoint
from bayesadam.runs import RunError, fitting
from bayesadam.tabular import TableError, open_table
from robustness.damaged_posteriors import WAYS, change

BYTES = tuple(way for way in WAYS if way not in ("header", "told"))
READ = ("posterior.safetensors", "model.json", "preprocessing.json")
FAST = ("--members", "2", "--epochs", "3", "--hidden", "4", "--target", "y")


def tables(folder):
    """One of each task."""
    rng = np.random.default_rng(0)
    size, city = rng.normal(50, 20, 80), rng.choice(["Rome", "Oslo", "Köln"], 80)
    columns = {"size": size, "city": city, "new": rng.random(80) < 0.5}
    csv.write_csv(pa.table({**columns, "y": 3 * size + rng.normal(0, 5, 80)}), folder / "numbers.csv")
    csv.write_csv(pa.table({**columns, "y": np.where(size > 50, "yes", "no")}), folder / "labels.csv")


def command(*arguments):
    """Exit code, and what was said."""
    said = io.StringIO()
    try:
        with redirect_stdout(said), redirect_stderr(said):
            commands.app([str(argument) for argument in arguments])
    except SystemExit as stopped:
        return stopped.code, said.getvalue()
    raise AssertionError("a command must end")


@contextmanager
def quick():
    """Without pages, which take a second, and with a checkpoint after every epoch."""
    page, seconds = fitting.write_report, checkpoint.SECONDS
    fitting.write_report = lambda path, data: files.write_text(path, "page")
    checkpoint.SECONDS = 0.0
    try:
        yield
    finally:
        fitting.write_report, checkpoint.SECONDS = page, seconds


def stopped_after(epochs):
    """A watcher that ends a fit as Ctrl-C does."""

    class Watcher(runs.Watcher):
        def epoch(self, status):
            if status.epoch == epochs:
                raise KeyboardInterrupt

    return Watcher()


def make(folder):
    """Runs by name, with the table to predict, and what each predicts."""
    tables(folder)
    made = {}
    with quick():
        for name in ("numbers", "labels"):
            code, said = command("fit", folder / f"{name}.csv", "--out", folder / name, *FAST)
            assert code == 0, said
            made[name] = folder / name, folder / f"{name}.csv"
        settings = runs.Settings(str(folder / "numbers.csv"), "y", hidden=(4,), members=2, epochs=6)
        runs.fit(settings, folder / "stopped", stopped_after(4))
        made["stopped"] = folder / "stopped", folder / "numbers.csv"
    return made


def predictions(run, table, out):
    runs.predict(runs.Run(run), open_table(table), out)
    return out.read_bytes()


def damage(path, others, rng):
    """One file of a run, in one way; the way."""
    way = rng.choice((*BYTES, "value", "value", "value", "swapped", "gone"))
    content = path.read_bytes()
    if way in BYTES:
        path.write_bytes(WAYS[way](content, rng))
    elif way == "swapped":
        other = rng.choice(others) / path.name
        if other.exists():
            shutil.copy(other, path)
    elif way == "gone":
        path.unlink()
    elif path.suffix == ".json":
        record = json.loads(content)
        if rng.random() < 0.5 and "std" in record:
            record["std"][0] = rng.choice((0, -1.0, float("nan"), None, "1"))
        else:
            change(record, rng)
        text = json.dumps(record)
        if rng.random() < 0.02:
            text = text[:-1] + ', "deep": ' + "[" * 60_000 + "]" * 60_000 + "}"
        path.write_text(text)
    else:
        path.write_bytes(WAYS[rng.choice(("header", "told"))](content, rng))
    return way


def used(what, run, table, folder, expected):
    """What came of it, and whether that is as it should be."""
    if what == "predict":
        try:
            found = predictions(run, table, folder / "out.csv")
        except RunError:
            return "refused", True
        except TableError:
            return "table refused", False
        same = found == expected
        values = csv.read_csv(folder / "out.csv").to_pandas().select_dtypes("number").to_numpy()
        return ("used, the same" if same else "used, another"), bool(np.isfinite(values).all())
    if what == "report":
        code, said = command("report", run)
    else:
        with quick():
            code, said = command(*what, *(() if "--resume" in what else ("--out", folder / "again")))
    if code == 2:
        return "refused", sum(
            line.startswith("bayesadam: ") for line in said.splitlines()
        ) == 1 and "Traceback" not in said
    return "used", code == 0


def run(trials, seed=0):
    """How often which damaged file had which outcome, and descriptions of what should not be."""
    counts, wrong = Counter(), []
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as name, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folder = Path(name)
        made = make(folder)
        expected = {name: predictions(*pair, folder / "out.csv") for name, pair in made.items()}
        for trial in range(trials):
            kind = rng.choice(list(made))
            source, table = made[kind]
            path = folder / "run"
            for old in (path, folder / "again", folder / ".run.partial", folder / ".again.partial"):
                shutil.rmtree(old, ignore_errors=True)
            shutil.copytree(source, path)
            choices = [*READ, *READ, "config.json", "report.json"]
            if kind == "stopped":
                choices += ["config.json", "checkpoint", "checkpoint"]
            file = rng.choice(choices)
            damaged = next((path / "checkpoint").iterdir()) if file == "checkpoint" else path / file
            others = [other for name, (other, _) in made.items() if name != kind]
            way = damage(damaged, others, rng)
            what = {
                "config.json": ("fit", "--config", path / "config.json"),
                "report.json": "report",
                "checkpoint": ("fit", "--out", path, "--resume"),
            }.get(file, "predict")
            if kind == "stopped" and file == "config.json":
                what = ("fit", "--out", path, "--resume")
            try:
                outcome, fine = used(what, path, table, folder, expected[kind])
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt):
                    raise
                outcome, fine = "another error", False
                wrong.append(f"trial {trial}, {kind}, {file}, {way}: {type(error).__name__}: {error}")
            if outcome == "used, another":
                fine = False
            if not fine and outcome != "another error":
                wrong.append(f"trial {trial}, {kind}, {file}, {way}: {outcome}")
            counts[file, way, outcome] += 1
    return counts, wrong


def main():
    trials, seed = (int(value) for value in (*sys.argv[1:], *("1500", "0")[len(sys.argv) - 1 :]))
    counts, wrong = run(trials, seed)
    for key, count in sorted(counts.items()):
        print(f"{count:6,}  {', '.join(key)}")
    for line in wrong[:50]:
        print(line[:300])
    print(f"{trials:,} damaged runs: {len(wrong)} wrong")
    return bool(wrong)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    sys.exit(main())
