"""Predictions: from a posterior, a network and inputs to a predictive distribution with epistemic and aleatoric
parts.
"""

from bayesadam.predictive.base import PredictiveDistribution as PredictiveDistribution
from bayesadam.predictive.batch_norm import with_batch_norm as with_batch_norm
from bayesadam.predictive.covariance import weight_covariance as weight_covariance
from bayesadam.predictive.gaussian_outputs import GaussianLogitsPredictive as GaussianLogitsPredictive
from bayesadam.predictive.gaussian_outputs import GaussianPredictive as GaussianPredictive
from bayesadam.predictive.gaussian_outputs import from_gaussian as from_gaussian
from bayesadam.predictive.gaussian_outputs import uncertain_part as uncertain_part
from bayesadam.predictive.mixture import MixturePredictive as MixturePredictive
from bayesadam.predictive.plan import Options as Options
from bayesadam.predictive.predict import network_outputs as network_outputs
from bayesadam.predictive.predict import predict as predict
from bayesadam.predictive.result import ClassificationPredictive as ClassificationPredictive
from bayesadam.predictive.result import Predictive as Predictive
from bayesadam.predictive.result import RegressionPredictive as RegressionPredictive
from bayesadam.predictive.result import from_outputs as from_outputs
from bayesadam.predictive.transformed import TransformedPredictive as TransformedPredictive
