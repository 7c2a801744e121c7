"""Priors over the weights of a network, for variational inference by gradients.

A prior is a module, so that its own parameters are trained with those of the network. Weights are independent under all
priors; sums are over all weights, in nats and float64. Log densities and divergences are differentiable.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from bayesadam.checks import check, is_positive
from bayesadam.functional import empirical, kl
from bayesadam.posterior import DiagonalGaussian

__all__ = [
    "EmpiricalGaussianPrior",
    "GaussianPrior",
    "LearnedGaussianPrior",
    "PosteriorPrior",
    "Prior",
    "ScaleMixturePrior",
    "as_prior",
]


class Prior(nn.Module, abc.ABC):
    """Base class of priors ``p(weights)``, each a product over weights.

    A subclass must define :meth:`log_density`. A closed form, :meth:`log_prob` or :meth:`kl_divergence`, belongs to the
    class in whose body it is and is not inherited; a subclass with the same density may name that of its parent:
    ``kl_divergence = GaussianPrior.kl_divergence``.

    Attributes:
        closed_form: Whether the class defines :meth:`kl_divergence`, so that the KL divergence of a Gaussian from this
            prior has a closed form.
    """

    closed_form: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in ("log_prob", "kl_divergence"):
            if name not in vars(cls):
                setattr(cls, name, getattr(Prior, name))
        cls.closed_form = cls.kl_divergence is not Prior.kl_divergence

    def __init__(self) -> None:
        super().__init__()

    @abc.abstractmethod
    def log_density(self, value: Tensor, name: str = "") -> Tensor:
        """``log p`` of every weight of a tensor, element-wise, with any leading axes; ``name`` is the name of the
        parameter.
        """

    def log_prob(self, theta: Mapping[str, Tensor]) -> Tensor:
        """``log p`` of weights by name, summed over all weights; 0-d float64."""
        return _total(self.log_density(value, name).sum(dtype=torch.float64) for name, value in theta.items())

    def kl_divergence(self, mean: Mapping[str, Tensor], std: Mapping[str, Tensor]) -> Tensor:
        """``KL(N(mean, std^2) || p)``, summed (not averaged) over all weights; 0-d float64.

        Args:
            mean: Means by name.
            std: Standard deviations, positive; same names and shapes.

        Raises:
            ValueError: There is no closed form.
        """
        raise ValueError(f"kl must be 'sampled' with a prior without a closed form, got {type(self).__name__}")

    def check(self, weights: Mapping[str, Tensor]) -> None:
        """Raise ``ValueError`` if the prior is not defined for these weights."""


class GaussianPrior(Prior):
    """Gaussian prior ``N(mean, 1 / precision)`` for every weight.

    Raises:
        ValueError: The precision is not positive and finite, or the mean is not finite.
    """

    def __init__(self, precision: float = 1.0, *, mean: float = 0.0) -> None:
        super().__init__()
        self.precision = _positive("precision", precision)
        self.mean = _finite("mean", mean)

    def extra_repr(self) -> str:
        """The arguments, as text."""
        return f"precision={self.precision}, mean={self.mean}"

    def log_density(self, value: Tensor, name: str = "") -> Tensor:
        """Log density of every weight, as in the base class."""
        constant = 0.5 * (math.log(self.precision) - kl.LOG_2PI)
        return (value - self.mean).square() * (-0.5 * self.precision) + constant

    def kl_divergence(self, mean: Mapping[str, Tensor], std: Mapping[str, Tensor]) -> Tensor:
        """The divergence, as in the base class."""
        log_std = -0.5 * math.log(self.precision)
        return _total(kl.gaussian(mean[name], std[name], self.mean, log_std) for name in mean)

    def kl_divergence_from(self, sums: Tensor, count: int) -> Tensor:
        """:meth:`kl_divergence` computed from sums over all weights.

        Args:
            sums: Sums of ``(mean - self.mean)^2``, ``std^2`` and ``log(std)``, ``(3,)`` in float64.
            count: Number of weights.
        """
        shifts, spreads, log_stds = sums.unbind()
        return 0.5 * (self.precision * (shifts + spreads) - count * (1.0 + math.log(self.precision))) - log_stds


class ScaleMixturePrior(Prior):
    """Scale mixture ``pi N(0, sigma1^2) + (1 - pi) N(0, sigma2^2)`` for every weight.

    See Blundell et al. 2015, section 3.3. The narrow Gaussian pulls most weights to zero; the wide one lets the others
    be large.

    Args:
        pi: Weight of the first Gaussian, in (0, 1).
        sigma1: Standard deviation of the first, wide Gaussian.
        sigma2: Standard deviation of the second, narrow Gaussian; smaller than ``sigma1``.

    Raises:
        ValueError: A number is out of its range.
    """

    def __init__(self, *, pi: float = 0.5, sigma1: float = 1.0, sigma2: float = math.exp(-6.0)) -> None:
        super().__init__()
        check("pi", pi, "in (0, 1)", lambda v: 0 < v < 1)
        self.pi = float(pi)
        self.sigma1 = _positive("sigma1", sigma1)
        self.sigma2 = _positive("sigma2", sigma2)
        if sigma2 >= sigma1:
            raise ValueError(f"sigma2 must be smaller than sigma1={sigma1!r}, got {sigma2!r}")

    def extra_repr(self) -> str:
        """The arguments, as text."""
        return f"pi={self.pi}, sigma1={self.sigma1}, sigma2={self.sigma2}"

    def log_density(self, value: Tensor, name: str = "") -> Tensor:
        """Log density of every weight, as in the base class."""
        return torch.logaddexp(*kl.mixture_terms(value, self.pi, self.sigma1, self.sigma2))

    def log_prob(self, theta: Mapping[str, Tensor]) -> Tensor:
        """Log density of all weights, as in the base class."""
        return _total(kl.scale_mixture_log_prob(value, self.pi, self.sigma1, self.sigma2) for value in theta.values())


class LearnedGaussianPrior(Prior):
    """One Gaussian prior for all weights, whose mean and standard deviation are trained with the network.

    See Hinton and van Camp 1993, section 5. At the optimum the prior mean is the average of the posterior means, and
    the prior variance is the average of ``variance + (mean - prior mean)^2``.

    Args:
        mean: Initial mean.
        std: Initial standard deviation.

    Raises:
        ValueError: The standard deviation is not positive and finite, or the mean is not finite.
    """

    def __init__(self, *, mean: float = 0.0, std: float = 1.0) -> None:
        super().__init__()
        self.mean = nn.Parameter(torch.tensor(_finite("mean", mean)))
        self.log_std = nn.Parameter(torch.tensor(math.log(_positive("std", std))))

    def log_density(self, value: Tensor, name: str = "") -> Tensor:
        """Log density of every weight, as in the base class."""
        scaled = (value - self.mean) * (-self.log_std).exp()
        return -0.5 * scaled.square() - self.log_std - 0.5 * kl.LOG_2PI

    def kl_divergence(self, mean: Mapping[str, Tensor], std: Mapping[str, Tensor]) -> Tensor:
        """The divergence, as in the base class."""
        return _total(kl.gaussian(mean[name], std[name], self.mean, self.log_std) for name in mean)


class EmpiricalGaussianPrior(Prior):
    """One Gaussian prior for all weights that is always at its optimum for the current posterior, without training.

    It is the limit of :class:`LearnedGaussianPrior` at every step (Hinton and van Camp 1993, section 5). The optimum
    depends on all random weights together, so there is no density of single weights: the divergence cannot be sampled,
    and it is not defined for a posterior with point masses or correlations.
    """

    def __init__(self) -> None:
        super().__init__()

    def optimum(self, mean: Mapping[str, Tensor], std: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of the prior for this posterior; 0-d float64, differentiable.

        Args:
            mean: Means by name.
            std: Standard deviations, positive; same names and shapes.

        Raises:
            ValueError: There are no weights.
        """
        return empirical.optimum(list(mean.values()), [2.0 * std[name].log() for name in mean])

    def log_density(self, value: Tensor, name: str = "") -> Tensor:
        """Raise an error, since the density of single weights is not defined.

        Raises:
            ValueError: Always.
        """
        raise ValueError(
            "kl must be 'closed_form' with EmpiricalGaussianPrior, of a posterior without point masses and "
            "correlations, got a call for the density of some weights"
        )

    def kl_divergence(self, mean: Mapping[str, Tensor], std: Mapping[str, Tensor]) -> Tensor:
        """The divergence, as in the base class; the smallest of all Gaussian priors
        (``functional.empirical.gaussian``).

        Raises:
            ValueError: There are no weights.
        """
        return empirical.gaussian(list(mean.values()), [2.0 * std[name].log() for name in mean])


class PosteriorPrior(Prior):
    """A posterior used as the prior, to continue learning from other data.

    Args:
        posterior: Posterior over at least the weights that will be random, none of which is a point mass.
    """

    def __init__(self, posterior: DiagonalGaussian) -> None:
        super().__init__()
        self._names = {name: number for number, name in enumerate(posterior.mean)}
        for name, number in self._names.items():
            self.register_buffer(f"mean{number}", posterior.mean[name].detach().clone(), persistent=False)
            log_std = 0.5 * posterior.variance[name].detach().log()
            self.register_buffer(f"log_std{number}", log_std, persistent=False)

    def check(self, weights: Mapping[str, Tensor]) -> None:
        """Raise ``ValueError`` unless the posterior has these weights, of these shapes and all random."""
        for name, weight in weights.items():
            if name not in self._names:
                raise ValueError(f"prior must have the weights {name!r}, got none of that name")
            mean, log_std = self._moments(name)
            if mean.shape != weight.shape:
                raise ValueError(f"prior of {name!r} must be of shape {tuple(weight.shape)}, got {tuple(mean.shape)}")
            if not log_std.isfinite().all():
                raise ValueError(f"prior of {name!r} must have positive variances, got 0 (pruned or not random)")

    def log_density(self, value: Tensor, name: str = "") -> Tensor:
        """Log density of every weight, as in the base class."""
        mean, log_std = self._moments(name)
        scaled = (value - mean) * (-log_std).exp()
        return -0.5 * scaled.square() - log_std - 0.5 * kl.LOG_2PI

    def kl_divergence(self, mean: Mapping[str, Tensor], std: Mapping[str, Tensor]) -> Tensor:
        """The divergence, as in the base class."""
        return _total(kl.gaussian(mean[name], std[name], *self._moments(name)) for name in mean)

    def _moments(self, name: str) -> tuple[Tensor, Tensor]:
        number = self._names[name]
        return self.get_buffer(f"mean{number}"), self.get_buffer(f"log_std{number}")


def as_prior(prior: float | Prior | DiagonalGaussian) -> Prior:
    """Convert an argument to a prior: a prior itself, the precision of a Gaussian around 0, or a posterior to continue
    from.

    Raises:
        ValueError: The argument is none of these, or a precision that is not positive and finite.
    """
    if isinstance(prior, Prior):
        return prior
    if isinstance(prior, DiagonalGaussian):
        return PosteriorPrior(prior)
    if isinstance(prior, int | float) and not isinstance(prior, bool):
        return GaussianPrior(_positive("prior", prior))
    raise ValueError(f"prior must be a precision, one of bayesadam.priors or a DiagonalGaussian, got {prior!r}")


def _total(terms: Iterable[Tensor]) -> Tensor:
    return torch.stack(list(terms)).sum()


def _positive(name: str, value: float) -> float:
    check(name, value, "positive and finite", is_positive)
    return float(value)


def _finite(name: str, value: float) -> float:
    check(name, value, "finite", math.isfinite)
    return float(value)
