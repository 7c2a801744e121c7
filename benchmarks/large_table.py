"""A large table by the command line: seconds and peak memory of each command.

    python benchmarks/large_table.py                  # writes runs/benchmarks/large_table.json

500,000 rows of 90 columns to fit, with a time budget for training, and 1,000,000 rows to predict. The tables are made
of normal numbers with some structure; writing them is not counted. What is asked for: fit within 10 minutes and 4 GiB
on 2 cores, predict within 1 GiB.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import csv

from record import arguments, conditions, save

FIT_ROWS, PREDICT_ROWS, COLUMNS = 500_000, 1_000_000, 90
BUDGET = 120
PART = 10_000


def write_table(path: Path, rows: int, seed: int) -> None:
    """Numbers, categories and truth values, and a target with noise that grows with one of them."""
    generator = np.random.default_rng(seed)
    numbers = COLUMNS - 3
    writer = None
    for _ in range(rows // PART):
        x = generator.standard_normal((PART, numbers)).astype(np.float32)
        city, flag = generator.integers(0, 12, PART), generator.random(PART) < 0.3
        noise = (0.3 + 0.2 * flag) * generator.standard_normal(PART)
        y = np.tanh(x[:, :5].sum(1)) + 0.3 * x[:, 5] * x[:, 6] + 0.1 * (city % 3) + noise
        columns: dict[str, Any] = {f"x{i}": x[:, i] for i in range(numbers)}
        table = pa.table(columns | {"city": pa.array([f"city {c}" for c in city]), "flag": flag, "y": y})
        writer = writer or csv.CSVWriter(path, table.schema)
        writer.write_table(table)
    writer.close()


def measured(*arguments: str) -> dict[str, Any]:
    """Run a command: seconds, and the peak of its resident memory in GiB."""
    begin = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "bayesadam", *arguments])
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - begin
    if status:
        raise SystemExit(f"{arguments[0]} failed")
    cpu = usage.ru_utime + usage.ru_stime
    peak = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return {"seconds": round(seconds, 1), "CPU seconds": round(cpu, 1), "peak GiB": round(peak / 2**30, 2)}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--budget", type=float, default=BUDGET)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        fit_on, predict_on = folder / "fit.csv", folder / "predict.csv"
        write_table(fit_on, FIT_ROWS, 0)
        write_table(predict_on, PREDICT_ROWS, 1)
        report: dict[str, Any] = {
            **conditions("torch", "bayesadam", "scikit-learn", "pyarrow"),
            "table": {"fit rows": FIT_ROWS, "predict rows": PREDICT_ROWS, "columns": COLUMNS},
            "time budget": options.budget,
        }
        run = str(folder / "run")
        budget = ("--time-budget", str(options.budget))
        report["fit"] = measured("fit", str(fit_on), "--target", "y", "--out", run, "--force", *budget)
        report["predict"] = measured("predict", run, str(predict_on), "-o", str(folder / "predictions.csv"))
    print(f"fit: {report['fit']}\npredict: {report['predict']}")
    save(options.output / "large_table.json", report)


if __name__ == "__main__":
    main()
