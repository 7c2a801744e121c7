"""The application with all commands."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated

import typer

from bayesadam.tables.cli import demo_command, fit_command, predict_command

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, help="Bayesian deep learning as easy as Adam.")
app.command("fit", no_args_is_help=True)(fit_command.fit)
app.command("predict", no_args_is_help=True)(predict_command.predict)
app.command("report", no_args_is_help=True)(predict_command.report)
app.command("demo")(demo_command.demo)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"bayesadam {version('bayesadam')}")
        raise typer.Exit


@app.callback()
def _root(
    show: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass
