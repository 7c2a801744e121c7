"""The page of an experiment: ``README.md``, ``table.md`` and the figures, from the committed results only."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping

from experiments.display import duration
from experiments.experiment import Experiment, Report, in_order
from experiments.files import replacing, write_text
from experiments.results import Result, Store, counted, finished


def write(experiment: Experiment) -> Report:
    """Write the page of an experiment.

    Returns:
        The report of the experiment, with closed figures.

    Raises:
        ValueError: No unit is finished.
    """
    os.environ.setdefault("MPLBACKEND", "Agg")  # figures are only written to files
    units, store = in_order(experiment.units()), Store.of(experiment)
    results = finished(units, store)
    if not results:
        raise ValueError(f"{experiment.name!r} must have finished units, got none: run it first")
    report = experiment.report(results)
    folder = experiment.folder
    for name, figure in report.figures.items():
        with replacing(folder / f"{name}.png") as path:
            figure.savefig(path, dpi=150)
    if "matplotlib.pyplot" in sys.modules:  # otherwise no figures are kept open
        for figure in report.figures.values():
            sys.modules["matplotlib.pyplot"].close(figure)
    tables = "\n\n".join(table.markdown() for table in report.tables)
    if tables:
        write_text(folder / "table.md", tables + "\n")
    write_text(folder / "README.md", _page(experiment, report, tables, results, counted(units, results)))
    return report


def _page(
    experiment: Experiment, report: Report, tables: str, results: Mapping[str, Result], count: tuple[int, int]
) -> str:
    done, units = count
    missing = f"**Not finished**: results of {done} of {units} units." if done < units else ""
    parts = [
        f"<!-- Written by `python -m experiments report {experiment.name}`; edit the experiment, not this page. -->",
        f"# {experiment.title}",
        experiment.source,
        f"    python -m experiments run {experiment.name}",
        missing,
        tables,
        *(f"![{name.replace('_', ' ')}]({name}.png)" for name in report.figures),
        report.notes.strip(),
        "## Cost",
        _cost(results),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _cost(results: Mapping[str, Result]) -> str:
    found = list(results.values())
    seconds, cpu_seconds = sum(r.seconds for r in found), sum(r.cpu_seconds for r in found)
    machines = _distinct("{processor} ({cpus} cores, {platform})".format(**r.machine) for r in found)
    software = _distinct(", ".join(f"{name} {number}" for name, number in r.versions.items()) for r in found)
    days = sorted({r.finished[:10] for r in found})
    return (
        f"{len(found)} units, {duration(seconds)} one after the other, {duration(cpu_seconds)} of processor time, "
        f"{' to '.join(days[:1] + days[1:][-1:])}.\n"
        f"Machine: {'; '.join(machines)}.\n"
        f"Software: {'; '.join(software)}."
    )


def _distinct(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(texts))
