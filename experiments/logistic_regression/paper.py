"""The published box plots, read from the authors' figure files."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from experiments.tables import published

STATISTICS = {"whislo": "whisker_lo", "q1": "q25", "med": "median", "q3": "q75", "whishi": "whisker_hi"}
"""Names of the statistics in matplotlib's ``bxp``, with those in the file."""

NAMES = {
    "negative_elbo": "neg_ELBO_per_train_point_nats",
    "log_loss": "test_logloss_nats",
    "symmetric_kl": "symmetric_KL_to_MF-Exact",
}
"""Names of the metrics in the file."""

Box = Mapping[str, float]


def box(dataset: str, method: str, metric: str) -> Box:
    """Return the known numbers of a box plot: some of ``STATISTICS`` and ``mean``, or none if none were published."""
    numbers = _numbers()
    names = {**STATISTICS, "mean": "mean"}
    found = {ours: (dataset, method, f"{NAMES[metric]}:{theirs}") for ours, theirs in names.items()}
    return {name: numbers[key] for name, key in found.items() if key in numbers}


def toy(method: str) -> Box:
    """Return ``mu_1``, ``sd_1``, ``mu_2`` and ``sd_2`` of a posterior in Fig. 2a."""
    return {m: v for (data, by, m), v in _numbers().items() if data == "murphy_synth_seed0" and by == method}


@cache
def _numbers() -> dict[tuple[str, str, str], float]:
    rows = published(Path(__file__).with_name("paper.csv"))
    return {key: row.value.mean for key, row in rows.items() if row.value.mean is not None}
