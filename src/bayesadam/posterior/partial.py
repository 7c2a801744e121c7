"""A Gaussian over some weight tensors of a network, with all others fixed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from bayesadam.functional import gaussian
from bayesadam.posterior.base import Posterior, posterior_kinds
from bayesadam.posterior.correlated import CorrelatedGaussian
from bayesadam.posterior.dense import MAX_WEIGHTS, DenseGaussian
from bayesadam.posterior.diagonal import DiagonalGaussian
from bayesadam.posterior.gaussian_posterior import GaussianPosterior, check_means
from bayesadam.posterior.kronecker import KroneckerGaussian

KINDS = (DenseGaussian, DiagonalGaussian, KroneckerGaussian)


class PartialGaussian(CorrelatedGaussian):
    """A Gaussian over some weight tensors, such as those of the last layer, with point masses for all others.

    For the fixed weights only their values are kept. They have variance 0, samples never move them, and they add
    nothing to the entropy and the KL divergence; ``log_prob`` is minus infinity unless they are at their values.

    Args:
        random: Posterior over the random weights.
        fixed: Values of the other weight tensors by name. The tensors are kept, not copied.
        order: Names of both in the order of ``mean``, in which the names of ``random`` keep their own order. The
            default puts ``random`` first. The order does not change the samples.
        hyperparameters: JSON values that say how the posterior was found; default: those of ``random``.

    Attributes:
        random: The posterior over the random weights.
        fixed: Values of the fixed weights, in the order of ``mean``.
        variance: Marginal variance of every weight by name; 0 for fixed weights.

    Raises:
        ValueError: ``random`` is not a Gaussian posterior, names are in both, the order has other names, or values are
            not finite.
    """

    def __init__(
        self,
        random: DenseGaussian | DiagonalGaussian | KroneckerGaussian,
        fixed: Mapping[str, Tensor],
        *,
        order: Sequence[str] | None = None,
        hyperparameters: Mapping[str, Any] | None = None,
    ) -> None:
        if not isinstance(random, KINDS):
            raise ValueError(f"random must be one of {[k.__name__ for k in KINDS]}, got {type(random).__name__}")
        both = {**random.mean, **fixed}
        for name in fixed:
            if name in random.mean:
                raise ValueError(f"fixed must only have weights that are not random, got {name!r}")
        check_means(fixed)
        order = list(both if order is None else order)
        if sorted(order) != sorted(both):
            raise ValueError(f"order must have the names {sorted(both)}, got {sorted(order)}")
        if list(filter(random.mean.__contains__, order)) != list(random.mean):
            raise ValueError(f"order must keep the order of the random weights {list(random.mean)}, got {order}")
        self.random = random
        self.fixed, self.mean, self.variance = {}, {}, {}
        for name in order:
            value = self.mean[name] = both[name]
            if name in random.mean:
                self.variance[name] = random.variance[name]
            else:
                self.fixed[name] = value
                self.variance[name] = value.new_zeros(()).expand(value.shape)  # which takes no memory
        self.hyperparameters = dict(random.hyperparameters if hyperparameters is None else hyperparameters)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.random!r}, {self.num_weights - self.random.num_weights:,} weights fixed)"

    def _scale(self, names: Iterable[str]) -> Tensor:
        """The Cholesky factor, as in the base class; rows and columns of fixed weights are zero.

        Raises:
            ValueError: The matrix would be over too many weights.
        """
        names = list(names)
        moved = [name for name in names if name in self.random.mean]
        sizes = [self.mean[name].numel() for name in names]
        where = torch.cat(
            [torch.full((n,), name in self.random.mean) for name, n in zip(names, sizes, strict=True)]
        ).to(next(iter(self.random.mean.values())).device)
        part = self.random._scale(moved) if moved else torch.zeros(0, dtype=torch.float64, device=where.device)
        if part.ndim == 1:
            return torch.zeros(len(where), dtype=torch.float64, device=where.device).masked_scatter_(where, part)
        if len(where) > MAX_WEIGHTS:
            raise ValueError(f"names must have at most {MAX_WEIGHTS:,} weights for a matrix, got {len(where):,}")
        whole = torch.zeros(len(where), len(where), dtype=torch.float64, device=where.device)
        return whole.masked_scatter_(where.unsqueeze(1) & where, part)

    def writer(self, seed: int = 0) -> Callable[[Mapping[str, Tensor], int | None], None]:
        """Return a function that writes samples of the random weights, and the values of the others, as in the base
        class.
        """
        write_random = self.random.writer(seed)

        @torch.no_grad()
        def write(targets: Mapping[str, Tensor], number: int | None) -> None:
            for name, value in self.fixed.items():
                targets[name].detach().copy_(value)
            write_random(targets, number)

        return write

    def _divided(self) -> tuple[Posterior, Mapping[str, Tensor]]:
        """The posterior over the random weights and the values of the others, as in the base class."""
        return self.random, self.fixed

    def _log_prob(self, theta: Mapping[str, Tensor]) -> Tensor:
        """The density of the random weights, or 0 if a fixed weight is not at its value."""
        density = self.random.log_prob({name: theta[name] for name in self.random.mean})
        for name, value in self.fixed.items():
            away = (theta[name] != value).reshape(*density.shape, -1).any(-1)
            density = density.masked_fill(away.to(density.device), -torch.inf)
        return density

    def entropy(self) -> Tensor:
        """Differential entropy of the random weights in nats; 0-d float64."""
        return self.random.entropy()

    def kl_divergence(self, prior: float | GaussianPosterior) -> Tensor:
        """``KL(q || prior)`` in nats, summed (not averaged) over the random weights; 0-d float64.

        Args:
            prior: A prior precision (the prior is then ``N(0, 1 / prior)`` for every weight), or another Gaussian
                posterior with the same names and shapes, whose marginal over the random weights is used. The divergence
                is infinite if a weight is fixed in both at different values.

        Raises:
            ValueError: The precision is not positive, or the prior is over other weights.
        """
        self._check_prior(prior)
        if not isinstance(prior, GaussianPosterior):
            return self.random.kl_divergence(prior)
        for name, value in self.fixed.items():
            elsewhere = prior.mean[name].to(value.device) != value
            if (elsewhere & (prior.variance[name].to(value.device) == 0)).any():
                return torch.tensor(torch.inf, dtype=torch.float64)
        if isinstance(prior, PartialGaussian) and list(prior.random.mean) == list(self.random.mean):
            return self.random.kl_divergence(prior.random)
        names = self.random.mean
        mean, scale = self.random._flat(self.random.mean), self.random._scale(names)
        prior_mean, prior_scale = self.random._flat(prior.mean).to(mean.device), prior._scale(names).to(mean.device)
        return gaussian.dense_kl_divergence(mean, scale, prior_mean, prior_scale).cpu()

    def _scaled(self, factor: float, hyperparameters: Mapping[str, Any]) -> PartialGaussian:
        """The scaled posterior, as in the base class."""
        return type(self)(
            self.random.scaled(factor), self.fixed, order=list(self.mean), hyperparameters=hyperparameters
        )

    def _keeping(self, remaining: Mapping[str, Tensor], hyperparameters: Mapping[str, Any]) -> PartialGaussian:
        """The pruned posterior, as in the base class."""
        fixed = {name: torch.where(remaining[name], value, 0.0) for name, value in self.fixed.items()}
        random = self.random._keeping(remaining, self.random.hyperparameters)
        return type(self)(random, fixed, order=list(self.mean), hyperparameters=hyperparameters)

    def _to(self, device: torch.device | str | None, dtype: torch.dtype | None) -> PartialGaussian:
        """The posterior without buffers, as in the base class."""
        fixed = {name: value.to(device=device, dtype=dtype) for name, value in self.fixed.items()}
        return type(self)(
            self.random.to(device, dtype), fixed, order=list(self.mean), hyperparameters=self.hyperparameters
        )

    def _tensors(self) -> dict[str, Tensor]:
        """``{"fixed/<name>": ..., "random/<kind>/<its own keys>": ...}``, the means in the order of ``mean``."""
        prefix = f"random/{type(self.random).__name__}/"
        stored = {f"fixed/{name}": value for name, value in self.fixed.items()}
        stored.update((prefix + key, value) for key, value in self.random.tensors().items())
        means = [f"fixed/{name}" if name in self.fixed else f"{prefix}mean/{name}" for name in self.mean]
        return {key: stored[key] for key in dict.fromkeys([*means, *stored])}

    @classmethod
    def _from_tensors(cls, tensors: Mapping[str, Tensor], hyperparameters: Mapping[str, Any]) -> PartialGaussian:
        """The inverse of :meth:`_tensors`."""
        fixed, parts, order, kinds = {}, {}, [], set()
        for key, value in tensors.items():
            part, _, rest = key.partition("/")
            if part == "fixed":
                fixed[rest] = value
                order.append(rest)
                continue
            if part != "random":
                raise KeyError(key)
            kind, _, inner = rest.partition("/")
            kinds.add(kind)
            parts[inner] = value
            if inner.startswith("mean/"):
                order.append(inner.removeprefix("mean/"))
        (kind,) = kinds
        random: Any = posterior_kinds()[kind].from_tensors(parts, hyperparameters)
        return cls(random, fixed, order=order, hyperparameters=hyperparameters)
