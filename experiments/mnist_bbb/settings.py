"""The settings that all methods share, and three candidates for each, but only one for Bayes by Backprop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

PROTOCOL = {
    "epochs": 20,
    "batch_size": 128,
    "hidden": 400,
    "train": 60_000,
    "held_out": 10_000,
    "split": 0,
    "validation_samples": 16,
    "mc_samples": 32,
}

COSTS = {"adam": 1.0, "dropout": 1.1, "ivon": 1.4, "vadam": 1.4, "vadam-tempered": 1.4}
"""Relative durations of a training. It is 3 for the other methods."""

SEEDS = {"bbb-gaussian": 1, "bbb-mixture": 1}
"""Numbers of seeds of the final runs, if there are fewer than for the other methods (2 by default)."""

Candidate = Mapping[str, Any]


def _adam(lr: float, **options: Any) -> Candidate:
    return {"method": "adam", "predict": "mean", "options": {"lr": lr, **options}}


def _dropout(rate: float, lr: float) -> Candidate:
    return {"method": "adam", "predict": "monte_carlo", "dropout": rate, "options": {"lr": lr}}


def _vadam(lr: float, prior_precision: float, temperature: float) -> Candidate:
    options = {"lr": lr, "betas": [0.9, 0.999], "prior_precision": prior_precision, "temperature": temperature}
    return {"method": "vadam", "predict": "monte_carlo", "options": options}


def _ivon(lr: float, prior_precision: float) -> Candidate:
    options = {
        "lr": lr,
        "betas": [0.9, 0.99995],
        "prior_precision": prior_precision,
        "initial_precision": 5000.0,
    }
    return {"method": "ivon", "predict": "monte_carlo", "options": options}


def _bbb(lr: float, initial_std: float, *prior: Any) -> Candidate:
    options = {"lr": lr, "initial_std": initial_std, "prior": list(prior)}
    return {"method": "bbb", "predict": "monte_carlo", "options": options}


CANDIDATES: Mapping[str, Sequence[Candidate]] = {
    "adam": [_adam(0.0003), _adam(0.001), _adam(0.003)],
    "dropout": [_dropout(0.2, 0.001), _dropout(0.2, 0.003), _dropout(0.5, 0.001)],
    "vadam": [_vadam(0.001, 1.0, 1.0), _vadam(0.003, 1.0, 1.0), _vadam(0.003, 10.0, 1.0)],
    "vadam-tempered": [_vadam(0.001, 1.0, 0.01), _vadam(0.003, 1.0, 0.01), _vadam(0.003, 10.0, 0.01)],
    "ivon": [_ivon(0.5, 3.0), _ivon(1.0, 3.0), _ivon(1.0, 10.0)],
    "bbb-gaussian": [_bbb(0.001, 0.02, "Gaussian", 100.0)],
    "bbb-mixture": [_bbb(0.003, 0.02, "ScaleMixture", 0.5, 0.37, 0.0025)],
}
"""Candidate settings by method. A method with a single candidate needs no search."""
