"""Likelihoods: training losses, and distributions of targets given a network's output.

The training loss ``nll`` is the *mean* over data points of ``-log p(y | output)``, as the optimisers expect it, with
``num_data`` as the number of data points. The last axis of an output has the outputs (labels, classes) of one data
point, and every axis before it counts data points: outputs ``(N, T, D)`` are those of ``N T`` data points, for example
tokens, and outputs ``(N,)`` are those of ``N`` data points with one output each. To define your own likelihood, derive
from :class:`Likelihood`.
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
