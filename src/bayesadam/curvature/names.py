"""Names of curvatures, shared by VON, VOGN, populations and Laplace."""

from __future__ import annotations

CURVATURES = {
    "exact": "second derivatives of the loss, one backward pass per weight",
    "hutchinson": "an unbiased estimate of their diagonal by products with random signs",
    "reparameterized": "an unbiased estimate of their mean over the posterior, by the gradient and the noise in it",
    "ggn": "the generalised Gauss-Newton matrix: the likelihood's expected Hessian between the network's Jacobians",
    "empirical_fisher": "the empirical Fisher information: squared gradients, or their outer products, of the examples",
}
"""Explanations of the curvatures, by their names as ``hessian=`` of an optimiser and ``curvature=`` of Laplace."""
