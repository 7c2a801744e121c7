"""Bayesian deep learning as easy as Adam: swap the optimiser, get a posterior over the weights."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bayesadam import bayes_by_backprop as bayes_by_backprop
    from bayesadam import calibration as calibration
    from bayesadam import curvature as curvature
    from bayesadam import distance as distance
    from bayesadam import functional as functional
    from bayesadam import integrations as integrations
    from bayesadam import likelihoods as likelihoods
    from bayesadam import metrics as metrics
    from bayesadam import moments as moments
    from bayesadam import noise as noise
    from bayesadam import objectives as objectives
    from bayesadam import optim as optim
    from bayesadam import plots as plots
    from bayesadam import population as population
    from bayesadam import posterior as posterior
    from bayesadam import posthoc as posthoc
    from bayesadam import predictive as predictive
    from bayesadam import priors as priors
    from bayesadam import pruning as pruning
    from bayesadam import sklearn as sklearn
    from bayesadam.anchored import anchored_ensemble as anchored_ensemble
    from bayesadam.bayes_by_backprop import variational as variational
    from bayesadam.calibration import calibrate as calibrate
    from bayesadam.calibration import compare as compare
    from bayesadam.calibration import tune_posterior as tune_posterior
    from bayesadam.curvature import PerExampleSquares as PerExampleSquares
    from bayesadam.dropout import MCDropout as MCDropout
    from bayesadam.ensembles import train_ensemble as train_ensemble
    from bayesadam.likelihoods import Bernoulli as Bernoulli
    from bayesadam.likelihoods import Categorical as Categorical
    from bayesadam.likelihoods import Gaussian as Gaussian
    from bayesadam.likelihoods import HeteroscedasticGaussian as HeteroscedasticGaussian
    from bayesadam.moments import fawn as fawn
    from bayesadam.moments import variational_last_layer as variational_last_layer
    from bayesadam.objectives import elbo as elbo
    from bayesadam.objectives import kl_warmup as kl_warmup
    from bayesadam.objectives import kl_weights as kl_weights
    from bayesadam.optim import IVON as IVON
    from bayesadam.optim import NGVI as NGVI
    from bayesadam.optim import VAN as VAN
    from bayesadam.optim import VOGN as VOGN
    from bayesadam.optim import VON as VON
    from bayesadam.optim import BayesAdam as BayesAdam
    from bayesadam.optim import BetaScheduler as BetaScheduler
    from bayesadam.optim import DenseVON as DenseVON
    from bayesadam.optim import NaturalVadam as NaturalVadam
    from bayesadam.optim import NaturalVON as NaturalVON
    from bayesadam.optim import VadaGrad as VadaGrad
    from bayesadam.optim import Vadam as Vadam
    from bayesadam.optim import Vprop as Vprop
    from bayesadam.optim.param_groups import param_groups as param_groups
    from bayesadam.posterior import DenseGaussian as DenseGaussian
    from bayesadam.posterior import DiagonalGaussian as DiagonalGaussian
    from bayesadam.posterior import KroneckerGaussian as KroneckerGaussian
    from bayesadam.posterior import LowRankGaussian as LowRankGaussian
    from bayesadam.posterior import Mixture as Mixture
    from bayesadam.posterior import Posterior as Posterior
    from bayesadam.posterior import ensemble as ensemble
    from bayesadam.posterior import load_posterior as load_posterior
    from bayesadam.posterior import merge as merge
    from bayesadam.posthoc import laplace as laplace
    from bayesadam.posthoc.badam import badam as badam
    from bayesadam.predictive.predict import predict as predict
    from bayesadam.pruning import pruning_curve as pruning_curve
    from bayesadam.swag import SWAG as SWAG

__version__ = "0.1.0.dev0"

_MODULES = """
bayes_by_backprop calibration curvature distance functional integrations likelihoods metrics moments
noise objectives optim plots population posterior posthoc predictive priors pruning sklearn
""".split()
_HOMES = {
    "anchored": "anchored_ensemble",
    "bayes_by_backprop": "variational",
    "calibration": "calibrate compare tune_posterior",
    "curvature": "PerExampleSquares",
    "dropout": "MCDropout",
    "ensembles": "train_ensemble",
    "likelihoods": "Bernoulli Categorical Gaussian HeteroscedasticGaussian",
    "moments": "fawn variational_last_layer",
    "objectives": "elbo kl_warmup kl_weights",
    "optim": "IVON NGVI VAN VOGN VON BayesAdam BetaScheduler DenseVON NaturalVadam NaturalVON "
    "VadaGrad Vadam Vprop param_groups",
    "posterior": "DenseGaussian DiagonalGaussian KroneckerGaussian LowRankGaussian "
    "Mixture Posterior ensemble load_posterior merge",
    "posthoc": "badam laplace",
    "predictive": "predict",
    "pruning": "pruning_curve",
    "swag": "SWAG",
}
"""Public names by module. Modules are imported when they are needed: a help text must not wait for PyTorch."""

__all__ = sorted(name for names in _HOMES.values() for name in names.split())


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"bayesadam.{name}")
    for module, names in _HOMES.items():
        if name in names.split():
            value = globals()[name] = getattr(importlib.import_module(f"bayesadam.{module}"), name)
            return value
    raise AttributeError(f"module 'bayesadam' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
