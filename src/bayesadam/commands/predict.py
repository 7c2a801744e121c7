"""``bayesadam predict``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from bayesadam.commands.app import app
from bayesadam.commands.delimited import DECIMAL, DELIMITER, MISSING, delimiter_of
from bayesadam.commands.mistakes import STOPPED, fail, one_line, require, writing_to
from bayesadam.commands.options import with_options

_COPY = "Column of the table to copy, to know the rows by; may be repeated."
_INTERVAL = "bayes (default) or cross, which has a guarantee: intervals around predicted numbers."
_SPREADSHEET = "Put an apostrophe before text that a spreadsheet would take for a formula."


@app.command()
def predict(
    run: Annotated[Path, typer.Argument(help="Folder that bayesadam fit has written.")],
    data: Annotated[Path, typer.Argument(help="A table with the same columns; the target may be missing.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Where the predictions go: .csv or .parquet.")],
    coverage: Annotated[float, typer.Option(help="Of the interval around a predicted number.")] = 0.95,
    interval: Annotated[str | None, typer.Option(help=_INTERVAL)] = None,
    copy: Annotated[list[str] | None, typer.Option(help=_COPY)] = None,
    spreadsheet: Annotated[bool, typer.Option("--spreadsheet", help=_SPREADSHEET)] = False,
    delimiter: Annotated[str | None, typer.Option(help=DELIMITER)] = None,
    decimal: Annotated[str | None, typer.Option(help=DECIMAL)] = None,
    missing: Annotated[list[str] | None, typer.Option(help=MISSING)] = None,
) -> None:
    """Predict every row of a table, with the uncertainty of each prediction."""
    require("pyarrow", "pyarrow", "sklearn")
    require("sklearn", "scikit-learn", "sklearn")
    with one_line():
        from bayesadam import runs
        from bayesadam.tabular import open_table

        err = Console(stderr=True)
        columns = SpinnerColumn(), TextColumn("{task.completed:,} rows"), TimeElapsedColumn()
        bar = Progress(*columns, console=err, transient=True, disable=not err.is_terminal)
        task = bar.add_task("rows", total=None)
        try:
            loaded = runs.Run(run)
            known = loaded.preprocessing
            texts = [*known.missing, *(missing or [])]
            table = open_table(data, delimiter_of(delimiter), decimal, missing=texts, usual=known.delimiter)
            with writing_to("--out", out, "a file"), bar:
                rows, notes = runs.predict(
                    loaded,
                    table,
                    out,
                    coverage=coverage,
                    interval=interval,
                    copy=copy or [],
                    spreadsheet=spreadsheet,
                    advance=lambda done: bar.update(task, completed=done),
                )
        except KeyboardInterrupt:
            fail("stopped; nothing was written", STOPPED)
    for line in (*(f"note: {with_options(note)}" for note in notes), f"predictions of {rows:,} rows are in {out}"):
        Console().print(line, markup=False, highlight=False, soft_wrap=True)
