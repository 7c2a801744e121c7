"""Bayesian deep learning as easy as Adam: swap the optimiser, get a posterior over the weights."""

from bayesadam import data as data
from bayesadam import metrics as metrics
from bayesadam.curvature import PerExampleSquares as PerExampleSquares
from bayesadam.likelihoods import Bernoulli as Bernoulli
from bayesadam.likelihoods import Categorical as Categorical
from bayesadam.likelihoods import Gaussian as Gaussian
from bayesadam.likelihoods import HeteroscedasticGaussian as HeteroscedasticGaussian
from bayesadam.optim import IVON as IVON
from bayesadam.optim import NGVI as NGVI
from bayesadam.optim import VAN as VAN
from bayesadam.optim import VOGN as VOGN
from bayesadam.optim import VON as VON
from bayesadam.optim import BetaScheduler as BetaScheduler
from bayesadam.optim import NaturalVadam as NaturalVadam
from bayesadam.optim import NaturalVON as NaturalVON
from bayesadam.optim import VadaGrad as VadaGrad
from bayesadam.optim import Vadam as Vadam
from bayesadam.optim import Vprop as Vprop
from bayesadam.optim import polynomial_decay as polynomial_decay
from bayesadam.posterior import DenseGaussian as DenseGaussian
from bayesadam.posterior import DiagonalGaussian as DiagonalGaussian
from bayesadam.posterior import Posterior as Posterior
from bayesadam.posterior import load_posterior as load_posterior
from bayesadam.predictive import ClassificationPredictive as ClassificationPredictive
from bayesadam.predictive import RegressionPredictive as RegressionPredictive
from bayesadam.predictive import predict as predict

__version__ = "0.1.0"
