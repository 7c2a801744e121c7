"""``bayesadam report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bayesadam.commands.app import app
from bayesadam.commands.mistakes import one_line, require, writing_to


@app.command()
def report(run: Annotated[Path, typer.Argument(help="Folder that bayesadam fit has written.")]) -> None:
    """Write the report.html of a run again from the data that the run folder holds."""
    require("pyarrow", "pyarrow", "sklearn")
    require("sklearn", "scikit-learn", "sklearn")
    require("bokeh", "bokeh", "report")
    with one_line(), writing_to("RUN", run):
        from bayesadam.runs import rewrite_report

        typer.echo(f"the report is {rewrite_report(run)}")
