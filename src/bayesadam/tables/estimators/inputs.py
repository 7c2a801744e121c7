"""The inputs of an estimator: from tables of any kind to a matrix, whose columns are learned in a fit."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import clone
from sklearn.utils import check_X_y
from sklearn.utils.validation import validate_data

from bayesadam.tables.encoder.encoder import Encoded, TableEncoder
from bayesadam.tables.encoder.findings import Findings
from bayesadam.tables.encoder.frames import as_table, is_table


def checked(
    estimator: Any,
    X: Any,
    y: Any = "no_validation",
    *,
    reset: bool,
    sample_weight: ArrayLike | None = None,
    **rules: Any,
) -> Any:
    """Convert inputs to a matrix of numbers, as in training, and check the targets if they are given.

    Args:
        estimator: The estimator, which has the encoder.
        X: A data frame, or anything that NumPy converts to a matrix; an :class:`Encoded` one is not changed.
        y: Targets.
        reset: Whether to learn the names, the number and the kinds of the columns.
        sample_weight: Weights of the rows. Nothing is learned from rows of weight 0.
        rules: How of scikit-learn's check of the targets.
    """
    if isinstance(X, Encoded):
        if not reset:
            return X.matrix
        assert X.encoder is not None
        estimator.inputs_, estimator.n_features_in_ = X.encoder, X.encoder.n_features_in_
        estimator.feature_names_in_ = X.encoder.feature_names_in_
        return check_X_y(X.matrix, y, dtype=np.float64, estimator=estimator, **rules)
    encoder = None if reset else getattr(estimator, "inputs_", None)
    if not (is_table(X) or estimator.encoder is not None if reset else encoder):
        estimator.inputs_ = None
        finite = True if reset else "allow-nan"
        numbers = (np.float64, np.float32)
        return validate_data(estimator, X, y, reset=reset, dtype=numbers, ensure_all_finite=finite, **rules)
    if reset or not (hasattr(X, "columns") or hasattr(estimator, "feature_names_in_")):  # else names find the columns
        validate_data(estimator, X, skip_check_array=True, reset=reset)
    if encoder is None:
        encoder = _learn_columns(estimator, X, sample_weight)
    findings = Findings()
    matrix = encoder.encode(X, findings)
    if notes := findings.cells if reset else findings.notes:
        warnings.warn("; ".join(notes), UserWarning, stacklevel=4)
    if not isinstance(y, str):
        return check_X_y(matrix, y, dtype=np.float64, estimator=estimator, **rules)
    if not len(matrix):
        raise ValueError("X must have at least one row, got none")
    return matrix


def _learn_columns(estimator: Any, X: Any, sample_weight: ArrayLike | None) -> TableEncoder:
    """Learn the types of the columns from the rows that have a weight."""
    encoder = TableEncoder() if estimator.encoder is None else clone(estimator.encoder)
    weight = None if sample_weight is None else np.ravel(np.asarray(sample_weight, dtype=np.float64))
    table = as_table(X)
    if weight is not None and weight.shape == (len(table),) and (weight > 0).any():
        table = table.filter(weight > 0)
    encoder.fit(table)
    left_out = [f"{name!r} ({why})" for name, why in encoder.left_out_.items() if "the same" not in why]
    if left_out and estimator.encoder is None:
        told = f"columns are left out: {', '.join(left_out)}; encoder=TableEncoder(...) can say otherwise"
        warnings.warn(told, UserWarning, stacklevel=6)
    estimator.inputs_ = encoder
    return encoder
