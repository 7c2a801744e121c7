"""Posteriors around the weights of a trained network: Badam and Laplace approximations."""

from bayesadam.posthoc.approximation import LaplaceApproximation, laplace
from bayesadam.posthoc.badam import badam, badam_from_moments, unbiased

__all__ = ["LaplaceApproximation", "badam", "badam_from_moments", "laplace", "unbiased"]
