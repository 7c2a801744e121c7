"""The units: one per method and minibatch size, each with all seeds at once. VON uses as many splits instead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from experiments.experiment import Report
from experiments.logistic_regression.comparison import Comparison
from experiments.logistic_regression.protocol import VON, settings
from experiments.logreg_breast_cancer.report import SIZES, report
from experiments.results import Result

TRAIN = 341
VADAM_EPOCHS, VOGN_EPOCHS = 10_000, 2000


class BreastCancer(Comparison):
    """Twenty seeds on one half of the data, and VON on twenty halves. The arguments shorten the protocol for tests."""

    name = "logreg-breast-cancer"
    title = "Logistic regression, minibatch sizes on breast cancer"
    source = "Khan et al. 2018, Fig. 2c"
    dataset = "libsvm/breast-cancer"
    prior = 1.0
    step = 0.0004

    def __init__(self, seeds: int = 20, shorter: int = 1, **von: Any) -> None:
        self.splits = [0] * seeds
        methods: dict[str, Mapping[str, Any] | None] = {
            "mf-exact": None,
            "von": {**VON, "iterations": VON["iterations"] // shorter, **von, "splits": list(range(seeds))},
            "vogn-1": settings("vogn", 1, VOGN_EPOCHS * TRAIN // shorter, 0.0005, 0.0005),
        }
        for size in SIZES:
            iterations = VADAM_EPOCHS * TRAIN // size // shorter
            for method in ("vadam", "vadam-matlab"):
                methods[f"{method}-{size}"] = settings(method, size, iterations, 0.01, 0.01, decay=0.55)
        self.methods = methods

    def report(self, results: Mapping[str, Result]) -> Report:
        """Return box plots beside those of the paper."""
        return report(results)


EXPERIMENT = BreastCancer()
