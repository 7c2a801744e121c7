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
    )
    from bayesadam.optim.param_groups import param_groups
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
    from bayesadam.posthoc import laplace
    from bayesadam.posthoc.badam import badam
    from bayesadam.predictive.predict import predict
    from bayesadam.pruning import pruning_curve
    from bayesadam.swag import SWAG

__version__ = "0.1.0"

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
    "optim": "IVON NGVI VAN VOGN VON BayesAdam BetaScheduler NaturalVadam NaturalVON VadaGrad Vadam Vprop param_groups",
    "posterior": "DenseGaussian DiagonalGaussian KroneckerGaussian LowRankGaussian "
    "Mixture Posterior ensemble load_posterior merge",
    "posthoc": "badam laplace",
    "predictive": "predict",
    "pruning": "pruning_curve",
    "swag": "SWAG",
}
"""Public names by module. Modules are imported when they are needed: a help text must not wait for PyTorch."""

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
    "tune_posterior",
    "variational",
    "variational_last_layer",
]


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
