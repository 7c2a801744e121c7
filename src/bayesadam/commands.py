"""The commands of ``bayesadam``."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Bayesian deep learning as easy as Adam.")
_HIGHER_IS_BETTER = ("accuracy", "OOD AUROC", "(")
_LOWER_IS_BETTER = ("RMSE", "NLL", "ECE")


@app.callback()
def _root() -> None:
    pass


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the table, the posteriors and the figures.")] = Path("demo"),
    seed: Annotated[int, typer.Option(help="Seed of data splits, networks and noise.", min=0, max=2**32 - 1)] = 0,
) -> None:
    """Train Vadam and IVON beside Adam on data that ships with scikit-learn, and show what the posterior adds."""
    _require("sklearn", "scikit-learn", "sklearn")
    _require("matplotlib", "matplotlib", "plot")
    with _writing_to(out):  # tried before training, which takes a while
        if out.exists() and not out.is_dir():
            _fail(f"--out must be a folder, got the file {str(out)!r}")
        out.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=out).close()
    import torch

    from bayesadam import demo as _demo

    torch.set_num_threads(1)  # the networks are so small that threads only wait for each other
    start = time.perf_counter()
    columns = TextColumn("{task.description:<18}"), BarColumn(), TimeRemainingColumn()
    with _writing_to(out), Progress(*columns, console=Console(stderr=True)) as progress:
        tasks: dict[str, TaskID] = {}

        def advance(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = progress.add_task(what, total=total)
            progress.update(tasks[what], completed=done)

        table = _demo.run(out, seed=seed, advance=advance)
    for name, rows in table.items():
        Console().print(_as_table(name, rows))
    Console().print(
        f"means over {_demo.SPLITS} splits; bold: best of the column; "
        f"Adam is a point, the others average {_demo.MC_SAMPLES} samples"
    )
    Console().print(
        f"{time.perf_counter() - start:.0f} s; table.json, posteriors and figures are in {out}/", soft_wrap=True
    )


def _as_table(title: str, rows: dict[str, dict[str, float]]) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("method")
    columns = list(next(iter(rows.values())))
    best = {}
    for column in columns:
        table.add_column(column, justify="right")
        values = [row[column] for row in rows.values()]
        if column.startswith(_HIGHER_IS_BETTER):
            best[column] = max(values)
        elif column.startswith(_LOWER_IS_BETTER):
            best[column] = min(values)
    for method, row in rows.items():
        cells = [f"[bold]{row[c]:.3f}[/]" if row[c] == best.get(c) else f"{row[c]:.3f}" for c in columns]
        table.add_row(method, *cells)
    return table


def _require(module: str, package: str, extra: str) -> None:
    if find_spec(module) is None:
        _fail(f'this command needs {package}: pip install "bayesadam[{extra}]"')


@contextmanager
def _writing_to(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        _fail(f"--out must be a folder that can be written to, got {str(out)!r} ({error.strerror or error})")


def _fail(message: str) -> NoReturn:
    typer.echo(f"bayesadam: {message}", err=True)
    raise typer.Exit(2)
