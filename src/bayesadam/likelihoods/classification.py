"""Likelihoods of classes, with logits as outputs."""

from __future__ import annotations

import abc
import math
import warnings

import torch
from torch import Tensor, distributions, nn
from torch.distributions import Distribution
from torch.nn import functional

from bayesadam.functional import moments as maps
from bayesadam.functional.outputs import log_softmax, logistic_scale, softmax_factor
from bayesadam.likelihoods.base import Likelihood
from bayesadam.likelihoods.parameters import (
    check_classes,
    check_every_axis,
    check_shape,
    check_values,
    diagonal_factor,
    set_log,
    summed,
)
from bayesadam.likelihoods.quadrature import log_expectation

BOUNDS = {"tilted": maps.expected_log_softmax, "jensen": maps.jensen_log_softmax}
"""Lower bounds of the expected log probability of a class, by name."""


IGNORED = -100
"""Target that is ignored, as by :func:`torch.nn.functional.cross_entropy`."""


class ClassificationLikelihood(Likelihood, abc.ABC):
    """Base class of distributions over classes given logits; predictions are then class probabilities."""

    @abc.abstractmethod
    def log_probs(self, output: Tensor) -> Tensor:
        """Log probabilities of the classes along a last axis."""

    def tempered(self, temperature: float) -> TemperedClassification:
        """Return a copy with the logits divided by the temperature."""
        return TemperedClassification(self, temperature)


class Bernoulli(ClassificationLikelihood):
    """Two classes with the logit of class 1 as output.

    Output and target are ``(N,)``, or ``(N, ..., D)`` with ``D`` labels.
    """

    def check(self, output: Tensor, target: Tensor) -> None:
        """Check that the target has the output's shape, with values in [0, 1]."""
        check_shape(output.shape, target)
        labels = target.to(output.dtype)
        check_values(labels, (labels >= 0) & (labels <= 1), "in [0, 1]")

    def element_log_density(self, output: Tensor, target: Tensor) -> Tensor:
        """Log density of every label."""
        labels = target.to(output.dtype)
        return labels * functional.logsigmoid(output) + (1.0 - labels) * functional.logsigmoid(-output)

    def log_probs(self, output: Tensor) -> Tensor:
        """Log probabilities of classes 0 and 1, along a new last axis."""
        return torch.stack([functional.logsigmoid(-output), functional.logsigmoid(output)], dim=-1)

    def distribution(self, output: Tensor) -> Distribution:
        """``torch.distributions.Bernoulli`` of the logits."""
        return distributions.Bernoulli(logits=output, validate_args=False)

    @torch.no_grad()
    def score(self, output: Tensor, target: Tensor) -> Tensor:
        """The label minus its probability; for label 1 computed as ``sigmoid(-output)``, which avoids cancellation
        near 1.
        """
        labels = target.to(output.dtype)
        return torch.lerp(output.sigmoid().neg_(), (-output).sigmoid_(), labels)

    @torch.no_grad()
    def fisher_factor(self, output: Tensor, target: Tensor) -> Tensor:
        """``sqrt(p (1 - p))``, ``(N, P, 1, 1)``; its square is the exact second derivative."""
        return diagonal_factor(logistic_scale(output))

    def expected_log_density(self, mean: Tensor, variance: Tensor, target: Tensor) -> Tensor:
        """Approximated by a mixture of probits, see :func:`bayesadam.functional.moments.expected_log_sigmoid`."""
        labels = target.to(mean.dtype)
        terms = labels * maps.expected_log_sigmoid(mean, variance)
        terms = terms + (1.0 - labels) * maps.expected_log_sigmoid(-mean, variance)
        return summed(terms, target)

    def log_expected_density(
        self, mean: Tensor, variance: Tensor, target: Tensor, covariance: Tensor | None = None
    ) -> Tensor:
        """Approximated by a mixture of probits, see :func:`bayesadam.functional.moments.expected_sigmoid`; for labels
        between 0 and 1 it is found by quadrature.
        """
        labels = target.to(mean.dtype)
        terms = labels * _log_expected_sigmoid(mean, variance)
        terms = terms + (1.0 - labels) * _log_expected_sigmoid(-mean, variance)
        soft = (labels > 0) & (labels < 1)
        if soft.any():
            density = log_expectation(lambda output: self.element_log_density(output, labels), mean, variance)
            terms = torch.where(soft, density.to(terms.dtype), terms)
        return summed(terms, target)


class Categorical(ClassificationLikelihood):
    """``C`` classes with their logits ``(N, ..., C)`` as outputs.

    Targets are class numbers ``(N, ...)``, each of which is a data point. Those of -100 are ignored by :meth:`nll`,
    :func:`bayesadam.laplace` and the functions that tune a posterior, as by PyTorch's cross entropy.

    Args:
        bound: Lower bound of the expected log density under Gaussian logits, which some methods train with:
            ``"tilted"`` (:func:`bayesadam.functional.moments.expected_log_softmax`), or the looser and cheaper
            ``"jensen"`` (:func:`bayesadam.functional.moments.jensen_log_softmax`).

    Raises:
        ValueError: The bound is unknown.
    """

    bound: str = "tilted"

    def __init__(self, *, bound: str = "tilted") -> None:
        super().__init__()
        if bound not in BOUNDS:
            raise ValueError(f"bound must be one of {tuple(BOUNDS)}, got {bound!r}")
        self.bound = bound

    def counted(self, target: Tensor) -> Tensor | None:
        """Mask of the targets that are not -100; on a CPU None if all are not."""
        counted = target != IGNORED
        return None if not target.is_cuda and counted.all() else counted

    def check(self, output: Tensor, target: Tensor) -> None:
        """Check that the target has the output's shape without its last axis, and integer values in range.

        A warning is issued if the classes may as well be along axis 1, where PyTorch's losses have them.
        """
        if output.ndim > 2 and (*output.shape[:1], *output.shape[2:]) == target.shape == output.shape[:-1]:
            warnings.warn(
                f"the classes of logits of shape {tuple(output.shape)} are taken along the last axis, but the target "
                "fits both: give output= that moves them there if they are along axis 1 (out.movedim(1, -1))",
                UserWarning,
                stacklevel=2,
            )
        check_shape(output.shape[:-1], target, "the logits' shape without classes")
        check_classes(target, output.shape[-1])

    def nll(self, output: Tensor, target: Tensor) -> Tensor:
        """Mean negative log-likelihood over the data points that are not ignored: the training loss, 0-d."""
        if type(self) is not Categorical:  # whose density or ignored targets may be others
            return super().nll(output, target)
        self.check(output, target.where(target != IGNORED, 0))
        check_every_axis(output.shape[:-1], output, target)
        labels = target.long().reshape(-1)
        return functional.cross_entropy(output.reshape(-1, output.shape[-1]), labels, ignore_index=IGNORED)

    def log_density(self, output: Tensor, target: Tensor) -> Tensor:
        """Log density of every element of the target."""
        index = target.long().expand(output.shape[:-1]).unsqueeze(-1)
        return log_softmax(output).gather(-1, index).squeeze(-1)

    def log_probs(self, output: Tensor) -> Tensor:
        """Log softmax of the logits."""
        return log_softmax(output)

    def distribution(self, output: Tensor) -> Distribution:
        """``torch.distributions.Categorical`` of the logits."""
        return distributions.Categorical(logits=output, validate_args=False)

    @torch.no_grad()
    def score(self, output: Tensor, target: Tensor) -> Tensor:
        """One for the class of the target, minus the probabilities."""
        index = target.long().unsqueeze(-1).expand(*output.shape[:-1], 1)
        slope = log_softmax(output).exp_().neg_()
        # 1 - p of the class is computed as the sum of the other probabilities, since it cancels where p is near 1.
        rest = slope.scatter(-1, index, 0.0).sum(-1, keepdim=True).neg_()
        return slope.scatter_(-1, index, rest)

    @torch.no_grad()
    def fisher_factor(self, output: Tensor, target: Tensor) -> Tensor:
        """Factor of ``diag(p) - p p'``, the exact second derivative; see
        :func:`bayesadam.functional.outputs.softmax_factor`.
        """
        return softmax_factor(output).reshape(len(output), -1, output.shape[-1], output.shape[-1])

    @torch.no_grad()
    def fisher_sum(self, output: Tensor, target: Tensor) -> Tensor:
        """``diag(sum p) - P' P``, with the probabilities ``P`` of all data points that are not ignored."""
        counted = (target != IGNORED).unsqueeze(-1)
        probs = (output.double().softmax(-1) * counted).flatten(0, -2)
        return torch.addmm(probs.sum(0).diag(), probs.mT, probs, alpha=-1.0)

    def expected_log_density(self, mean: Tensor, variance: Tensor, target: Tensor) -> Tensor:
        """The lower bound of the name ``bound``."""
        return BOUNDS[self.bound](mean, variance, target.long().expand(mean.shape[:-1]))

    def log_expected_density(
        self, mean: Tensor, variance: Tensor, target: Tensor, covariance: Tensor | None = None
    ) -> Tensor:
        """An approximation, see :func:`bayesadam.functional.moments.log_expected_softmax`."""
        index = target.long().expand(mean.shape[:-1]).unsqueeze(-1)
        return maps.log_expected_softmax(mean, variance).gather(-1, index).squeeze(-1)


class TemperedClassification(ClassificationLikelihood):
    """A likelihood of classes with its logits divided by a temperature.

    The temperature is a buffer, which is moved and saved with the module.

    Args:
        base: The likelihood; it is kept, not copied.
        temperature: Divisor of the logits.

    Raises:
        ValueError: The temperature is not positive and finite.
    """

    log_temperature: Tensor

    def __init__(self, base: ClassificationLikelihood, temperature: float) -> None:
        nn.Module.__init__(self)  # the capabilities are those of the base
        set_log(self, "temperature", temperature, learned=False)
        self.base = base

    @property
    def temperature(self) -> Tensor:
        """Divisor of the logits; 0-d."""
        return self.log_temperature.exp()

    def defines(self, capability: str) -> bool:
        """Whether the likelihood ``base`` defines the capability."""
        return self.base.defines(capability)

    def tempered(self, temperature: float) -> TemperedClassification:
        """Return a copy at the product of both temperatures."""
        return TemperedClassification(self.base, temperature * float(self.temperature))

    def counted(self, target: Tensor) -> Tensor | None:
        """Mask of the targets that ``base`` does not ignore."""
        return self.base.counted(target)

    def check(self, output: Tensor, target: Tensor) -> None:
        """Check the target as ``base`` does."""
        self.base.check(output, target)

    def nll(self, output: Tensor, target: Tensor) -> Tensor:
        """The training loss of ``base`` at the tempered logits."""
        return self.base.nll(self._cooled(output), target)

    def log_probs(self, output: Tensor) -> Tensor:
        """Log probabilities of ``base`` at the tempered logits."""
        return self.base.log_probs(self._cooled(output))

    def probit_log_probs(self, mean: Tensor, variance: Tensor) -> Tensor:
        """Probit approximation of ``base`` at the tempered logits."""
        return self.base.probit_log_probs(self._cooled(mean), self._cooled(variance, 2))

    def log_density(self, output: Tensor, target: Tensor) -> Tensor:
        """Log density of ``base`` at the tempered logits."""
        return self.base.log_density(self._cooled(output), target)

    def distribution(self, output: Tensor) -> Distribution:
        """Distribution of ``base`` at the tempered logits."""
        return self.base.distribution(self._cooled(output))

    def score(self, output: Tensor, target: Tensor) -> Tensor:
        """Derivative of the log density of ``base``, by the chain rule."""
        return self._cooled(self.base.score(self._cooled(output), target))

    def fisher_factor(self, output: Tensor, target: Tensor) -> Tensor:
        """Factor of the curvature of ``base``, by the chain rule."""
        return self._cooled(self.base.fisher_factor(self._cooled(output), target))

    def fisher_sum(self, output: Tensor, target: Tensor) -> Tensor:
        """The sum of ``base``, by the chain rule."""
        return self._cooled(self.base.fisher_sum(self._cooled(output), target), 2)

    def expected_log_density(self, mean: Tensor, variance: Tensor, target: Tensor) -> Tensor:
        """Expected log density of ``base`` at the tempered logits."""
        return self.base.expected_log_density(self._cooled(mean), self._cooled(variance, 2), target)

    def log_expected_density(
        self, mean: Tensor, variance: Tensor, target: Tensor, covariance: Tensor | None = None
    ) -> Tensor:
        """Log expected density of ``base`` at the tempered logits."""
        covariance = None if covariance is None else self._cooled(covariance, 2)
        return self.base.log_expected_density(self._cooled(mean), self._cooled(variance, 2), target, covariance)

    def _cooled(self, values: Tensor, power: int = 1) -> Tensor:
        """The values divided by a power of the temperature."""
        return values / self.temperature.to(values.dtype) ** power  # also from a CPU, without a copy


def _log_expected_sigmoid(mean: Tensor, spread: Tensor) -> Tensor:
    """``log E[sig(z)]``; where the probability underflows, the bound by Jensen's inequality."""
    probability, tiny = maps.expected_sigmoid(mean, spread), torch.finfo(mean.dtype).tiny
    value = probability.clamp_min(tiny).log().masked_fill(probability <= tiny, -math.inf)
    return torch.maximum(value, maps.expected_log_sigmoid(mean, spread))
