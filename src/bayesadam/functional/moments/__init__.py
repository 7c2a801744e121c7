"""Means and variances through the layers of a network whose inputs and weights are random.

Every function maps the means and variances of independent inputs to those of its outputs. Nonlinear functions treat
their inputs as Gaussian.
"""

from bayesadam.functional.moments.expectations import (
    expected_log_sigmoid,
    expected_log_softmax,
    jensen_log_softmax,
    log_expected_softmax,
)
from bayesadam.functional.moments.linear import (
    adaptive_avg_pool2d,
    avg_pool2d,
    convolution,
    gaussian_log_prob,
    linear,
    output_covariance,
)
from bayesadam.functional.moments.logistic import expected_sigmoid, expected_softplus, sigmoid, tanh
from bayesadam.functional.moments.maximum import max_pool, maximum
from bayesadam.functional.moments.noise import add, dropout, multiply
from bayesadam.functional.moments.quadrature import gauss_hermite
from bayesadam.functional.moments.rectifier import leaky_relu, relu
from bayesadam.functional.moments.smooth import gelu, silu

__all__ = [
    "adaptive_avg_pool2d",
    "add",
    "avg_pool2d",
    "convolution",
    "dropout",
    "expected_log_sigmoid",
    "expected_log_softmax",
    "expected_sigmoid",
    "expected_softplus",
    "gauss_hermite",
    "gaussian_log_prob",
    "gelu",
    "jensen_log_softmax",
    "leaky_relu",
    "linear",
    "log_expected_softmax",
    "max_pool",
    "maximum",
    "multiply",
    "output_covariance",
    "relu",
    "sigmoid",
    "silu",
    "tanh",
]
