"""The commands of ``python -m experiments``."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.table import Table

from experiments import registry
from experiments.experiment import Experiment, in_order
from experiments.results import Store, counted, finished

app = typer.Typer(
    add_completion=False, no_args_is_help=True, help="Published tables and figures: our number beside the paper's."
)
Name = Annotated[str, typer.Argument(help="An experiment that `list` shows.", show_default=False)]


@app.command("list")
def show() -> None:
    """List the experiments and the numbers of their finished units."""
    table = Table("name", "title", "source", "finished")
    for name in registry.EXPERIMENTS:
        try:
            experiment = registry.load(name)
            done, units = _count(experiment)
            table.add_row(name, experiment.title, experiment.source, f"{done} of {units}")
        except ValueError as error:
            table.add_row(name, "", "", str(error))
    Console().print(table)


@app.command()
def run(
    name: Name,
    jobs: Annotated[int, typer.Option(help="Units at a time; -1: one for each core.", show_default=False)] = -1,
    only: Annotated[
        list[str] | None,
        typer.Option(
            help="Units whose key contains this (and what they need; optional ones: begins with this); repeatable."
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="The short version: units named quick-.")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Redo units that are finished or begun.")] = False,
) -> None:
    """Run the units that are not finished, then write the report. A stopped run is resumed."""
    if quick and only:
        _fail(f"--quick must not be given together with --only, got {only!r}")
    only = ["quick-"] if quick else only
    if jobs == 0:
        _fail(f"--jobs must be positive, or -1 for one for each core, got {jobs!r}")
    from experiments import runner

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with _mistakes_told():
        experiment = registry.load(name)
        try:
            summary = runner.run(experiment, jobs=jobs, only=only or (), fresh=fresh)
        except KeyboardInterrupt:
            done, units = _count(experiment)
            typer.echo(
                f"{name}: stopped with {done} of {units} units finished; "
                f"`python -m experiments run {name}` continues where they were",
                err=True,
            )
            raise typer.Exit(130) from None
    for key, places in summary.not_finite.items():
        typer.echo(f"{key}: not finite, stored as null: {', '.join(places)}", err=True)
    for key, error in summary.failed.items():
        trace = Store.of(experiment).folder(key) / "error.txt"
        typer.echo(f"{key} failed: {error}" + (f" ({os.path.relpath(trace)})" if trace.is_file() else ""), err=True)
    typer.echo(f"{name}: {summary.finished} of {summary.units} units are finished", err=True)
    if summary.failed:
        raise typer.Exit(1)
    if summary.finished == summary.units:
        _report(experiment)


@app.command()
def report(name: Name) -> None:
    """Write tables and figures from the committed results, and show the tables."""
    with _mistakes_told():
        _report(registry.load(name))


def _report(experiment: Experiment) -> None:
    from experiments import report as pages

    console = Console()
    for table in pages.write(experiment).tables:
        console.print(table.rich())
    typer.echo(f"{os.path.relpath(experiment.folder)}/README.md", err=True)


def _count(experiment: Experiment) -> tuple[int, int]:
    units = in_order(experiment.units())
    return counted(units, finished(units, Store.of(experiment)))


@contextmanager
def _mistakes_told() -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        _fail(str(error))


def _fail(message: str) -> NoReturn:
    typer.echo(f"experiments: {message}", err=True)
    raise typer.Exit(2)
