"""Likelihoods: the training loss, and what a network's output says about a target.

The training loss ``nll`` is the *mean* over data points of ``-log p(y | output)``: what the optimisers expect, with
``num_data`` the number of data points. The last axis of an output has the outputs (labels, classes) of one data point;
every axis before it counts data points. So outputs ``(N, T, D)`` are those of ``N T`` data points, of tokens say, and
outputs ``(N,)`` are of ``N`` with one output each.
"""

from __future__ import annotations

import abc
import math

import torch
from torch import Tensor, nn
from torch.nn import functional


class Likelihood(nn.Module, abc.ABC):
    """``p(y | output of the network)``. Leading sample axes of ``output`` broadcast against the target."""

    @abc.abstractmethod
    def check(self, output: Tensor, target: Tensor) -> None:
        """Raise ``ValueError`` if the target does not fit the output, by shape or by value."""

    @abc.abstractmethod
    def log_density(self, output: Tensor, target: Tensor) -> Tensor:
        """:meth:`log_prob` without the check, which reads values: for targets that were checked before."""

    def log_prob(self, output: Tensor, target: Tensor) -> Tensor:
        """``log p(y | output)`` of every data point, in nats, summed over its outputs: ``(N,)``, or ``(N, T)``.

        Leading sample axes stay.

        Raises:
            ValueError: The target does not fit the output (see :meth:`check`).
        """
        self.check(output, target)
        return self.log_density(output, target)

    def nll(self, output: Tensor, target: Tensor) -> Tensor:
        """Mean negative log-likelihood over the data points: the training loss, 0-d."""
        return -self.log_prob(output, target).mean()

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        """The same as :meth:`nll`, so that a likelihood is a loss module."""
        return self.nll(output, target)


class RegressionLikelihood(Likelihood):
    """A Gaussian around the network's output, independent over the last axis.

    Targets have the shape of the mean: ``(N,)``, or ``(N, ..., D)``, whose ``D`` outputs are one data point.
    """

    @abc.abstractmethod
    def mean_and_log_variance(self, output: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log variance of ``y`` given an output, of the same shape."""

    def moments(self, output: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of ``y`` given an output, of the same shape."""
        mean, log_variance = self.mean_and_log_variance(output)
        return mean, log_variance.exp()

    def check(self, output: Tensor, target: Tensor) -> None:
        """The target must be of the mean's shape (``(N,)`` against ``(N, 1)`` would broadcast to N x N)."""
        mean, _ = self.mean_and_log_variance(output)
        if mean.shape[mean.ndim - target.ndim :] != target.shape or mean.ndim < target.ndim:
            raise ValueError(f"target must be of the output's shape {tuple(mean.shape)}, got {tuple(target.shape)}")

    def log_density(self, output: Tensor, target: Tensor) -> Tensor:
        """Summed over the outputs of a data point."""
        mean, log_variance = self.mean_and_log_variance(output)
        terms = gaussian_log_density(target - mean, log_variance)
        return terms.sum(-1) if target.ndim > 1 else terms


class Gaussian(RegressionLikelihood):
    """``N(output, 1 / noise_precision)``.

    Args:
        noise_precision: One number for all outputs, or a sequence or tensor with one per output.
        learned: Make it a parameter (``log_noise_precision``), to be given to the optimiser in a group with
            ``perturb=False``.

    Raises:
        ValueError: A precision that is not positive.
    """

    def __init__(self, noise_precision: float | Tensor = 1.0, *, learned: bool = False) -> None:
        super().__init__()
        precision = torch.as_tensor(noise_precision, dtype=torch.get_default_dtype())
        if not ((precision > 0) & precision.isfinite()).all():
            raise ValueError(f"noise_precision must be positive and finite, got {noise_precision!r}")
        if learned:
            self.log_noise_precision = nn.Parameter(precision.log())
        else:
            self.register_buffer("log_noise_precision", precision.log())

    @property
    def noise_precision(self) -> Tensor:
        """Precision of the noise, in the inverse squared units of the targets; 0-d or one per output."""
        return self.log_noise_precision.exp()

    def mean_and_log_variance(self, output: Tensor) -> tuple[Tensor, Tensor]:
        """The output, and the noise's log variance.

        Raises:
            ValueError: There is not one noise precision per output.
        """
        log_variance = -self.log_noise_precision.to(output)
        try:
            return output, log_variance.expand(output.shape)
        except RuntimeError:
            raise ValueError(
                f"noise_precision must be one number or one per output, got {tuple(log_variance.shape)} of them "
                f"for outputs {tuple(output.shape)}"
            ) from None


class HeteroscedasticGaussian(RegressionLikelihood):
    """``N(m, exp(v))`` where the network's output ``(..., 2 D)`` is ``m`` and then ``v`` along the last axis.

    Targets are ``(N, ..., D)``.
    """

    def mean_and_log_variance(self, output: Tensor) -> tuple[Tensor, Tensor]:
        """The two halves of the output.

        Raises:
            ValueError: A last axis of odd size.
        """
        if output.ndim == 0 or output.shape[-1] % 2:
            raise ValueError(
                f"output must have mean and log variance along its last axis, got the shape {tuple(output.shape)}"
            )
        mean, log_variance = output.chunk(2, dim=-1)
        return mean, log_variance


class ClassificationLikelihood(Likelihood):
    """A distribution over classes given logits."""

    @abc.abstractmethod
    def log_probs(self, output: Tensor) -> Tensor:
        """Log probabilities of the classes along a last axis."""


class Bernoulli(ClassificationLikelihood):
    """Two classes by one logit, of class 1. Output and target are ``(N,)``, or ``(N, ..., D)`` with ``D`` labels."""

    def check(self, output: Tensor, target: Tensor) -> None:
        """The target must be of the output's shape, with values in [0, 1]."""
        if output.shape[output.ndim - target.ndim :] != target.shape or output.ndim < target.ndim:
            raise ValueError(f"target must be of the output's shape {tuple(output.shape)}, got {tuple(target.shape)}")
        labels = target.to(output.dtype)
        if ((labels < 0) | (labels > 1)).any():
            raise ValueError(f"target must be in [0, 1], got {labels.min().item()!r} to {labels.max().item()!r}")

    def log_density(self, output: Tensor, target: Tensor) -> Tensor:
        """Summed over the labels of a data point."""
        labels = target.to(output.dtype)
        terms = labels * functional.logsigmoid(output) + (1.0 - labels) * functional.logsigmoid(-output)
        return terms.sum(-1) if target.ndim > 1 else terms

    def log_probs(self, output: Tensor) -> Tensor:
        """Of classes 0 and 1, along a new last axis."""
        return torch.stack([functional.logsigmoid(-output), functional.logsigmoid(output)], dim=-1)


class Categorical(ClassificationLikelihood):
    """``C`` classes by their logits ``(N, ..., C)``; targets are class numbers ``(N, ...)``, each a data point."""

    def check(self, output: Tensor, target: Tensor) -> None:
        """The target must be of the output's shape without its last axis, integer, and in range."""
        classes = output.shape[-1]
        shape = output.shape[:-1]
        if shape[len(shape) - target.ndim :] != target.shape or len(shape) < target.ndim:
            raise ValueError(
                f"target must be of shape {tuple(shape)}, the logits' without classes, got {tuple(target.shape)}"
            )
        if target.is_floating_point() or target.is_complex():
            raise ValueError(f"target must be integer class numbers, got dtype {target.dtype}")
        if target.numel() and not (0 <= target.min() and target.max() < classes):
            raise ValueError(f"target must be in [0, {classes}), got {target.min().item()} to {target.max().item()}")

    def log_density(self, output: Tensor, target: Tensor) -> Tensor:
        """Of every element of the target."""
        index = target.long().expand(output.shape[:-1]).unsqueeze(-1)
        return output.log_softmax(-1).gather(-1, index).squeeze(-1)

    def log_probs(self, output: Tensor) -> Tensor:
        """Log softmax."""
        return output.log_softmax(-1)


def gaussian_log_density(residual: Tensor, log_variance: Tensor) -> Tensor:
    """``log N(residual | 0, exp(log_variance))``, element-wise."""
    # Neither the variance nor its inverse: their exponentials leave float32 long before their logarithm is large.
    white = residual * (-0.5 * log_variance).exp()
    return -0.5 * (white.square() + log_variance + math.log(2.0 * math.pi))
