"""The work of one unit: train a network, and score it on held-out digits, or on test digits and clothes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

import bayesadam as ba
from experiments.experiment import Progress
from experiments.mnist.evaluation import predictive, scores
from experiments.mnist.training import train

SETTING = ("method", "options", "dropout", "predict")
BINS = 40


def search(config: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """Train on one part of the training digits, and return scores on the other part."""
    data = ba.data.load("mnist")
    order = torch.randperm(len(data.x_train), generator=torch.Generator().manual_seed(config["split"]))
    inner, outer = torch.split(order[: config["train"]], config["train"] - config["held_out"])
    trained = train(config, data.x_train[inner], data.y_train[inner], progress)
    found = predictive(trained, data.x_train[outer], method=config["predict"], mc_samples=config["validation_samples"])
    return {
        "setting": {name: config[name] for name in SETTING if name in config},
        "validation": scores(found, data.y_train[outer]),
    }


def final(config: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """Train on all training digits, and return scores on the test digits and on the test images of Fashion-MNIST.

    If weights or units are random, both the mean network and the average over samples are scored.
    """
    digits, clothes = ba.data.load("mnist"), ba.data.load("fashion-mnist")
    trained = train(config, digits.x_train[: config["train"]], digits.y_train[: config["train"]], progress)
    result: dict[str, Any] = {"setting": {name: config[name] for name in SETTING if name in config}}
    for method in dict.fromkeys((config["predict"], "mean")):
        own, other = (
            predictive(trained, data.x_test, method=method, mc_samples=config["mc_samples"])
            for data in (digits, clothes)
        )
        counts = {name: torch.histc(p.entropy, BINS, 0.0, math.log(10.0)) for name, p in (("in", own), ("out", other))}
        result[method] = {**scores(own, digits.y_test, other), "entropy": counts}
    return result
