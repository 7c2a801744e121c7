"""``bayesadam fit``."""

from __future__ import annotations

import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from bayesadam.commands.app import app
from bayesadam.commands.delimited import DECIMAL, DELIMITER, MISSING, delimiter_of
from bayesadam.commands.mistakes import STOPPED, fail, one_line, require, writing_to
from bayesadam.commands.options import fit_command, parse_hidden, with_options
from bayesadam.commands.tables import score_table

if TYPE_CHECKING:
    from bayesadam.runs import RunError, Settings
    from bayesadam.tabular import TableError

_DATA = "The table: CSV with the columns' names in its first line, or Parquet; required."
_KEEP = "Column that is an input although it looks like the numbers of the rows; may be repeated."
_DAY_FIRST = "Read 3/4/2021 as a day in April where a column of dates leaves it open."
_NOISE = "Of a regression: auto (default), constant, input (it depends on the inputs), or its standard deviation."
_PLAIN: dict[str, Any] = {"markup": False, "highlight": False, "soft_wrap": True}
_TRANSFORM = "Of a number to predict: auto (default), none, log, log1p, sqrt, yeo-johnson or quantile."
_LIKELIHOOD = (
    "Of a number to predict: gaussian (default), auto, student_t, poisson, negative_binomial, log_normal, gamma."
)
_BUDGET = "Seconds of training; the number of epochs is chosen so that they are enough."


@app.command()
def fit(
    data: Annotated[Path | None, typer.Argument(help=_DATA, show_default=False)] = None,
    target: Annotated[str | None, typer.Option(help="Column to predict; required.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the run; required.")] = None,
    task: Annotated[str | None, typer.Option(help="regression or classification; default: what it looks like.")] = None,
    method: Annotated[str | None, typer.Option(help="One of bayesadam methods.")] = None,
    transform: Annotated[str | None, typer.Option(help=_TRANSFORM)] = None,
    likelihood: Annotated[str | None, typer.Option(help=_LIKELIHOOD)] = None,
    hidden: Annotated[str | None, typer.Option(help="Units of the hidden layers: 50, or 100,50.")] = None,
    members: Annotated[int | None, typer.Option(help="Networks of the ensemble.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the data.")] = None,
    time_budget: Annotated[float | None, typer.Option(help=_BUDGET)] = None,
    noise: Annotated[str | None, typer.Option(help=_NOISE)] = None,
    group: Annotated[str | None, typer.Option(help="Column: whole groups are held out.")] = None,
    time: Annotated[str | None, typer.Option(help="Column: the last rows are held out.")] = None,
    held_out: Annotated[float | None, typer.Option(help="Share of the rows to test on; default: 0.1.")] = None,
    drop: Annotated[list[str] | None, typer.Option(help="Column that is no input; may be repeated.")] = None,
    keep: Annotated[list[str] | None, typer.Option(help=_KEEP)] = None,
    missing: Annotated[list[str] | None, typer.Option(help=MISSING)] = None,
    day_first: Annotated[bool, typer.Option("--day-first", help=_DAY_FIRST)] = False,
    delimiter: Annotated[str | None, typer.Option(help=DELIMITER)] = None,
    decimal: Annotated[str | None, typer.Option(help=DECIMAL)] = None,
    seed: Annotated[int | None, typer.Option(help="Of the split, the networks and the noise; default: 0.")] = None,
    device: Annotated[str | None, typer.Option(help="To train on: cpu (default), cuda, ...")] = None,
    config: Annotated[Path | None, typer.Option(help="config.json of a run, to do the same again.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the run in --out.")] = False,
) -> None:
    """Train a model that predicts a column of a table with uncertainty, and write it to a run folder."""
    for module, package, extra in (
        ("pyarrow", "pyarrow", "sklearn"),
        ("sklearn", "scikit-learn", "sklearn"),
        ("bokeh", "bokeh", "report"),
    ):
        require(module, package, extra)
    options = {
        "data": None if data is None else os.path.abspath(data),
        "target": target,
        "task": task,
        "method": method,
        "transform": transform,
        "likelihood": likelihood,
        "hidden": hidden,
        "members": members,
        "epochs": epochs,
        "time_budget": time_budget,
        "noise": noise,
        "group": group,
        "time": time,
        "held_out": held_out,
        "drop": tuple(drop) if drop else None,
        "keep": tuple(keep) if keep else None,
        "missing": tuple(missing) if missing else None,
        "day_first": day_first or None,
        "delimiter": delimiter_of(delimiter),
        "decimal": decimal,
        "seed": seed,
        "device": device,
    }
    if out is None:
        fail("--out must say where the run folder should be")
    given = {name: value for name, value in options.items() if value is not None}
    with one_line():
        fit_table(given, out, config, force=force)


def fit_table(given: dict[str, Any], out: Path, config: Path | None = None, *, force: bool = False) -> None:
    """Run the command: fit, write the run folder, and print the scores and the next commands."""
    from bayesadam import runs
    from bayesadam.commands.screen import Screen
    from bayesadam.tabular import TableError

    if "hidden" in given:
        given["hidden"] = parse_hidden(given["hidden"])
    console, err = Console(), Console(stderr=True)
    settings = _settings(given, config)
    screen = Screen(console, err)
    try:
        with writing_to("--out", out), screen:
            result = runs.fit(settings, out, screen, force=force)
    except (runs.RunError, TableError) as error:
        fail(with_options(str(error)) + _proposal(settings, error, out))
    except KeyboardInterrupt:
        fail("stopped; nothing was written", STOPPED)
    for note in result.notes:
        console.print(f"  note      {with_options(note)}", **_PLAIN)
    console.print(score_table("held-out rows", result.metrics, digits=".4g"))
    where = f"the run is in {out}/: open {out / runs.REPORT}"
    if result.interrupted:
        console.print(f"stopped after {result.epochs} epochs; the networks are the best until then", **_PLAIN)
    console.print(f"{sum(result.seconds.values()):.0f} s; {where}", **_PLAIN)
    console.print(f"predict new rows:  bayesadam predict {out} new.csv -o predictions.csv", **_PLAIN)


def _settings(given: dict[str, Any], config: Path | None) -> Settings:
    """Return the settings from the options and a config."""
    from bayesadam import runs

    base = {} if config is None else asdict(runs.Settings.load(config))
    if "data" not in {**base, **given}:
        fail("a table must be given: bayesadam fit data.csv --target COLUMN --out run")
    if "target" not in {**base, **given}:
        fail("--target must say which column to predict")
    return runs.Settings(**{**base, **given})


def _proposal(settings: Settings, error: RunError | TableError, out: Path) -> str:
    """Return the command to try after an error that knows a remedy, as the end of its message."""
    from bayesadam.runs import RunError

    try:
        if isinstance(error, RunError):
            changed = replace(settings, **error.remedy)
        else:
            changed = settings.remedied(error.remedy)
    except RunError:  # the target may not be left out
        return ""
    return "" if changed == settings else f": try {fit_command(changed, out)}"
