"""Fitted estimators in files, without pickle: a safetensors file, and a JSON file that belongs to it."""

from __future__ import annotations

import copy
import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.base import clone

from bayesadam import files
from bayesadam.functional.monotone import monotone
from bayesadam.likelihoods import Categorical
from bayesadam.posterior import Mixture
from bayesadam.posterior.base import read_posterior
from bayesadam.sklearn import target_transform
from bayesadam.sklearn.base import BayesianMLP, require_device
from bayesadam.sklearn.classifier import BayesianMLPClassifier
from bayesadam.sklearn.conformal import LeftOutScores
from bayesadam.sklearn.linear import LinearPart
from bayesadam.sklearn.noise import NoisePattern
from bayesadam.sklearn.process import ProcessPart
from bayesadam.sklearn.reach import Reach
from bayesadam.sklearn.regressor import BayesianMLPRegressor
from bayesadam.sklearn.tables.encoder import TableEncoder
from bayesadam.sklearn.trees import TreesPart

VERSION = 1
"""Version of the files. ``model.json`` contains the digest of its posterior."""
POSTERIOR, MODEL = "posterior.safetensors", "model.json"
NEXT = ".model.json.next"
"""Temporary name of the new ``model.json`` until the posterior to which it belongs is in place."""
_RULE = f"{MODEL} must be what save() wrote"
_KINDS = {kind.__name__: kind for kind in (BayesianMLPRegressor, BayesianMLPClassifier)}
_PARTS: dict[str, Any] = {
    kind.__name__: kind for kind in (LinearPart, ProcessPart, TreesPart, NoisePattern, Reach, LeftOutScores)
}


def save_estimator(estimator: BayesianMLP, folder: str | os.PathLike[str]) -> None:
    """Write a fitted estimator into a folder, which is created if it does not exist.

    At any moment the folder holds either the complete earlier estimator or the complete new one. Several processes may
    save to one folder and read it.

    Raises:
        ValueError: A parameter or a label cannot be written as JSON, such as a ``RandomState``.
    """
    params = {
        name: _plain(name, value) for name, value in estimator.get_params(deep=False).items() if name != "encoder"
    }
    told: dict[str, Any] = {
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
    if isinstance(estimator, BayesianMLPClassifier):
        kind = "object" if estimator.classes_.dtype == object else estimator.classes_.dtype.str
        told["classes"] = {"values": _plain("classes_", estimator.classes_.tolist()), "dtype": kind}
    else:
        assert isinstance(estimator, BayesianMLPRegressor)
        told |= {
            "targets": {"mean": estimator._y_mean.tolist(), "std": estimator._y_std.tolist()},
            "transforms": [{"name": function.name, **function.numbers()} for function in estimator._functions],
            "likelihood": _plain("likelihood_", estimator.likelihood_),
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
            told["posterior"] = estimator.posterior_._write(temporary)
            files.write_json(path / NEXT, told)
        (path / NEXT).replace(path / MODEL)


def load_estimator(
    folder: str | os.PathLike[str], *, device: str | None = None
) -> BayesianMLPRegressor | BayesianMLPClassifier:
    """Read an estimator from the folder that its method ``save`` wrote, or ``fit_table``.

    If it was fitted to a table, it takes the columns of that table.

    Args:
        folder: The folder.
        device: Device of PyTorch for its tensors, which replaces its parameter ``device``; ``None`` keeps that.

    Raises:
        ValueError: PyTorch cannot use the device.
        FileNotFoundError: A file is missing.
        bayesadam.files.DamagedFile: A file is damaged, has another format, belongs to another estimator, or was written
            by another version of the library. This error is a ``ValueError``.
    """
    path = Path(folder)
    with files.locked(path, shared=True):
        try:
            told, posterior = _pair(path, MODEL)
        except (FileNotFoundError, files.DamagedFile):  # save() may have been stopped between its two files
            try:
                told, posterior = _pair(path, NEXT)
            except (OSError, files.DamagedFile):  # or save() may just have completed
                told, posterior = _pair(path, MODEL)
    with files.reading(_RULE, path / MODEL):
        params = told["params"]
        params["device"] = device or params["device"]
    require_device(params["device"])
    with files.reading(_RULE, path / MODEL):
        return _restored(told, posterior)


def _pair(path: Path, name: str) -> tuple[dict[str, Any], Mixture]:
    """Return the model, and the posterior that belongs to it."""
    told, digest = files.read_json(path / name, _RULE)
    with files.reading(_RULE, path / name):
        if told["version"] != VERSION:
            raise ValueError(f"its version is {told['version']!r}, not {VERSION}")
        if digest is None:
            raise ValueError("it has no digest")
    posterior, partner = read_posterior(path / POSTERIOR)
    if not isinstance(posterior, Mixture):
        raise files.DamagedFile(f"{POSTERIOR} must hold a Mixture, got {type(posterior).__name__}")
    if told.get("posterior") != partner:
        raise files.DamagedFile(f"{MODEL} must belong to {POSTERIOR}, got that of another in {str(path)!r}")
    return told, posterior


def _restored(told: dict[str, Any], posterior: Mixture) -> BayesianMLPRegressor | BayesianMLPClassifier:
    """Create the estimator. The digests of both files say that they are what :func:`save_estimator` wrote."""
    encoder = None if told["encoder"] is None else TableEncoder.from_json(told["encoder"])
    params = {**told["params"], "hidden": tuple(told["params"]["hidden"])}
    estimator: Any = _KINDS[told["kind"]](**params)
    estimator.encoder = clone(encoder) if told["encoder_given"] else None
    estimator._check()
    estimator.method_ = estimator._method_name
    estimator.inputs_ = encoder
    estimator._x_mean, estimator._x_std = (np.array(told["inputs"][name]) for name in ("mean", "std"))
    estimator.n_features_in_ = told["features"]
    if told["feature_names"]:
        estimator.feature_names_in_ = np.array(told["feature_names"], dtype=object)
    estimator.epochs_, estimator.stopped_ = told["epochs"], told["stopped"]
    estimator.interrupted_ = estimator.stopped_ == "interrupted"
    estimator.history_ = {name: np.array(values, dtype=np.float64) for name, values in told["history"].items()}
    estimator.left_out_ = None
    estimator.calibration_ = told["calibration"]
    estimator._companions = [part_of(part) for part in told["companions"]]
    if isinstance(estimator, BayesianMLPClassifier):
        estimator.classes_ = np.array(told["classes"]["values"], dtype=told["classes"]["dtype"])
        estimator._networks_only = False
        likelihoods: list[Any] = [Categorical() for _ in posterior.components]
    else:
        estimator.calibration_ = {name: np.array(value) for name, value in told["calibration"].items()}
        likelihoods = _restored_targets(estimator, told)
    estimator._likelihoods = [likelihood.to(estimator.device) for likelihood in likelihoods]
    estimator.network_ = estimator._network(len(estimator._x_mean))
    estimator.posterior_ = posterior
    result: BayesianMLPRegressor | BayesianMLPClassifier = estimator
    return result


def _restored_targets(estimator: Any, told: dict[str, Any]) -> list[Any]:
    """Read what a regression has learned about its targets; return the members' likelihoods."""
    estimator._y_mean, estimator._y_std = (np.array(told["targets"][name]) for name in ("mean", "std"))
    estimator._several = told["several"]
    estimator.likelihood_ = told["likelihood"]
    estimator._functions = [monotone(record.pop("name"), record) for record in told["transforms"]]
    estimator.target_transform_ = target_transform.told(estimator._functions, estimator._several)
    estimator._reach = part_of(told["reach"])
    estimator._patterns = [part_of(pattern) for pattern in told["noise"]]
    estimator.noise_ = told["noise_model"]
    estimator._left_out = part_of(told["left_out"])
    estimator._template = estimator._likelihood_of(len(estimator._y_mean))
    likelihoods = []
    for state in told["likelihoods"]:
        likelihood = copy.deepcopy(estimator._template).requires_grad_(False)
        likelihood.load_state_dict({name: torch.tensor(value) for name, value in state.items()})
        likelihoods.append(likelihood)
    estimator._template.load_state_dict(likelihoods[0].state_dict())
    return likelihoods


def record(part: Any) -> dict[str, Any] | None:
    """Return a part of an estimator, a data class of arrays and numbers, as JSON values; ``None`` is kept."""
    if part is None:
        return None
    return {"kind": type(part).__name__, **{name: np.asarray(value).tolist() for name, value in vars(part).items()}}


def part_of(record: dict[str, Any] | None) -> Any:
    """Create the part from what :func:`record` returned."""
    if record is None:
        return None
    values: dict[str, Any] = {
        name: np.array(value) if isinstance(value, list) else value for name, value in record.items()
    }
    return _PARTS[values.pop("kind")](**values)


def _plain(name: str, value: Any) -> Any:
    """Convert a value to one that can be written as JSON."""
    try:
        return json.loads(json.dumps(value, allow_nan=False, default=lambda number: number.item()))
    except (TypeError, ValueError, AttributeError):
        raise ValueError(f"{name} must be numbers, text or None to be saved, got {value!r}") from None


def _rounded(values: np.ndarray[Any, Any]) -> list[Any]:
    """Round to six digits, because a long history would otherwise fill a third of the file; NaN becomes None."""
    return [[None if math.isnan(value) else float(f"{value:.6g}") for value in row] for row in values.tolist()]
