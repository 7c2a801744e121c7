"""Fitted estimators in files, without pickle: a safetensors file, and a JSON file that belongs to it."""

from __future__ import annotations

import copy
import json
import math
import os
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from sklearn.base import clone

from bayesadam import files
from bayesadam.functional.monotone import monotone
from bayesadam.likelihoods import Categorical
from bayesadam.posterior import Mixture
from bayesadam.posterior.base import read_posterior
from bayesadam.tables.encoder.encoder import Encoded, TableEncoder
from bayesadam.tables.encoder.findings import Findings
from bayesadam.tables.estimators import target_transform
from bayesadam.tables.estimators.base import BayesianMLP, require_device
from bayesadam.tables.estimators.classifier import BayesianMLPClassifier
from bayesadam.tables.estimators.conformal import LeftOutScores
from bayesadam.tables.estimators.linear import LinearPart
from bayesadam.tables.estimators.network import shapes_of
from bayesadam.tables.estimators.noise import NoisePattern
from bayesadam.tables.estimators.reach import Reach
from bayesadam.tables.estimators.regressor import BayesianMLPRegressor
from bayesadam.tables.estimators.trees import TreesPart

VERSION = 1
"""Version of the files. ``model.json`` contains the digest of its posterior."""
POSTERIOR, MODEL = "posterior.safetensors", "model.json"
NEXT = ".model.json.next"
"""Temporary name of the new ``model.json`` until the posterior to which it belongs is in place."""
_RULE = f"{MODEL} must be what save() wrote"
_KINDS = {kind.__name__: kind for kind in (BayesianMLPRegressor, BayesianMLPClassifier)}
_PARTS: dict[Any, tuple[str, ...]] = {
    LinearPart: ("E", "E", "E", "KE", "K"),
    TreesPart: ("V", "V", "V", "V", "V", "T", "T", "K"),
    NoisePattern: ("I", "IH", "H", "H", "", "", "", ""),
    Reach: ("", ""),
    LeftOutScores: ("FM", "N", "NK", "N"),
}
"""Parts of estimators, with the shapes of their attributes in order; numbers have an empty shape.

Letters are sizes: ``D`` inputs, ``I`` inputs and the mean, ``K`` targets or classes, ``M`` members, and others that
only the arrays of one part share.
"""
_PLACES = {"column": "D", "output": "K", "folds": "F", "root": "V", "left": "V", "right": "V"}
"""Arrays of indices, and the size below which they are."""


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
    """Create the estimator.

    A digest may be that of another program's values. So all sizes are compared with those of the posterior before
    anything is made of them, and the estimator predicts a row, which finds values of other types.
    """
    encoder = None if told["encoder"] is None else TableEncoder.from_json(told["encoder"])
    params = {**told["params"], "hidden": tuple(told["params"]["hidden"])}
    estimator: Any = _KINDS[told["kind"]](**params)
    estimator.encoder = clone(encoder) if told["encoder_given"] else None
    estimator._check()
    estimator.method_ = estimator._method_name
    estimator.inputs_ = encoder
    width = len(told["inputs"]["mean"] if encoder is None else encoder.get_feature_names_out())
    sizes = {"D": width, "I": width + 1, "M": len(posterior.components)}
    estimator._x_mean, estimator._x_std = _arrays(told["inputs"], {"mean": "D", "std": "D"}, sizes).values()
    estimator.n_features_in_ = told["features"]
    if told["feature_names"]:
        estimator.feature_names_in_ = np.array(told["feature_names"], dtype=object)
    estimator.epochs_, estimator.stopped_ = told["epochs"], told["stopped"]
    estimator.interrupted_ = estimator.stopped_ == "interrupted"
    estimator.history_ = {name: np.array(values, dtype=np.float64) for name, values in told["history"].items()}
    estimator.left_out_ = None
    if isinstance(estimator, BayesianMLPClassifier):
        kind = np.dtype(told["classes"]["dtype"]).type  # without the length of texts, which the labels have
        estimator.classes_ = np.array(told["classes"]["values"], dtype=kind)
        sizes["K"] = len(estimator.classes_)
        estimator._networks_only = False
        calibration = {"temperature": "", "weights": "P"}
        likelihoods: list[Any] = [Categorical() for _ in posterior.components]
    else:
        sizes["K"] = len(told["targets"]["mean"])
        calibration = {"epistemic": "K", "aleatoric": "K", "error": "K", "weights": "QK"}
        likelihoods = _restored_targets(estimator, told, sizes)
    estimator._companions = [part_of(part, sizes) for part in told["companions"]]
    count = len(estimator._companions)
    estimator.calibration_ = _arrays(told["calibration"], calibration, {**sizes, "P": count, "Q": count + 1})
    layers = shapes_of([width, *estimator.hidden, estimator._outputs()])
    if posterior.shapes != layers:
        raise ValueError(f"its network must have the weights of its posterior, got hidden={estimator.hidden!r:.100}")
    estimator._likelihoods = [likelihood.to(estimator.device) for likelihood in likelihoods]
    estimator.network_ = estimator._network(width)
    estimator.posterior_ = posterior
    _predict_once(estimator)
    result: BayesianMLPRegressor | BayesianMLPClassifier = estimator
    return result


def _predict_once(estimator: Any) -> None:
    """Predict a row without values, which finds what cannot be used."""
    row = estimator._x_mean[None]
    if estimator.inputs_ is not None:
        nothing = {column.name: pa.nulls(1, pa.string()) for column in estimator.inputs_.columns_}
        row = estimator.inputs_.encode(pa.table(nothing), Findings())
    with np.errstate(all="ignore"):
        estimator.predict(Encoded(row))
        if getattr(estimator, "_left_out", None) is not None:
            estimator.predict_interval(Encoded(row), 0.5, method="cross")


def _restored_targets(estimator: Any, told: dict[str, Any], sizes: Mapping[str, int]) -> list[Any]:
    """Read what a regression has learned about its targets; return the members' likelihoods."""
    estimator._y_mean, estimator._y_std = _arrays(told["targets"], {"mean": "K", "std": "K"}, sizes).values()
    estimator._several = told["several"]
    estimator.likelihood_ = told["likelihood"]
    estimator._functions = [monotone(record.pop("name"), record) for record in told["transforms"]]
    estimator.target_transform_ = target_transform.told(estimator._functions, estimator._several)
    estimator._reach = part_of(told["reach"], sizes)
    estimator._patterns = [part_of(pattern, sizes) for pattern in told["noise"]]
    estimator.noise_ = told["noise_model"]
    estimator._left_out = part_of(told["left_out"], sizes)
    for name, size in (("transforms", "K"), ("noise", "K"), ("likelihoods", "M")):
        if len(told[name]) != sizes[size]:
            raise ValueError(f"{name} must be {sizes[size]}, got {len(told[name])}")
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


def part_of(record: dict[str, Any] | None, sizes: Mapping[str, int]) -> Any:
    """Create the part from what :func:`record` returned, given the sizes that are not its own."""
    if record is None:
        return None
    kind = {kind.__name__: kind for kind in _PARTS}[record["kind"]]
    shapes = zip((field.name for field in fields(kind)), _PARTS[kind], strict=True)
    return kind(**_arrays(record, dict(shapes), sizes))


def _arrays(values: Mapping[str, Any], shapes: Mapping[str, str], sizes: Mapping[str, int]) -> dict[str, Any]:
    """Return the named arrays, and numbers where a shape is empty.

    Raises:
        ValueError: An array does not hold numbers, has another shape, or an index is too large.
    """
    sizes, arrays = dict(sizes), {}
    for name, letters in shapes.items():
        array = np.array(values[name])
        same = len(letters) == array.ndim and all(
            sizes.setdefault(letter, size) == size for letter, size in zip(letters, array.shape, strict=True)
        )
        if not same or array.dtype.kind not in "bif":
            raise ValueError(f"{name} must be numbers of shape {tuple(letters)}, got {array.dtype} of {array.shape}")
        most = sizes.get(_PLACES.get(name, ""), math.inf)
        if name in _PLACES and (array.dtype.kind != "i" or not ((array >= 0) & (array < most)).all()):
            raise ValueError(f"{name} must be whole numbers from 0 to below {most}, got others")
        arrays[name] = array if letters else values[name]
    return arrays


def _plain(name: str, value: Any) -> Any:
    """Convert a value to one that can be written as JSON."""
    try:
        return json.loads(json.dumps(value, allow_nan=False, default=lambda number: number.item()))
    except (TypeError, ValueError, AttributeError):
        raise ValueError(f"{name} must be numbers, text or None to be saved, got {value!r}") from None


def _rounded(values: np.ndarray[Any, Any]) -> list[Any]:
    """Round to six digits, because a long history would otherwise fill a third of the file; NaN becomes None."""
    return [[None if math.isnan(value) else float(f"{value:.6g}") for value in row] for row in values.tolist()]
