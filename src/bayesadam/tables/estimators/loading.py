"""Estimators from the files of ``storage.py``, of which a digest tells damage but not who wrote them."""

from __future__ import annotations

import copy
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
from bayesadam.posterior import Mixture, read_posterior
from bayesadam.tables.encoder.encoder import Encoded, TableEncoder
from bayesadam.tables.encoder.findings import Findings
from bayesadam.tables.estimators import target_transform
from bayesadam.tables.estimators.classifier import BayesianMLPClassifier
from bayesadam.tables.estimators.conformal import LeftOutScores
from bayesadam.tables.estimators.input_noise import NoisePattern
from bayesadam.tables.estimators.linear import LinearPart, Reach
from bayesadam.tables.estimators.network import require_device, shapes_of
from bayesadam.tables.estimators.regressor import BayesianMLPRegressor
from bayesadam.tables.estimators.storage import MODEL, NEXT, POSTERIOR, VERSION
from bayesadam.tables.estimators.trees import TreesPart

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
            state, posterior = _pair(path, MODEL)
        except (FileNotFoundError, files.DamagedFile):  # save() may have been stopped between its two files
            try:
                state, posterior = _pair(path, NEXT)
            except (OSError, files.DamagedFile):  # or save() may just have completed
                state, posterior = _pair(path, MODEL)
    with files.reading(_RULE, path / MODEL):
        params = state["params"]
        params["device"] = device or params["device"]
    require_device(params["device"])
    with files.reading(_RULE, path / MODEL):
        return _restored(state, posterior)


def _pair(path: Path, name: str) -> tuple[dict[str, Any], Mixture]:
    """Return the model, and the posterior that belongs to it."""
    state, digest = files.read_json(path / name, _RULE)
    with files.reading(_RULE, path / name):
        if state["version"] != VERSION:
            raise ValueError(f"its version is {state['version']!r}, not {VERSION}")
        if digest is None:
            raise ValueError("it has no digest")
    posterior, partner = read_posterior(path / POSTERIOR)
    if not isinstance(posterior, Mixture):
        raise files.DamagedFile(f"{POSTERIOR} must hold a Mixture, got {type(posterior).__name__}")
    if state.get("posterior") != partner:
        raise files.DamagedFile(f"{MODEL} must belong to {POSTERIOR}, got that of another in {str(path)!r}")
    return state, posterior


def _restored(state: dict[str, Any], posterior: Mixture) -> BayesianMLPRegressor | BayesianMLPClassifier:
    """Create the estimator.

    A digest may be that of another program's values. So all sizes are compared with those of the posterior before
    anything is made of them, and the estimator predicts a row, which finds values of other types.
    """
    encoder = None if state["encoder"] is None else TableEncoder.from_json(state["encoder"])
    params = {**state["params"], "hidden": tuple(state["params"]["hidden"])}
    estimator: Any = _KINDS[state["kind"]](**params)
    estimator.encoder = clone(encoder) if state["encoder_given"] else None
    estimator._check()
    estimator.method_ = estimator._method_name
    estimator.inputs_ = encoder
    width = len(state["inputs"]["mean"] if encoder is None else encoder.get_feature_names_out())
    sizes = {"D": width, "I": width + 1, "M": len(posterior.components)}
    estimator._x_mean, estimator._x_std = _arrays(state["inputs"], {"mean": "D", "std": "D"}, sizes).values()
    estimator.n_features_in_ = state["features"]
    if state["feature_names"]:
        estimator.feature_names_in_ = np.array(state["feature_names"], dtype=object)
    estimator.epochs_, estimator.stopped_ = state["epochs"], state["stopped"]
    estimator.interrupted_ = estimator.stopped_ == "interrupted"
    estimator.history_ = {name: np.array(values, dtype=np.float64) for name, values in state["history"].items()}
    estimator.left_out_ = None
    if isinstance(estimator, BayesianMLPClassifier):
        kind = np.dtype(state["classes"]["dtype"]).type  # without the length of texts, which the labels have
        estimator.classes_ = np.array(state["classes"]["values"], dtype=kind)
        sizes["K"] = len(estimator.classes_)
        calibration = {"temperature": "", "weights": "P"}
        likelihoods: list[Any] = [Categorical() for _ in posterior.components]
    else:
        sizes["K"] = len(state["targets"]["mean"])
        calibration = {"epistemic": "K", "aleatoric": "K", "error": "K", "weights": "QK"}
        likelihoods = _restored_targets(estimator, state, sizes)
    estimator._companions = [part_of(part, sizes) for part in state["companions"]]
    count = len(estimator._companions)
    estimator.calibration_ = _arrays(state["calibration"], calibration, {**sizes, "P": count, "Q": count + 1})
    layers = shapes_of([width, *estimator.hidden, estimator._outputs()])
    if posterior.shapes != layers:
        raise ValueError(f"its network must have the weights of its posterior, got hidden={estimator.hidden!r:.100}")
    estimator._likelihoods = [likelihood.to(estimator.device) for likelihood in likelihoods]
    if isinstance(estimator, BayesianMLPRegressor):
        estimator.likelihood_ = estimator._shared_likelihood()
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


def _restored_targets(estimator: Any, state: dict[str, Any], sizes: Mapping[str, int]) -> list[Any]:
    """Read what a regression has learned about its targets; return the members' likelihoods."""
    estimator._y_mean, estimator._y_std = _arrays(state["targets"], {"mean": "K", "std": "K"}, sizes).values()
    estimator._several = state["several"]
    estimator._likelihood_given = state["likelihood"]
    estimator._functions = [monotone(record.pop("name"), record) for record in state["transforms"]]
    estimator.target_transform_ = target_transform.names_of(estimator._functions, estimator._several)
    estimator._reach = part_of(state["reach"], sizes)
    estimator._patterns = [part_of(pattern, sizes) for pattern in state["noise"]]
    estimator.noise_ = state["noise_model"]
    estimator._left_out = part_of(state["left_out"], sizes)
    for name, size in (("transforms", "K"), ("noise", "K"), ("likelihoods", "M")):
        if len(state[name]) != sizes[size]:
            raise ValueError(f"{name} must be {sizes[size]}, got {len(state[name])}")
    estimator._template = estimator._likelihood_of(len(estimator._y_mean))
    likelihoods = []
    for parameters in state["likelihoods"]:
        likelihood = copy.deepcopy(estimator._template).requires_grad_(False)
        likelihood.load_state_dict({name: torch.tensor(value) for name, value in parameters.items()})
        likelihoods.append(likelihood)
    estimator._template.load_state_dict(likelihoods[0].state_dict())
    return likelihoods


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
