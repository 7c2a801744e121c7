"""Likelihoods: the training loss, and what a network's output says about a target.

The training loss ``nll`` is the *mean* over data points of ``-log p(y | output)``: what the optimisers expect, with
``num_data`` the number of data points. The last axis of an output has the outputs (labels, classes) of one data point;
every axis before it counts data points. So outputs ``(N, T, D)`` are those of ``N T`` data points, of tokens say, and
outputs ``(N,)`` are of ``N`` with one output each. Your own is a subclass of :class:`Likelihood`.
"""

from bayesadam.likelihoods.base import Likelihood as Likelihood
from bayesadam.likelihoods.base import MissingCapabilityError as MissingCapabilityError
from bayesadam.likelihoods.base import check_likelihood as check_likelihood
from bayesadam.likelihoods.classification import Bernoulli as Bernoulli
from bayesadam.likelihoods.classification import Categorical as Categorical
from bayesadam.likelihoods.classification import ClassificationLikelihood as ClassificationLikelihood
from bayesadam.likelihoods.classification import TemperedClassification as TemperedClassification
from bayesadam.likelihoods.counts import NegativeBinomial as NegativeBinomial
from bayesadam.likelihoods.counts import Poisson as Poisson
from bayesadam.likelihoods.gaussian import Gaussian as Gaussian
from bayesadam.likelihoods.gaussian import HeteroscedasticGaussian as HeteroscedasticGaussian
from bayesadam.likelihoods.gaussian import RegressionLikelihood as RegressionLikelihood
from bayesadam.likelihoods.gaussian import TemperedRegression as TemperedRegression
from bayesadam.likelihoods.gaussian import gaussian_log_density as gaussian_log_density
from bayesadam.likelihoods.positive import Gamma as Gamma
from bayesadam.likelihoods.positive import LogNormal as LogNormal
from bayesadam.likelihoods.student_t import StudentT as StudentT
