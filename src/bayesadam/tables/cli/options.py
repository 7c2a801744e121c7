"""The options of ``fit`` and ``predict``: their types, choices and help."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer import Argument, Option

from bayesadam.tables.cli.mistakes import one_line

INPUTS, FILES, ROWS, MODEL, RUNS = "Columns", "Files", "Held-out rows", "Model", "Runs"
"""Headings of the help."""


def _option(about: str, heading: str, *names: str, **more: Any) -> Any:
    return Option(*names, help=about, rich_help_panel=heading, **more)


def _config(ctx: typer.Context, path: Path | None) -> Path | None:
    """Make the settings of a config the defaults of the options."""
    if path is not None:
        with one_line():
            from bayesadam.tables.runs.settings import Settings

            ctx.default_map = asdict(Settings.load(path))
    return path


def _hidden(text: str | tuple[int, ...]) -> tuple[int, ...]:
    if isinstance(text, tuple):  # of a config
        return text
    try:
        return tuple(int(part) for part in text.split(",")) if text.strip() else ()
    except ValueError:  # int() raises it for numbers with thousands of digits, too
        raise typer.BadParameter(f"it must be positive whole numbers, such as 50 or 100,50, got {text!r}") from None


def _levels(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise typer.BadParameter(f"it must be probabilities, such as 0.1,0.5,0.9, got {text!r}") from None


def _delimiter(text: str) -> str:
    return "\t" if text in ("\\t", "tab") else text  # a tab is hard to type


Methods = Literal["laplace", "badam", "anchored", "ensemble", "vadam", "vprop", "ivon", "vogn", "von", "bbb"]
Tasks = Literal["regression", "classification"]
Transforms = Literal["auto", "none", "log", "log1p", "sqrt", "yeo-johnson", "quantile"]
Likelihoods = Literal["gaussian", "student_t", "poisson", "negative_binomial", "log_normal", "gamma"]

Columns = list[str] | None

Data = Annotated[str, Argument(help="The table: CSV or Parquet; - is standard input.", metavar="DATA")]
Target = Annotated[str, Option(help="Column to predict.")]
Task = Annotated[Tasks | None, Option(help="By default what the target looks like.")]

Drop = Annotated[Columns, _option("Column that is no input; may be repeated.", INPUTS)]
Keep = Annotated[Columns, _option("Column that is an input although it looks like row numbers or names.", INPUTS)]
Category = Annotated[Columns, _option("Column of codes, such as postal codes, that are no numbers.", INPUTS)]
Date = Annotated[Columns, _option("Column of dates, such as 20210304.", INPUTS)]
Weights = Annotated[str | None, _option("Column with the weights of the rows.", INPUTS)]
DayFirst = Annotated[bool, _option("3/4/2021 is in April, if a column leaves it open.", INPUTS, "--day-first")]

Missing = Annotated[Columns, _option("Text or number that means a missing value in any column.", FILES)]
Delimiter = Annotated[str | None, _option("Between the cells of a CSV file; default: found.", FILES, parser=_delimiter)]
Decimal = Annotated[Literal[".", ","] | None, _option("Decimal mark of a CSV file; default: found.", FILES)]

Group = Annotated[str | None, _option("Column: whole groups are held out.", ROWS)]
Time = Annotated[str | None, _option("Column: the last rows are held out.", ROWS)]
HeldOut = Annotated[float | None, _option("Share of the rows to test on; 0.1 by default.", ROWS, min=0, max=0.5)]

Method = Annotated[Methods | None, _option("How networks are trained and get a posterior.", MODEL)]
Transform = Annotated[Transforms | None, _option("Of a number to predict; auto by default.", MODEL)]
Likelihood = Annotated[Likelihoods | None, _option("Of a number to predict; gaussian by default.", MODEL)]
Noise = Annotated[
    str | None, _option("Of a number to predict; auto by default.", MODEL, metavar="[auto|constant|input|NUMBER]")
]
Hidden = Annotated[Any, _option("Units of the hidden layers: 50, or 100,50.", MODEL, parser=_hidden, metavar="N,N")]
Members = Annotated[int | None, _option("Networks of the ensemble.", MODEL, min=1)]
Epochs = Annotated[int | None, _option("Passes over the rows.", MODEL, min=1)]
TimeBudget = Annotated[float | None, _option("Seconds after which the training ends.", MODEL)]
Seed = Annotated[int | None, _option("Of the split, the networks and the noise.", MODEL, min=0, max=2**32 - 1)]
Device = Annotated[str | None, _option("To train on: cpu (default), cuda, ...", MODEL)]

Out = Annotated[Path, _option("Folder for the run.", RUNS)]
Config = Annotated[
    Path | None,
    _option("config.json of a run: its settings, unless options are given.", RUNS, callback=_config, is_eager=True),
]
Force = Annotated[bool, _option("Replace the run in --out.", RUNS, "--force")]

Run = Annotated[Path, Argument(help="Folder that bayesadam fit has written.")]
NewData = Annotated[str, Argument(help="A table with the same columns; - is standard input.", metavar="DATA")]
Predictions = Annotated[Path, Option("--out", "-o", help="File for the predictions, CSV or Parquet; - is stdout.")]
Coverage = Annotated[float, Option(help="Of the interval around a predicted number.", min=0, max=1)]
Interval = Annotated[Literal["bayes", "cross"] | None, Option(help="cross has a guarantee; bayes is the default.")]
Quantiles = Annotated[Any, Option(help="Of a predicted number: 0.1,0.5,0.9.", parser=_levels, metavar="Q,Q,...")]
Copy = Annotated[Columns, Option(help="Column of the table to copy, to know the rows by; may be repeated.")]
