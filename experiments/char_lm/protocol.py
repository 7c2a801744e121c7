"""The work of one unit."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch

from experiments.char_lm.evaluation import mean_loss, scores
from experiments.char_lm.networks import rows
from experiments.char_lm.text import Text
from experiments.char_lm.training import train
from experiments.experiment import Context

SETTING = ("method", "options", "decay", "decay_every")


def run(config: Mapping[str, Any], context: Context, text: Text) -> dict[str, Any]:
    """Train one network, with the best setting of the units that it needs, and score it.

    Returns:
        ``setting``, and ``chosen``, the unit by which it was chosen; ``curve``, ``diverged`` and ``steps`` of
        :class:`Trained`; ``validation``, the loss at the end. A final training also has the scores ``test``, and
        ``passage``. A posterior also has ``widths``, the 1%, 50% and 99% quantiles of its standard deviations.
    """
    chosen = best(context.results)
    if chosen is not None:
        config = {**context.results[chosen]["setting"], **config}
    trained = train(config, text, context.folder, context.progress)
    result: dict[str, Any] = {
        "setting": {name: config[name] for name in SETTING if name in config},
        "chosen": chosen,
        "alphabet": len(text.alphabet),
        "steps": trained.steps,
        "diverged": trained.diverged,
        "curve": asdict(trained.curve),
    }
    if trained.diverged is not None:
        return {**result, "validation": math.nan}
    result["validation"] = mean_loss(trained.model, rows(config, text.validation))
    if config["part"] == "final":
        test = scores(trained.model, trained.posterior, rows(config, text.test), config["samples"], config["passage"])
        if "passage" in test:
            codes = test["passage"].pop("codes").tolist()
            result["passage"] = {"text": "".join(text.alphabet[code] for code in codes), **test.pop("passage")}
        result["test"] = test
    if trained.posterior is not None:
        deviations = torch.cat([v.sqrt().flatten() for v in trained.posterior.variance.values()])
        deviations = deviations[deviations > 0].sort().values  # norm layers have no noise
        result["widths"] = [float(deviations[int(q * (len(deviations) - 1))]) for q in (0.01, 0.5, 0.99)]
    return result


def best(results: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Return the unit with the lowest validation loss. Diverged trainings have no such loss."""
    finite = {key: result["validation"] for key, result in results.items() if result["validation"] is not None}
    if results and not finite:
        raise ValueError(f"a candidate must not diverge, but all did: {', '.join(results)}")
    return min(finite, key=lambda key: finite[key], default=None)
