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
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from bayesadam.tables.cli.mistakes import fail, one_line, visible, writing_to

TITLES = (
    (
        "(a) Prices of flats, made up so that noise grows with size: share of prices\n"
        "inside, of all, of the smallest and the largest",
        "A low score is good. Differences have standard errors, and are bold if they are\n"
        "beyond chance (paired t-test at 5%).",
    ),
    (
        "(b) Digits: Adam at its best rate, also temperature scaled, and BayesAdam;\n"
        "AUROC of the entropy against photographs, and digits with shuffled pixels",
        "Adam's rate and temperature are chosen on images that BayesAdam does not use.",
    ),
    (
        "(c) A curve with a gap in its data",
        "A 95% band should widen where there are no data, and hold the truth.",
    ),
)
"""Title and sentence of each table."""
Row = list[str]


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the numbers, the figures and what was trained.")] = Path("demo"),
    seed: Annotated[int, typer.Option(help="Seed of data, networks and noise.", min=0, max=2**32 - 1)] = 0,
    quick: Annotated[bool, typer.Option("--quick", help="A few seconds of training, to see that it runs.")] = False,
) -> None:
    """Demonstrate a posterior in a minute: intervals, images that are not digits, a gap in the data, a report."""
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
    effort = _demo.QUICK if quick else _demo.FULL
    start = time.perf_counter()
    columns = TextColumn("{task.description:<12}"), BarColumn(), TimeRemainingColumn()
    progress = Progress(*columns, console=Console(stderr=True))
    with writing_to("--out", out), progress, threads_for(effort.digit_rows):
        tasks: dict[str, TaskID] = {}

        def advance(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = progress.add_task(what, total=total)
            progress.update(tasks[what], completed=done, total=total)

        record = _demo.run(out, seed=seed, advance=advance, effort=effort)
    console = Console(highlight=False)
    if quick:
        console.print("--quick: these networks have hardly been trained\n")
    money = {"score": ".1f", "width": ".1f"}
    intervals = _scores(record["prices"], _demo.OURS, (_demo.LINEAR, _demo.QUANTILES), ".1%", money)
    _show(console, 0, "95% intervals", *intervals)
    _show(console, 1, "", *_scores(record["digits"], "BayesAdam", (_demo.SCALED,), ".4f"))
    _show(console, 2, "epistemic deviation", *_bands(record["curve"]))
    console.print("[bold](d) BayesAdam on the digits, by opt.report()[/]\n")
    verdict = (out / "report.txt").read_text(encoding="utf-8").partition("\n\n")[2]  # below its table
    console.print(verdict, markup=False)
    folder, prices = visible(str(out)), visible(str(out / "prices.csv"))
    console.print(
        f"{time.perf_counter() - start:.0f} s. In {folder}/: prices.png, digits.png, curve.png, weights.png,\n"
        "metrics.json (all numbers), report.txt (opt.report()), digits_bayesadam.safetensors\n"
        f"Next, a table: bayesadam fit {prices} --target price --out run",
        markup=False,
        soft_wrap=True,
    )


def _show(console: Console, number: int, first: str, columns: Iterable[str], rows: Iterable[Row]) -> None:
    title, sentence = TITLES[number]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(first, no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    for name, *cells in rows:
        if name.startswith("difference"):
            table.add_section()
        table.add_row(name, *cells)
    console.print(f"[bold]{title}[/]")
    console.print(table)
    console.print(sentence + "\n", markup=False)


def _scores(
    repetitions: Sequence[Any], ours: str, others: Iterable[str], usual: str, formats: Mapping[str, str] | None = None
) -> tuple[list[str], list[Row]]:
    """Return mean scores, and paired differences with standard errors, in bold where a t-test finds them."""
    import numpy as np
    from scipy.stats import t

    columns = {name: (formats or {}).get(name, usual) for name in repetitions[0][ours]}
    rows = []
    for method in repetitions[0]:
        means = {name: np.mean([scores[method][name] for scores in repetitions]) for name in columns}
        rows.append([method, *(format(means[name], kind) for name, kind in columns.items())])
    for other in others:
        cells = []
        for name, kind in columns.items():
            values = np.array([scores[ours][name] - scores[other][name] for scores in repetitions])
            mean, error = values.mean(), values.std(ddof=1) / len(values) ** 0.5
            bold = abs(mean) > t.ppf(0.975, len(values) - 1) * error
            parts = format(mean, f"+{kind}"), f"± {format(error, kind)}"
            cells.append("\n".join(f"[bold]{part}[/]" if bold else part for part in parts))
        rows.append([f"difference from\n{other}", *cells])
    return list(columns), rows


def _bands(bands: Mapping[str, Any]) -> tuple[list[str], list[Row]]:
    rows = []
    for name, row in bands.items():
        rows.append([name, *(f"{value:.3f}" for value in row["deviation"].values())])
        rows.append(["  truth in 95% band", *(f"{value:.0%}" for value in row["truth inside"].values())])
    return list(row["deviation"]), rows
