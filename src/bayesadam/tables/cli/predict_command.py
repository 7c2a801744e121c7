"""``bayesadam predict`` and ``bayesadam report``: what is made from a run."""

from __future__ import annotations

import os
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from bayesadam.tables.cli import options as of
from bayesadam.tables.cli.mistakes import OUTPUT, fail, one_line, say, writing_to


def predict(
    run: of.Run,
    data: of.NewData,
    *,
    out: of.Predictions = Path("-"),
    coverage: of.Coverage = 0.95,
    interval: of.Interval = None,
    quantiles: of.Quantiles = None,
    copy: of.Copy = None,
    missing: of.Missing = None,
    delimiter: of.Delimiter = None,
    decimal: of.Decimal = None,
) -> None:
    """Predict every row of a table, with the uncertainty of each prediction."""
    with one_line():
        from bayesadam.tables.encoder.read_table import is_parquet, read_table
        from bayesadam.tables.runs.predict_table import STDOUT, formula_notes, predict_table, write_predictions
        from bayesadam.tables.runs.run_folder import load_run
        from bayesadam.tables.runs.settings import with_options

        estimator = load_run(run)
        if out != STDOUT:
            _check_out(out, run, data)
        if estimator.inputs_ is None:
            fail(f"the run must be that of a table, got {str(run)!r}")
        estimator.inputs_ = estimator.inputs_.reading(decimal, missing or [])
        err = Console(stderr=True)
        columns = SpinnerColumn(), TextColumn("{task.completed:,} rows"), TimeElapsedColumn()
        with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as bar:
            task = bar.add_task("rows", total=None)
            table, notes = predict_table(
                estimator,
                read_table(data, delimiter=delimiter, decimal=decimal, typed=False),
                coverage=coverage,
                interval=interval,
                quantiles=quantiles or [],
                copy=copy or [],
                advance=lambda done: bar.update(task, completed=done),
            )
        with writing_to(OUTPUT if out == STDOUT else "--out", out, "a file"):
            write_predictions(table, out)
        for note in [*notes, *([] if is_parquet(out) else formula_notes(table))]:
            say(f"note: {with_options(note)}", err if out == STDOUT else None)
        if out != STDOUT:
            say(f"predictions of {len(table):,} rows are in {out}")


def report(run: of.Run) -> None:
    """Write the report.html of a run again from the data that the run folder holds."""
    with one_line(), writing_to("RUN", run):
        from bayesadam.tables.runs.run_folder import rewrite_report

        say(f"the report is {rewrite_report(run)}")


def _check_out(out: Path, run: Path, data: str) -> None:
    # Functions of os.path answer for names that are too long, too.
    if os.path.isdir(out):
        fail(f"--out must be a file, got the folder {str(out)!r}")
    if os.path.exists(out) and os.path.exists(data) and os.path.samefile(out, data):
        fail(f"--out must be another file than the table, got {str(out)!r}")
    if Path(os.path.realpath(out.parent)).is_relative_to(os.path.realpath(run)):
        fail(f"--out must be outside of the run, got {str(out)!r}")
