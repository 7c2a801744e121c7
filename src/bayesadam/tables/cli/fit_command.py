"""``bayesadam fit``."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from rich.console import Console

from bayesadam.tables.cli import options as of
from bayesadam.tables.cli.mistakes import one_line, say, writing_to

if TYPE_CHECKING:
    from bayesadam.tables.runs.settings import Settings


def fit(
    data: of.Data,
    *,
    target: of.Target,
    task: of.Task = None,
    drop: of.Drop = None,
    keep: of.Keep = None,
    category: of.Category = None,
    date: of.Date = None,
    weights: of.Weights = None,
    day_first: of.DayFirst = False,
    missing: of.Missing = None,
    delimiter: of.Delimiter = None,
    decimal: of.Decimal = None,
    group: of.Group = None,
    time: of.Time = None,
    held_out: of.HeldOut = None,
    method: of.Method = None,
    transform: of.Transform = None,
    likelihood: of.Likelihood = None,
    noise: of.Noise = None,
    hidden: of.Hidden = None,
    members: of.Members = None,
    epochs: of.Epochs = None,
    time_budget: of.TimeBudget = None,
    seed: of.Seed = None,
    device: of.Device = None,
    out: of.Out,
    config: of.Config = None,
    force: of.Force = False,
) -> None:
    """Train a model that predicts a column of a table with uncertainty, and write it to a run folder."""
    begin = perf_counter()  # imports take some seconds, too
    given = {name: value for name, value in locals().items() if name not in ("out", "config", "force", "begin")}
    lists = {name: tuple(value) for name, value in given.items() if isinstance(value, list)}
    with one_line():
        from bayesadam.tables.runs.settings import Settings

        settings = Settings(**{name: value for name, value in (given | lists).items() if value is not None})
        _fit(settings, out, force=force, begin=begin)


def _fit(settings: Settings, out: Path, *, force: bool, begin: float) -> None:
    """Fit, write the run folder, and print the scores and the next commands."""
    import bayesadam.tables.report.page  # noqa: F401  # which would find after the training that a package is missing
    from bayesadam.tables.cli.screen import Screen, score_table
    from bayesadam.tables.report.scores import meanings
    from bayesadam.tables.runs.fit_table import fit_table
    from bayesadam.tables.runs.run_folder import REPORT
    from bayesadam.tables.runs.settings import with_options

    screen = Screen(Console(), Console(stderr=True))
    with writing_to("--out", out), screen.bar:
        result = fit_table(settings, out=out, watcher=screen, force=force)
    for note in result.notes:
        say(f"  note      {with_options(note)}")
    say(score_table(result.metrics))
    say(f"(the {meanings(result.metrics)})")
    say(f"{perf_counter() - begin:.0f} s; the run is in {out}/: open {out / REPORT}")
    say(f"predict new rows:  bayesadam predict {out} new.csv -o predictions.csv")
