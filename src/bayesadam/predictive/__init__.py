"""Predictions: from a posterior, a network and inputs to a predictive distribution with epistemic and aleatoric
parts.
"""

from bayesadam.predictive.base import PredictiveDistribution
from bayesadam.predictive.batch_norm import with_batch_norm
from bayesadam.predictive.covariance import weight_covariance
from bayesadam.predictive.gaussian_outputs import (
    GaussianLogitsPredictive,
    GaussianPredictive,
    from_gaussian,
    uncertain_part,
)
from bayesadam.predictive.leave_one_out import sensitivity
from bayesadam.predictive.mixture import MixturePredictive
from bayesadam.predictive.plan import Options
from bayesadam.predictive.predict import network_outputs, predict
from bayesadam.predictive.result import ClassificationPredictive, Predictive, RegressionPredictive, from_outputs
from bayesadam.predictive.transformed import TransformedPredictive

__all__ = [
    "ClassificationPredictive",
    "GaussianLogitsPredictive",
    "GaussianPredictive",
    "MixturePredictive",
    "Options",
    "Predictive",
    "PredictiveDistribution",
    "RegressionPredictive",
    "TransformedPredictive",
    "from_gaussian",
    "from_outputs",
    "network_outputs",
    "predict",
    "sensitivity",
    "uncertain_part",
    "weight_covariance",
    "with_batch_norm",
]
