"""Merging the posteriors of several trainings into the product of their Gaussians."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from bayesadam.checks import check, is_positive
from bayesadam.modules.batch_norm import OF_TRAINING, STATISTICS
from bayesadam.posterior.diagonal import DiagonalGaussian


def merge(
    posteriors: Sequence[DiagonalGaussian],
    *,
    weights: Sequence[float] | None = None,
    base: DiagonalGaussian | None = None,
) -> DiagonalGaussian:
    """Merge Gaussians over the same weights into their normalised weighted product, ``prod_i N(mean_i,
    variance_i)^(w_i)``.

    Precisions are added, and the mean is the average of the means, weighted by precision::

        1 / variance = sum_i w_i / variance_i          mean = variance * sum_i w_i mean_i / variance_i

    so that the training that determined a weight best counts most for it. This can merge adapters (LoRA) that were
    trained on several tasks or by several people from the same start, and posteriors of parts of a data set. Each
    posterior contains the prior once; with ``weights`` of ``1 / n`` each, the product contains it once, too, and has
    the precision of one training.

    If all trainings had the same ``base`` as their prior (``prior=base``), each posterior contains the base, and the
    product is that of the base and of what each training added to it, ``base * prod_i (posterior_i / base)^(w_i)``::

        1 / variance = 1 / variance_0 + sum_i w_i (1 / variance_i - 1 / variance_0)
        mean         = mean_0 + variance * sum_i w_i (mean_i - mean_0) / variance_i

    (Daheim et al. 2023, arXiv 2310.12808). With weights of 1 this is the posterior of the data of all
    trainings, as far as weights are independent. No training makes its posterior wider than its base: where an
    approximate one is, it counts as just as wide. Where the base has no variance, the result is thus task arithmetic,
    ``mean_0 + sum_i w_i (mean_i - mean_0)``, for example with ``base=DiagonalGaussian.point_mass(model)``. A tensor
    that the base lacks, such as that of a new output layer, is merged as without a base; one that only the base has is
    ignored. If the temperatures of all are recorded, the variances are converted to that of the first posterior, as
    the optimisers convert their prior.

    Where a variance is 0 (a parameter that was trained without noise), the product is a point mass, at the average of
    those means that are point masses there, weighted by ``weights``. Buffers that differ, such as batch norm
    statistics, are averaged with these weights, too; :func:`bayesadam.predictive.with_batch_norm` computes those of the
    new mean.

    Args:
        posteriors: At least one posterior; all have the same names and shapes. The result has the dtypes and device
            of the first.
        weights: Exponents, positive and finite, one for each posterior; default 1 each.
        base: The common prior of all trainings; by default none is taken out.

    Returns:
        A new posterior. Its hyper-parameters say from how many posteriors it was merged, with which weights, and their
        method if it is the same.

    Raises:
        ValueError: There is no posterior, one is not a :class:`DiagonalGaussian` (call ``marginal()`` of other
            classes), names or shapes differ, the base has none of the names, or the weights are not positive or not
            one per posterior.
    """
    posteriors = list(posteriors)
    if not posteriors:
        raise ValueError("posteriors must have at least one posterior, got none")
    for q in posteriors:
        if not isinstance(q, DiagonalGaussian):
            raise ValueError(f"posteriors must be DiagonalGaussians (a marginal() is one), got {type(q).__name__}")
    first, *others = posteriors
    for number, q in enumerate(others, 1):
        first._check_weights(q, f"posteriors[{number}]")
        first._check_buffers(q, f"posteriors[{number}]")
    exponents = [1.0] * len(posteriors) if weights is None else [float(weight) for weight in weights]
    if len(exponents) != len(posteriors):
        raise ValueError(f"weights must have one number for each of {len(posteriors)} posteriors, got {exponents}")
    for exponent in exponents:
        check("weights", exponent, "positive and finite", is_positive)
    factors = [1.0] * len(posteriors)
    every = posteriors
    if base is not None:
        _check_base(first, base)
        every = [*posteriors, base]
        factors = _to_one_temperature(every)
    mean, variance = {}, {}
    for name, center_of_first in first.mean.items():
        device = center_of_first.device
        parts = [
            (q.mean[name].to(device).double(), q.variance[name].to(device).double() * factor)
            for q, factor in zip(every, factors, strict=True)
            if name in q.mean
        ]
        center, spread = _product(parts, exponents)
        mean[name], variance[name] = center.to(center_of_first.dtype), spread.to(first.variance[name].dtype)
    hyperparameters = {"merged": len(posteriors), "weights": exponents}
    methods = {q.hyperparameters.get("method") for q in posteriors}
    if len(methods) == 1 and None not in methods:
        hyperparameters["method"] = methods.pop()  # by which ``predict`` chooses between sampling and linearisation
    buffers, differ = _averaged([q.buffers for q in posteriors], exponents)
    if differ or OF_TRAINING in {q.hyperparameters.get(STATISTICS) for q in posteriors}:
        hyperparameters[STATISTICS] = OF_TRAINING
    return DiagonalGaussian(mean, variance, hyperparameters=hyperparameters).with_buffers(buffers)


def _averaged(parts: Sequence[Mapping[str, Tensor]], exponents: Sequence[float]) -> tuple[dict[str, Tensor], bool]:
    """Weighted averages of buffers, of integers the first, and whether any buffers differ."""
    buffers, differ = dict(parts[0]), False
    for name, first in parts[0].items():
        values = [part[name].to(first.device) for part in parts]
        if first.is_floating_point() and not all(torch.equal(value, first) for value in values):
            weights = torch.tensor(exponents, dtype=torch.float64, device=first.device) / sum(exponents)
            mean = torch.tensordot(weights, torch.stack(values).double(), 1)
            buffers[name], differ = mean.to(first.dtype), True
    return buffers, differ


def _check_base(posterior: DiagonalGaussian, base: DiagonalGaussian) -> None:
    if not isinstance(base, DiagonalGaussian):
        raise ValueError(f"base must be a DiagonalGaussian (a marginal() is one), got {type(base).__name__}")
    common = [name for name in posterior.mean if name in base.mean]
    if not common:
        raise ValueError(f"base must have weights of the posteriors, got only {list(base.mean)}")
    for name in common:
        if base.mean[name].shape != posterior.mean[name].shape:
            shape, other = tuple(posterior.mean[name].shape), tuple(base.mean[name].shape)
            raise ValueError(f"base of {name!r} must be of shape {shape}, got {other}")


def _to_one_temperature(posteriors: Sequence[DiagonalGaussian]) -> list[float]:
    """Factors that convert variances to the temperature of the first posterior; 1 if a temperature is unknown."""
    temperatures = [float(q.hyperparameters.get("temperature") or 0.0) for q in posteriors]
    return [temperatures[0] / t for t in temperatures] if all(temperatures) else [1.0] * len(posteriors)


def _product(gaussians: list[tuple[Tensor, Tensor]], exponents: list[float]) -> tuple[Tensor, Tensor]:
    """Mean and variance of the product of Gaussians, in float64; one without an exponent, the last, is the base.

    ``1 / variance`` is computed relative to the smallest variance.
    """
    least = torch.stack([variance for _, variance in gaussians]).amin(0)
    shares = [torch.where(variance == least, 1.0, least / variance) for _, variance in gaussians]
    total = center = shared = start = torch.zeros_like(least)
    if len(shares) > len(exponents):
        total = shared = shares[-1]
        start = gaussians[-1][0]
    for (mean, _), share, exponent in zip(gaussians, shares, exponents, strict=False):
        share = torch.maximum(share, shared)
        total = total + exponent * (share - shared)
        center = center + exponent * share * (mean - start)
    return start + center / total, least / total
