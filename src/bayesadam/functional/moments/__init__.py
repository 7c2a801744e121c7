"""Means and variances through the layers of a network whose inputs and weights are random.

Every function maps the means and variances of independent inputs to those of its outputs. Nonlinear functions treat
their inputs as Gaussian.
"""

from bayesadam.functional.moments.expectations import expected_log_sigmoid as expected_log_sigmoid
from bayesadam.functional.moments.expectations import expected_log_softmax as expected_log_softmax
from bayesadam.functional.moments.expectations import jensen_log_softmax as jensen_log_softmax
from bayesadam.functional.moments.expectations import log_expected_softmax as log_expected_softmax
from bayesadam.functional.moments.linear import adaptive_avg_pool2d as adaptive_avg_pool2d
from bayesadam.functional.moments.linear import avg_pool2d as avg_pool2d
from bayesadam.functional.moments.linear import convolution as convolution
from bayesadam.functional.moments.linear import gaussian_log_prob as gaussian_log_prob
from bayesadam.functional.moments.linear import linear as linear
from bayesadam.functional.moments.linear import output_covariance as output_covariance
from bayesadam.functional.moments.logistic import expected_sigmoid as expected_sigmoid
from bayesadam.functional.moments.logistic import expected_softplus as expected_softplus
from bayesadam.functional.moments.logistic import sigmoid as sigmoid
from bayesadam.functional.moments.logistic import tanh as tanh
from bayesadam.functional.moments.maximum import max_pool as max_pool
from bayesadam.functional.moments.maximum import maximum as maximum
from bayesadam.functional.moments.noise import add as add
from bayesadam.functional.moments.noise import dropout as dropout
from bayesadam.functional.moments.noise import multiply as multiply
from bayesadam.functional.moments.quadrature import gauss_hermite as gauss_hermite
from bayesadam.functional.moments.rectifier import leaky_relu as leaky_relu
from bayesadam.functional.moments.rectifier import relu as relu
from bayesadam.functional.moments.smooth import gelu as gelu
from bayesadam.functional.moments.smooth import silu as silu
