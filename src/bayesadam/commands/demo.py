"""``bayesadam demo``."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from bayesadam.commands.app import app
from bayesadam.commands.mistakes import fail, require, writing_to


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the numbers, the figures and what was trained.")] = Path("demo"),
    seed: Annotated[int, typer.Option(help="Seed of data, networks and noise.", min=0, max=2**32 - 1)] = 0,
    quick: Annotated[bool, typer.Option("--quick", help="A few seconds of training, to see that it runs.")] = False,
) -> None:
    """Demonstrate a posterior in a minute: intervals, images that are not digits, a gap in the data, a report."""
    require("sklearn", "scikit-learn", "sklearn")
    require("PIL", "pillow", "plot")
    require("matplotlib", "matplotlib", "plot")
    with writing_to("--out", out):  # checked before the training, which takes some time
        if out.exists() and not out.is_dir():
            fail(f"--out must be a folder, got the file {str(out)!r}")
        out.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=out).close()
    import torch

    from bayesadam import demo as _demo

    torch.set_num_threads(1)  # the networks are so small that threads only wait for each other
    effort = _demo.QUICK if quick else _demo.FULL
    start = time.perf_counter()
    columns = TextColumn("{task.description:<12}"), BarColumn(), TimeRemainingColumn()
    with writing_to("--out", out), Progress(*columns, console=Console(stderr=True)) as progress:
        tasks: dict[str, TaskID] = {}

        def advance(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = progress.add_task(what, total=total)
            progress.update(tasks[what], completed=done, total=total)

        record = _demo.run(out, seed=seed, advance=advance, effort=effort)
    console = Console(highlight=False)
    if quick:
        console.print("--quick: these networks have hardly been trained\n")
    for number, sentence in enumerate(record["sentences"], start=1):
        console.print(f"{number}. {sentence}\n", markup=False)
    _prices(console, record)
    _digits(console, record)
    _curve(console, record["curve"]["rows"])
    _report(console, record["digits"]["report"])
    console.print(
        f"{time.perf_counter() - start:.0f} s. In {out}/: prices.png, digits.png, curve.png, weights.png,\n"
        "metrics.json (all numbers), report.txt (opt.report()), digits_ivon.safetensors\n"
        f"Next, a table: bayesadam fit {out / 'prices.csv'} --target price --out run",
        markup=False,
        soft_wrap=True,
    )


def _table(title: str, first: str, columns: Iterable[str]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(first, no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _plus_minus(difference: Mapping[str, float], digits: str) -> str:
    """Format a mean difference with its standard error, in bold if it is significant."""
    text = f"{difference['mean']:+{digits}}", f"± {difference['standard error']:{digits}}"
    return "\n".join(f"[bold]{part}[/]" if abs(difference["t"]) > 1 else part for part in text)


def _prices(console: Console, record: Mapping[str, Any]) -> None:
    numbers, effort = record["prices"], record["effort"]
    title = (
        f"(a) Prices of flats, made up so that noise grows with size: {effort['tables']} tables of\n"
        f"{effort['price_rows']} rows; share of prices inside, of all, of the smallest and the largest"
    )
    table = _table(title, "95% intervals", next(iter(numbers["rows"].values())))
    for name, row in numbers["rows"].items():
        table.add_row(name, *(f"{row[k]:.1f}" if k in ("score", "width") else f"{row[k]:.1%}" for k in row))
    table.add_section()
    for other, found in numbers["differences"].items():
        table.add_row(f"ours - {other}", _plus_minus(found["score"], ".1f").replace("\n", " "))
    console.print(table)


def _digits(console: Console, record: Mapping[str, Any]) -> None:
    numbers, effort = record["digits"], record["effort"]
    rows = numbers["rows"]
    title = (
        f"(b) {effort['digit_rows']} digits, {effort['repetitions']} splits: Adam at its best rate, then temperature\n"
        "scaled; AUROC of the entropy against photographs, and digits with shuffled pixels"
    )
    table = _table(title, "", next(iter(rows.values())))
    for name, row in rows.items():
        table.add_row(name, *(f"{value:.4f}" for value in row.values()))
    table.add_section()
    (found,) = numbers["differences"].values()
    table.add_row("IVON - Adam, scaled\n± standard error", *(_plus_minus(value, ".4f") for value in found.values()))
    console.print(table)
    levels = numbers["pruned"]
    table = _table("Accuracy of IVON's mean without so many of its weights", "", levels)
    for name in next(iter(levels.values())):
        table.add_row(name, *(f"{rows[name]['accuracy']:.4f}" for rows in levels.values()))
    table.add_section()
    differences = numbers["pruned differences"].values()
    table.add_row("difference\n± standard error", *(_plus_minus(found["accuracy"], ".4f") for found in differences))
    console.print(table)


def _curve(console: Console, rows: Mapping[str, Any]) -> None:
    first = next(iter(rows.values()))
    table = _table("(c) A curve with a gap in its data", "epistemic deviation", first["deviation"])
    for name, row in rows.items():
        table.add_row(name, *(f"{value:.3f}" for value in row["deviation"].values()))
        table.add_row("  truth in 95% band", *(f"{value:.0%}" for value in row["true curve inside"].values()))
    console.print(table)


def _report(console: Console, report: Mapping[str, Any]) -> None:
    columns = ["weights", "width 1%", "50%", "99%", "start", "|mean|\n/ width", "determined"]
    table = _table("(d) IVON on the digits, by opt.report()", "", columns)
    for row in (*report["rows"], report["total"]):
        table.add_row(
            row["name"],
            f"{row['num_weights']:,}",
            *(f"{value:.3f}" for value in row["width"]),
            f"{row['start_share']:.1%}",
            f"{row['signal_to_noise'][1]:.2f}",
            f"{row['determined']:,.0f}",
        )
    console.print(table)
