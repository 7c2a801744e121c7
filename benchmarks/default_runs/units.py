"""A unit: one task, one seed, one method, to one small record."""

from __future__ import annotations

import dataclasses
import math
import time
from typing import Any

from default_runs.scores import predict_all, scaled, score, temperature, together, validation_nll
from default_runs.training import OURS, adam, needs_examples, train, untouched
from default_runs.width import width
from default_tasks import Data, Task

RATES = (3e-4, 1e-3, 3e-3)
MEMBERS = 3
METHODS = ("adam", *OURS)


def quick(task: Task) -> Task:
    """With fewer examples, epochs and seeds."""
    size = task.quick_size if task.quick_size is not None else task.size
    epochs = task.quick_epochs or math.ceil(task.epochs / 2)
    return dataclasses.replace(task, size=size, epochs=epochs, seeds=2 if task.seeds >= 5 else 1)


def run(task: Task, seed: int, method: str, *, members: int = MEMBERS) -> dict[str, Any]:
    """The record of a unit: scores, or ``"failed"`` if training diverged, or ``"unsupported"`` with the reason why one
    of ours refuses the network.

    Args:
        task: What is trained.
        seed: Of data, weights and batches.
        method: ``"adam"`` or one of ours.
        members: Of Adam's deep ensemble; 1 for none.
    """
    start = time.process_time()
    data = task.load(seed)
    try:
        found = _adam(task, data, seed, members) if method == "adam" else _ours(task, data, seed, method)
    except FloatingPointError as error:
        found = {"failed": _line(error)}
    except (RuntimeError, ValueError, NotImplementedError) as error:
        found = {"unsupported": _line(error)}
    found["total_seconds"] = time.process_time() - start
    return _rounded(found)


def _adam(task: Task, data: Data, seed: int, members: int) -> dict[str, Any]:
    """The best of three rates by validation, the same with a temperature, and an ensemble at that rate."""
    tried: dict[str, float] = {}
    seconds, best, chosen = [], math.inf, None
    for rate in RATES:
        trained = train(task, data, adam(task, rate), seed)
        predicted = predict_all(trained, data, posterior=False)
        tried[f"{rate:g}"] = loss = validation_nll(predicted, data)
        seconds.append(trained.seconds)
        if chosen is None or loss < best:
            best, chosen, chosen_rate = loss, predicted, rate
    assert chosen is not None
    factor = temperature(chosen["validation"], data.validation[1])
    record = {
        "rate": chosen_rate,
        "validation": tried,
        "scores": score(chosen, data),
        "temperature": factor,
        "scaled": score(scaled(chosen, factor), data),
        "seconds": sum(seconds) / len(seconds),
    }
    if members > 1:
        others = [train(task, data, adam(task, chosen_rate), seed + 1_000 * k) for k in range(1, members)]
        predictions = [predict_all(other, data, posterior=False) for other in others]
        record["ensemble"] = score(together([chosen, *predictions]), data)
    return record


def _ours(task: Task, data: Data, seed: int, method: str) -> dict[str, Any]:
    trained = train(task, data, untouched(method), seed, sums_positions=needs_examples(method))
    predicted = predict_all(trained, data, posterior=True)
    return {
        "scores": score(predicted, data),
        "validation": validation_nll(predicted, data),
        "seconds": trained.seconds,
        **width(task, data, trained),
    }


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def _rounded(value: Any) -> Any:
    """Six digits: records stay small."""
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_rounded(one) for one in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value
