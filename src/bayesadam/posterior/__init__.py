"""Posterior distributions over the weights of a network, independent of the method that found them."""

from bayesadam.posterior.base import Posterior as Posterior
from bayesadam.posterior.base import load_posterior as load_posterior
from bayesadam.posterior.base import read_posterior as read_posterior
from bayesadam.posterior.bernoulli import BernoulliPosterior as BernoulliPosterior
from bayesadam.posterior.dense import DenseGaussian as DenseGaussian
from bayesadam.posterior.diagonal import DiagonalGaussian as DiagonalGaussian
from bayesadam.posterior.distribution import NetworkDistribution as NetworkDistribution
from bayesadam.posterior.gaussian_posterior import GaussianPosterior as GaussianPosterior
from bayesadam.posterior.kronecker import KroneckerGaussian as KroneckerGaussian
from bayesadam.posterior.low_rank import LowRankGaussian as LowRankGaussian
from bayesadam.posterior.merging import merge as merge
from bayesadam.posterior.mixture import Mixture as Mixture
from bayesadam.posterior.mixture import ensemble as ensemble
from bayesadam.posterior.partial import PartialGaussian as PartialGaussian
from bayesadam.posterior.report import PosteriorReport as PosteriorReport
from bayesadam.posterior.report import TensorReport as TensorReport
