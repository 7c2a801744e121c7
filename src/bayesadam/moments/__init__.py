"""Moment propagation (FAWN): mean and variance through a network in closed form, without sampling."""

from bayesadam.moments.graph import Graph
from bayesadam.moments.last_layer import LastLayerModule, variational_last_layer
from bayesadam.moments.module import MomentModule, fawn
from bayesadam.moments.objectives import expected_log_likelihood, log_predictive
from bayesadam.moments.rules import register
from bayesadam.moments.values import Moments
from bayesadam.moments.weights import BernoulliWeights, GaussianWeights

__all__ = [
    "BernoulliWeights",
    "GaussianWeights",
    "Graph",
    "LastLayerModule",
    "MomentModule",
    "Moments",
    "expected_log_likelihood",
    "fawn",
    "log_predictive",
    "register",
    "variational_last_layer",
]
