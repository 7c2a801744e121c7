"""``predict``: the front door of all predictive methods."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from bayesadam import noise
from bayesadam.checks import check, is_whole
from bayesadam.likelihoods import Likelihood, check_likelihood
from bayesadam.posterior import NetworkDistribution
from bayesadam.predictive.batch_norm import WithOwnStatistics
from bayesadam.predictive.gaussian import LINKS, from_gaussian, uncertain_part
from bayesadam.predictive.linearized import linearized_outputs
from bayesadam.predictive.moment_propagation import from_moments, propagated_outputs
from bayesadam.predictive.monte_carlo import outputs_at_samples
from bayesadam.predictive.result import Predictive, from_outputs

METHODS = ("monte_carlo", "linearized", "moments", "mean")
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
    method: str = "monte_carlo",
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
        method: ``"monte_carlo"``: the mixture over samples. ``"linearized"``: the network is replaced by its tangent at
            the posterior's mean, whose outputs are Gaussian without sampling (Kessler et al. 2018; Foong et al. 2019;
            Immer et al. 2021); for Gaussian posteriors, and every row by itself. What a row has to do with the others
            of its batch is not seen. The log variance that a network gives is taken at the mean.
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
        independent.

    Raises:
        ValueError: An unknown method or link, a link without use, something that is no likelihood, a model that
            does not match the posterior, a posterior that the method is not for, an empty loader, ``batch_norm``
            without such layers, or a number out of range.
        TypeError: The model returns no tensor and ``output`` is not given.
        RuntimeError: Linearised, a model whose output does not depend on the weights by differentiable operations.
    """
    return network_outputs(
        model,
        posterior,
        inputs,
        likelihood=likelihood,
        mc_samples=mc_samples,
        seed=seed,
        method=method,
        link=link,
        output=output,
        batch_size=batch_size,
        batch_norm=batch_norm,
        progress=progress,
    )(likelihood)


def network_outputs(
    model: nn.Module,
    posterior: NetworkDistribution,
    inputs: Any,
    *,
    likelihood: Likelihood,
    mc_samples: int = 64,
    seed: int = 0,
    method: str = "monte_carlo",
    link: str | None = None,
    output: Callable[[Any], Tensor] | None = None,
    batch_size: int | None = None,
    batch_norm: Any = None,
    progress: bool | None = None,
) -> Callable[..., Predictive]:
    """The part of :func:`predict` that runs the network, whose arguments these are.

    Returns:
        A function from a likelihood to the predictive distribution: of the same kind as the one given, tempered say.
        Linearised it takes a ``scale`` as well, by which the posterior's standard deviations are multiplied.
    """
    if method not in METHODS:
        raise ValueError(f"method must be one of {METHODS}, got {method!r}")
    mc_samples = _whole("mc_samples", mc_samples)
    batch_size = None if batch_size is None else _whole("batch_size", batch_size)
    check_likelihood(likelihood)
    if link is not None:
        if link not in LINKS:
            raise ValueError(f"link must be one of {LINKS}, got {link!r}")
        if method not in GAUSSIAN or not likelihood.defines("log_probs"):
            raise ValueError(
                f"link must be given for a method in {GAUSSIAN} and classification only, "
                f"got {link!r} for {method!r} and {type(likelihood).__name__}"
            )
    if method == "moments" and output is not None:
        raise ValueError(f"output must be None for method='moments', got {output!r}")
    if method in GAUSSIAN:
        noise.normal(seed, 0, mc_samples - 1, 0, (0,))  # refuses a seed out of range before the model runs
    if batch_norm is not None:
        distribution = WithOwnStatistics(posterior, batch_norm)
        with distribution.applied(model) if method in GAUSSIAN else nullcontext():
            return network_outputs(
                model,
                posterior if method in GAUSSIAN else distribution,
                inputs,
                likelihood=likelihood,
                mc_samples=mc_samples,
                seed=seed,
                method=method,
                link=link,
                output=output,
                batch_size=batch_size,
                progress=progress,
            )
    if method == "moments":
        moments = propagated_outputs(
            model,
            posterior,
            inputs,
            covariance=link != "probit",  # which makes use of variances alone
            batch_size=batch_size,
            progress=progress,
        )
        given = partial(from_moments, moments, link=link or "monte_carlo", mc_samples=mc_samples, seed=seed)
        return torch.no_grad()(given)
    if method == "linearized":
        outputs, covariance = linearized_outputs(
            model,
            posterior,
            inputs,
            partial(uncertain_part, likelihood),
            output=output,
            batch_size=batch_size,
            progress=progress,
        )

        @torch.no_grad()
        def linearized(likelihood: Likelihood, scale: float = 1.0) -> Predictive:
            spread = covariance if scale == 1.0 else covariance * scale**2
            return from_gaussian(
                outputs, spread, likelihood, link=link or "monte_carlo", mc_samples=mc_samples, seed=seed
            )

        return linearized
    numbers = range(mc_samples) if method == "monte_carlo" else None
    outputs = outputs_at_samples(
        model, posterior, inputs, numbers, seed=seed, output=output, batch_size=batch_size, progress=progress
    )
    return torch.no_grad()(partial(from_outputs, outputs))


def _whole(name: str, value: Any) -> int:
    """A number of any whole type, numpy's say, as Python's.

    Raises:
        ValueError: It is none, or below 1.
    """
    check(name, value, "a whole number of at least 1", is_whole)
    return int(value)
