"""The root of the command line."""

from __future__ import annotations

import typer

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Bayesian deep learning as easy as Adam.",
)


@app.callback()
def _root() -> None:
    pass
