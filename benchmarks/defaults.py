"""Does untouched BayesAdam predict at least as well as Adam? The search for its rule, and the test at the end.

    python benchmarks/defaults.py try adam                      # once: the reference, at the best of three rates
    python benchmarks/defaults.py try NAME [--task counts lstm] # a candidate of default_runs/candidates.py
    python benchmarks/defaults.py final NAME --final            # once, at the end: writes runs/benchmarks/defaults.json

``try`` trains on the development tasks with seeds 0 and 1, and prints the NLL of **validation** rows: of the mean
network, of 32 samples, of Adam at the best of three learning rates (AdamW for transformers) and of three Adam networks
mixed. Test rows are not read. Every unit, one task and seed, is appended to the journal when it is finished, in
``default_runs/trials/``, and not done again, so that a run that was interrupted continues; ``--again`` does it again.

``final`` reads test rows, with seeds 10 to 12, of the development tasks and of six further tasks that nothing was
chosen on; ``--together`` also trains five networks together, with the first of these seeds. It refuses to start
without ``--final``, and for a second candidate: whoever has seen the test losses of one and then tries another chooses
by them. All methods share the loop, the batches, the seeds and a cosine schedule. Workers have one thread each, so the
seconds, processor time, are those of one core.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from default_runs import journal
from default_runs.candidates import CANDIDATES
from default_runs.comparison import compare, table, verdict
from default_runs.trials import FINAL_SEEDS, SEEDS, run
from default_tasks import FURTHER, TASKS, Task
from record import arguments, conditions, save


def measure(folder: Path, method: str, tasks: list[Task], seeds: Sequence[int], options: Any) -> journal.Records:
    """All records of a method, those that were there and those that are made now."""
    records = journal.read(folder, method, tasks)
    asked = {(task.name, seed): task for task in tasks for seed in seeds}
    todo = {
        key: task for key, task in asked.items() if key not in records or (options.again and options.command == "try")
    }
    print(f"{method}: {len(asked)} units, {len(asked) - len(todo)} of them finished before", flush=True)
    start = time.perf_counter()
    for number, (key, record) in enumerate(results(list(todo), method, options), 1):
        records[key] = journal.write(folder, method, todo[key], key[1], record)
        told = ", ".join(f"{way} {record[way]:.4f}" for way in ("mean", "samples", "three", "failed") if way in record)
        minutes = (time.perf_counter() - start) / 60
        print(f"[{number}/{len(todo)}, {minutes:.1f} min] {key[0]} seed {key[1]}: {told}", flush=True)
    return records


def results(keys: list[journal.Key], method: str, options: Any) -> Iterator[tuple[journal.Key, dict[str, Any]]]:
    """Records of units as they finish: in this process with one job, else in others."""
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"  # of the workers
    final = options.command == "final"
    if options.jobs == 1:
        yield from ((key, unit(*key, method, final)) for key in keys)
        return
    with ProcessPoolExecutor(options.jobs, get_context("spawn")) as pool:
        futures = {pool.submit(unit, *key, method, final): key for key in keys}
        for future in as_completed(futures):
            yield futures[future], future.result()


def unit(name: str, seed: int, method: str, final: bool) -> dict[str, Any]:
    """One unit; processes of their own know tasks by name."""
    return run((TASKS | FURTHER)[name] if final else TASKS[name], seed, method, final=final)


def try_candidate(options: argparse.Namespace) -> None:
    """Train what is missing, and print the table of validation losses."""
    tasks = [TASKS[name] for name in options.task]
    records = measure(journal.TRIALS, options.candidate, tasks, SEEDS, options)
    if options.candidate != "adam":
        adam = journal.read(journal.TRIALS, "adam", tasks)
        print("\n".join(table(options.task, adam, records, SEEDS)))


def final(options: argparse.Namespace) -> None:
    """Read the test rows, once, and write the report."""
    if not options.final:
        raise SystemExit("final reads test rows and runs the six further tasks, once for one candidate: add --final")
    folder = options.output / "final"
    others = {path.stem for path in folder.glob("*.jsonl")} - {"adam", "together", options.candidate}
    if others:
        raise SystemExit(f"test rows were read for {min(others)}: another candidate would be chosen by them")
    tasks = TASKS | FURTHER
    listed = list(tasks.values())
    adam, own = (measure(folder, name, listed, FINAL_SEEDS, options) for name in ("adam", options.candidate))
    together = measure(folder, "together", listed if options.together else [], FINAL_SEEDS[:1], options)
    compared = {name: compare(name, adam, own, together, FINAL_SEEDS) for name in tasks}
    verdicts = {
        kind: verdict({name: compared[name] for name in names})
        for kind, names in (("development", TASKS), ("further", FURTHER))
    }
    said = {"candidate": options.candidate, "chosen_by": "validation rows, seeds 0 and 1", "seeds": FINAL_SEEDS}
    report = {**conditions("torch", "bayesadam"), **said, "verdicts": verdicts, "tasks": compared}
    save(options.output / "defaults.json", report)
    print(json.dumps(verdicts, indent=1))


def main() -> None:
    parser = arguments(__doc__)
    names = sorted({"adam", *CANDIDATES})
    parser.add_argument("command", choices=("try", "final"), help="see above")
    parser.add_argument("candidate", choices=names, metavar="NAME", help=f"of {', '.join(names)}")
    parser.add_argument("--jobs", type=int, default=1, metavar="K", help="processes; default: %(default)s")
    parser.add_argument("--task", nargs="+", choices=list(TASKS), default=list(TASKS), metavar="NAME", help="to try")
    parser.add_argument("--again", action="store_true", help="try finished units again")
    parser.add_argument("--together", action="store_true", help="also train five networks together, with one seed")
    parser.add_argument("--final", action="store_true", help="everything is chosen: read the test rows")
    options = parser.parse_args()
    {"try": try_candidate, "final": final}[options.command](options)


if __name__ == "__main__":
    main()
