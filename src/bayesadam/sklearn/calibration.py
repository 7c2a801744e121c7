"""What held-out rows say about the predictions: scales of variances, a temperature, conformal scores."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bayesadam.calibration.search import least
from bayesadam.likelihoods import Likelihood

Floats = NDArray[np.float64]

KNOWN = 50
"""Rows that an earlier calibration, and noise that was learned earlier, count as where a model goes on learning."""

LEAST = 0.01
"""Where such a scale begins at least: the logarithm of one that was found to be 0 would stay where it is for ever."""


def effective_rows(weight: Floats) -> float:
    """As how many rows of one weight these are: ``(sum w)^2 / sum w^2``."""
    return float(weight.sum() ** 2 / (weight**2).sum())


@torch.no_grad()
def settle_(likelihood: Likelihood, before: Likelihood, rows: float) -> None:
    """Learned parameters of ``likelihood``, logarithms all, as means of themselves and those before, by rows."""
    old = before.state_dict()
    for name, value in likelihood.state_dict().items():
        value.lerp_(old[name].to(value), KNOWN / (KNOWN + rows))


def variance_scales(
    residual: Floats, epistemic: Floats, aleatoric: Floats, weight: Floats, before: Floats | None = None
) -> tuple[float, float]:
    """Factors ``(a, b)`` for which ``N(0, a epistemic + b aleatoric)`` gives the residuals the largest likelihood.

    Args:
        residual: Of held-out rows, ``(N,)``.
        epistemic: Variances predicted there, ``(N,)``.
        aleatoric: Likewise; of learned noise it is about constant.
        weight: Of the rows, ``(N,)``.
        before: Factors so far, ``(2,)``: the logarithm of each is drawn to what it was, as by ``KNOWN`` rows.
    """
    parts = torch.from_numpy(np.stack([epistemic, aleatoric]))
    means = (parts * torch.from_numpy(weight)).sum(1) / weight.sum()
    there = means > 0
    known = torch.zeros(2, dtype=torch.float64) if before is None else torch.from_numpy(before).clamp_min(LEAST)
    size = max(float(np.average(residual**2, weights=weight)), 1e-12, float(known @ means))
    scaled = torch.where(there[:, None], parts / torch.where(there, means, 1.0)[:, None], 0.0)
    square = torch.from_numpy(residual**2 / size)
    share = torch.from_numpy(weight / weight.sum())
    starts = torch.tensor([(-1.0, -1.0), (-4.0, 0.0), (0.0, -4.0)], dtype=torch.float64)
    force, center = 0.0, starts[0]
    if before is not None:
        force = 0.5 * KNOWN / effective_rows(weight)
        center = (known * torch.where(there, means, size) / size).log()
        starts = torch.cat([starts, center[None]])

    def loss(log_scales: Tensor) -> Tensor:
        variance = (log_scales.exp() @ scaled).clamp_min(1e-9)
        drawn = force * (log_scales - center).square().sum()
        return (share * (square / variance + variance.log())).sum() + drawn

    found = []
    for start in starts:
        point = start.clone().requires_grad_()
        optimizer = torch.optim.LBFGS([point], max_iter=100, line_search_fn="strong_wolfe")

        def closure(point: Tensor = point, optimizer: torch.optim.Optimizer = optimizer) -> Tensor:
            optimizer.zero_grad()
            value = loss(point.clamp(-20.0, 20.0))
            value.backward()  # type: ignore[no-untyped-call]
            return value

        optimizer.step(closure)  # type: ignore[no-untyped-call]
        end = point.detach().clamp(-20.0, 20.0)
        found.append((float(loss(end)), end))
    best = min(found, key=lambda pair: pair[0] if math.isfinite(pair[0]) else math.inf)[1]
    scales = torch.where(there, size * best.exp() / torch.where(there, means, 1.0), 0.0)
    return float(scales[0]), float(scales[1])


def temperature(log_probs: Tensor, labels: Tensor, weight: Tensor, before: float | None = None) -> float:
    """By which to divide log probabilities for the largest likelihood of held-out labels, in [0.1, 10].

    Args:
        log_probs: Of the components of an equal mixture, ``(S, N, C)``.
        labels: ``(N,)``.
        weight: Of the rows, ``(N,)``.
        before: The temperature so far: the logarithm is drawn to what it was, as that of a variance by ``KNOWN`` rows.
    """
    force = 0.0 if before is None else 0.25 * KNOWN * float(weight.sum()) / effective_rows(weight.numpy())
    center = 0.0 if before is None else math.log(before)

    def loss(value: float) -> float:
        density = tempered(log_probs, value).logsumexp(0).gather(1, labels[:, None])[:, 0]
        return force * (math.log(value) - center) ** 2 - float((weight * density).sum())

    return least(loss, 0.1, 10.0, steps=40)[0]


def tempered(log_probs: Tensor, value: float) -> Tensor:
    """Log probabilities at a temperature, normalised again."""
    return log_probs if value == 1.0 else (log_probs / value).log_softmax(-1)


def conformal_quantile(scores: Floats, coverage: float) -> Floats:
    """The ``ceil((n + 1) coverage)``-th smallest score of every output (Lei et al. 2018), ``(n, K)`` to ``(K,)``.

    Raises:
        ValueError: Too few scores for the coverage.
    """
    rank = math.ceil((len(scores) + 1) * coverage - 1e-12)
    if rank > len(scores):
        raise ValueError(
            f"coverage must be at most n / (n + 1) = {len(scores) / (len(scores) + 1):.4g} with {len(scores)} "
            f"calibration rows, got {coverage!r}"
        )
    result: Floats = np.sort(scores, axis=0)[rank - 1]
    return result
