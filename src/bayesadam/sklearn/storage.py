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

from bayesadam import files
from bayesadam.checks import is_whole
from bayesadam.likelihoods import Categorical, Likelihood
from bayesadam.posterior import Mixture
from bayesadam.posterior.base import read_posterior
from bayesadam.sklearn import likelihoods as likelihood_names
from bayesadam.sklearn import target_transform
from bayesadam.sklearn.base import BayesianMLP
from bayesadam.sklearn.classifier import BayesianMLPClassifier
from bayesadam.sklearn.conformal import LeftOutScores
from bayesadam.sklearn.linear import LinearPart
from bayesadam.sklearn.network import perceptron
from bayesadam.sklearn.noise import NoisePattern
from bayesadam.sklearn.reach import Reach
from bayesadam.sklearn.regressor import BayesianMLPRegressor

VERSION = 1
"""Version of the files. ``model.json`` contains the digest of its posterior."""
POSTERIOR, MODEL = "posterior.safetensors", "model.json"
NEXT = ".model.json.next"
"""Temporary name of the new ``model.json`` until the posterior to which it belongs is in place."""
_RULE = f"{MODEL} must be what save() wrote"
_ENDS = ("end", "early", "time", "interrupted")
_KINDS = {kind.__name__: kind for kind in (BayesianMLPRegressor, BayesianMLPClassifier)}


def save_estimator(estimator: BayesianMLP, folder: str | os.PathLike[str]) -> str:
    """Write a fitted estimator into a folder, which is created if it does not exist.

    At any moment the folder holds either the complete earlier estimator or the complete new one. Several processes may
    save to one folder and read it.

    Returns:
        The digest of ``model.json``.

    Raises:
        ValueError: A parameter or a label cannot be written as JSON, such as a ``RandomState``.
    """
    params = {name: _plain(name, value) for name, value in estimator.get_params(deep=False).items()}
    told: dict[str, Any] = {
        "version": VERSION,
        "kind": type(estimator).__name__,
        "params": params,
        "inputs": {"mean": estimator._x_mean.tolist(), "std": estimator._x_std.tolist()},
        "feature_names": getattr(estimator, "feature_names_in_", np.array([])).tolist(),
        "calibration": {name: np.asarray(value).tolist() for name, value in estimator.calibration_.items()},
        "epochs": estimator.epochs_,
        "stopped": estimator.stopped_,
        "history": {name: _rounded(values) for name, values in estimator.history_.items()},
    }
    if (inputs := getattr(estimator, "inputs_", None)) is not None:
        told["columns"] = inputs.to_json()
    if isinstance(estimator, BayesianMLPClassifier):
        told["classes"] = {"values": estimator.classes_.tolist(), "dtype": estimator.classes_.dtype.str}
        if estimator.classes_.dtype == object:
            told["classes"]["dtype"] = "object"
        told["classes"]["values"] = _plain("classes_", told["classes"]["values"])
    else:
        assert isinstance(estimator, BayesianMLPRegressor)
        told["targets"] = {"mean": estimator._y_mean.tolist(), "std": estimator._y_std.tolist()}
        told["targets"]["transforms"] = [target_transform.record(function) for function in estimator._functions]
        told["likelihood"] = _plain("likelihood_", estimator.likelihood_)
        told["several"] = estimator._several
        told["reach"] = None if estimator._reach is None else vars(estimator._reach)
        told["noise"] = [None if pattern is None else pattern.record() for pattern in estimator._patterns]
        told["left_out"] = None if estimator._left_out is None else estimator._left_out.record()
        told["likelihoods"] = [
            {name: value.tolist() for name, value in likelihood.state_dict().items()}
            for likelihood in estimator._likelihoods
        ]
    told["linear"] = [part.record() for part in estimator._linear]
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    with files.locked(path):
        with files.whole_file(path / POSTERIOR) as temporary:
            told["posterior"] = estimator.posterior_._write(temporary)
            digest = files.write_json(path / NEXT, told)
        (path / NEXT).replace(path / MODEL)
    return digest


def load_estimator(folder: str | os.PathLike[str]) -> BayesianMLPRegressor | BayesianMLPClassifier:
    """Read an estimator from the folder that its method ``save`` wrote. Its tensors are on the device that it names.

    Raises:
        FileNotFoundError: A file is missing.
        bayesadam.files.DamagedFile: A file is damaged, has another format, belongs to another estimator, or was written
            by another version of the library. This error is a ``ValueError``.
    """
    return read_estimator(folder)[0]


def read_estimator(folder: str | os.PathLike[str]) -> tuple[BayesianMLPRegressor | BayesianMLPClassifier, str]:
    """Return the estimator and the digest of ``model.json``."""
    path = Path(folder)
    with files.locked(path, shared=True):
        try:
            told, posterior, digest = _pair(path, MODEL)
        except (FileNotFoundError, files.DamagedFile):  # save() may have been stopped between its two files
            try:
                told, posterior, digest = _pair(path, NEXT)
            except (OSError, files.DamagedFile):  # or save() may just have completed
                told, posterior, digest = _pair(path, MODEL)
    with files.reading(_RULE, path / MODEL):
        return _restored(told, posterior), digest


def _pair(path: Path, name: str) -> tuple[dict[str, Any], Mixture, str]:
    """Return the model, the posterior that belongs to it, and the digest of the model."""
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
    return told, posterior, digest


def _restored(told: dict[str, Any], posterior: Mixture) -> BayesianMLPRegressor | BayesianMLPClassifier:
    """Create the estimator. Any error other than an ``OSError`` means that the record is damaged."""
    params = dict(told["params"])
    params["hidden"] = tuple(params["hidden"])
    estimator: Any = _KINDS[told["kind"]](**params)
    estimator._check()
    estimator.method_ = estimator._method_name
    estimator._x_mean, estimator._x_std = _scales("inputs", told["inputs"])
    estimator.inputs_ = _inputs(told["columns"], len(estimator._x_mean)) if "columns" in told else None
    coded = estimator.inputs_
    estimator.n_features_in_ = len(coded.columns) + len(coded.left_out) if coded else len(estimator._x_mean)
    if told["feature_names"]:
        estimator.feature_names_in_ = np.array(told["feature_names"], dtype=object)
        if estimator.feature_names_in_.shape != (estimator.n_features_in_,):
            raise ValueError(f"feature_names must be {estimator.n_features_in_}, got {told['feature_names']!r}")
    if not is_whole(told["epochs"], 0) or told["stopped"] not in _ENDS:
        raise ValueError(f"epochs must be a whole number, got {told['epochs']!r} and {told['stopped']!r}")
    estimator.epochs_, estimator.stopped_ = told["epochs"], told["stopped"]
    estimator.interrupted_ = estimator.stopped_ == "interrupted"
    estimator.history_ = {name: np.array(values, dtype=np.float64) for name, values in told["history"].items()}
    estimator.left_out_ = None
    members = len(posterior.components)
    if told["kind"] == BayesianMLPClassifier.__name__:
        estimator.classes_ = np.array(told["classes"]["values"], dtype=told["classes"]["dtype"])
        if estimator.classes_.ndim != 1 or len(np.unique(estimator.classes_)) != len(estimator.classes_):
            raise ValueError(f"classes must differ, got {told['classes']['values']!r}")
        estimator.calibration_ = {"temperature": float(_finite("temperature", told["calibration"]["temperature"]))}
        if not estimator.calibration_["temperature"] > 0:
            raise ValueError(f"temperature must be positive, got {told['calibration']['temperature']!r}")
        _read_linear(estimator, told)
        likelihoods: list[Likelihood] = [Categorical() for _ in range(members)]
    else:
        estimator._y_mean, estimator._y_std = _scales("targets", told["targets"])
        if not isinstance(told["several"], bool) or not (told["several"] or len(estimator._y_mean) == 1):
            raise ValueError(f"several must be True or False, got {told['several']!r}")
        estimator._several = told["several"]
        _restore_choice(estimator, told)
        shape = estimator._y_mean.shape
        names = ("epistemic", "aleatoric", "error")
        estimator.calibration_ = {name: _finite(name, told["calibration"][name]) for name in names}
        for name, values in estimator.calibration_.items():
            if values.shape != shape or (values < 0).any():
                raise ValueError(f"{name} must be numbers of at least 0, got {values.tolist()!r}")
        estimator._template = estimator._likelihood_of(len(estimator._y_mean))
        likelihoods = _likelihoods(estimator, told, members)
        _read_noise(estimator, told)
        _read_ridge(estimator, told)
        kept = told["left_out"]
        estimator._left_out = None if kept is None else LeftOutScores.read(kept, members, len(estimator._y_mean))
    if len(likelihoods) != members:
        raise ValueError(f"likelihoods must be {members}, got {len(likelihoods)}")
    _check_sizes(estimator, posterior)
    estimator._likelihoods = [likelihood.to(estimator.device) for likelihood in likelihoods]
    estimator.network_ = estimator._network(len(estimator._x_mean))
    estimator.posterior_ = posterior
    result: BayesianMLPRegressor | BayesianMLPClassifier = estimator
    return result


def _restore_choice(estimator: Any, told: dict[str, Any]) -> None:
    """Read the likelihood and the transforms of the targets."""
    estimator.likelihood_ = told["likelihood"]
    likelihood_names.check(estimator.likelihood_, among=likelihood_names.NAMES)
    records = told["targets"]["transforms"]
    if len(records) != len(estimator._y_mean):
        raise ValueError(f"transforms must be {len(estimator._y_mean)}, got {records!r}")
    estimator._functions = [target_transform.from_record(record) for record in records]
    estimator.target_transform_ = target_transform.told(estimator._functions, estimator._several)


def _likelihoods(estimator: Any, told: dict[str, Any], members: int) -> list[Likelihood]:
    """Return the likelihoods of a regression's members."""
    likelihoods = [copy.deepcopy(estimator._template).requires_grad_(False) for _ in range(members)]
    for likelihood, state in zip(likelihoods, told["likelihoods"], strict=True):
        values = {name: torch.tensor(_finite(name, value).tolist()) for name, value in state.items()}
        likelihood.load_state_dict(values)
    estimator._template.load_state_dict(likelihoods[0].state_dict())
    return likelihoods


def _read_noise(estimator: Any, told: dict[str, Any]) -> None:
    """Read the pattern of a regression's noise and the region of its rows."""
    width, reach, records = len(estimator._y_mean), told["reach"], told["noise"]
    if len(records) != width:
        raise ValueError(f"noise must be that of {width} outputs, got {records!r}")
    estimator._reach = None
    if reach is not None:
        square, rows = (float(_finite(name, reach[name])) for name in ("square", "rows"))
        if square < 0 or rows <= 0:
            raise ValueError(f"reach must be a square and a positive number of rows, got {reach!r}")
        estimator._reach = Reach(square, rows)
    estimator._patterns = [
        None if record is None else NoisePattern.read(record, len(estimator._x_mean)) for record in records
    ]


def _read_linear(estimator: Any, told: dict[str, Any]) -> None:
    """Read the regressions that complement a classifier's networks."""
    records = told["linear"]
    weights = _finite("linear", told["calibration"]["linear"])
    if weights.shape != (len(records),) or (weights < 0).any():
        raise ValueError(f"linear must be a weight of at least 0 for {len(records)} regressions, got {weights!r}")
    estimator._networks_only = False
    estimator.calibration_["linear"] = weights.tolist()
    sizes = (len(estimator._x_mean), len(estimator.classes_))
    estimator._linear = [LinearPart.read(record, *sizes) for record in records]


def _read_ridge(estimator: Any, told: dict[str, Any]) -> None:
    """Read the regressions that complement a regression's networks."""
    width, records = len(estimator._y_mean), told["linear"]
    shares = _finite("linear", told["calibration"]["linear"])
    if shares.shape != (1 + len(records), width) or (shares < 0).any():
        raise ValueError(f"linear must be weights of at least 0, {1 + len(records)} x {width}, got {shares!r}")
    estimator.calibration_["linear"] = shares
    estimator._linear = [LinearPart.read(record, len(estimator._x_mean), width) for record in records]


def _check_sizes(estimator: Any, posterior: Mixture) -> None:
    """Check that the posterior matches the network's weights, before a network is created that may be very large."""
    weights = posterior.components[0].mean
    if len(estimator.hidden) > len(weights):
        raise ValueError(f"hidden must be those of the posterior, got {len(estimator.hidden)} layers")
    with torch.device("meta"), torch.random.fork_rng(devices=[]):
        network = perceptron(len(estimator._x_mean), estimator.hidden, estimator._outputs(), estimator.activation)
    posterior.match(network)


def _inputs(record: Any, features: int) -> Any:
    """Return the interpretation of a table's columns."""
    from bayesadam.tabular import Inputs  # imported here because it needs pyarrow

    found = Inputs.from_json(record)
    if len(found.features) != features:
        raise ValueError(f"columns must be {features} numbers, got {len(found.features)}")
    return found


def _scales(name: str, record: dict[str, Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return the means and standard deviations by which columns are standardised."""
    mean, std = _finite(name, record["mean"]), _finite(name, record["std"])
    if mean.ndim != 1 or mean.shape != std.shape or not len(mean) or not (std > 0).all():
        raise ValueError(f"{name} must have a mean and a positive deviation each, got {record!r}")
    return mean, std


def _finite(name: str, values: Any) -> np.ndarray[Any, Any]:
    array = np.array(values)
    if array.dtype.kind not in "iuf" or not np.isfinite(array).all():
        raise ValueError(f"{name} must be finite numbers, got {values!r}")
    return array


def _plain(name: str, value: Any) -> Any:
    """Convert a value to one that can be written as JSON."""
    try:
        return json.loads(json.dumps(value, allow_nan=False, default=_number))
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be numbers, text or None to be saved, got {value!r}") from None


def _number(value: Any) -> Any:
    """Return the Python number in a NumPy scalar."""
    if not isinstance(value, np.generic):
        raise TypeError(f"value must be a number, got {value!r}")
    return value.item()


def _rounded(values: np.ndarray[Any, Any]) -> list[Any]:
    """Round to six digits, because a long history would otherwise fill a third of the file; NaN becomes None."""
    return [[None if math.isnan(value) else float(f"{value:.6g}") for value in row] for row in values.tolist()]
