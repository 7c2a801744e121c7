"""The units: one per method, each on all splits at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from experiments.experiment import Report
from experiments.logistic_regression.comparison import Comparison
from experiments.logistic_regression.protocol import VON, settings
from experiments.logreg_usps.report import report
from experiments.results import Result

TRAIN = 770
VADAM_EPOCHS, VOGN_EPOCHS = 10_000, 200


class USPS(Comparison):
    """Twenty random halves. Arguments shorten the protocol for tests."""

    name = "logreg-usps"
    title = "Logistic regression, USPS 3 against 5"
    source = "Khan et al. 2018, Fig. 2b"
    dataset = "usps/3-vs-5"
    prior = 25.0
    step = 0.0009

    def __init__(self, splits: int = 20, shorter: int = 1, **von: Any) -> None:
        self.splits = list(range(splits))
        vadam = settings("vadam", 64, VADAM_EPOCHS * TRAIN // 64 // shorter, 0.01, 0.01, decay=0.55)
        self.methods: Mapping[str, Mapping[str, Any] | None] = {
            "mf-exact": None,
            "von": {**VON, "iterations": VON["iterations"] // shorter, **von},
            "vogn-1": settings("vogn", 1, VOGN_EPOCHS * TRAIN // shorter, 0.0005, 0.0005),
            "vadam-matlab": {**vadam, "method": "vadam-matlab"},
            "vadam": vadam,
        }

    def report(self, results: Mapping[str, Result]) -> Report:
        """Return box plots beside those of the paper."""
        return report(results)


EXPERIMENT = USPS()
