"""Does untouched BayesAdam learn its width, and beat Adam?

    python benchmarks/defaults.py                  # everything: prints verdicts, writes runs/benchmarks/defaults.json
    python benchmarks/defaults.py --task digits lstm --optimizer bayesadam --seeds 2

Adam (AdamW for transformers) has the best of three learning rates by validation NLL, and beside it temperature scaling
and an ensemble of three. ``ba.BayesAdam`` is told ``num_data``, ``batch_size`` and ``total_steps`` and nothing else. It
predicts by the mean network or by samples, whichever is better on validation, and once more at the best of three
temperatures. A peer is IVON by its authors' package ``ivon-opt``, at the best of three rates. All share the loop, the
batches, the seeds and a cosine schedule. A unit, one task and seed and method, is written when it is finished, to
``defaults/`` beside the summary, and not done again; ``--again`` does, which is needed after a change of the
optimisers. Workers have one thread each, so the seconds, processor time, are those of one core.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import Any

import torch

from default_runs import comparison, journal
from default_runs.journal import Key
from default_runs.units import METHODS, run
from default_tasks import TASKS, Task
from record import arguments, conditions, save


def measure(tasks: list[Task], methods: list[str], options: argparse.Namespace) -> comparison.Records:
    """All records, those that were there and those that are made now."""
    folder = options.output / "defaults"
    records = {key: record for task in tasks for key, record in journal.read(folder, task).items()}
    asked = {
        (task.name, seed, method): task
        for task in tasks
        for seed in range(options.seeds or task.seeds)
        for method in methods
    }
    todo = {key: task for key, task in asked.items() if key not in records or (options.again and key[2] != "adam")}
    print(f"{len(asked)} units, {len(asked) - len(todo)} of them finished before", flush=True)
    start = time.perf_counter()
    for number, (key, record) in enumerate(results(todo, options.workers), 1):
        records[key] = journal.write(folder, todo[key], key[1], key[2], record)
        nll = record.get("scores", {}).get("nll")
        said = f"NLL {nll:.4f}" if nll is not None else next(iter(record.values()))
        minutes = (time.perf_counter() - start) / 60
        print(f"[{number}/{len(todo)}, {minutes:.1f} min] {key[0]} seed {key[1]} {key[2]}: {said}", flush=True)
    return {key: record for key, record in records.items() if key in asked}


def results(todo: dict[Key, Task], workers: int) -> Iterator[tuple[Key, dict[str, Any]]]:
    """Records of units as they finish: in this process with one worker, else in others."""
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"  # of the workers
    if workers == 1:
        yield from ((key, unit(*key)) for key in todo)
        return
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        futures = {pool.submit(unit, *key): key for key in todo}
        for future in as_completed(futures):
            yield futures[future], future.result()


def unit(name: str, seed: int, method: str) -> dict[str, Any]:
    """One unit; processes of their own know tasks by name."""
    return run(TASKS[name], seed, method)


def summary(tasks: list[Task], methods: list[str], records: comparison.Records) -> dict[str, Any]:
    """Means, differences and verdicts."""
    report: dict[str, Any] = {"tasks": {}, "verdicts": {}}
    for task in tasks:
        adam = [record for (name, _, by), record in records.items() if (name, by) == (task.name, "adam")]
        found = {method: comparison.compare(task, method, records) for method in methods if method != "adam"}
        report["tasks"][task.name] = {
            "outside": task.outside,
            "trained": {"examples": task.size, "epochs": task.epochs, "batch_size": task.batch_size},
            "adam": {
                part: comparison.mean_of([record[part] for record in adam if part in record])
                for part in ("scores", "scaled", "ensemble", "seconds")
                if any(part in record for record in adam)
            },
            **{method: result for method, result in found.items() if result is not None},
        }
    for method in methods:
        found = {name: entry[method] for name, entry in report["tasks"].items() if method in entry}
        if found and method != "adam":
            report["verdicts"][method] = comparison.verdict(found)
    return report


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--task", nargs="+", choices=list(TASKS), default=list(TASKS), metavar="NAME")
    parser.add_argument("--optimizer", nargs="+", choices=METHODS, metavar="NAME", help=f"of {', '.join(METHODS)}")
    parser.add_argument("--seeds", type=int, metavar="K", help="default: 5, or 3 for long trainings")
    parser.add_argument("--again", action="store_true", help="do finished units of ours again")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), metavar="K", help="processes; default: cores")
    options = parser.parse_args()
    tasks = [TASKS[name] for name in options.task]
    methods = list(dict.fromkeys(["adam", *(options.optimizer or METHODS)]))
    report = summary(tasks, methods, measure(tasks, methods, options))
    for method, verdict in report["verdicts"].items():
        print(f"{method}: {json.dumps(verdict)}")
    save(options.output / "defaults.json", {**conditions("torch", "bayesadam", "ivon-opt"), **report})


if __name__ == "__main__":
    main()
