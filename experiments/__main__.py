"""``python -m experiments``, from the repository root."""

from __future__ import annotations

import argparse
import signal
import sys
from collections import Counter
from importlib import import_module
from typing import Any

import experiments


def main(arguments: list[str] | None = None) -> int:
    """Run a command, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m experiments", description=experiments.__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="list the experiments, how many of their units are finished, and which are left")
    run = commands.add_parser("run", help="run the units that are not finished, then write the report")
    run.add_argument("--jobs", type=int, default=-1, help="units at a time; -1 (default): one for each core")
    only = "units whose key contains this, or begins with this if they are optional; repeatable"
    run.add_argument("--only", action="append", default=[], metavar="TEXT", help=only)
    run.add_argument("--fresh", action="store_true", help="redo units that are finished or begun")
    report = commands.add_parser("report", help="write tables and figures from the committed results")
    for command in (run, report):
        command.add_argument("name", metavar="NAME", choices=experiments.NAMES, help="an experiment that `list` shows")
    given = parser.parse_args(arguments)
    if given.command == "list":
        print(*map(_line, experiments.NAMES), sep="\n")
        return 0
    try:
        return _run(given) if given.command == "run" else _report(given.name)
    except (ModuleNotFoundError, ValueError) as error:
        print(f"experiments: {error}", file=sys.stderr)
        return 2


def _module(name: str) -> str:
    return f"experiments.{name.replace('-', '_')}"


def _line(name: str) -> str:
    from experiments.framework import finished

    try:
        experiment: Any = import_module(_module(name))
    except ModuleNotFoundError as error:
        return f"{name:21} needs {error.name}, which is not installed"
    units, lines = experiment.units(), finished(experiment)
    counts = []
    for optional in (False, True):
        keys = {unit.key for unit in units if unit.optional is optional}
        counts.append(f"{len(keys & lines.keys()):3} of {len(keys):3}")
    hours = sum(line["cpu_seconds"] for line in lines.values()) / 3600.0
    left = Counter(unit.key.partition("-")[0] for unit in units if unit.key not in lines)
    shown = f"{counts[0]} units and {counts[1]} optional ones finished, {hours:5.2f} h of processor time"
    keys_left = ", ".join(f"{count} of {start}-" for start, count in left.items()) or "nothing"
    return f"{name:21} {shown}; left: {keys_left}. {experiment.TITLE} ({experiment.SOURCE})"


def _run(given: argparse.Namespace) -> int:
    from experiments.framework import finished, run

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        failed = run(_module(given.name), jobs=given.jobs, only=given.only, fresh=given.fresh)
    except KeyboardInterrupt:
        print(f"stopped; `python -m experiments run {given.name}` resumes", file=sys.stderr)
        return 130
    experiment: Any = import_module(_module(given.name))
    complete = finished(experiment).keys() >= {unit.key for unit in experiment.units() if not unit.optional}
    return 1 if failed else _report(given.name) if complete else 0


def _report(name: str) -> int:
    from experiments.framework import folder_of, write
    from experiments.tables import MISSING

    experiment: Any = import_module(_module(name))
    for title, table in write(experiment).tables.items():
        if len(table):
            print(f"{title}\n{table.fillna(MISSING).to_string(index=False)}\n")
    print(folder_of(experiment) / "README.md", file=sys.stderr)
    return 0


if __name__ == "__main__":  # worker processes may import this module
    sys.exit(main())
