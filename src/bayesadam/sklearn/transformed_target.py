"""``TransformedTargetRegressor``: scikit-learn's class, extended by standard deviations and intervals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr
from sklearn.compose import TransformedTargetRegressor as Base
from sklearn.utils.metadata_routing import MetadataRouter

from bayesadam.sklearn.conformal import check_coverage

Array = NDArray[Any]

NODES = 16
"""Number of nodes of the quadrature for means and standard deviations; the outermost is at a probability of 2e-11."""


class TransformedTargetRegressor(Base):  # type: ignore[misc]
    """A regressor of transformed targets whose predictions, with their uncertainty, are in the targets' own units.

    It is scikit-learn's ``TransformedTargetRegressor`` for regressors whose ``predict`` takes ``quantiles``, such as
    :class:`bayesadam.sklearn.BayesianMLPRegressor` and pipelines that end in one. The transform must be increasing,
    which ``fit`` checks on its targets. The transforms that ``BayesianMLPRegressor(target_transform=...)`` has by name
    also give densities.

    In scikit-learn's own class, ``predict`` returns the mean of the transformed target, transformed back. Here it
    returns the mean of the target.
    """

    def predict(self, X: ArrayLike, return_std: bool = False, quantiles: Sequence[float] | None = None) -> Any:
        """Return predictive means, ``(N,)`` or ``(N, K)``, in the units of the targets, by quadrature over quantiles.

        Args:
            X: ``(N, D)``.
            return_std: Whether to return a pair of means and standard deviations.
            quantiles: Probabilities in (0, 1). If given, return the quantiles at them, ``(N, Q)`` or ``(N, K, Q)``.

        Raises:
            ValueError: Both quantiles and standard deviations were requested.
        """
        if quantiles is not None:
            if return_std:
                raise ValueError(f"return_std must be False with quantiles={quantiles!r}, got {return_std!r}")
            return self._quantiles(X, quantiles)
        scores, weights = np.polynomial.hermite_e.hermegauss(NODES)
        weights = weights / weights.sum()
        found = self._quantiles(X, ndtr(scores).tolist())
        mean = found @ weights
        return (mean, np.sqrt((found - mean[..., None]) ** 2 @ weights)) if return_std else mean

    def predict_interval(self, X: ArrayLike, coverage: float = 0.95) -> Array:
        """Return central intervals, ``(N, 2)`` or ``(N, K, 2)``, in the units of the targets.

        Args:
            X: ``(N, D)``.
            coverage: Probability that a target is in its interval, in (0, 1).

        Raises:
            ValueError: The coverage is out of range.
        """
        check_coverage(coverage)
        return self._quantiles(X, [0.5 - 0.5 * coverage, 0.5 + 0.5 * coverage])

    def get_metadata_routing(self) -> MetadataRouter:
        """Return the routing of metadata to ``predict`` itself and to the regressor."""
        return super().get_metadata_routing().add_self_request(self)

    def _fit_transformer(self, y: Array) -> None:
        super()._fit_transformer(y)
        found = np.asarray(self.transformer_.transform(np.sort(y, axis=0)), dtype=np.float64)
        rounding = 1e-6 * np.ptp(found, axis=0)
        if (np.diff(found, axis=0) < -rounding).any():
            raise ValueError(f"the transform of the targets must be increasing, got {self.transformer_!r}")

    def _quantiles(self, X: ArrayLike, levels: Sequence[float]) -> Array:
        found = np.moveaxis(self.regressor_.predict(X, quantiles=levels), -1, 0)
        back = [self.transformer_.inverse_transform(np.asarray(part).reshape(len(part), -1)) for part in found]
        shape = found.shape[1:] if self._training_dim > 1 else found.shape[1:2]
        return np.stack([np.asarray(part).reshape(shape) for part in back], axis=-1)
