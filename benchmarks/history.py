"""Headlines of the committed benchmarks by date: appended to ``results/history.jsonl`` and drawn.

Reads every version of four results files in the history of git, and the files as they are now. A measurement that the
history does not have is appended as one line, which has the file, the date of the measurement, the commit that
contained it first (for a file that is not committed yet, the current commit) and its headlines. The lines are kept
when the history of git is cut.

    python benchmarks/history.py

The headlines, each of which has a column in the picture ``results/history.png``:

* optimizer_step: a sample and an update of a perceptron 784-400-400-10, relative to a step of fused Adam;
* iteration: a whole training iteration, relative to one with fused Adam;
* prediction: 64 samples, relative to 64 forward passes;
* defaults: NLL of IVON minus that of Adam, in nats, on the tasks that all versions have.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

RESULTS = Path(__file__).parent / "results"
HISTORY = RESULTS / "history.jsonl"
TITLES = {
    "optimizer_step": "one step / fused Adam",
    "iteration": "one iteration / fused Adam",
    "prediction": "64 samples / 64 passes",
    "defaults": "NLL of IVON - Adam, nats",
}
TASKS = ("digits", "uci-energy", "uci-kin8nm")


def headlines(name: str, report: dict[str, Any]) -> dict[str, float]:
    """The numbers of a report that are kept, by their label in the picture."""
    if name == "optimizer_step":
        return _ratios(report, {"": "mlp 784-400-400-10"})
    if name == "iteration":
        return _ratios(report, {", perceptron": "mlp", ", transformer": "transformer"})
    if name == "prediction":
        return {label: report["ratio"][label] for label in ("predict", "ivon-opt")}
    return {task: report["tasks"][task]["ivon"]["worse"]["nll"][0] for task in TASKS}


def _ratios(report: dict[str, Any], cases: dict[str, str]) -> dict[str, float]:
    """Ratios of drop-in training as it is by default: compiled, since there are kernels."""
    found = {}
    for suffix, case in cases.items():
        results = report["cases"][case]["results"]
        for method in ("Vadam", "IVON"):
            plain = results[f"{method} drop-in"]
            found[method + suffix] = results.get(f"{method} drop-in compiled", plain)["ratio"]
        found["ivon-opt" + suffix] = results["ivon-opt"]["ratio"]
    return found


def versions(path: Path) -> Iterator[tuple[str, str]]:
    """Commit and text of every version of a file, the oldest first, and at last the file as it is now."""
    for commit in _git("log", "--reverse", "--format=%h", "--", path.name).split():
        yield commit, _git("show", f"{commit}:./{path.name}")
    yield _git("rev-parse", "--short", "HEAD").strip(), path.read_text()


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=RESULTS, capture_output=True, text=True, check=True)
    return done.stdout


def read() -> list[dict[str, Any]]:
    """The measurements of the history, in the order of their dates."""
    rows = [json.loads(line) for line in HISTORY.read_text().splitlines()] if HISTORY.exists() else []
    return sorted(rows, key=lambda row: str(row["date"]))


def append() -> int:
    """Append the measurements that are new; how many there were."""
    known = {(row["benchmark"], row["date"]) for row in read()}
    added = 0
    with HISTORY.open("a") as file:
        for name in TITLES:
            for commit, text in versions(RESULTS / f"{name}.json"):
                report = json.loads(text)
                if (name, report["date"]) in known:
                    continue
                known.add((name, report["date"]))
                row = {"benchmark": name, "date": report["date"], "commit": commit}
                file.write(json.dumps({**row, "values": headlines(name, report)}) + "\n")
                added += 1
    return added


def draw(path: Path) -> None:
    """Draw the history, with one panel for each benchmark."""
    rows = read()
    figure, panels = plt.subplots(1, 4, figsize=(13, 3.4), layout="constrained")
    for panel, (name, title) in zip(panels, TITLES.items(), strict=True):
        lines: dict[str, list[tuple[datetime, float]]] = {}
        for row in rows:
            if row["benchmark"] == name:
                for label, value in row["values"].items():
                    lines.setdefault(label, []).append((datetime.fromisoformat(row["date"]), value))
        for label, points in lines.items():
            peer = label.startswith("ivon-opt")
            panel.plot(*zip(*points, strict=True), "o--" if peer else "o-", markersize=4, label=label)
        if name == "optimizer_step":
            panel.set_yscale("log")
            panel.set_yticks([1, 2, 5, 10, 20], labels=["1", "2", "5", "10", "20"])
        panel.axhline(0 if name == "defaults" else 1, color="grey", linewidth=0.8)
        panel.set_title(title, fontsize=10)
        panel.tick_params(labelsize=8)
        locator = AutoDateLocator(minticks=3, maxticks=8)
        panel.xaxis.set_major_locator(locator)
        panel.xaxis.set_major_formatter(ConciseDateFormatter(locator))
        panel.legend(fontsize=7)
    figure.savefig(path, dpi=110)
    plt.close(figure)


if __name__ == "__main__":
    print(f"{append()} new measurements in {HISTORY.name}")
    draw(HISTORY.with_suffix(".png"))
