"""Names of curvatures, shared by VON, VOGN, populations and Laplace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

CURVATURES = {
    "exact": "second derivatives of the loss, one backward pass per weight",
    "hutchinson": "an unbiased estimate of their diagonal by products with random signs",
    "reparameterized": "an unbiased estimate of their mean over the posterior, by the gradient and the noise in it",
    "ggn": "the generalised Gauss-Newton matrix: the likelihood's expected Hessian between the network's Jacobians",
    "empirical_fisher": "the empirical Fisher information: squared gradients, or their outer products, of the examples",
}
"""Explanations of the curvatures, by their names as ``hessian=`` of an optimiser and ``curvature=`` of Laplace."""

_EARLIER = {"gauss_newton": "empirical_fisher", "fisher": "empirical_fisher"}
_KEYS = ("hessian", "curvature")


def current_name(name: Any) -> Any:
    """The current name of a curvature from a file of an earlier version; other values are returned as they are."""
    return _EARLIER.get(name, name) if isinstance(name, str) else name


def with_current_names(told: Mapping[str, Any]) -> dict[str, Any]:
    """Hyper-parameters with current names of curvatures, including those of a mixture's components."""
    found = {key: current_name(value) if key in _KEYS else value for key, value in told.items()}
    if isinstance(found.get("components"), list):
        found["components"] = [with_current_names(c) if isinstance(c, Mapping) else c for c in found["components"]]
    return found
