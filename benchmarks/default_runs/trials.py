"""A unit: one method on one task with one seed, scored on validation, and at the end on test data, to one record."""

from __future__ import annotations

import math
import time
from typing import Any

from default_runs.candidates import CANDIDATES
from default_runs.scores import WAYS, finite_nll, mixed_nll, predict, test_scores
from default_runs.training import RATES, adam, train, train_together
from default_tasks import Data, Task

MEMBERS = 3
SEEDS = (0, 1)
"""By which everything is chosen."""
FINAL_SEEDS = (10, 11, 12)
"""Which are run once, when everything is chosen; seeds 2 to 4 were read for the rule before (``first_final``)."""


def run(task: Task, seed: int, method: str, *, final: bool) -> dict[str, Any]:
    """The record of a unit: validation NLLs, or ``"failed"`` with the reason if the training diverged.

    Args:
        task: What is trained.
        seed: Of data, weights and batches.
        method: ``"adam"``, ``"together"`` for five networks of BayesAdam, or the name of a candidate.
        final: Whether the scores of test data are added.
    """
    if seed not in (FINAL_SEEDS if final else SEEDS):
        raise ValueError(f"seed must be one of {FINAL_SEEDS if final else SEEDS}, got {seed!r}")
    start = time.process_time()
    data = task.load(seed)
    try:
        record = {"adam": _adam, "together": _together}.get(method, _candidate)(task, data, seed, method, final=final)
    except FloatingPointError as error:
        record = {"failed": str(error)}
    return {**record, "total_seconds": time.process_time() - start}


def _candidate(task: Task, data: Data, seed: int, method: str, *, final: bool) -> dict[str, Any]:
    """The mean network and the samples."""
    start = time.process_time()
    trained = CANDIDATES[method](task, data.training(), seed)
    record: dict[str, Any] = {"seconds": time.process_time() - start}
    x, y = data.validation
    for way in WAYS:
        record[way] = finite_nll(predict(trained, x, posterior=way == "samples"), y)
    if final:
        record["test"] = {way: test_scores(trained, data, posterior=way == "samples") for way in WAYS}
    return record


def _together(task: Task, data: Data, seed: int, method: str, *, final: bool) -> dict[str, Any]:
    """The samples of five networks."""
    trained = train_together(task, data.training(), seed)
    x, y = data.validation
    record = {"seconds": trained.seconds, "samples": finite_nll(predict(trained, x, posterior=True), y)}
    return {**record, "test": {"samples": test_scores(trained, data, posterior=True)}} if final else record


def _adam(task: Task, data: Data, seed: int, method: str, *, final: bool) -> dict[str, Any]:
    """The best of three rates, and the mixture of three networks at that rate; seconds are those of one network."""
    x, y = data.validation
    networks = {rate: train(task, data, adam(task, rate), seed) for rate in RATES}
    losses = {rate: finite_nll(predict(network, x, posterior=False), y) for rate, network in networks.items()}
    rate = min(RATES, key=lambda rate: losses[rate])
    best = networks[rate]
    members = [best, *(train(task, data, adam(task, rate), seed + 1_000 * k) for k in range(1, MEMBERS))]

    def mixed(inputs: Any, target: Any) -> float:
        value = mixed_nll([predict(member, inputs, posterior=False) for member in members], target)
        return value if math.isfinite(value) else math.inf

    record = {
        "mean": losses[rate],
        "rate": rate,
        "rates": {f"{one:g}": loss for one, loss in losses.items()},
        "three": mixed(x, y),
        "seconds": best.seconds,
        "three_seconds": sum(member.seconds for member in members),
    }
    if final:
        record["test"] = {"mean": test_scores(best, data, posterior=False), "three": {"nll": mixed(*data.test)}}
    return record
