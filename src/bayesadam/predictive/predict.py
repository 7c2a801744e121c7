"""``predict``, the entry point of all methods of prediction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from bayesadam.checks import check_model
from bayesadam.likelihoods import Likelihood
from bayesadam.modules.exclusive import Parts, exclusively
from bayesadam.modules.fsdp import unsharded
from bayesadam.posterior import Mixture, NetworkDistribution
from bayesadam.posterior.mixture import component_seed
from bayesadam.predictive.batch_norm import WithOwnStatistics, warn_of_statistics, with_batch_norm
from bayesadam.predictive.batches import repeatable
from bayesadam.predictive.gaussian_outputs import from_gaussian
from bayesadam.predictive.last_layer import last_layer_outputs
from bayesadam.predictive.linearized import TooManyOutputsError, linearized_outputs
from bayesadam.predictive.linearized_mixture import mixed
from bayesadam.predictive.moment_propagation import from_moments, propagated_outputs
from bayesadam.predictive.monte_carlo import outputs_at_samples
from bayesadam.predictive.plan import (
    AUTO,
    GAUSSIAN,
    Options,
    Plan,
    suited_method,
    warn_of_nan,
    warn_of_probabilities,
    warn_of_samples,
)
from bayesadam.predictive.result import Predictive, from_outputs
from bayesadam.predictive.tangents import outputs_at_tangents


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
    batch_norm: Any = AUTO,
    progress: bool | None = None,
) -> Predictive:
    """Predictive distribution of a network whose weights have a posterior.

    The model is run in evaluation mode (without dropout, batch norm with running statistics) and without gradients.
    Afterwards its weights and modes are as before, even after an exception. Several threads may predict with one model;
    they take turns. Modules whose own ``train`` method merges or caches weights do so for every sample; the methods
    ``"linearized"`` and ``"moments"`` refuse such modules if any of their weights are random.

    Args:
        model: The network. Its trainable parameters must be those of the posterior, by its own names or by those of the
            network that it wraps (``DistributedDataParallel``, ``torch.compile``).
        posterior: Posterior over the model's weights, or another distribution over networks, such as
            :class:`bayesadam.MCDropout`.
        inputs: A tensor; a tuple (``model(*inputs)``); a dict (``model(**inputs)``); or a loader that yields batches of
            any of these, or pairs ``(inputs, targets)``, of which the inputs are used. A tuple or list from a loader is
            always such a pair, or has one entry; several inputs are a tuple in it. A model that takes the dict itself
            needs it in a tuple, ``(inputs,)``. Inputs are moved to the model's device. A ``PackedSequence`` is used
            like a tensor with a row for each sequence.
        likelihood: Likelihood of the targets given the output, one of :mod:`bayesadam.likelihoods` or your own. It
            determines the class of the result.
        mc_samples: Number of posterior samples. For a mixture it is rounded up to a multiple of the number of
            components, so that all have their weight; samples that are the same network, such as those of a component
            without variance, take one pass, and a point mass or an ensemble of networks has each of them once. For
            ``"linearized"`` and ``"moments"`` it is the number of draws of the outputs, and not used for Gaussian
            targets.
        seed: Seed of the samples. Sample ``i`` depends on ``(seed, i)`` only, and not on batches, chunks or a global
            generator. For ``"linearized"`` and ``"moments"``, if the targets are not Gaussian, outputs are drawn for
            every row by itself, and also depend on its place among the inputs.
        method: One of the following. ``"auto"`` is ``"linearized"`` for posteriors of :func:`bayesadam.badam` and
            :func:`bayesadam.laplace` and mixtures of them, whose covariance is that of a linearised network, and for
            those of :func:`bayesadam.variational_last_layer`, for which it is exact; it is ``"monte_carlo"`` for all
            other posteriors, for a single Laplace posterior over the last layer, where both agree, and for a
            mixture if a row has more than 128 outputs. ``"monte_carlo"`` is the mixture over posterior samples; for
            posteriors of a linearised network it is often far too wide, and a warning is issued. ``"linearized"``
            replaces the network by its tangent at the posterior's mean, whose outputs are Gaussian without sampling
            (Kessler et al. 2018; Foong et al. 2019; Immer et al. 2021); if a row has more than 128 outputs, their
            covariance is replaced by ``mc_samples`` samples of the tangent, each of which takes about two passes. It is
            for Gaussian posteriors and mixtures of them; it treats every row by itself and ignores dependence on other
            rows of the batch, and with a covariance a log variance that the network outputs is taken at the mean.
            ``"moments"`` propagates mean and variance from layer to
            layer (Bayer et al. 2015), for networks that :func:`bayesadam.fawn` accepts and posteriors with independent
            weights. With one hidden layer mean and variance are as exact as those of its activation; with more layers
            units are treated as independent. ``"mean"`` is the network at the posterior's mean alone.
        link: How Gaussian logits become class probabilities for ``"linearized"`` and ``"moments"``: ``"monte_carlo"``
            (default) or ``"probit"``; see :class:`GaussianLogitsPredictive`.
        output: Function that takes the output tensor, with rows along its first axis, out of what the model returns. It
            cannot be used with ``"moments"``.
        batch_size: Rows per forward pass. The default is as many rows as 256 KiB of inputs have, and at least 250 (on
            other devices than CPUs 16 times as many); it is a whole batch if the outputs of a row depend on other rows,
            as a few rows show, or if a tensor has another length. The number of rows is halved when memory runs out.
            The first tensor of a tuple or dict determines the number of rows; tensors of another length are passed
            whole with every part. Outputs must have the rows of the inputs along their first axis.
        batch_norm: Inputs like those of training, in any form that ``inputs`` may have, about 1,000 of which are used
            to compute the statistics of batch norm layers anew for every sample, or for the mean network if the method
            uses no others. By default they are those among the posterior's buffers, or the model's own if the posterior
            has none. With averages over the samples of training predictions are worse and less certain, the more so the
            wider the posterior is: :func:`bayesadam.predictive.with_batch_norm` computes the statistics of the mean,
            once and for the posterior's file, and samples are best with their own. ``"auto"`` warns of such averages,
            unless everything up to the last such layer is frozen; ``None`` does not (for layers that were in evaluation
            mode in training, or after ``torch.optim.swa_utils.update_bn``).
        progress: Whether to show a progress bar; by default it is shown for loaders in a terminal.

    Returns:
        A :class:`RegressionPredictive` for Gaussian targets, a :class:`ClassificationPredictive` for classes, and a
        :class:`MixturePredictive` for all other targets, with the outputs of all samples. For ``"linearized"`` and
        ``"moments"`` the first two are their subclasses :class:`GaussianPredictive` and
        :class:`GaussianLogitsPredictive`, which keep the covariance of a row's outputs; for ``"moments"`` this is known
        after a linear layer, and otherwise outputs are treated as independent. The linearised prediction of a mixture
        of posteriors is the mixture of the components' predictions.

    Raises:
        ValueError: The method or link is unknown, a link is given that is not used or is for a mixture, the model, the
            posterior or the likelihood is none, the model does not match the posterior, the method is not for this
            posterior, a loader is empty or no loader, the outputs do not have the rows of the inputs or, apart from
            these, one shape for all batches, ``batch_norm`` has inputs for a model without such layers, or a number is
            out of range.
        TypeError: The model does not return a tensor and ``output`` is not given.
        RuntimeError: The method is ``"linearized"`` and the output does not depend on the weights by differentiable
            operations.
    """
    if method == "monte_carlo":
        warn_of_samples(posterior)
    options = Options(likelihood, mc_samples, seed, method, link, output, batch_size, batch_norm, progress)
    run = network_outputs(model, posterior, inputs, options)
    warn_of_nan(run.outputs)
    return run(likelihood)


@dataclass(frozen=True)
class NetworkOutputs:
    """A network after it was run, from which predictive distributions for several likelihoods of one kind can be made.

    Attributes:
        method: The method by which it was run.
        outputs: Outputs at all samples, ``(S, N, ...)``, or at the mean, ``(N, ...)``; for a mixture of linearised
            networks those of the first component.
        takes_scale: Whether the posterior's width can be changed without running the network again.
    """

    method: str
    outputs: Tensor
    _predictive: Callable[..., Predictive]
    takes_scale: bool = False

    @torch.no_grad()
    def __call__(self, likelihood: Likelihood, **scale: float) -> Predictive:
        """Make the predictive distribution.

        Args:
            likelihood: Likelihood of the kind that the network was run for, for example a tempered one.
            scale: If it is taken, ``scale=`` multiplies the posterior's standard deviations.
        """
        return self._predictive(likelihood, **scale)


def network_outputs(
    model: nn.Module, posterior: NetworkDistribution, inputs: Any, options: Options, *, is_of_mixture: bool = False
) -> NetworkOutputs:
    """Run the network, as the first part of :func:`predict`.

    Args:
        model: See :func:`predict`.
        posterior: See :func:`predict`.
        inputs: See :func:`predict`.
        options: The other arguments of :func:`predict`.
        is_of_mixture: Whether the posterior is a component of a mixture, which needs the covariance of the outputs.

    Raises:
        TooManyOutputsError: A covariance is needed, and a row has more than 128 outputs.
    """
    options = options.checked()
    check_model(model)
    if not isinstance(posterior, NetworkDistribution):
        raise ValueError(f"posterior must be a distribution over networks, got {type(posterior).__name__}")
    if options.method == "auto":
        if suited_method(posterior) == "linearized":
            inputs = repeatable(inputs)
            with suppress(TooManyOutputsError):
                return network_outputs(model, posterior, inputs, replace(options, method="linearized"))
        options = replace(options, method="monte_carlo")
    if options.method == "linearized" and isinstance(posterior, Mixture):
        return _linearized_mixture(model, posterior, inputs, options)
    if isinstance(options.batch_norm, str):
        if Parts(model).normalized:
            warn_of_statistics(model, posterior)
    elif options.batch_norm is not None and options.method in GAUSSIAN:
        posterior = with_batch_norm(model, posterior, options.batch_norm)
    elif options.batch_norm is not None:
        posterior = WithOwnStatistics(posterior, options.batch_norm)
    if options.method == "moments":
        with exclusively(model) as parts, unsharded(parts.sharded):
            moments = propagated_outputs(model, posterior, inputs, options)
        warn_of_probabilities(model, options.likelihood, moments.mean)
        return NetworkOutputs("moments", moments.mean, partial(from_moments, moments, options=options))
    if options.method == "linearized":
        inputs = repeatable(inputs)
        with exclusively(model) as parts, unsharded(parts.sharded):
            try:
                outputs, covariance = linearized_outputs(model, posterior, inputs, options)
            except TooManyOutputsError:
                if is_of_mixture or options.link == "probit":
                    raise
                return _scalable("linearized", model, *outputs_at_tangents(model, posterior, inputs, options), options)
        warn_of_probabilities(model, options.likelihood, outputs)

        def linearized(likelihood: Likelihood, scale: float = 1.0) -> Predictive:
            spread = covariance if scale == 1.0 else covariance * scale**2
            return from_gaussian(outputs, spread, likelihood, options)

        return NetworkOutputs("linearized", outputs, linearized, takes_scale=True)
    plan = Plan(model, posterior, options)
    if plan.layer is not None:
        inputs = repeatable(inputs)
        at_layer = last_layer_outputs(model, plan.layer, posterior, inputs, options)
        if at_layer is not None:
            return _scalable("monte_carlo", model, *at_layer, options)
    drawn = outputs_at_samples(model, posterior, inputs, plan.repeats, options)
    warn_of_probabilities(model, options.likelihood, drawn)
    return NetworkOutputs(options.method, drawn, partial(from_outputs, drawn, strata=plan.strata))


def _scalable(method: str, model: nn.Module, center: Tensor, samples: Tensor, options: Options) -> NetworkOutputs:
    """Outputs that are linear in the random weights, at the mean and at samples."""
    warn_of_probabilities(model, options.likelihood, samples)

    def sampled(likelihood: Likelihood, scale: float = 1.0) -> Predictive:
        return from_outputs(samples if scale == 1.0 else center + scale * (samples - center), likelihood)

    return NetworkOutputs(method, samples, sampled, takes_scale=True)


def _linearized_mixture(model: nn.Module, posterior: Mixture, inputs: Any, options: Options) -> NetworkOutputs:
    """Linearise the network at the mean of every component, with an equal share of the draws for each."""
    if options.link == "probit":
        raise ValueError("link must be 'monte_carlo' for a mixture of posteriors, got 'probit'")
    inputs = repeatable(inputs)
    count = len(posterior.components)
    shares = [
        replace(options, mc_samples=-(-options.mc_samples // count), seed=component_seed(options.seed, number))
        for number in range(count)
    ]
    parts = [
        network_outputs(model, component, inputs, share, is_of_mixture=True)
        for component, share in zip(posterior.components, shares, strict=True)
    ]

    def linearized(likelihood: Likelihood, scale: float = 1.0) -> Predictive:
        return mixed([part(likelihood, scale=scale) for part in parts])

    return NetworkOutputs("linearized", parts[0].outputs, linearized, takes_scale=True)
