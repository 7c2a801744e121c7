"""Bayesian deep learning as easy as Adam: swap the optimiser, get a posterior over the weights."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from bayesadam import bayes_by_backprop as bayes_by_backprop
from bayesadam import calibration as calibration
from bayesadam import curvature as curvature
from bayesadam import distance as distance
from bayesadam import functional as functional
from bayesadam import likelihoods as likelihoods
from bayesadam import metrics as metrics
from bayesadam import moments as moments
from bayesadam import noise as noise
from bayesadam import objectives as objectives
from bayesadam import optim as optim
from bayesadam import population as population
from bayesadam import posterior as posterior
from bayesadam import posthoc as posthoc
from bayesadam import predictive as predictive
from bayesadam import priors as priors
from bayesadam import pruning as pruning
from bayesadam.anchored import anchored_ensemble
from bayesadam.bayes_by_backprop import variational
from bayesadam.calibration import calibrate, compare, tune_posterior
from bayesadam.curvature import PerExampleSquares
from bayesadam.dropout import MCDropout
from bayesadam.ensembles import train_ensemble
from bayesadam.likelihoods import Bernoulli, Categorical, Gaussian, HeteroscedasticGaussian
from bayesadam.moments import fawn, variational_last_layer
from bayesadam.objectives import elbo, kl_warmup, kl_weights
from bayesadam.optim import (
    IVON,
    NGVI,
    VAN,
    VOGN,
    VON,
    BayesAdam,
    BetaScheduler,
    NaturalVadam,
    NaturalVON,
    VadaGrad,
    Vadam,
    Vprop,
    param_groups,
)
from bayesadam.posterior import (
    DenseGaussian,
    DiagonalGaussian,
    KroneckerGaussian,
    LowRankGaussian,
    Mixture,
    Posterior,
    ensemble,
    load_posterior,
    merge,
)
from bayesadam.posthoc import badam, laplace, tune_laplace
from bayesadam.predictive import predict
from bayesadam.pruning import pruning_curve
from bayesadam.swag import SWAG

if TYPE_CHECKING:
    from bayesadam import integrations as integrations
    from bayesadam import plots as plots
    from bayesadam import sklearn as sklearn

__version__ = "0.1.0"

_OPTIONAL = ("integrations", "plots", "sklearn")
"""Modules that need further packages; each is imported at its first use."""

__all__ = [
    "IVON",
    "NGVI",
    "SWAG",
    "VAN",
    "VOGN",
    "VON",
    "BayesAdam",
    "Bernoulli",
    "BetaScheduler",
    "Categorical",
    "DenseGaussian",
    "DiagonalGaussian",
    "Gaussian",
    "HeteroscedasticGaussian",
    "KroneckerGaussian",
    "LowRankGaussian",
    "MCDropout",
    "Mixture",
    "NaturalVON",
    "NaturalVadam",
    "PerExampleSquares",
    "Posterior",
    "VadaGrad",
    "Vadam",
    "Vprop",
    "anchored_ensemble",
    "badam",
    "calibrate",
    "compare",
    "elbo",
    "ensemble",
    "fawn",
    "kl_warmup",
    "kl_weights",
    "laplace",
    "load_posterior",
    "merge",
    "param_groups",
    "predict",
    "pruning_curve",
    "train_ensemble",
    "tune_laplace",
    "tune_posterior",
    "variational",
    "variational_last_layer",
]


def __getattr__(name: str) -> Any:
    if name in _OPTIONAL:
        return importlib.import_module(f"bayesadam.{name}")
    raise AttributeError(f"module 'bayesadam' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_OPTIONAL})
