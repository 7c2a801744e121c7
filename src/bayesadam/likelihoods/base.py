"""The protocol of likelihoods: one method that a likelihood must define, and capabilities that it may define."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from bayesadam.likelihoods import fallbacks

DRAWS = 1024
"""Draws from which mean and variance of the target are estimated where only ``sample`` is defined."""


class MissingCapabilityError(ValueError):
    """A likelihood was asked for what it neither defines nor has a fallback for; the message names the capability."""


class Likelihood(nn.Module):
    """``p(y | output of the network)``.

    The last axis of an output has the outputs of one data point, and every axis before it counts data points: outputs
    ``(N, T, D)`` are those of ``N T`` data points, and outputs ``(N,)`` of ``N`` with one output each. Leading sample
    axes of an output broadcast against the target.

    A subclass defines one of :meth:`log_density`, :meth:`element_log_density` and :meth:`distribution`. That suffices
    to train a network, to sample its posterior, for Laplace approximations and for predictive densities. The other
    methods are capabilities. A likelihood may define each of them, because it has a closed form or because there is no
    fallback:

    ======================== ================================================================================
    capability               fallback
    ======================== ================================================================================
    ``check``                the target must be of the output's shape, and in the support of ``distribution``
    ``log_density``          the sum of ``element_log_density``; else ``distribution``
    ``moments``              ``distribution``; else the moments of draws by ``sample``
    ``sample``               ``distribution``
    ``cdf``                  ``distribution``; without it, quantiles are those of draws by ``sample``
    ``score``                automatic differentiation of ``log_density``
    ``fisher_factor``        second derivatives of ``log_density`` at the targets, likewise
    ``fisher_sum``           ``fisher_factor``, for some rows at a time
    ``expected_log_density`` quadrature over one output per data point, or by ``element_log_density``
    ``log_expected_density`` likewise
    ``rescaled``             none: estimators do not standardise the targets
    ``tempered``             none: predictions have no temperature to be calibrated
    ======================== ================================================================================

    What is missing raises :class:`MissingCapabilityError`, a ``ValueError``.

    Attributes:
        outputs_per_target: Outputs that a network must give for each of the targets of a data point.
        discrete: Targets are whole numbers, and so are their quantiles.
    """

    outputs_per_target: ClassVar[int] = 1
    discrete: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__()
        if not any(map(self.defines, ("log_density", "element_log_density", "distribution"))):
            raise self.missing("log_density, element_log_density or distribution")

    def defines(self, capability: str) -> bool:
        """Whether the likelihood has a method of its own, and not only a fallback."""
        return getattr(type(self), capability) is not getattr(Likelihood, capability)

    def provides(self, capability: str) -> bool:
        """Whether ``"moments"``, ``"sample"`` or ``"distribution"`` are there, by a method of its own or a fallback."""
        sources = {"moments": ("sample", "distribution"), "sample": ("distribution",)}
        return any(map(self.defines, (capability, *sources.get(capability, ()))))

    # Training.

    def check(self, output: Tensor, target: Tensor) -> None:
        """Raise ``ValueError`` if the target does not fit the output, by shape or by value."""
        check_shape(output.shape, target)
        if not self.defines("distribution"):
            return
        try:
            support: Any = self.distribution(output).support
        except NotImplementedError:
            return
        fine = torch.as_tensor(support.check(target))
        if not fine.all():
            wrong = target[~fine][0].tolist()
            raise ValueError(f"target must be in the support of {type(self).__name__}, {support}, got {wrong!r}")

    def log_density(self, output: Tensor, target: Tensor) -> Tensor:
        """:meth:`log_prob` without the check, which reads values: for targets that were checked before."""
        if self.defines("element_log_density"):
            terms = self.element_log_density(output, target)
            return terms.sum(-1) if target.ndim > 1 else terms
        given = self._distribution("log_density", output)
        terms = given.log_prob(target)
        return terms.sum(-1) if target.ndim > 1 and not given.event_shape else terms

    def element_log_density(self, output: Tensor, target: Tensor) -> Tensor:
        """The terms that :meth:`log_density` sums, for targets that each depend on the output at their own place only.

        A likelihood that defines it promises this, and that its parameters are numbers or one per output.
        """
        raise self.missing("element_log_density")

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

    # Prediction.

    def distribution(self, output: Tensor) -> Distribution:
        """The distribution of the target given an output, its batch of the target's shape after sample axes.

        Give it ``validate_args=False`` if a population of networks is to be trained, which maps over it.
        """
        raise self.missing("distribution")

    def moments(self, output: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of ``y`` given an output, each of the target's shape after sample axes."""
        if self.defines("distribution"):
            given = self._distribution("moments", output)
            return given.mean, given.variance
        if not self.defines("sample"):
            raise self.missing("moments, distribution or sample")
        draws = torch.stack([self.sample(output, seed=number) for number in range(DRAWS)])
        return draws.mean(0), draws.var(0)

    def sample(self, output: Tensor, *, seed: int = 0) -> Tensor:
        """One draw of ``y`` given an output, of the target's shape after sample axes; torch's generators stay."""
        if not self.defines("distribution"):
            raise self.missing("sample or distribution")
        with seeded(seed, output.device):
            draw: Tensor = self._distribution("sample", output).sample()
        return draw

    def cdf(self, output: Tensor, value: Tensor) -> Tensor:
        """``P(y <= value | output)`` of each of the outputs; values have the target's shape after sample axes."""
        if not self.defines("distribution"):
            raise self.missing("cdf or distribution")
        try:
            result: Tensor = self._distribution("cdf", output).cdf(value)
        except NotImplementedError:
            raise self.missing("cdf") from None
        return result

    def mean_and_log_variance(self, output: Tensor) -> tuple[Tensor, Tensor]:
        """Of a Gaussian target, see :class:`RegressionLikelihood`: predictions are then mixtures of Gaussians."""
        raise self.missing("mean_and_log_variance")

    def log_probs(self, output: Tensor) -> Tensor:
        """Of a target that is a class, see :class:`ClassificationLikelihood`: predictions are then of classes."""
        raise self.missing("log_probs")

    def probit_log_probs(self, mean: Tensor, variance: Tensor) -> Tensor:
        """:meth:`log_probs` given Gaussian logits, about: at ``mean / sqrt(1 + pi / 8 variance)`` (MacKay 1992)."""
        return self.log_probs(mean / (1.0 + math.pi / 8.0 * variance).sqrt())

    def rescaled(self, factor: Tensor) -> Likelihood:
        """The likelihood of ``shift + factor * y`` given ``shift + factor * output``, for any shift: a copy.

        Of likelihoods whose output is a location of the target. Estimators standardise the targets of these only.

        Args:
            factor: Positive, 0-d or one per output.
        """
        raise self.missing("rescaled")

    def tempered(self, temperature: float) -> Likelihood:
        """The likelihood ``p(y | output)^(1 / temperature)``, normalised: above 1 predictions are less sure. A copy.

        Of classes the logits are divided by it (Guo et al. 2017, section 4.2), of Gaussian targets the noise variance
        is multiplied by it. :func:`bayesadam.calibrate` finds it.

        Args:
            temperature: Positive and finite.
        """
        raise self.missing("tempered")

    # Curvature.

    def score(self, output: Tensor, target: Tensor) -> Tensor:
        """``d log p(y | output) / d output``, of the output's shape, without a graph.

        Each axis of the target may also be of size 1, and then broadcasts.
        """
        return fallbacks.score(self, output, target)

    def fisher_factor(self, output: Tensor, target: Tensor) -> Tensor:
        """The curvature of ``-log p(y | output)`` in the output, as a block-diagonal factor, without a graph.

        An example's outputs fall, in order, into ``P`` blocks of ``K`` outputs each, and the curvature over block ``p``
        of example ``n`` is ``S S'`` with ``S = factor[n, p]``, so that it is never negative. A likelihood that defines
        it gives the Fisher information: the second derivative expected over targets that follow the likelihood, which
        depends on no target.

        The fallback is the second derivative at the targets themselves, with negative eigenvalues at zero. It was
        chosen over the Fisher information by sampling because it needs nothing but the density and has no noise, and
        because the two are the same wherever the output is the natural parameter of an exponential family.

        Args:
            output: ``(N, ...)``.
            target: Checked before.

        Returns:
            ``(N, P, K, R)``; of the fallback, blocks are data points. It is zero for densities of straight pieces,
            which a Laplace approximation therefore refuses.
        """
        return fallbacks.observed_factor(self, output, target)

    def fisher_sum(self, output: Tensor, target: Tensor) -> Tensor:
        """The sum of ``S S'`` over all blocks of all examples, see :meth:`fisher_factor`: ``(K, K)`` in float64.

        A likelihood of many classes defines it where no block of a single example need be formed.
        """
        return fallbacks.fisher_sum(self, output, target)

    # Moment propagation.

    def under_gaussian(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Of a Gaussian target given Gaussian outputs: its mean, that mean's variance, the log expected noise variance.

        Args:
            mean: Of the outputs, ``(N, ...)``.
            variance: Likewise.
        """
        raise self.missing("under_gaussian")

    def expected_log_density(self, mean: Tensor, variance: Tensor, target: Tensor) -> Tensor:
        """``E log p(y | output)`` over independent Gaussian outputs, of every data point and summed over its outputs.

        Args:
            mean: Of the outputs, ``(N, ...)``.
            variance: Likewise.
            target: Checked before.
        """
        return fallbacks.expected_log_density(self, mean, variance, target)

    def log_expected_density(
        self, mean: Tensor, variance: Tensor, target: Tensor, covariance: Tensor | None = None
    ) -> Tensor:
        """``log E p(y | output)`` over Gaussian outputs, of every data point and of its outputs together.

        Args:
            mean: Of the outputs, ``(N, ...)``.
            variance: Likewise.
            target: Checked before.
            covariance: Of the outputs of every data point, ``(N, D, D)``, if known. Likelihoods that have no use for it
                take outputs as independent.
        """
        return fallbacks.log_expected_density(self, mean, variance, target)

    def _distribution(self, capability: str, output: Tensor) -> Distribution:
        if not self.defines("distribution"):
            raise self.missing(f"{capability} or distribution")
        given = self.distribution(output)
        given._validate_args = False  # targets are checked by `check` alone
        return given

    def missing(self, capability: str) -> MissingCapabilityError:
        """The error that says what the likelihood lacks."""
        return MissingCapabilityError(f"likelihood must define {capability}, got {type(self).__name__}")


def check_likelihood(value: Any, where: str = "") -> None:
    """Raise ``ValueError`` if something is not a :class:`Likelihood`.

    Args:
        value: What was given as one.
        where: Text that ends the message.
    """
    if not isinstance(value, Likelihood):
        raise ValueError(f"likelihood must be a bayesadam.likelihoods.Likelihood, got {value!r}{where}")


def check_shape(shape: torch.Size, target: Tensor) -> None:
    """Raise ``ValueError`` unless the target is of a shape, but for sample axes before it."""
    if shape[len(shape) - target.ndim :] != target.shape or len(shape) < target.ndim:
        raise ValueError(f"target must be of the output's shape {tuple(shape)}, got {tuple(target.shape)}")


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Draw from torch's generators with a seed; after, they are what they were."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield
