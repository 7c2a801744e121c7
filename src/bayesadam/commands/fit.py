"""``bayesadam fit``."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from bayesadam.commands.app import app
from bayesadam.commands.delimited import DECIMAL, DELIMITER, MISSING, delimiter_of
from bayesadam.commands.mistakes import STOPPED, fail, one_line, require, writing_to
from bayesadam.commands.options import option, parse_hidden, with_options
from bayesadam.commands.tables import score_table

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
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a fit that was stopped.")] = False,
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
        fit_table(given, out, config, resume=resume, force=force)


def fit_table(
    given: dict[str, Any], out: Path, config: Path | None = None, *, resume: bool = False, force: bool = False
) -> None:
    """Run the command: fit, write the run folder, and print the scores and the next commands."""
    from bayesadam import runs
    from bayesadam.commands.screen import Screen

    if "hidden" in given:
        given["hidden"] = parse_hidden(given["hidden"])
    console, err = Console(), Console(stderr=True)
    with writing_to("--out", out):
        put = runs.settle(out)
    if put and resume:
        console.print(f"the fit was finished before; the run is in {out}/", **_PLAIN)
        return
    settings, stopped = _settings(given, out, config, resume=resume)
    screen = Screen(console, err)
    try:
        with writing_to("--out", out), screen:
            result = runs.fit(settings, out, screen, force=force, resume=stopped)
    except KeyboardInterrupt:
        if kept := runs.resumable(out):
            fail(f"stopped; what is done is kept in {kept}: bayesadam fit --out {out} --resume goes on", STOPPED)
        fail("stopped; nothing was written", STOPPED)
    for note in result.notes:
        console.print(f"  note      {with_options(note)}", **_PLAIN)
    console.print(score_table("held-out rows", result.metrics, digits=".4g"))
    lines = [f"{sum(result.seconds.values()):.0f} s; the run is in {out}/: open {out / runs.REPORT}"]
    if result.interrupted:
        lines = [
            f"stopped after {result.epochs} epochs; what was learned until then is in {out}/, a complete run",
            f"go on with it:  bayesadam fit --out {out} --resume",
        ]
    lines.append(f"predict new rows:  bayesadam predict {out} new.csv -o predictions.csv")
    for line in lines:
        console.print(line, **_PLAIN)


def _settings(given: dict[str, Any], out: Path, config: Path | None, *, resume: bool) -> tuple[Any, Path | None]:
    """Return the settings from the options and a config, or those of a stopped fit with its folder."""
    from bayesadam import runs
    from bayesadam.runs.folder import CONFIG

    if resume:
        stopped = runs.resumable(out)
        if stopped is None:
            fail(f"--resume needs a fit that was stopped, there is none in {str(out)!r}")
        settings = runs.Settings.load(stopped / CONFIG)
        changed = settings.changed(given)
        if changed:
            was, got = getattr(settings, changed[0]), given[changed[0]]
            name = changed[0] if changed[0] == "data" else option(changed[0])
            fail(f"--resume goes on as the fit began: {name} must be {was!r}, got {got!r}")
        return settings, stopped
    base = {} if config is None else asdict(runs.Settings.load(config))
    for name in ("data", "target"):
        if name not in {**base, **given}:
            fail(
                "a table must be given: bayesadam fit data.csv --target COLUMN --out run"
                if name == "data"
                else "--target must say which column to predict"
            )
    return runs.Settings(**{**base, **given}), None
