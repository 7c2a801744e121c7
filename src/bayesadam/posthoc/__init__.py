"""Posteriors around the weights of a trained network: Badam and Laplace approximations."""

from bayesadam.posthoc.approximation import LaplaceApproximation as LaplaceApproximation
from bayesadam.posthoc.approximation import laplace as laplace
from bayesadam.posthoc.badam import badam as badam
from bayesadam.posthoc.badam import badam_from_moments as badam_from_moments
from bayesadam.posthoc.badam import unbiased as unbiased
