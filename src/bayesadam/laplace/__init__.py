"""Posteriors around the weights of a trained network: Badam and Laplace approximations."""

from bayesadam.laplace.approximation import Laplace as Laplace
from bayesadam.laplace.approximation import laplace as laplace
from bayesadam.laplace.badam import badam as badam
from bayesadam.laplace.tuning import tune_laplace as tune_laplace
