"""Posterior distributions over the weights of a network, independent of the method that found them."""

from bayesadam.posterior.base import Posterior, load_posterior, read_posterior
from bayesadam.posterior.bernoulli import BernoulliPosterior
from bayesadam.posterior.dense import DenseGaussian
from bayesadam.posterior.diagonal import DiagonalGaussian
from bayesadam.posterior.distribution import NetworkDistribution
from bayesadam.posterior.gaussian_posterior import GaussianPosterior
from bayesadam.posterior.kronecker import KroneckerGaussian
from bayesadam.posterior.low_rank import LowRankGaussian
from bayesadam.posterior.merging import merge
from bayesadam.posterior.mixture import Mixture, ensemble
from bayesadam.posterior.partial import PartialGaussian
from bayesadam.posterior.report import PosteriorReport, TensorReport

__all__ = [
    "BernoulliPosterior",
    "DenseGaussian",
    "DiagonalGaussian",
    "GaussianPosterior",
    "KroneckerGaussian",
    "LowRankGaussian",
    "Mixture",
    "NetworkDistribution",
    "PartialGaussian",
    "Posterior",
    "PosteriorReport",
    "TensorReport",
    "ensemble",
    "load_posterior",
    "merge",
    "read_posterior",
]
