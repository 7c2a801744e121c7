"""Moment propagation (FAWN): mean and variance through a network in closed form, without sampling."""

from bayesadam.moments.graph import Graph as Graph
from bayesadam.moments.last_layer import LastLayerModule as LastLayerModule
from bayesadam.moments.last_layer import variational_last_layer as variational_last_layer
from bayesadam.moments.module import MomentModule as MomentModule
from bayesadam.moments.module import fawn as fawn
from bayesadam.moments.objectives import expected_log_likelihood as expected_log_likelihood
from bayesadam.moments.objectives import log_predictive as log_predictive
from bayesadam.moments.rules import register as register
from bayesadam.moments.values import Moments as Moments
from bayesadam.moments.weights import BernoulliWeights as BernoulliWeights
from bayesadam.moments.weights import GaussianWeights as GaussianWeights
