"""Fitted estimators as files: a safetensors file and a JSON file, no pickle."""

from __future__ import annotations

import copy
import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bayesadam.files import whole_file
from bayesadam.likelihoods import Categorical, Gaussian, HeteroscedasticGaussian, Likelihood
from bayesadam.posterior import Mixture, load_posterior
from bayesadam.sklearn.base import BayesianMLP
from bayesadam.sklearn.classifier import BayesianMLPClassifier
from bayesadam.sklearn.methods import method_named
from bayesadam.sklearn.regressor import BayesianMLPRegressor

VERSION = 1
POSTERIOR, MODEL = "posterior.safetensors", "model.json"
_KINDS = {kind.__name__: kind for kind in (BayesianMLPRegressor, BayesianMLPClassifier)}


def save_estimator(estimator: BayesianMLP, folder: str | os.PathLike[str]) -> None:
    """Write a fitted estimator into a folder, which is made if need be; each file is renamed when it is complete.

    Raises:
        ValueError: Parameters or labels that JSON does not know, as a ``RandomState``.
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
        "history": {name: _with_none(values) for name, values in estimator.history_.items()},
    }
    if isinstance(estimator, BayesianMLPClassifier):
        told["classes"] = {"values": estimator.classes_.tolist(), "dtype": estimator.classes_.dtype.str}
        if estimator.classes_.dtype == object:
            told["classes"]["dtype"] = "object"
        told["classes"]["values"] = _plain("classes_", told["classes"]["values"])
    else:
        assert isinstance(estimator, BayesianMLPRegressor)
        told["targets"] = {"mean": estimator._y_mean.tolist(), "std": estimator._y_std.tolist()}
        told["several"] = estimator._several
        if estimator._gaussian:
            told["noise_precision"] = [
                likelihood.noise_precision.tolist() if isinstance(likelihood, Gaussian) else None
                for likelihood in estimator._likelihoods
            ]
        else:
            told["likelihoods"] = [
                {name: value.tolist() for name, value in likelihood.state_dict().items()}
                for likelihood in estimator._likelihoods
            ]
        if hasattr(estimator, "conformal_scores_"):
            told["conformal_scores"] = estimator.conformal_scores_.tolist()
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    estimator.posterior_.save(path / POSTERIOR)
    with whole_file(path / MODEL) as temporary:
        temporary.write_text(json.dumps(told, allow_nan=False))


def load_estimator(folder: str | os.PathLike[str]) -> BayesianMLPRegressor | BayesianMLPClassifier:
    """Read what ``save`` wrote; tensors are on the device that the estimator names.

    Raises:
        FileNotFoundError: A file is missing.
        ValueError: A file that is damaged, foreign, or written by a newer version of the library.
    """
    path = Path(folder)
    text = (path / MODEL).read_text()
    try:
        told = json.loads(text)
        version = told["version"]
    except (json.JSONDecodeError, TypeError, KeyError):
        raise ValueError(f"{MODEL} must be what save() wrote, got {str(path / MODEL)!r}") from None
    if version != VERSION:
        raise ValueError(f"{MODEL} must be of version {VERSION} (update bayesadam?), got {version!r}")
    posterior = load_posterior(path / POSTERIOR)
    if not isinstance(posterior, Mixture):
        raise ValueError(f"{POSTERIOR} must hold a Mixture, got {type(posterior).__name__}")
    try:
        return _restored(told, posterior)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{MODEL} must be what save() wrote, got {str(path / MODEL)!r} ({error})") from None


def _restored(told: dict[str, Any], posterior: Mixture) -> BayesianMLPRegressor | BayesianMLPClassifier:
    params = dict(told["params"])
    params["hidden"] = tuple(params["hidden"])
    estimator: Any = _KINDS[told["kind"]](**params)
    estimator._check()
    estimator._method = method_named(estimator.method)
    estimator._x_mean, estimator._x_std = (np.array(told["inputs"][name]) for name in ("mean", "std"))
    estimator.n_features_in_ = len(estimator._x_mean)
    if told["feature_names"]:
        estimator.feature_names_in_ = np.array(told["feature_names"], dtype=object)
    estimator.epochs_, estimator.stopped_ = told["epochs"], told["stopped"]
    estimator.interrupted_ = estimator.stopped_ == "interrupted"
    estimator.history_ = {name: np.array(values, dtype=np.float64) for name, values in told["history"].items()}
    members = len(posterior.components)
    if told["kind"] == BayesianMLPClassifier.__name__:
        estimator.classes_ = np.array(told["classes"]["values"], dtype=told["classes"]["dtype"])
        estimator.calibration_ = told["calibration"]
        likelihoods: list[Likelihood] = [Categorical() for _ in range(members)]
    else:
        estimator._y_mean, estimator._y_std = (np.array(told["targets"][name]) for name in ("mean", "std"))
        estimator._several = told["several"]
        estimator.calibration_ = {name: np.array(values) for name, values in told["calibration"].items()}
        if "conformal_scores" in told:
            estimator.conformal_scores_ = np.array(told["conformal_scores"])
        estimator._template = estimator._likelihood_of(len(estimator._y_mean))
        if "likelihoods" in told:
            likelihoods = [copy.deepcopy(estimator._template).requires_grad_(False) for _ in range(members)]
            for likelihood, state in zip(likelihoods, told["likelihoods"], strict=True):
                likelihood.load_state_dict({name: torch.tensor(value) for name, value in state.items()})
            estimator._template.load_state_dict(likelihoods[0].state_dict())
        else:
            likelihoods = [
                HeteroscedasticGaussian() if precision is None else Gaussian(torch.tensor(precision))
                for precision in told["noise_precision"]
            ]
    estimator._likelihoods = [likelihood.to(estimator.device) for likelihood in likelihoods]
    estimator.network_ = estimator._network(estimator.n_features_in_)
    posterior.match(estimator.network_)
    estimator.posterior_ = posterior
    result: BayesianMLPRegressor | BayesianMLPClassifier = estimator
    return result


def _plain(name: str, value: Any) -> Any:
    """As JSON takes it."""
    try:
        return json.loads(json.dumps(value, allow_nan=False, default=_number))
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be numbers, text or None to be saved, got {value!r}") from None


def _number(value: Any) -> Any:
    """What is inside a NumPy scalar."""
    if not isinstance(value, np.generic):
        raise TypeError(f"value must be a number, got {value!r}")
    return value.item()


def _with_none(values: np.ndarray[Any, Any]) -> list[Any]:
    return [[None if math.isnan(value) else value for value in row] for row in values.tolist()]
