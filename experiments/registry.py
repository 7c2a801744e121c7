"""The experiments by name. They are imported on demand, so that a missing package affects only some of them."""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module

from experiments.experiment import Experiment

EXPERIMENTS: dict[str, str] = {
    "uci-table1": "experiments.uci_table1",
    "logreg-toy": "experiments.logreg_toy",
    "logreg-usps": "experiments.logreg_usps",
    "logreg-breast-cancer": "experiments.logreg_breast_cancer",
    "convergence": "experiments.convergence",
    "toy-regression": "experiments.toy_regression",
    "mnist-pruning": "experiments.mnist_pruning",
    "bandits": "experiments.bandits",
    "mnist-bbb": "experiments.mnist_bbb",
    "fawn-uci": "experiments.fawn_uci",
    "uci-best": "experiments.uci_best",
    "fawn-multioutput": "experiments.fawn_multioutput",
    "fawn-histogram": "experiments.fawn_histogram",
    "landscape": "experiments.landscape",
    "half-cheetah": "experiments.half_cheetah",
    "half-cheetah-full": "experiments.half_cheetah_full",
    "sb3-pendulum": "experiments.sb3_pendulum",
    "char-lm": "experiments.char_lm",
    "char-lm-full": "experiments.char_lm_full",
}
"""Modules with an ``EXPERIMENT``, by the name of the experiment."""


def load(name: str) -> Experiment:
    """Import an experiment by its name.

    Raises:
        ValueError: No experiment has this name, or a package that it needs is not installed.
    """
    if name not in EXPERIMENTS:
        close = get_close_matches(name, EXPERIMENTS, n=1, cutoff=0.5)
        hint = f"did you mean {close[0]!r}?" if close else "`python -m experiments list` shows them"
        raise ValueError(f"NAME must be an experiment, got {name!r}: {hint}")
    try:
        experiment = import_module(EXPERIMENTS[name]).EXPERIMENT
    except ModuleNotFoundError as error:
        raise ValueError(f"{name!r} needs {error.name!r}, which is not installed") from error
    if not isinstance(experiment, Experiment) or experiment.name != name:
        raise TypeError(f"EXPERIMENT of {EXPERIMENTS[name]} must be an Experiment named {name!r}, got {experiment!r}")
    return experiment
