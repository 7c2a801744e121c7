"""Bayesian deep learning as easy as Adam: swap the optimiser, get a posterior over the weights."""

from bayesadam.optim import IVON as IVON
from bayesadam.optim import BetaScheduler as BetaScheduler
from bayesadam.optim import VadaGrad as VadaGrad
from bayesadam.optim import Vadam as Vadam
from bayesadam.optim import Vprop as Vprop
from bayesadam.optim import polynomial_decay as polynomial_decay
from bayesadam.posterior import DiagonalGaussian as DiagonalGaussian
from bayesadam.posterior import Posterior as Posterior
from bayesadam.posterior import load_posterior as load_posterior

__version__ = "0.1.0"
