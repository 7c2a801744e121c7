"""Random weights whose distributions are trained: Gaussian and Bernoulli weights."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn

from bayesadam.bayes_by_backprop.parameters import InitialStd, as_posterior, escaped, initial, random_parameters
from bayesadam.functional import empirical, kl
from bayesadam.functional.curvature import wide
from bayesadam.modules.wrappers import buffers_of
from bayesadam.moments.values import Moments
from bayesadam.posterior import BernoulliPosterior, DiagonalGaussian
from bayesadam.priors import EmpiricalGaussianPrior, Prior, as_prior

SCALES = ("outputs", "inputs")
"""Names of the two kinds of scales of Bernoulli weights, by the axis of a weight."""


class GaussianWeights(nn.Module):
    """``w ~ N(mean, exp(log_variance))``, where the means are the parameters of the network.

    The exponential costs a tenth of the softplus of Bayes by Backprop, and the divergence needs no logarithm.

    Raises:
        ValueError: As for :func:`bayesadam.fawn`.
    """

    def __init__(
        self,
        model: nn.Module,
        prior: float | Prior | DiagonalGaussian | None,
        initial_std: InitialStd,
        select: Callable[[str], bool] | None,
    ) -> None:
        super().__init__()
        names = random_parameters(model, select)
        means = {name: parameter for name, parameter in model.named_parameters() if name in names}
        prior = EmpiricalGaussianPrior() if prior is None else as_prior(prior)
        if not prior.closed_form:
            raise ValueError(
                f"prior must have a divergence in closed form to propagate moments, got {type(prior).__name__}"
            )
        prior.check(means)
        start = {
            name: initial(name, parameter, initial_std, lambda std: 2.0 * std.log())
            for name, parameter in means.items()
        }
        self.model = model
        self.prior = prior
        self.log_variance = nn.Module()
        for name, log_variance in start.items():
            self.log_variance.register_parameter(escaped(name), log_variance)
        self._names = list(start)

    def extra_repr(self) -> str:
        """Text for ``repr``."""
        return f"random={len(self._names)}"

    def moments(self) -> dict[str, Moments]:
        """Return the moments of the random weights, by the model's names."""
        means = self._means()
        return {name: Moments(means[name], log_variance.exp()) for name, log_variance in self._log_variances().items()}

    def kl_divergence(self) -> Tensor:
        """``KL(q || prior)`` in nats, summed over the random weights, not averaged: 0-d float64, differentiable."""
        means, log_variances = self._means(), self._log_variances()
        if type(self.prior) is EmpiricalGaussianPrior:
            return empirical.gaussian(list(means.values()), list(log_variances.values()))
        return self.prior.kl_divergence(
            {name: mean.to(log_variances[name].dtype) for name, mean in means.items()},
            {name: (0.5 * log_variance).exp() for name, log_variance in log_variances.items()},
        )

    def posterior(self, hyperparameters: dict[str, Any]) -> DiagonalGaussian:
        """Return the current posterior, with copies in float32 or wider."""
        variances = {name: log_variance.detach().exp() for name, log_variance in self._log_variances().items()}
        prior = f"{type(self.prior).__name__}({self.prior.extra_repr()})"
        return as_posterior(self.model, variances, {**hyperparameters, "prior": prior})

    def _means(self) -> dict[str, Tensor]:
        return {name: attrgetter(name)(self.model) for name in self._names}

    def _log_variances(self) -> dict[str, Tensor]:
        return {name: getattr(self.log_variance, escaped(name)) for name in self._names}


class BernoulliWeights(nn.Module):
    """``w = scale * b`` with ``b ~ Bernoulli(sigmoid(logit))`` (Bayer et al. 2015, section 3.2, eqs. 16 and 17).

    There is one scale per input unit of a layer (``scales="inputs"``, a column of the weight) or one per output unit
    (``"outputs"``, a row), so that there are about as many parameters as in the network without noise; the paper does
    not state which weights share a scale. All weights of a scale have its sign. With a scale per output unit, the mean
    of a network with one hidden layer of ReLU units and one output is therefore always a convex or a concave function
    of its inputs: the mean of every hidden unit is convex, and the last layer adds them with the same sign. With a
    scale per input unit, each hidden unit is added with its own sign.

    Vectors (biases) are trained without noise. The prior is ``Bernoulli(p0)`` for all weights; by default, ``p0`` is
    the mean of all probabilities, for which the divergence is smallest.

    The random parameters of the network itself are frozen, and replaced by the parameters of this module.

    Raises:
        ValueError: As for :func:`bayesadam.fawn`.
    """

    def __init__(
        self,
        model: nn.Module,
        prior: float | None,
        select: Callable[[str], bool] | None,
        *,
        scales: str = "inputs",
    ) -> None:
        super().__init__()
        if scales not in SCALES:
            raise ValueError(f"scales must be one of {SCALES}, got {scales!r}")
        names = random_parameters(model, select)
        if prior is not None and not (isinstance(prior, float) and 0 < prior < 1):
            raise ValueError(f"prior must be a probability in (0, 1) or None for Bernoulli weights, got {prior!r}")
        tensors = {name: p for name, p in model.named_parameters() if name in names and p.ndim > 1}
        if not tensors:
            raise ValueError("model must have a weight matrix that is selected, got vectors only")
        self.model = model
        self.prior = prior
        self.scale, self.logit = nn.Module(), nn.Module()
        for name, parameter in tensors.items():
            scale, logit = _matched(parameter.detach().to(wide(parameter.dtype)), SCALES.index(scales))
            self.scale.register_parameter(escaped(name), nn.Parameter(scale))
            self.logit.register_parameter(escaped(name), nn.Parameter(logit))
            parameter.requires_grad_(False)
        self._names = list(tensors)

    def extra_repr(self) -> str:
        """Text for ``repr``."""
        return f"prior={self.prior}, random={len(self._names)}"

    def moments(self) -> dict[str, Moments]:
        """Return the moments of the random weights, by the model's names."""
        moments = {}
        for name in self._names:
            scale, logit = self._of(name)
            probability = logit.sigmoid()
            mean = scale * probability
            moments[name] = Moments(mean, scale * mean * torch.sigmoid(-logit))
        return moments

    def kl_divergence(self) -> Tensor:
        """``KL(q || prior)`` in nats, summed over the random weights, not averaged: 0-d float64, differentiable."""
        logits = [self._of(name)[1] for name in self._names]
        if self.prior is None:
            return empirical.bernoulli(logits)
        prior = torch.tensor(self.prior, dtype=torch.float64).logit()
        return torch.stack([kl.bernoulli(logit, prior.to(logit)) for logit in logits]).sum()

    def posterior(self, hyperparameters: dict[str, Any]) -> BernoulliPosterior:
        """Return the current posterior, with copies in float32 or wider."""
        probability, scale = {}, {}
        for name, parameter in self.model.named_parameters():
            if name in self._names:
                scale[name], logit = (tensor.detach().clone() for tensor in self._of(name))
                probability[name] = logit.sigmoid()
            elif parameter.requires_grad:
                scale[name] = parameter.detach().to(wide(parameter.dtype), copy=True)
                probability[name] = torch.ones_like(scale[name])
        described = {**hyperparameters, "prior": self.prior}
        return BernoulliPosterior(probability, scale, hyperparameters=described).with_buffers(buffers_of(self.model))

    def _of(self, name: str) -> tuple[Tensor, Tensor]:
        return getattr(self.scale, escaped(name)), getattr(self.logit, escaped(name))


def _matched(weight: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    """Return initial scales, ``(out, 1, ...)`` or ``(1, in, ...)`` by their axis, and initial logits.

    The means have the order and about the size of the weights. The sign of a scale is that of the majority of its
    weights.
    """
    moved = weight.movedim(axis, 0)
    rows = moved.flatten(1)
    size = rows.square().mean(1, keepdim=True).sqrt()
    size = torch.where(size > 0, size, rows.shape[1] ** -0.5)
    sign = torch.where(rows.sum(1, keepdim=True) < 0, -1.0, 1.0)
    logit = (sign * rows / size).view(moved.shape).movedim(0, axis).contiguous()
    shape = [1] * weight.ndim
    shape[axis] = -1
    return (2.0 * sign * size).view(shape), logit
