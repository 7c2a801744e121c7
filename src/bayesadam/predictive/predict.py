"""``predict``: the front door of all predictive methods."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from bayesadam import noise
from bayesadam.checks import check, is_whole
from bayesadam.likelihoods import Likelihood, check_likelihood
from bayesadam.posterior import Mixture, NetworkDistribution
from bayesadam.posterior.mixture import component_seed
from bayesadam.posterior.sharded import unsharded
from bayesadam.predictive.batch_norm import WithOwnStatistics
from bayesadam.predictive.batches import repeatable
from bayesadam.predictive.choice import MOST_OUTPUTS, suited_method, warn_of_samples
from bayesadam.predictive.gaussian import LINKS, from_gaussian, uncertain_part
from bayesadam.predictive.linearized import TooManyOutputsError, linearized_outputs
from bayesadam.predictive.linearized_mixture import mixed
from bayesadam.predictive.moment_propagation import from_moments, propagated_outputs
from bayesadam.predictive.monte_carlo import outputs_at_samples
from bayesadam.predictive.result import Predictive, from_outputs

METHODS = ("auto", "monte_carlo", "linearized", "moments", "mean")
GAUSSIAN = ("linearized", "moments")
"""Methods whose outputs are Gaussian: a link takes logits to probabilities."""


def predict(
    model: nn.Module,
    posterior: NetworkDistribution,
    inputs: Tensor | tuple[Any, ...] | Mapping[str, Any] | Iterable[Any],
    *,
    likelihood: Likelihood,
    mc_samples: int = 64,
    seed: int = 0,
    method: str = "auto",
    link: str | None = None,
    output: Callable[[Any], Tensor] | None = None,
    batch_size: int | None = None,
    batch_norm: Any = None,
    progress: bool | None = None,
) -> Predictive:
    """The predictive distribution of a network whose weights have a posterior.

    The model is run in eval mode (dropout off, batch norm with running statistics) and without gradients; its
    weights and modes are what they were afterwards, whatever happens. Modules whose own ``train`` merges or caches
    weights do that for every sample; linearised or by moments they are refused, if any of their weights matter.

    Args:
        model: Its trainable parameters must be those of the posterior, by its own names or those of the network that it
            wraps (``DistributedDataParallel``, ``torch.compile``).
        posterior: Over the model's weights; or another distribution over what it computes, as
            :class:`bayesadam.MCDropout`.
        inputs: A tensor; a tuple (``model(*inputs)``); a dict (``model(**inputs)``); or a loader that gives batches of
            any of these. Of a batch that is a list or tuple, as ``(inputs, targets)``, only the first entry is used.
            Everything is moved to the model's device.
        likelihood: What the output means, one of :mod:`bayesadam.likelihoods` or your own; it decides of which kind the
            result is.
        mc_samples: Posterior samples; linearised or by moments, draws of outputs that are not means of Gaussian
            targets.
        seed: Sample ``i`` depends on ``(seed, i)`` only: not on batches or chunks, nor on any global generator.
        method: ``"auto"``: ``"linearized"`` for posteriors of :func:`bayesadam.badam` and :func:`bayesadam.laplace`,
            and mixtures of them, whose covariance is that of a linearised network; ``"monte_carlo"`` for all other
            posteriors, for those over the last layer alone, where both agree, and where a row has more than 128
            outputs. ``"monte_carlo"``: the mixture over samples; for a posterior that is meant for the linearised
            network it is often far too wide, and a warning says so. ``"linearized"``: the network is replaced by its
            tangent at the posterior's mean, whose outputs are Gaussian without sampling (Kessler et al. 2018; Foong et
            al. 2019; Immer et al. 2021); for Gaussian posteriors and mixtures of them, and every row by itself. What a
            row has to do with the others of its batch is not seen. The log variance that a network gives is taken at
            the mean.
            ``"moments"``: mean and variance are propagated from layer to layer (Bayer et al. 2015), for networks that
            :func:`bayesadam.fawn` takes and posteriors with independent weights. With one hidden layer mean and
            variance are exact, as far as its activation's are; with more, units are taken as independent.
            ``"mean"``: the network at the posterior's mean alone.
        link: From Gaussian logits to probabilities, for classification, linearised or by moments:
            ``"monte_carlo"`` (default) or ``"probit"``; see :class:`GaussianLogitsPredictive`.
        output: Takes the output tensor, rows along its first axis, out of what the model returns. Not by moments.
        batch_size: Rows per forward pass; default all of a batch. Memory that runs out halves it. The first tensor of a
            tuple or dict has the rows, and so have those of the same length; others are passed whole with every part.
        batch_norm: Inputs like those of training, in any form that ``inputs`` may have: on about 1,000 of them the
            statistics of batch norm layers are estimated anew for every sample, and for the mean network where there
            are no samples. Without it they are the running ones, which are averages over the samples of training:
            predictions then are the worse, and the less certain, the wider the posterior is. Not for layers whose
            statistics were fixed in training, too.
        progress: Show a progress bar; default for loaders in a terminal.

    Returns:
        A :class:`RegressionPredictive` for Gaussian targets, a :class:`ClassificationPredictive` for classes, and a
        :class:`MixturePredictive` for all other targets; it keeps the outputs of all samples. Linearised or by moments
        the first two are their :class:`GaussianPredictive` or :class:`GaussianLogitsPredictive`, which keep the
        covariance of a row's outputs; by moments that is known after a linear layer, and else outputs are taken as
        independent. A linearised mixture of posteriors is a mixture of the components' predictions.

    Raises:
        ValueError: An unknown method or link, a link without use or for a mixture, something that is no likelihood, a
            model that does not match the posterior, a posterior that the method is not for, an empty loader,
            ``batch_norm`` without such layers, or a number out of range.
        TypeError: The model returns no tensor and ``output`` is not given.
        RuntimeError: Linearised, a model whose output does not depend on the weights by differentiable operations.
    """
    if method == "monte_carlo":
        warn_of_samples(posterior)
    how = How(likelihood, mc_samples, seed, method, link, output, batch_size, batch_norm, progress)
    return network_outputs(model, posterior, inputs, how)(likelihood)


@dataclass(frozen=True)
class How:
    """The keyword arguments of :func:`predict`."""

    likelihood: Likelihood
    mc_samples: int = 64
    seed: int = 0
    method: str = "auto"
    link: str | None = None
    output: Callable[[Any], Tensor] | None = None
    batch_size: int | None = None
    batch_norm: Any = None
    progress: bool | None = None

    def checked(self) -> How:
        """The same, with numbers of any whole type, numpy's say, as Python's.

        Raises:
            ValueError: What :func:`predict` says, as far as it needs neither model nor posterior.
        """
        if self.method not in METHODS:
            raise ValueError(f"method must be one of {METHODS}, got {self.method!r}")
        mc_samples = _whole("mc_samples", self.mc_samples)
        batch_size = None if self.batch_size is None else _whole("batch_size", self.batch_size)
        check_likelihood(self.likelihood)
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
        if self.method in GAUSSIAN:
            noise.normal(self.seed, 0, mc_samples - 1, 0, (0,))  # refuses a seed out of range before the model runs
        return replace(self, mc_samples=mc_samples, batch_size=batch_size)


@dataclass(frozen=True)
class Run:
    """A network that has been run: it makes predictive distributions of likelihoods of one kind, tempered ones say.

    Attributes:
        method: By which it was run.
    """

    method: str
    _predictive: Callable[..., Predictive]

    @torch.no_grad()
    def __call__(self, likelihood: Likelihood, **scale: float) -> Predictive:
        """The predictive distribution.

        Args:
            likelihood: Of the kind that the network was run for.
            scale: Linearised, ``scale=`` multiplies the posterior's standard deviations.
        """
        return self._predictive(likelihood, **scale)


def network_outputs(
    model: nn.Module, posterior: NetworkDistribution, inputs: Any, how: How, *, most: float = math.inf
) -> Run:
    """The part of :func:`predict` that runs the network, whose arguments these are.

    Args:
        model: See :func:`predict`.
        posterior: See :func:`predict`.
        inputs: See :func:`predict`.
        how: Its other arguments.
        most: Outputs that a row may have at most for the linearised network.

    Raises:
        TooManyOutputsError: A row has more than ``most``.
    """
    how = how.checked()
    if how.method == "auto":
        if suited_method(posterior) == "linearized":
            inputs = repeatable(inputs)
            with suppress(TooManyOutputsError):
                return network_outputs(model, posterior, inputs, replace(how, method="linearized"), most=MOST_OUTPUTS)
        how = replace(how, method="monte_carlo")
    if how.method == "linearized" and isinstance(posterior, Mixture):
        return _linearized_mixture(model, posterior, inputs, how, most)
    if how.batch_norm is not None:
        distribution = WithOwnStatistics(posterior, how.batch_norm)
        how = replace(how, batch_norm=None)
        if how.method not in GAUSSIAN:
            return network_outputs(model, distribution, inputs, how)
        with distribution.applied(model):
            return network_outputs(model, posterior, inputs, how, most=most)
    running: dict[str, Any] = {"batch_size": how.batch_size, "progress": how.progress}
    drawing: dict[str, Any] = {"link": how.link or "monte_carlo", "mc_samples": how.mc_samples, "seed": how.seed}
    if how.method == "moments":
        covariance = how.link != "probit"  # which makes use of variances alone
        with unsharded(model):
            moments = propagated_outputs(model, posterior, inputs, covariance=covariance, **running)
        return Run("moments", partial(from_moments, moments, **drawing))
    if how.method == "linearized":
        part = partial(uncertain_part, how.likelihood)
        with unsharded(model):
            found = linearized_outputs(model, posterior, inputs, part, output=how.output, most=most, **running)

        def linearized(likelihood: Likelihood, scale: float = 1.0) -> Predictive:
            outputs, covariance = found
            spread = covariance if scale == 1.0 else covariance * scale**2
            return from_gaussian(outputs, spread, likelihood, **drawing)

        return Run("linearized", linearized)
    numbers = range(how.mc_samples) if how.method == "monte_carlo" else None
    outputs = outputs_at_samples(model, posterior, inputs, numbers, seed=how.seed, output=how.output, **running)
    return Run(how.method, partial(from_outputs, outputs))


def _linearized_mixture(model: nn.Module, posterior: Mixture, inputs: Any, how: How, most: float) -> Run:
    """Every component linearised at its own mean, with its share of the draws."""
    if how.link == "probit":
        raise ValueError("link must be 'monte_carlo' for a mixture of posteriors, got 'probit'")
    inputs = repeatable(inputs)
    count = len(posterior.components)
    shares = [
        replace(how, mc_samples=-(-how.mc_samples // count), seed=component_seed(how.seed, number))
        for number in range(count)
    ]
    parts = [
        network_outputs(model, component, inputs, share, most=most)
        for component, share in zip(posterior.components, shares, strict=True)
    ]

    def linearized(likelihood: Likelihood, scale: float = 1.0) -> Predictive:
        return mixed([part(likelihood, scale=scale) for part in parts])

    return Run("linearized", linearized)


def _whole(name: str, value: Any) -> int:
    """A number of any whole type, numpy's say, as Python's.

    Raises:
        ValueError: It is none, or below 1.
    """
    check(name, value, "a whole number of at least 1", is_whole)
    return int(value)
