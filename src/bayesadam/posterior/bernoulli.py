"""A posterior in which every weight is 0 or a given value: an independent Bernoulli variable for every weight."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from bayesadam import noise
from bayesadam.checks import truths
from bayesadam.functional.curvature import wide
from bayesadam.posterior.base import Posterior


class BernoulliPosterior(Posterior):
    """Independent Bernoulli weights: every weight is ``scale * b`` with ``b ~ Bernoulli(probability)``.

    The mean is ``scale * p`` and the variance ``scale^2 p (1 - p)`` (Bayer et al. 2015, section 3.2, eqs. 16 and 17).
    Several weights may share a scale, for example those of an output unit. A weight of probability 0 or 1, or of scale
    0, is a point mass; a weight that was trained without noise has probability 1 and its value as scale.

    Args:
        probability: Probability that a weight is not 0, in [0, 1], for every weight of every tensor, by name. The
            tensors are kept, not copied. They may be of a wider dtype than the scales, since a variance near
            probability 1 is lost by rounding.
        scale: Values of the weights that are not 0, finite, with the same names, of the weights' dtypes, and of shapes
            that broadcast to those of the weights. The tensors are kept, not copied.
        hyperparameters: JSON values that say how the posterior was found.

    Attributes:
        probability: The probabilities given.
        scale: The scales given.

    Raises:
        ValueError: Names, dtypes or shapes do not match, or values are out of their range.
    """

    parts = ("probability", "scale")

    def __init__(
        self,
        probability: Mapping[str, Tensor],
        scale: Mapping[str, Tensor],
        *,
        hyperparameters: Mapping[str, Any] | None = None,
    ) -> None:
        if not probability:
            raise ValueError("probability must have at least one weight tensor, got none")
        if list(probability) != list(scale):
            raise ValueError(f"scale must have the names of probability {list(probability)}, got {list(scale)}")
        for name, p in probability.items():
            _check(name, p, scale[name])
        self.probability = dict(probability)
        self.scale = dict(scale)
        self.hyperparameters = dict(hyperparameters or {})
        with torch.no_grad():
            self.mean = {name: (p * scale[name]).to(scale[name].dtype) for name, p in probability.items()}

    @cached_property
    def variance(self) -> dict[str, Tensor]:  # type: ignore[override]
        """Variance of every weight by name, 0 for a point mass, in float32 or wider. It is computed at the first
        access.
        """
        with torch.no_grad():
            # As a product of two factors, since scale^2 may be infinite where the other factor is 0.
            return {
                name: (mean * (self.scale[name] * (1.0 - self.probability[name]))).to(wide(mean.dtype))
                for name, mean in self.mean.items()
            }

    def writer(self, seed: int = 0) -> Callable[[Mapping[str, Tensor], int | None], None]:
        """Return a function that writes samples in place, as in the base class.

        A weight is not 0 where the standard normal that a Gaussian posterior would draw for it is below the
        ``probability`` quantile. Nothing is drawn for tensors of point masses only.
        """
        # Noise is float32 whatever the weights are.
        random = truths(self._random(name).any() for name in self.probability)
        quantile = {
            name: torch.special.ndtri(p.detach().double()).float()
            for (name, p), has in zip(self.probability.items(), random, strict=True)
            if has
        }
        scale = {name: self.scale[name].detach() for name in quantile}
        eps = {
            index: torch.empty_like(quantile[name], memory_format=torch.contiguous_format)
            for index, name in enumerate(self.mean)
            if name in quantile
        }
        draws = noise.Draws(eps, seed, stream=noise.POSTERIOR)

        @torch.no_grad()
        def write(targets: Mapping[str, Tensor], number: int | None) -> None:
            if number is not None:
                draws.draw(list(eps.values()), number)
            for index, (name, mean) in enumerate(self.mean.items()):
                drawn = number is not None and index in eps
                value = torch.where(eps[index] < quantile[name], scale[name], 0.0) if drawn else mean
                targets[name].detach().copy_(value)
            torch.clear_autocast_cache()

        return write

    def _scaled(self, factor: float, hyperparameters: Mapping[str, Any]) -> BernoulliPosterior:
        """The scaled posterior, as in the base class.

        With ``r = p + factor^2 (1 - p)`` the weight is ``scale r`` with probability ``p / r``. This is the only
        Bernoulli variable with mean ``scale p`` and variance ``factor^2 scale^2 p (1 - p)``. Every weight then has its
        own scale.
        """
        probability, scale = {}, {}
        for name, given in self.probability.items():
            p = given.double()
            ratio = p + factor**2 * (1.0 - p)
            probability[name] = torch.where(p == 0, 0.0, p / ratio.clamp_min(torch.finfo(ratio.dtype).tiny))
            scale[name] = (self.scale[name] * ratio).to(self.scale[name].dtype)
        return self._with_parts(hyperparameters, probability=probability, scale=scale)

    def _to(self, device: torch.device | str | None, dtype: torch.dtype | None) -> BernoulliPosterior:
        """The posterior without buffers, as in the base class; probabilities are not rounded."""
        scale = {name: value.to(device=device, dtype=dtype) for name, value in self.scale.items()}
        probability = {
            name: p.to(scale[name].device, torch.promote_types(p.dtype, scale[name].dtype))
            for name, p in self.probability.items()
        }
        return self._with_parts(self.hyperparameters, probability=probability, scale=scale)

    def _random(self, name: str) -> Tensor:
        """Mask of the weights of a tensor that are not point masses, in its shape."""
        p = self.probability[name]
        return (p > 0) & (p < 1) & (self.scale[name] != 0)


def _check(name: str, p: Tensor, scale: Tensor) -> None:
    """Check the probabilities and scales of one tensor."""
    if not p.is_floating_point():
        raise ValueError(f"probability of {name!r} must be a floating-point tensor, got dtype {p.dtype}")
    bad = p.detach()[~((p >= 0) & (p <= 1))]
    if len(bad):
        raise ValueError(f"probability of {name!r} must be in [0, 1], got {float(bad[0])!r}")
    if not scale.is_floating_point() or torch.promote_types(scale.dtype, p.dtype) != p.dtype:
        raise ValueError(
            f"scale of {name!r} must be of the probabilities' dtype {p.dtype} or a narrower one, got {scale.dtype}"
        )
    sizes = zip(reversed(scale.shape), reversed(p.shape), strict=False)
    if scale.ndim > p.ndim or any(size not in (1, full) for size, full in sizes):
        raise ValueError(f"scale of {name!r} must broadcast to the shape {tuple(p.shape)}, got {tuple(scale.shape)}")
    if not scale.isfinite().all():
        raise ValueError(f"scale of {name!r} must be finite, got inf or nan")
