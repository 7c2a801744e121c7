"""Choosing the method of prediction that suits a posterior, and warnings of what does not suit."""

from __future__ import annotations

import warnings
import weakref

import torch
from torch import Tensor, nn

from bayesadam.likelihoods import Bernoulli, Categorical, Likelihood
from bayesadam.likelihoods.classification import TemperedClassification
from bayesadam.posterior import Mixture, NetworkDistribution, Posterior

LOCAL = ("badam", "laplace")
"""Methods whose posteriors have the covariance of a linearised network."""

LINEAR = ("variational_last_layer",)
"""Methods whose posteriors are over weights in which the outputs are linear."""

LAST_LAYER = ("last_layer", "last_layer_kron")
"""Structures of Laplace posteriors over one layer, which need not be the last one."""

MOST_OUTPUTS = 128
"""Largest number of outputs per row for which ``"auto"`` linearises, since every row then needs a covariance matrix."""


ENOUGH = 32
"""Number of outputs from which on it is no chance that all of them are in [0, 1]."""

_WARNED: weakref.WeakSet[nn.Module] = weakref.WeakSet()
"""Models of which :func:`warn_of_probabilities` has warned."""


def suited_method(posterior: NetworkDistribution) -> str:
    """The method that ``"auto"`` stands for.

    The covariance of a Badam or Laplace posterior is that of the network linearised at the mean. If samples of such
    weights are put into the network itself, they leave the region where the linearisation holds, and the predictions
    may be far worse than those of the mean (Foong et al. 2019, arXiv 1906.11537; Immer et al. 2021, arXiv 2008.08400).
    If a Laplace posterior is over the layer that gives the outputs, the network is linear in the random weights and
    both methods agree: it is sampled, unless it is part of a mixture, whose components would share the samples.
    Posteriors of a variational last layer are linearised, because this is exact.
    """
    if isinstance(posterior, Mixture) and all(_is_of_last_layer(part) for part in posterior.components):
        return "linearized"
    return "linearized" if _is_local(posterior) or _is_linear(posterior) else "monte_carlo"


def warn_of_samples(posterior: NetworkDistribution) -> None:
    """Warn that samples of a posterior for the linearised network are about to be used in the network itself."""
    if _is_local(posterior):
        warnings.warn(
            "method='monte_carlo' puts samples of a Badam or Laplace posterior into the network itself, but their "
            "covariance is that of the linearised network: predictions are often far too uncertain. Leave method out, "
            "or find the width with held-out data (bayesadam.tune_posterior with method='monte_carlo')",
            UserWarning,
            stacklevel=3,
        )


def warn_of_nan(outputs: Tensor) -> None:
    """Warn if outputs are NaN."""
    count = int(outputs.isnan().sum())
    if count:
        warnings.warn(
            f"the outputs of the model must be numbers, got NaN for {count:,} of {outputs.numel():,} (inputs with NaN, "
            "or weights that diverged): predictions there are NaN",
            UserWarning,
            stacklevel=3,
        )


def warn_of_probabilities(model: nn.Module, likelihood: Likelihood, outputs: Tensor) -> None:
    """Warn, once for a model, if outputs ``(..., D)`` that should be logits seem to be probabilities."""
    while isinstance(likelihood, TemperedClassification):
        likelihood = likelihood.base
    if not isinstance(likelihood, Categorical | Bernoulli) or outputs.numel() < ENOUGH or model in _WARNED:
        return
    low, high = torch.stack(outputs.aminmax()).tolist()  # a device is waited for once
    if not 0 <= low < high <= 1:
        return
    if isinstance(likelihood, Categorical) and ((outputs.sum(-1) - 1).abs() > 0.01).any():
        return
    _WARNED.add(model)
    warnings.warn(
        f"the outputs of the model seem to be probabilities, but {type(likelihood).__name__} needs logits: leave out "
        "the softmax or sigmoid at the end of the model, or give output=torch.log for a softmax, output=torch.logit "
        "for a sigmoid",
        UserWarning,
        stacklevel=4,
    )


def mark_as_tuned(posterior: Posterior, method: str) -> None:
    """Record the method of prediction for which the width was tuned, so that its samples are no longer warned of."""
    posterior.hyperparameters["tuned_for"] = method


def _is_linear(posterior: NetworkDistribution) -> bool:
    return isinstance(posterior, Posterior) and posterior.hyperparameters.get("method") in LINEAR


def _is_of_last_layer(posterior: Posterior) -> bool:
    """Whether a Laplace posterior is over the layer that gives the outputs; in anchored ensembles it always is."""
    told = posterior.hyperparameters
    return told.get("structure") in LAST_LAYER and told.get("gives_outputs", True)


def _is_local(posterior: NetworkDistribution) -> bool:
    if isinstance(posterior, Mixture):
        return all(_is_local(component) for component in posterior.components)
    if not isinstance(posterior, Posterior):
        return False
    told = posterior.hyperparameters
    if told.get("tuned_for") == "monte_carlo" or _is_of_last_layer(posterior):
        return False
    return told.get("method") in LOCAL
