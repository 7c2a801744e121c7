"""KL divergences of all weights together from the single prior that is best for them (Hinton and van Camp 1993).

The prior is the same for every weight of every tensor, and its parameters are always at their optimum for the current
posterior. They need not be trained, and by the envelope theorem the derivatives are those for a fixed prior. Sums are
over all weights; results are in nats, and 0-d float64. All functions may be mapped by ``torch.func.vmap``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from bayesadam.functional.batching import batch_first

__all__ = ["bernoulli", "gaussian", "optimum"]

_SMALL, _PART = 2**14, 2**18
"""Size up to which tensors are copied into one vector, which is faster than a call for each; and number of weights
of a larger tensor that are processed at a time.
"""


def gaussian(means: Sequence[Tensor], log_variances: Sequence[Tensor]) -> Tensor:
    """``KL(N(mean, v) || N(m, s^2))`` at the ``m`` and ``s`` that minimise it: ``W log s - sum log(v) / 2``.

    ``m`` and ``s`` are those of :func:`optimum`. For ``W`` weights the derivatives are ``(mean - m) / s^2`` with
    respect to a mean and ``(v / s^2 - 1) / 2`` with respect to a ``log v``.

    Args:
        means: Means of the weights, in float32 or wider.
        log_variances: Logarithms of their variances; same shapes.

    Raises:
        ValueError: There are no weights.
    """
    tensors = (*_few("means", means), *_few("log_variances", log_variances))
    result: Tensor = _Gaussian.apply(0, *tensors)[0]  # type: ignore[no-untyped-call]
    return result


def optimum(means: Sequence[Tensor], log_variances: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of the Gaussian prior that is best for all weights together; 0-d float64.

    They are ``m = mean(mean)`` and ``s^2 = mean(v + (mean - m)^2)``, with ``s`` bounded away from 0 by the precision of
    the weights' dtype (3e-16 in float32).

    Args:
        means: Means of the weights, as for :func:`gaussian`.
        log_variances: Logarithms of their variances, as for :func:`gaussian`.

    Raises:
        ValueError: There are no weights.
    """
    parameters = _few("means", means), _few("log_variances", log_variances)
    center, _, bounded = _moments(*parameters, 0)
    return center, bounded.sqrt()


def bernoulli(logits: Sequence[Tensor]) -> Tensor:
    """``KL(Bernoulli(p) || Bernoulli(p0))`` with ``p = sigmoid(logit)``, at the ``p0 = mean(p)`` that minimises it.

    It is ``W H(p0) - sum H(p)`` with the entropy ``H``, and 0 if all weights are certain and equal. The derivatives are
    ``p (1 - p) (logit - log(p0 / (1 - p0)))``.

    Args:
        logits: Finite logits, in float32 or wider.

    Raises:
        ValueError: There are no weights.
    """
    if sum(tensor.numel() for tensor in logits) == 0:
        raise ValueError("logits must have at least one weight, got none")
    logit = torch.cat([tensor.reshape(-1) for tensor in logits])
    p, q = torch.sigmoid(logit), torch.sigmoid(-logit)
    size = logit.abs()
    entropy = (size * torch.sigmoid(-size) - functional.logsigmoid(size)).sum(dtype=torch.float64)
    # The smaller one of p0 and 1 - p0 is accurate to all digits; the bound keeps the slope at 0 finite.
    small = torch.minimum(p.mean(dtype=torch.float64), q.mean(dtype=torch.float64))
    small = small.clamp_min(torch.finfo(torch.float64).tiny)
    result: Tensor = logit.numel() * (torch.special.entr(small) - (1.0 - small) * (-small).log1p()) - entropy
    return result


def _few(name: str, tensors: Sequence[Tensor]) -> list[Tensor]:
    """The small tensors as one vector, and each of the others as it is."""
    if sum(tensor.numel() for tensor in tensors) == 0:
        raise ValueError(f"{name} must have at least one weight, got none")
    small = [tensor.reshape(-1) for tensor in tensors if tensor.numel() <= _SMALL]
    large = [tensor for tensor in tensors if tensor.numel() > _SMALL]
    return [torch.cat(small), *large] if small else large


def _moments(means: Sequence[Tensor], log_variances: Sequence[Tensor], mapped: int) -> tuple[Tensor, Tensor, Tensor]:
    """``m``, ``s^2``, and ``s^2`` bounded such that its reciprocal, times a moderate factor, is finite; in float64."""
    size = _size(means, mapped)
    center = _total(means, mapped, lambda part: part) / size
    squares = _total(means, mapped, lambda part: (part - _along(center, part)).square_())
    spread = (squares + _total(log_variances, mapped, torch.exp)) / size
    least = max(torch.finfo(mean.dtype).tiny / torch.finfo(mean.dtype).eps for mean in means)
    return center, spread, spread.clamp_min(least)


def _size(tensors: Sequence[Tensor], mapped: int) -> int:
    """Number of weights."""
    return sum(math.prod(tensor.shape[mapped:]) for tensor in tensors)


def _total(tensors: Sequence[Tensor], mapped: int, term: Callable[[Tensor], Tensor]) -> Tensor:
    """Sum over all axes except the mapped ones, in float64, of sums of some rows in the tensors' dtype.

    As many rows are used as fit into the cache, since allocating memory of the size of the weights would cost more.
    """
    totals = []
    for tensor in tensors:
        rows = max(1, _PART // math.prod(tensor.shape[mapped + 1 :]))
        for part in torch.split(tensor, rows, mapped):
            totals.append(term(part).sum(tuple(range(mapped, part.ndim))))
    return torch.stack(totals).sum(0, dtype=torch.float64)


def _along(value: Tensor, like: Tensor) -> Tensor:
    """A number for each network, shaped to broadcast against its weights."""
    return value.to(like.dtype).view(*value.shape, *[1] * (like.ndim - value.ndim))


class _Gaussian(torch.autograd.Function):
    """The divergence and the values for its gradient.

    Arguments are the number of mapped axes, which are in front, the tensors of the means, and as many of the log
    variances.
    """

    @staticmethod
    def forward(mapped: int, *tensors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        means, log_variances = tensors[: len(tensors) // 2], tensors[len(tensors) // 2 :]
        center, spread, bounded = _moments(means, log_variances, mapped)
        # The ratio is 1 unless the prior is at the lower bound of its width.
        cost = 0.5 * (bounded.log() + spread / bounded - 1.0)
        logs = _total(log_variances, mapped, lambda part: part)
        return _size(means, mapped) * cost - 0.5 * logs, center, bounded

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs[1:], *output[1:])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
        if grad is None:
            return (None,) * len(ctx.needs_input_grad)
        *tensors, center, bounded = ctx.saved_tensors
        means, log_variances = tensors[: len(tensors) // 2], tensors[len(tensors) // 2 :]
        slope, half = grad / bounded, 0.5 * grad
        of_means = [torch.sub(m, _along(center, m)).mul_(_along(slope, m)) for m in means]
        of_logs = [t.exp().mul_(_along(0.5 * slope, t)).sub_(_along(half, t)) for t in log_variances]
        return None, *of_means, *of_logs

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], mapped: int, *tensors: Tensor) -> Any:
        result = _Gaussian.apply(mapped + 1, *batch_first(info.batch_size, in_dims[1:], tensors))  # type: ignore[no-untyped-call]
        return result, (0, 0, 0)
