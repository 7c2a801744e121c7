"""The algorithms and their settings, which are the same for all problems; the notes say how they were chosen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from experiments.bandits.problems import LENGTHS

Setting = Mapping[str, Any]


def _neural(method: str, **options: Any) -> dict[str, Any]:
    return {"belief": "neural", "options": {"method": method, **options}}


ALGORITHMS: dict[str, Setting] = {
    "vadam": _neural("vadam", data_weight=512.0, prior_precision=10.0),
    "ivon": _neural("ivon", data_weight=30.0, prior_precision=1000.0),
    "ivon-once": _neural("ivon", data_weight=1.0, prior_precision=1.0),
    "vogn": _neural("vogn", data_weight=30.0, prior_precision=100.0),
    "badam": _neural("badam", data_weight=512.0, prior_precision=3000.0),
    "badam-mle": _neural("badam-mle", data_weight=512.0, prior_precision=10.0),
    "dropout": _neural("dropout"),
    "bbb": _neural("bbb", data_weight=512.0, prior_precision=10.0),
    "last-layer": _neural("last-layer", prior_precision=10.0),
    "neural-linear": _neural("neural-linear", prior_precision=0.25),
    "linear": {"belief": "linear", "options": {}},
    "epsilon-greedy": {**_neural("adam"), "policy": "epsilon-greedy"},
    "greedy": {**_neural("adam"), "policy": "greedy"},
    "uniform": {"belief": "linear", "options": {}, "policy": "uniform"},
    "all-rewards": {**_neural("adam", data_weight=512.0, prior_precision=3000.0), "policy": "greedy", "told": "all"},
}
"""For each algorithm the ``belief``, its ``options``, the ``policy`` unless it is Thompson sampling, and whether it is
``told`` the rewards of all actions in every round, as no bandit algorithm is.
"""

PROBLEMS: Mapping[str, tuple[str, ...]] = {"all-rewards": ("adult", "covertype"), "ivon-once": ()}
"""Problems of the table for algorithms that do not play all of them. An agent that is told all rewards shows how much a
network of this size can earn; ``ivon-once`` plays only the wheel.
"""

LABELS = {
    "vadam": "Vadam",
    "ivon": "IVON",
    "ivon-once": "IVON, observations counted once",
    "vogn": "VOGN",
    "badam": "Badam (prior in the loss)",
    "badam-mle": "Badam (prior added after)",
    "dropout": "MC dropout",
    "bbb": "Bayes by Backprop",
    "last-layer": "last-layer Laplace",
    "neural-linear": "neural-linear",
    "linear": "linear-Gaussian, exact",
    "epsilon-greedy": "epsilon-greedy, 5%",
    "greedy": "greedy",
    "uniform": "uniform",
    "all-rewards": "no bandit: greedy, told the rewards of all actions",
}

PUBLISHED = {
    "vadam": "Vadam",
    "badam": "Badam",
    "badam-mle": "Badam",
    "dropout": "MC dropout",
    "bbb": "BBB",
    "greedy": "Greedy",
    "uniform": "Uniform",
}
"""Names of the algorithms in the paper."""

LONG = ("badam", "vadam", "ivon", "linear", "neural-linear", "uniform")
"""Algorithms that play the published number of rounds. The other algorithms stop after 10,000 rounds."""

RUNS, SHORT, QUICK_RUNS, QUICK = 10, 10_000, 3, 2_000

WHEEL = ("vadam", "ivon", "ivon-once", "vogn", "neural-linear", "linear", "greedy", "uniform")
DELTAS = (0.5, 0.7, 0.9, 0.95, 0.99)
WHEEL_ROUNDS, WHEEL_RUNS = 4_000, 5

_FACTORS = {"linear": 0.05, "uniform": 0.01, "neural-linear": 1.6, "last-layer": 1.6, "vogn": 1.4, "dropout": 1.3}


def cost(algorithm: str, rounds: int, runs: int) -> float:
    """Return the approximate duration in seconds."""
    return _FACTORS.get(algorithm, 1.0) * rounds * 2.5 * 0.0008 * (runs + 1)


def rounds_of(problem: str, algorithm: str) -> int:
    """Return the number of rounds of a unit of the table."""
    return LENGTHS[problem] if algorithm in LONG else min(SHORT, LENGTHS[problem])
