"""Fitted estimators in files, without pickle: a safetensors file, and a JSON file that belongs to it."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np

from bayesadam import files

VERSION = 1
"""Version of the files. ``model.json`` contains the digest of its posterior."""
POSTERIOR, MODEL = "posterior.safetensors", "model.json"
NEXT = ".model.json.next"
"""Temporary name of the new ``model.json`` until the posterior to which it belongs is in place."""


def save_estimator(estimator: Any, folder: str | os.PathLike[str]) -> None:
    """Write a fitted estimator into a folder, which is created if it does not exist.

    At any moment the folder holds either the complete earlier estimator or the complete new one. Several processes may
    save to one folder and read it.

    Raises:
        ValueError: A parameter or a label cannot be written as JSON, such as a ``RandomState``.
    """
    params = {
        name: _plain(name, value) for name, value in estimator.get_params(deep=False).items() if name != "encoder"
    }
    state: dict[str, Any] = {
        "version": VERSION,
        "kind": type(estimator).__name__,
        "params": params,
        "inputs": {"mean": estimator._x_mean.tolist(), "std": estimator._x_std.tolist()},
        "features": estimator.n_features_in_,
        "feature_names": getattr(estimator, "feature_names_in_", np.array([])).tolist(),
        "calibration": {name: np.asarray(value).tolist() for name, value in estimator.calibration_.items()},
        "epochs": estimator.epochs_,
        "stopped": estimator.stopped_,
        "history": {name: _rounded(values) for name, values in estimator.history_.items()},
        "companions": [record(companion) for companion in estimator._companions],
        "encoder": None if estimator.inputs_ is None else estimator.inputs_.to_json(),
        "encoder_given": estimator.encoder is not None,
    }
    if hasattr(estimator, "classes_"):
        kind = "object" if estimator.classes_.dtype == object else estimator.classes_.dtype.str
        state["classes"] = {"values": _plain("classes_", estimator.classes_.tolist()), "dtype": kind}
    else:
        state |= {
            "targets": {"mean": estimator._y_mean.tolist(), "std": estimator._y_std.tolist()},
            "transforms": [{"name": function.name, **function.numbers()} for function in estimator._functions],
            "likelihood": _plain("likelihood", estimator._likelihood_given),
            "several": estimator._several,
            "reach": record(estimator._reach),
            "noise": [record(pattern) for pattern in estimator._patterns],
            "noise_model": estimator.noise_,
            "left_out": record(estimator._left_out),
            "likelihoods": [
                {name: value.tolist() for name, value in likelihood.state_dict().items()}
                for likelihood in estimator._likelihoods
            ],
        }
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    with files.locked(path):
        with files.whole_file(path / POSTERIOR) as temporary:
            state["posterior"] = estimator.posterior_._write(temporary)
            files.write_json(path / NEXT, state)
        (path / NEXT).replace(path / MODEL)


def record(part: Any) -> dict[str, Any] | None:
    """Return a part of an estimator, a data class of arrays and numbers, as JSON values; ``None`` is kept."""
    if part is None:
        return None
    return {"kind": type(part).__name__, **{name: np.asarray(value).tolist() for name, value in vars(part).items()}}


def _plain(name: str, value: Any) -> Any:
    """Convert a value to one that can be written as JSON."""
    try:
        return json.loads(json.dumps(value, allow_nan=False, default=lambda number: number.item()))
    except (TypeError, ValueError, AttributeError):
        raise ValueError(f"{name} must be numbers, text or None to be saved, got {value!r}") from None


def _rounded(values: np.ndarray[Any, Any]) -> list[Any]:
    """Round to six digits, because a long history would otherwise fill a third of the file; NaN becomes None."""
    return [[None if math.isnan(value) else float(f"{value:.6g}") for value in row] for row in values.tolist()]
