"""``bayesadam demo``."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from bayesadam.tables.cli.mistakes import fail, one_line, visible, writing_to

TITLES = (
    "(a) 95% intervals of prices of flats, made up so that noise grows with size:\n"
    "interval score, share inside of all, of the smallest and of the largest flats",
    "(b) Digits: Adam at its best rate, also temperature scaled, and BayesAdam;\n"
    "the last column is the AUROC of the entropy against photographs",
    "(c) A curve with a gap in its data: how often it is inside of the 95% band of the mean,\n"
    "and processor seconds. Far from data a single posterior is too sure; this ensemble is not",
)
NOTE = "Differences have standard errors, and are bold if they are beyond chance\n(paired t-test at 5%).\n"


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the numbers and the figure.")] = Path("demo"),
    seed: Annotated[int, typer.Option(help="Seed of data, networks and noise.", min=0, max=2**31 - 1)] = 0,
) -> None:
    """Demonstrate a posterior in a minute: intervals, and images that are not digits."""
    with one_line():
        import matplotlib  # noqa: F401
        import PIL  # noqa: F401

        from bayesadam.tables import demo as _demo
        from bayesadam.tables.estimators.threads import threads_for
    with writing_to("--out", out):  # checked before the training, which takes some time
        if out.exists() and not out.is_dir():
            fail(f"--out must be a folder, got the file {str(out)!r}")
        out.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=out).close()
    start = time.perf_counter()
    columns = TextColumn("{task.description:<12}"), BarColumn(), TimeRemainingColumn()
    with writing_to("--out", out), Progress(*columns, console=Console(stderr=True)) as progress, threads_for(0):
        tasks = {what: progress.add_task(what, total=None) for what in ("prices", "digits", "curve")}
        record = _demo.run(
            out,
            seed=seed,
            advance=lambda what, done, total: progress.update(tasks[what], completed=done, total=total),
        )
    console = Console(highlight=False)
    formats = {"score": ".1f", "width": ".1f"}
    console.print(_table(TITLES[0], record["prices"], _demo.OURS, (_demo.LINEAR, _demo.QUANTILES), ".1%", formats))
    console.print(_table(TITLES[1], record["digits"], _demo.BAYESADAM, (_demo.SCALED,), ".4f"))
    formats = {"seconds": ".1f"}
    console.print(_table(TITLES[2], record["curve"], _demo.ANCHORED, (_demo.DEEP,), ".0%", formats))
    console.print(NOTE)
    folder, prices = visible(str(out)), visible(str(out / "prices.csv"))
    console.print(
        f"{time.perf_counter() - start:.0f} s. In {folder}/: prices.png and metrics.json (all numbers)\n"
        f"Next, a table: bayesadam fit {prices} --target price --out run",
        markup=False,
        soft_wrap=True,
    )


def _table(
    title: str,
    repetitions: Sequence[Any],
    ours: str,
    others: Iterable[str],
    usual: str,
    formats: Mapping[str, str] | None = None,
) -> Table:
    """Return mean scores, and paired differences with standard errors, in bold where a t-test finds them."""
    import numpy as np
    from scipy.stats import t

    columns = {name: (formats or {}).get(name, usual) for name in repetitions[0][ours]}
    table = Table(title=f"[bold]{title}[/]", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(no_wrap=True)
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    for method in repetitions[0]:
        means = {name: np.mean([scores[method][name] for scores in repetitions]) for name in columns}
        table.add_row(method, *(format(means[name], kind) for name, kind in columns.items()))
    for other in others:
        table.add_section()
        cells = []
        for name, kind in columns.items():
            values = np.array([scores[ours][name] - scores[other][name] for scores in repetitions])
            mean, error = values.mean(), values.std(ddof=1) / len(values) ** 0.5
            bold = abs(mean) > t.ppf(0.975, len(values) - 1) * error
            parts = format(mean, f"+{kind}"), f"± {format(error, kind)}"
            cells.append("\n".join(f"[bold]{part}[/]" if bold else part for part in parts))
        table.add_row(f"difference from\n{other}", *cells)
    return table
