"""``bayesadam demo``."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from bayesadam.commands.app import app
from bayesadam.commands.fit import fit_table
from bayesadam.commands.mistakes import fail, one_line, require, writing_to
from bayesadam.commands.tables import score_table


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the table, the posteriors and the figures.")] = Path("demo"),
    seed: Annotated[int, typer.Option(help="Seed of data splits, networks and noise.", min=0, max=2**32 - 1)] = 0,
) -> None:
    """Train Vadam and IVON beside Adam on data that ships with scikit-learn, and show what the posterior adds."""
    require("sklearn", "scikit-learn", "sklearn")
    require("pandas", "pandas", "sklearn")
    require("pyarrow", "pyarrow", "sklearn")
    require("matplotlib", "matplotlib", "plot")
    require("bokeh", "bokeh", "report")
    with writing_to("--out", out):  # tried before training, which takes a while
        if out.exists() and not out.is_dir():
            fail(f"--out must be a folder, got the file {str(out)!r}")
        out.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=out).close()
    import torch

    from bayesadam import demo as _demo

    torch.set_num_threads(1)  # the networks are so small that threads only wait for each other
    start = time.perf_counter()
    columns = TextColumn("{task.description:<18}"), BarColumn(), TimeRemainingColumn()
    with writing_to("--out", out), Progress(*columns, console=Console(stderr=True)) as progress:
        tasks: dict[str, TaskID] = {}

        def advance(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = progress.add_task(what, total=total)
            progress.update(tasks[what], completed=done)

        table = _demo.run(out, seed=seed, advance=advance)
    for name, rows in table.items():
        Console().print(score_table(name, rows))
    Console().print(
        f"means over {_demo.SPLITS} splits; bold: best of the column; "
        f"Adam is a point, the others average {_demo.MC_SAMPLES} samples"
    )
    Console().print(
        f"{time.perf_counter() - start:.0f} s; table.json, posteriors and figures are in {out}/", soft_wrap=True
    )
    _table(out, seed)


def _table(out: Path, seed: int) -> None:
    """The same as a user with a table would do: ``bayesadam fit``, and its report."""
    from sklearn.datasets import load_diabetes

    data = out / "diabetes.csv"
    with writing_to("--out", out):
        load_diabetes(as_frame=True, scaled=False).frame.to_csv(data, index=False)
    Console().print(f"\nbayesadam fit {data} --target target --out {out / 'fit'}", markup=False, soft_wrap=True)
    with one_line():
        fit_table({"data": str(data), "target": "target", "seed": seed}, out / "fit", force=True)
