"""The base class of likelihoods, with one required method and optional capabilities."""

from __future__ import annotations

import contextlib
import inspect
import math
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from bayesadam.functional.generators import seeded
from bayesadam.functional.moments.quadrature import gauss_hermite
from bayesadam.likelihoods import fallbacks
from bayesadam.likelihoods.parameters import (
    check_densities,
    check_every_axis,
    check_shape,
    check_terms,
    check_values,
    summed,
    support_of,
    target_shape,
    values_of_logs,
)
from bayesadam.likelihoods.quadrature import Function, log_expectation

NODES = 32
"""Number of quadrature nodes per output for an expected log density."""

DENSITY = {"log_density", "element_log_density", "distribution"}
"""Methods that say what the distribution is."""

MOMENTS = {"mean_and_log_variance", "log_probs"}
"""Methods by which the subclasses of an abstract class say it."""

OF_DISTRIBUTION = {*DENSITY, "moments", "sample", "cdf", "under_gaussian", "rescaled", "tempered"}
"""Methods of one distribution: a class that says what another one is inherits none of them."""

CLOSED_FORMS = {"score", "fisher_factor", "fisher_sum", "expected_log_density", "log_expected_density"}
"""Methods that hold for the class alone that defines them; every other class has the general way."""


class MissingCapabilityError(ValueError):
    """Raised for a capability that a likelihood neither defines nor has a fallback for; the message names it."""


class Likelihood(nn.Module):
    """Base class of likelihoods ``p(y | output of the network)``.

    The last axis of an output has the outputs of one data point, and every axis before it counts data points: outputs
    ``(N, T, D)`` are those of ``N T`` data points, and outputs ``(N,)`` of ``N`` with one output each. Leading sample
    axes of an output broadcast against the target, except in the loss :meth:`nll`, where they would be a mistake. With
    ``outputs_per_target = 2`` targets ``(N, D)`` have outputs ``(N, 2 D)``, which ``output.chunk(2, -1)`` divides; a
    data point with one target has a target ``(1,)``.

    A subclass must define one of :meth:`log_density`, :meth:`element_log_density` and :meth:`distribution`. This is
    enough for training, posterior samples, Laplace approximations and predictive densities. The other methods are
    optional capabilities. A subclass defines them if it has a closed form, or if there is no fallback:

    ======================== ================================================================================
    capability               fallback
    ======================== ================================================================================
    ``check``                the target must be of the output's shape, divided by ``outputs_per_target``, and in the
                             support of ``distribution``
    ``log_density``          the sum of ``element_log_density``; else ``distribution``
    ``moments``              ``distribution``; else the moments of draws by ``sample``
    ``sample``               ``distribution``
    ``cdf``                  ``distribution``; without it, quantiles are those of draws by ``sample``
    ``score``                automatic differentiation of ``log_density``
    ``fisher_factor``        second derivatives of ``log_density`` at the targets, also automatic
    ``fisher_sum``           ``fisher_factor``, for some rows at a time
    ``expected_log_density`` quadrature over one output per data point, or by ``element_log_density``
    ``log_expected_density`` quadrature, as for ``expected_log_density``
    ``rescaled``             none: estimators do not standardise the targets
    ``tempered``             none: predictions have no temperature to be calibrated
    ======================== ================================================================================

    A missing capability raises :class:`MissingCapabilityError`, a ``ValueError``.

    Closed forms (``score``, ``fisher_factor``, ``fisher_sum``, ``expected_log_density`` and ``log_expected_density``)
    belong to the class in whose body they are. They are not inherited: a subclass that does not define one itself, or
    by a mixin, has the fallback, or the definition of an abstract class such as :class:`RegressionLikelihood`. It may
    name that of its parent: ``score = Gaussian.score``. All else is inherited, unless the subclass defines the density
    (for instance with weights of the classes): then it also defines what it has of ``distribution``, ``moments``,
    ``sample``, ``cdf``, ``under_gaussian``, ``rescaled`` and ``tempered``.

    Attributes:
        outputs_per_target: Number of network outputs for each of the targets of a data point.
        discrete: Whether targets, and so their quantiles, are integers.
        calibrated: Whether its temperature was found on held-out rows, by :func:`bayesadam.calibrate` or
            :func:`bayesadam.tune_posterior`.
    """

    outputs_per_target: ClassVar[int] = 1
    discrete: ClassVar[bool] = False
    calibrated: bool = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        place = next(place for place, parent in enumerate(cls.__mro__) if place and issubclass(parent, Likelihood))
        body = {name for part in cls.__mro__[:place] for name in vars(part)}  # with mixins
        names = CLOSED_FORMS - body
        if body & (DENSITY | MOMENTS):
            names |= OF_DISTRIBUTION - body
        general: Any = next(p for p in cls.__mro__[place:] if p is Likelihood or inspect.isabstract(p))
        given = cls if "distribution" not in names else Likelihood if body & DENSITY else general
        if general.distribution not in (Likelihood.distribution, given.distribution):
            general = Likelihood  # what an abstract class makes of moments is of its own distribution alone
        for name in names:
            setattr(cls, name, getattr(general, name))

    def __init__(self) -> None:
        super().__init__()
        for name in DENSITY:
            if Likelihood.defines(self, name):  # of the class: a wrapper has no likelihood yet that it could ask
                return
        raise self.missing("log_density, element_log_density or distribution")

    def __repr__(self) -> str:
        """With the values of positive parameters, which are no part of ``extra_repr``: it compares architectures."""
        parts = [*map(repr, self.children()), self.extra_repr(), *values_of_logs(self)]
        return f"{type(self).__name__}({', '.join(part for part in parts if part)})"

    def defines(self, capability: str) -> bool:
        """Whether the likelihood defines the capability itself, without a fallback."""
        return getattr(type(self), capability) is not getattr(Likelihood, capability)

    def provides(self, capability: str) -> bool:
        """Whether ``"moments"``, ``"sample"`` or ``"distribution"`` is available, by a definition of its own or a
        fallback.
        """
        sources = {"moments": ("sample", "distribution"), "sample": ("distribution",)}
        return any(map(self.defines, (capability, *sources.get(capability, ()))))

    def check(self, output: Tensor, target: Tensor) -> None:
        """Raise ``ValueError`` if the target does not fit the output, by shape or by value."""
        each = self.outputs_per_target
        described = "the output's shape" if each == 1 else f"a shape with one number for every {each} outputs,"
        check_shape(target_shape(output, self.outputs_per_target), target, described)
        if not self.defines("distribution"):
            return
        given = self._distribution("check", output)
        support = support_of(given)
        if support is not None:
            fine = torch.as_tensor(support.check(target))
            samples = fine.ndim + len(given.event_shape) - target.ndim
            if samples > 0:  # with some outputs it may be outside
                fine = fine.flatten(0, samples - 1).any(0)
            check_values(target, fine, f"in the support of {type(self).__name__}, {support}")

    def counted(self, target: Tensor) -> Tensor | None:
        """Mask of the targets that are not ignored, of the shape of :meth:`log_density`: of all axes that count data
        points; None if it is known without waiting for a GPU that all count.
        """
        return None

    def log_density(self, output: Tensor, target: Tensor) -> Tensor:
        """:meth:`log_prob` without the check of values, for targets that were checked before."""
        if self.defines("element_log_density"):
            terms = self.element_log_density(output, target)
            check_terms("element_log_density", terms.shape, target)
            return summed(terms, target)
        given = self._distribution("log_density", output)
        check_terms("distribution", given.batch_shape + given.event_shape, target)
        terms, support = given.log_prob(target), support_of(given)
        if support is not None:
            terms = torch.where(torch.as_tensor(support.check(target)), terms, -math.inf)
        return terms if given.event_shape else summed(terms, target)

    def element_log_density(self, output: Tensor, target: Tensor) -> Tensor:
        """Terms of the sum :meth:`log_density`, for targets that depend only on the output at their own position.

        A likelihood that defines it guarantees this, and that its parameters are numbers or one per output.
        """
        raise self.missing("element_log_density")

    def log_prob(self, output: Tensor, target: Tensor) -> Tensor:
        """``log p(y | output)`` of every data point in nats, summed over its outputs: ``(N,)``, or ``(N, T)``.

        Leading sample axes are kept.

        Raises:
            ValueError: The target does not fit the output (see :meth:`check`), or a subclass returns numbers of another
                shape.
        """
        self.check(output, target)
        return check_densities(self.log_density(output, target), output, target)

    def nll(self, output: Tensor, target: Tensor) -> Tensor:
        """Mean negative log-likelihood over the data points that are not ignored: the training loss, 0-d.

        Raises:
            ValueError: As for :meth:`log_prob`, or the output has sample axes.
        """
        counted = self.counted(target)
        if counted is not None:
            check_every_axis(output.shape[:-1], output, target)
            output, target = output[counted], target[counted]
        density = self.log_prob(output, target)
        check_every_axis(density.shape, output, target)
        return -density.mean()

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        """Return :meth:`nll`, so that a likelihood can be used as a loss module."""
        return self.nll(output, target)

    def distribution(self, output: Tensor) -> Distribution:
        """Distribution of the target given an output; its batch shape is that of the target after sample axes.

        Construct it with ``validate_args=False`` if a population of networks is to be trained, which uses ``vmap``.
        """
        raise self.missing("distribution")

    def moments(self, output: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of ``y`` given an output, each of the target's shape after sample axes."""
        if self.defines("distribution"):
            given = self._distribution("moments", output)
            with contextlib.suppress(NotImplementedError):  # as of a transformed distribution
                return given.mean, given.variance
        if not self.provides("sample"):
            raise self.missing("moments, distribution or sample")
        return fallbacks.moments(lambda number: self.sample(output, seed=number))

    def sample(self, output: Tensor, *, seed: int = 0) -> Tensor:
        """One draw of ``y`` given an output, of the target's shape after sample axes; torch's generators are not
        changed.
        """
        if not self.defines("distribution"):
            raise self.missing("sample or distribution")
        with seeded(seed, output.device):
            draw: Tensor = self._distribution("sample", output).sample()
        return draw

    def cdf(self, output: Tensor, value: Tensor) -> Tensor:
        """``P(y <= value | output)`` of each of the outputs; values have the target's shape after sample axes."""
        if not self.defines("distribution"):
            raise self.missing("cdf or distribution")
        given = self._distribution("cdf", output)
        support = support_of(given)
        for bound, clamp in (("lower_bound", torch.maximum), ("upper_bound", torch.minimum)):
            if hasattr(support, bound):
                value = clamp(value, torch.as_tensor(getattr(support, bound)).to(value))
        try:
            result: Tensor = given.cdf(value)
        except NotImplementedError:
            raise self.missing("cdf") from None
        return result

    def mean_and_log_variance(self, output: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log variance of a Gaussian target, whose predictions are mixtures of Gaussians.

        See :class:`RegressionLikelihood`.
        """
        raise self.missing("mean_and_log_variance")

    def log_probs(self, output: Tensor) -> Tensor:
        """Log probabilities of a target that is a class, whose predictions are class probabilities.

        See :class:`ClassificationLikelihood`.
        """
        raise self.missing("log_probs")

    def probit_log_probs(self, mean: Tensor, variance: Tensor) -> Tensor:
        """Approximate :meth:`log_probs` given Gaussian logits, at ``mean / sqrt(1 + pi / 8 variance)`` (MacKay
        1992).
        """
        return self.log_probs(mean / (1.0 + math.pi / 8.0 * variance).sqrt())

    def rescaled(self, factor: Tensor) -> Likelihood:
        """Return a copy that is the likelihood of ``shift + factor * y`` given ``shift + factor * output``, for any
        shift.

        It exists for likelihoods whose output is a location of the target. Estimators standardise the targets of these
        only.

        Args:
            factor: Positive factor, 0-d or one per output.
        """
        raise self.missing("rescaled")

    def tempered(self, temperature: float) -> Likelihood:
        """Return a copy whose predictions are less confident for a temperature above 1.

        For classes the logits are divided by the temperature (Guo et al. 2017, section 4.2); for Gaussian and Student
        t targets the squared scale of the noise is multiplied by it. :func:`bayesadam.calibrate` finds the temperature.

        Args:
            temperature: Temperature, positive and finite.
        """
        raise self.missing("tempered")

    def score(self, output: Tensor, target: Tensor) -> Tensor:
        """``d log p(y | output) / d output``, of the output's shape, without a graph.

        Each axis of the target may also be of size 1, and then broadcasts.
        """
        return fallbacks.score(self.log_density, output, target)

    def fisher_factor(self, output: Tensor, target: Tensor) -> Tensor:
        """The curvature of ``-log p(y | output)`` in the output, as a block-diagonal factor, without a graph.

        The outputs of an example are divided, in order, into ``P`` blocks of ``K`` outputs each, and the curvature over
        block ``p`` of example ``n`` is ``S S'`` with ``S = factor[n, p]``, so that it is never negative. A likelihood
        that defines this method returns the Fisher information: the second derivative expected over targets from the
        likelihood, which does not depend on the targets.

        The fallback is the second derivative at the targets themselves, with negative eigenvalues set to zero. Unlike
        the Fisher information by sampling it needs only the density and has no noise, and the two are the same if the
        output is the natural parameter of an exponential family.

        Args:
            output: Outputs, ``(N, ...)``.
            target: Targets that were checked before.

        Returns:
            The factor, ``(N, P, K, R)``; the fallback has one block per data point. It is zero for densities that are
            piecewise linear in the output, which a Laplace approximation therefore refuses.
        """
        return fallbacks.observed_factor(self.log_density, output, target)

    def fisher_sum(self, output: Tensor, target: Tensor) -> Tensor:
        """The sum of ``S S'`` over all blocks of all examples, see :meth:`fisher_factor`: ``(K, K)`` in float64.

        A likelihood of many classes defines it if the sum can be formed without the block of any single example; then
        ignored targets (see :meth:`counted`) must add nothing.
        """
        return fallbacks.fisher_sum(self.fisher_factor, output, target)

    def under_gaussian(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Moments of a Gaussian target with Gaussian outputs: its mean, the variance of that mean, and the log expected
        noise variance.

        Args:
            mean: Means of the outputs, ``(N, ...)``.
            variance: Variances of the outputs, of the same shape.
        """
        raise self.missing("under_gaussian")

    def expected_log_density(self, mean: Tensor, variance: Tensor, target: Tensor) -> Tensor:
        """``E log p(y | output)`` over independent Gaussian outputs, for every data point and summed over its outputs.

        Args:
            mean: Means of the outputs, ``(N, ...)``.
            variance: Variances of the outputs, of the same shape.
            target: Targets that were checked before.

        The fallback is less accurate where the log density bends within a small part of the Gaussian: for Student's t
        with 4 degrees of freedom the error was 0.2 at a scale of 0.05 standard deviations, near the mean.
        """
        terms, total = self._by_element("expected_log_density", mean, target)
        return total(gauss_hermite(terms, mean, variance, NODES)[0])

    def log_expected_density(
        self, mean: Tensor, variance: Tensor, target: Tensor, covariance: Tensor | None = None
    ) -> Tensor:
        """``log E p(y | output)`` over Gaussian outputs, for every data point and jointly over its outputs.

        Args:
            mean: Means of the outputs, ``(N, ...)``.
            variance: Variances of the outputs, of the same shape.
            target: Targets that were checked before.
            covariance: Covariance of the outputs of every data point, ``(N, D, D)``, if known. Likelihoods that cannot
                use it treat outputs as independent.
        """
        terms, total = self._by_element("log_expected_density", mean, target)
        return total(log_expectation(terms, mean, variance))

    def _by_element(self, capability: str, mean: Tensor, target: Tensor) -> tuple[Function, Function]:
        """Log densities by element and their sums; see :func:`bayesadam.likelihoods.fallbacks.by_element`."""
        terms = self.element_log_density if self.defines("element_log_density") else None
        functions = fallbacks.by_element(self.log_density, terms, mean, target)
        if functions is None:
            raise self.missing(f"{capability} or element_log_density")
        return functions

    def _distribution(self, capability: str, output: Tensor) -> Distribution:
        if not self.defines("distribution"):
            raise self.missing(f"{capability} or distribution")
        given = self.distribution(output)
        given._validate_args = False  # targets are checked by `check` alone
        shape = given.batch_shape + given.event_shape
        if not self.defines("check") and shape != target_shape(output, self.outputs_per_target):
            wanted = tuple(target_shape(output, self.outputs_per_target))
            raise ValueError(f"distribution must be of targets of the shape {wanted}, got {tuple(shape)}")
        return given

    def missing(self, capability: str) -> MissingCapabilityError:
        """Make the error for a missing capability."""
        return MissingCapabilityError(f"likelihood must define {capability}, got {type(self).__name__}")


def check_likelihood(value: Any, *, where: str = "", learned: bool = True) -> None:
    """Raise ``ValueError`` if a value is not a :class:`Likelihood`.

    Args:
        value: Value that was given as a likelihood.
        where: Text at the end of the message.
        learned: Whether it may have learned parameters.
    """
    if not isinstance(value, Likelihood):
        raise ValueError(f"likelihood must be a bayesadam.likelihoods.Likelihood, got {value!r}{where}")
    names = [] if learned else [name for name, parameter in value.named_parameters() if parameter.requires_grad]
    if names:
        raise ValueError(f"likelihood must have no learned parameters, got {names}")
