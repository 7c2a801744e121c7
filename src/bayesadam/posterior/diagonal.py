"""The mean-field Gaussian: an independent normal distribution for every weight."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from bayesadam import noise
from bayesadam.checks import truths
from bayesadam.functional import gaussian
from bayesadam.modules.wrappers import buffers_of, innermost
from bayesadam.posterior import around
from bayesadam.posterior.gaussian_posterior import GaussianPosterior, sum_all, sum_of_tensors

Self = TypeVar("Self", bound="DiagonalGaussian")


class DiagonalGaussian(GaussianPosterior):
    """Independent Gaussians over named weights (a mean-field posterior).

    A variance of zero is a point mass (a pruned weight, or a parameter that was trained without noise). Samples never
    move it, its ``log_prob`` is 0 at the mean and minus infinity elsewhere, and it adds nothing to the entropy and the
    KL divergence.

    Args:
        mean: Mean of every weight tensor by name. The tensors are kept, not copied.
        variance: Variance of every weight, with the same names, shapes and devices; finite and not negative.
        hyperparameters: JSON values that say how the posterior was found.

    Raises:
        ValueError: Names or shapes differ, or values are not finite.
    """

    parts = ("mean", "variance")

    def __init__(
        self,
        mean: Mapping[str, Tensor],
        variance: Mapping[str, Tensor],
        *,
        hyperparameters: Mapping[str, Any] | None = None,
    ) -> None:
        if not mean:
            raise ValueError("mean must have at least one weight tensor, got none")
        if list(mean) != list(variance):
            raise ValueError(f"variance must have the names of mean {list(mean)}, got {list(variance)}")
        valid: list[Tensor] = []
        for name, value in mean.items():
            if variance[name].shape != value.shape:
                raise ValueError(
                    f"variance of {name!r} must be of shape {tuple(value.shape)}, got {tuple(variance[name].shape)}"
                )
            if not value.is_floating_point():
                raise ValueError(f"mean of {name!r} must be a floating-point tensor, got dtype {value.dtype}")
            valid += value.isfinite().all(), ((variance[name] >= 0) & variance[name].isfinite()).all()
        if not all(truths(valid)):
            raise _error_of_values(mean, variance)
        self.mean = dict(mean)
        self.variance = dict(variance)
        self.hyperparameters = dict(hyperparameters or {})

    @classmethod
    def point_mass(
        cls, weights: nn.Module | Mapping[str, Tensor], *, hyperparameters: Mapping[str, Any] | None = None
    ) -> DiagonalGaussian:
        """Make a posterior without uncertainty from a trained network; its variances are zeros that take no memory.

        Args:
            weights: A network, whose trainable parameters and buffers are copied; or weights by name, which are kept,
                not copied.
            hyperparameters: JSON values, as for the class.

        Raises:
            ValueError: There are no weights, or values are not finite.
        """
        buffers: Mapping[str, Tensor] = {}
        if isinstance(weights, nn.Module):
            buffers = buffers_of(weights)
            weights = {name: p.detach().clone() for name, p in innermost(weights).named_parameters() if p.requires_grad}
        variance = {name: value.new_zeros(()).expand_as(value) for name, value in weights.items()}
        return cls(weights, variance, hyperparameters=hyperparameters).with_buffers(buffers)

    def marginal(self) -> DiagonalGaussian:
        """Return the same distribution, as for the other Gaussians."""
        marginal = DiagonalGaussian(self.mean, self.variance, hyperparameters=self.hyperparameters)
        return marginal.with_buffers(self.buffers)

    def _scale(self, names: Iterable[str]) -> Tensor:
        """Standard deviations of the named tensors' weights, ``(D,)`` in float64."""
        return torch.cat([self.variance[name].double().flatten() for name in names]).sqrt()

    def writer(self, seed: int = 0) -> Callable[[Mapping[str, Tensor], int | None], None]:
        """Return a function that writes samples in place, as in the base class; see also :meth:`writer_around`."""
        std = {}
        for name in self.random_names:
            std[name] = self.variance[name].sqrt()
        return self.writer_around(std, seed)

    def writer_around(self, std: Mapping[str, Tensor], seed: int) -> Callable[[Mapping[str, Tensor], int | None], None]:
        """Return a function as :meth:`writer` does, around means that may change from sample to sample.

        The noise is drawn into the memory of the sample, so no further memory of its size is needed unless the targets
        have another dtype or device or are not contiguous.

        Args:
            std: Standard deviations of the tensors that are not fixed, by name, in the order of the means.
            seed: Seed of the samples.
        """
        means, fixed, spreads = dict[int, Tensor](), dict[str, Tensor](), list(std.values())
        for index, (name, mean) in enumerate(self.mean.items()):
            if name in std:
                means[index] = mean
            else:
                fixed[name] = mean
        if means:
            device = next(iter(means.values())).device
            draws = noise.Draws(means, seed, stream=noise.POSTERIOR)
            by_kernel = around.Around(means, spreads, seed) if around.has_right_kernel(device) else None

        def write(targets: Mapping[str, Tensor], number: int | None) -> None:
            with torch.no_grad():
                for name, mean in (self.mean if number is None else fixed).items():
                    targets[name].copy_(mean)
                if number is not None and means:
                    outs = [targets[name] for name in std]
                    if by_kernel is None or not by_kernel.fill(outs, number):
                        rooms = draws.draw(outs, number)
                        if device.type == "cpu":
                            for mean, room, spread in zip(means.values(), rooms, spreads, strict=True):
                                torch.addcmul(mean, room, spread, out=room)
                        else:  # two operations for all tensors
                            torch._foreach_mul_(rooms, spreads)
                            torch._foreach_add_(rooms, list(means.values()))
                        for out, room in zip(outs, rooms, strict=True):
                            if room is not out:
                                out.copy_(room)
            torch.clear_autocast_cache()

        return write

    def _log_prob(self, theta: Mapping[str, Tensor]) -> Tensor:
        """The sum of the weights' log densities."""

        def density(name: str, mean: Tensor) -> Tensor:
            terms = gaussian.log_prob(theta[name], mean, self.variance[name])
            return terms.reshape(*terms.shape[: terms.ndim - mean.ndim], -1).sum(-1)

        return sum_of_tensors(density(name, mean) for name, mean in self.mean.items())

    def entropy(self) -> Tensor:
        """Differential entropy in nats, summed over the random weights; 0-d float64."""
        return sum_all(gaussian.entropy(v) for v in self.variance.values())

    def kl_divergence(self, prior: float | GaussianPosterior) -> Tensor:
        """``KL(q || prior)`` in nats, summed (not averaged) over the random weights; 0-d float64.

        Args:
            prior: A prior precision (the prior is then ``N(0, 1 / prior)`` for every weight), or another Gaussian
                posterior with the same names and shapes and any covariance.

        Raises:
            ValueError: The precision is not positive, or the prior is over other weights.
        """
        if isinstance(prior, DiagonalGaussian):
            self._check_prior(prior)
            priors = [(prior.mean[name], prior.variance[name]) for name in self.mean]
        elif isinstance(prior, GaussianPosterior):
            return super().kl_divergence(prior)
        else:
            self._check_prior(prior)
            means = [mean.new_zeros(()) for mean in self.mean.values()]
            priors = [(zero, torch.full_like(zero, 1.0 / float(prior), dtype=torch.float64)) for zero in means]
        return sum_all(
            gaussian.kl_divergence(mean, self.variance[name], p_mean.to(mean.device), p_variance.to(mean.device))
            for (name, mean), (p_mean, p_variance) in zip(self.mean.items(), priors, strict=True)
        )

    def _scaled(self: Self, factor: float, hyperparameters: Mapping[str, Any]) -> Self:
        """The scaled posterior, as in the base class; zero variances are not copied, since they may take no memory."""
        random = self.random_names
        variance = {name: value * factor**2 if name in random else value for name, value in self.variance.items()}
        return self._with_parts(hyperparameters, variance=variance)


def _error_of_values(mean: Mapping[str, Tensor], variance: Mapping[str, Tensor]) -> ValueError:
    """The error for the first tensor whose values are not those of a Gaussian."""
    for name, value in mean.items():
        if not value.isfinite().all():
            return ValueError(f"mean of {name!r} must be finite, got inf or nan")
        bad = variance[name][~((variance[name] >= 0) & variance[name].isfinite())]
        if len(bad):
            break
    return ValueError(f"variance of {name!r} must be finite and not negative, got {float(bad[0])!r}")
