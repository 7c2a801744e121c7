"""What a prediction decides before the network runs: the method, the samples, and warnings of what does not suit."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from bayesadam import noise
from bayesadam.checks import check_count
from bayesadam.likelihoods import Bernoulli, Categorical, Likelihood, check_likelihood
from bayesadam.likelihoods.classification import TemperedClassification
from bayesadam.modules.last_layer import is_plain_linear
from bayesadam.posterior import Mixture, NetworkDistribution, Posterior
from bayesadam.posterior.gaussian_posterior import GaussianPosterior

METHODS = ("auto", "monte_carlo", "linearized", "moments", "mean")
AUTO = "auto"
"""Value of ``batch_norm`` that stands for the statistics of the posterior, with a warning if they are poor."""
GAUSSIAN = ("linearized", "moments")
"""Methods with Gaussian outputs, for which a link converts logits to probabilities."""
LINKS = ("monte_carlo", "probit")

LOCAL = ("badam", "laplace")
"""Methods whose posteriors have the covariance of a linearised network."""

LINEAR = ("variational_last_layer",)
"""Methods whose posteriors are over weights in which the outputs are linear."""

LAST_LAYER = ("last_layer", "last_layer_kron")
"""Structures of Laplace posteriors over one layer, which need not be the last one."""

MOST_OUTPUTS = 128
"""Largest number of outputs per row whose covariance matrix is computed."""

ENOUGH = 32
"""Number of outputs from which on it is no chance that all of them are in [0, 1]."""

_WARNED: weakref.WeakSet[nn.Module] = weakref.WeakSet()
"""Models of which :func:`warn_of_probabilities` has warned."""


@dataclass(frozen=True)
class Options:
    """The keyword arguments of :func:`bayesadam.predict`, and one that it does not have.

    Attributes:
        common: Whether draws of Gaussian outputs use the same standard normals at all rows.
    """

    likelihood: Likelihood
    mc_samples: int = 64
    seed: int = 0
    method: str = "auto"
    link: str | None = None
    output: Callable[[Any], Tensor] | None = None
    batch_size: int | None = None
    batch_norm: Any = AUTO
    progress: bool | None = None
    common: bool = False

    def checked(self) -> Options:
        """The same arguments after checks, with integers of any type, such as NumPy's, as Python integers.

        Raises:
            ValueError: As for :func:`bayesadam.predict`, for the checks that need neither model nor posterior.
        """
        if self.method not in METHODS:
            raise ValueError(f"method must be one of {METHODS}, got {self.method!r}")
        for name in ("mc_samples", *(() if self.batch_size is None else ("batch_size",))):
            check_count(name, getattr(self, name))
        check_likelihood(self.likelihood)
        if isinstance(self.batch_norm, str) and self.batch_norm != AUTO:
            raise ValueError(f"batch_norm must be {AUTO!r}, None or inputs, got {self.batch_norm!r}")
        if self.link is not None:
            if self.link not in LINKS:
                raise ValueError(f"link must be one of {LINKS}, got {self.link!r}")
            if self.method not in GAUSSIAN or not self.likelihood.defines("log_probs"):
                raise ValueError(
                    f"link must be given for a method in {GAUSSIAN} and classification only, "
                    f"got {self.link!r} for {self.method!r} and {type(self.likelihood).__name__}"
                )
        if self.method == "moments" and self.output is not None:
            raise ValueError(f"output must be None for method='moments', got {self.output!r}")
        mc_samples, batch_size = int(self.mc_samples), self.batch_size and int(self.batch_size)
        if self.method in GAUSSIAN:
            noise.normal(self.seed, 0, mc_samples - 1, 0, (0,))  # refuses a seed out of range before the model runs
        return replace(self, mc_samples=mc_samples, batch_size=batch_size)

    def count_for(self, posterior: NetworkDistribution) -> int:
        """Number of samples, rounded up to equally many of every stratum of the posterior."""
        return -(-self.mc_samples // posterior.strata) * posterior.strata


class Plan:
    """Which networks a prediction by samples, or at the mean, runs; decided once, before it runs any.

    Args:
        model: See :func:`bayesadam.predict`.
        posterior: See :func:`bayesadam.predict`.
        options: The other arguments of :func:`bayesadam.predict`.

    Attributes:
        strata: Number of strata that the samples are from in turn.
        repeats: For each sample, the number of the first one that is equal; ``None`` for the mean network.
        layer: The linear layer whose samples alone differ, if there is one and it has several.
    """

    def __init__(self, model: nn.Module, posterior: NetworkDistribution, options: Options) -> None:
        self.strata = 1
        self.repeats: list[int] | None = None
        self.layer: nn.Linear | None = None
        if options.method == "mean":
            return
        self.strata = posterior.strata
        self.repeats = posterior.repeats(options.count_for(posterior))
        if max(self.repeats) < self.strata:  # then the first sample of each stratum is all of it
            self.repeats = self.repeats[: self.strata]
        elif isinstance(posterior, GaussianPosterior) and 0 < len(posterior.random_names) <= 2:  # weight, bias
            self.layer = random_layer(model, posterior)


def suited_method(posterior: NetworkDistribution) -> str:
    """The method that ``"auto"`` stands for.

    The covariance of a Badam or Laplace posterior is that of the network linearised at the mean. If samples of such
    weights are put into the network itself, they leave the region where the linearisation holds, and the predictions
    may be far worse than those of the mean (Foong et al. 2019, arXiv 1906.11537; Immer et al. 2021, arXiv 2008.08400).
    If a Laplace posterior is over the layer that gives the outputs, the network is linear in the random weights and
    both methods agree: it is sampled, unless it is part of a mixture, whose components would share the samples.
    Posteriors of a variational last layer are linearised, because this is exact.
    """
    if isinstance(posterior, Mixture) and all(map(_is_of_last_layer, posterior.components)):
        return "linearized"
    if isinstance(posterior, Posterior) and posterior.hyperparameters.get("method") in LINEAR:
        return "linearized"
    return "linearized" if _is_local(posterior) else "monte_carlo"


def random_layer(model: nn.Module, posterior: GaussianPosterior) -> nn.Linear | None:
    """The linear layer that has all random weights, of which there must be some, and shares none of them."""
    tensors = posterior.match(model)
    random = {id(tensors[name]) for name in posterior.random_names}
    uses = [id(p) for _, p in model.named_parameters(remove_duplicate=False)]
    for module in model.modules():
        if is_plain_linear(module) and random <= set(map(id, module.parameters())):
            return module if all(uses.count(each) == 1 for each in random) else None
    return None


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


def _is_of_last_layer(posterior: Posterior) -> bool:
    """Whether a Laplace posterior is over the layer that gives the outputs; in anchored ensembles it always is."""
    hyperparameters = posterior.hyperparameters
    return hyperparameters.get("structure") in LAST_LAYER and hyperparameters.get("gives_outputs", True)


def _is_local(posterior: NetworkDistribution) -> bool:
    if isinstance(posterior, Mixture):
        return all(_is_local(component) for component in posterior.components)
    if not isinstance(posterior, Posterior):
        return False
    of = posterior.hyperparameters
    if of.get("method") not in LOCAL or of.get("tuned_for") == "monte_carlo":
        return False
    return not _is_of_last_layer(posterior)
