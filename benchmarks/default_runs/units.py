"""A unit: one task, one seed, one method, to one small record."""

from __future__ import annotations

import time
from typing import Any

from default_runs.scores import collapsed, predict_all, scaled, score, temperature, together, validation_nll
from default_runs.training import PEER, Make, Trained, adam, peer, train, untouched
from default_runs.width import width
from default_tasks import Data, Task

RATES = (3e-4, 1e-3, 3e-3)
PEER_RATES = (0.03, 0.1, 0.3)
FACTORS = (1.0, 1 / 3, 3.0)
"""Of the temperature that BayesAdam chooses: the one knob that a user may turn."""
MEMBERS = 3
METHODS = ("adam", PEER, "bayesadam")


def run(task: Task, seed: int, method: str) -> dict[str, Any]:
    """The record of a unit: scores, or ``"failed"`` with the reason if the training diverged.

    Args:
        task: What is trained.
        seed: Of data, weights and batches.
        method: One of ``METHODS``.
    """
    start = time.process_time()
    data = task.load(seed)
    try:
        if method == "adam":
            found = _adam(task, data, seed)
        elif method == PEER:
            found = _best(task, data, seed, {rate: peer(rate) for rate in PEER_RATES})[0]
        else:
            found = _ours(task, data, seed)
    except FloatingPointError as error:
        found = {"failed": str(error)}
    found["total_seconds"] = time.process_time() - start
    return _rounded(found)


def _adam(task: Task, data: Data, seed: int) -> dict[str, Any]:
    """The best of three rates by validation, the same with a temperature, and an ensemble at that rate."""
    record, best = _best(task, data, seed, {rate: adam(task, rate) for rate in RATES}, posterior=False)
    make = adam(task, record["rate"])
    others = [train(task, data, make, seed + 1_000 * k) for k in range(1, MEMBERS)]
    predictions = [predict_all(one, data, posterior=False) for one in (best, *others)]
    return {**record, "ensemble": score(together(predictions), data)}


def _best(
    task: Task, data: Data, seed: int, makes: dict[float, Make], *, posterior: bool = True
) -> tuple[dict[str, Any], Trained]:
    """The record at the rate that is best on validation, and the network."""
    records, networks = {}, {}
    for rate, make in makes.items():
        networks[rate] = train(task, data, make, seed)
        records[rate] = _evaluated(task, networks[rate], data, posterior=posterior)
    rate = min(records, key=lambda one: records[one]["validation"])
    tried = {f"{one:g}": record["validation"] for one, record in records.items()}
    return {**records[rate], "rate": rate, "tried": tried}, networks[rate]


def _ours(task: Task, data: Data, seed: int) -> dict[str, Any]:
    """Untouched, with the width that was learned; and at the best of three temperatures by validation."""
    trained = train(task, data, untouched(), seed)
    record = {**_evaluated(task, trained, data), **width(task, data, trained)}
    records = {1.0: record}
    for factor in FACTORS[1:]:
        other = train(task, data, untouched(factor=factor), seed)
        records[factor] = _evaluated(task, other, data)
    best = min(FACTORS, key=lambda factor: records[factor]["scaled_validation"])
    return {**record, "tuned": {"factor": best, **{part: records[best][part] for part in ("scores", "scaled")}}}


def _evaluated(task: Task, trained: Trained, data: Data, *, posterior: bool = True) -> dict[str, Any]:
    """Scores of the mean network and of posterior samples, and of the better one by validation, also with a temperature
    that is fitted on validation.
    """
    ways = {"mean": predict_all(trained, data, posterior=False)}
    if posterior:
        ways["samples"] = predict_all(trained, data, posterior=True)
    losses = {name: validation_nll(found, data) for name, found in ways.items()}
    choice = min(losses, key=lambda name: losses[name])
    record: dict[str, Any] = {name: score(found, data) for name, found in ways.items()}
    record |= {"choice": choice, "validation": losses[choice], "scores": record[choice]}
    for found in ways.values():
        one = collapsed(found)
        factor = temperature(one["validation"], data.validation[1])
        tempered = scaled(one, factor)
        loss = validation_nll(tempered, data)
        if loss <= record.get("scaled_validation", loss):
            record |= {"scaled": score(tempered, data), "scaled_validation": loss, "temperature": factor}
    return {**record, "seconds": trained.seconds}


def _rounded(value: Any) -> Any:
    """Six digits: records stay small."""
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_rounded(one) for one in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value
