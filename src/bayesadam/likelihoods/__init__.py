"""Likelihoods: training losses, and distributions of targets given a network's output.

The training loss ``nll`` is the *mean* over data points of ``-log p(y | output)``, as the optimisers expect it, with
``num_data`` as the number of data points. The last axis of an output has the outputs (labels, classes) of one data
point, and every axis before it counts data points: outputs ``(N, T, D)`` are those of ``N T`` data points, for example
tokens, and outputs ``(N,)`` are those of ``N`` data points with one output each. To define your own likelihood, derive
from :class:`Likelihood`.
"""

from bayesadam.likelihoods.base import Likelihood, MissingCapabilityError, check_likelihood
from bayesadam.likelihoods.classification import (
    Bernoulli,
    Categorical,
    ClassificationLikelihood,
    TemperedClassification,
)
from bayesadam.likelihoods.counts import NegativeBinomial, Poisson
from bayesadam.likelihoods.gaussian import (
    Gaussian,
    HeteroscedasticGaussian,
    RegressionLikelihood,
    TemperedRegression,
    gaussian_log_density,
)
from bayesadam.likelihoods.positive import Gamma, LogNormal
from bayesadam.likelihoods.student_t import StudentT

__all__ = [
    "Bernoulli",
    "Categorical",
    "ClassificationLikelihood",
    "Gamma",
    "Gaussian",
    "HeteroscedasticGaussian",
    "Likelihood",
    "LogNormal",
    "MissingCapabilityError",
    "NegativeBinomial",
    "Poisson",
    "RegressionLikelihood",
    "StudentT",
    "TemperedClassification",
    "TemperedRegression",
    "check_likelihood",
    "gaussian_log_density",
]
