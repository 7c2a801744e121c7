"""Reports on Gaussian posteriors: their widths, the origin of the precision, and how much the data determined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from bayesadam.functional.curvature import wide

Quantiles: TypeAlias = tuple[float, float, float]
LEVELS = (0.01, 0.5, 0.99)
PER_TENSOR = "tensors"
"""Key in a posterior's hyper-parameters, with the value ``{name: {"start_share": ..., "prior_precision": ...}}``."""


@dataclass(frozen=True)
class TensorReport:
    """Report on one weight tensor, or on all of them together.

    The posterior precision of a weight has three parts: the prior precision, the rest of the precision at the start of
    the training, and the contribution of the data. ``start_share`` is the second part as a fraction of the whole, and
    ``determined`` is the sum of the fractions of the third part.

    Attributes:
        name: Name of the tensor.
        shape: Shape of the tensor; empty for all tensors together.
        num_weights: Number of its weights.
        num_random: Number of weights with a variance above 0. The following numbers are about these, and ``None`` if
            there are none.
        width: Quantiles of their standard deviations at 1%, 50% and 99%.
        signal_to_noise: The same quantiles of ``|mean| / standard deviation``.
        start_share: Fraction of the precision that still comes from the initial precision, in [0, 1], averaged over the
            weights, from the optimiser; ``None`` if it is unknown.
        prior_precision: Prior precision ``lambda``; ``None`` if it is unknown, and for all tensors together.
        determined: Effective number of weights that the data determine, in ``[0, num_random]``: the sum of ``1 - lambda
            sigma^2`` (MacKay 1992) minus ``start_share`` over the weights. It is ``None`` if ``lambda`` is unknown; an
            unknown share of the start counts as 0.
    """

    name: str
    shape: tuple[int, ...]
    num_weights: int
    num_random: int
    width: Quantiles | None
    signal_to_noise: Quantiles | None
    start_share: float | None
    prior_precision: float | None
    determined: float | None


@dataclass(frozen=True, repr=False)
class PosteriorReport:
    """A table of what a posterior has learned, tensor by tensor, with conclusions in words. Printing shows both.

    Attributes:
        rows: Reports on every weight tensor.
        total: Report on all weights together.
        steps: Number of training steps, if an optimiser made the report.
        scaled: Factor by which the standard deviations were multiplied after they were computed, as
            :func:`bayesadam.laplace` does where wider ones predict the rows of the training worse. What the data
            determine is that of the posterior before.
    """

    rows: tuple[TensorReport, ...]
    total: TensorReport
    steps: int | None = None
    scaled: float = 1.0

    @property
    def sentences(self) -> tuple[str, ...]:
        """Conclusions from the numbers, in words."""
        total, said = self.total, []
        if total.start_share is not None:
            sentence = _when(self.steps) + _about_start(total.start_share)
            said.append(sentence[0].upper() + sentence[1:])
        if total.determined is not None:
            some, count = total.determined, total.num_random
            said.append(f"The data determine about {some:,.0f} of {count:,} random weights ({some / count:.0%}).")
        if self.scaled != 1.0 and total.num_random:
            said.append(f"The standard deviations are {self.scaled:.3g} times those that were computed first.")
        if not total.num_random:
            said.append("No weight is random: this is one network.")
        return tuple(said)

    def __str__(self) -> str:
        marks = ", ".join(f"{level:.0%}" for level in LEVELS)
        lines = [["tensor", "weights", f"width {marks}", "start", f"|mean| / width {marks}", "determined"]]
        lines += [_cells(row) for row in (*self.rows, self.total)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        table = ["  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in lines]
        return "\n".join([*table, *(["", *self.sentences] if self.sentences else [])])

    __repr__ = __str__


@torch.no_grad()
def report_of(
    mean: Mapping[str, Tensor], variance: Mapping[str, Tensor], hyperparameters: Mapping[str, Any]
) -> PosteriorReport:
    """Make the report of a posterior with these means, marginal variances and hyper-parameters."""
    rows, widths, ratios = [], [], []
    scaled = _number(hyperparameters, "scaled") or 1.0
    for name, center in mean.items():
        random = variance[name] > 0
        dtype = wide(variance[name].dtype)
        spread = variance[name][random].to(dtype).sqrt()
        widths.append(spread)
        ratios.append(center[random].to(dtype).abs() / spread)
        share = _number(hyperparameters, PER_TENSOR, name, "start_share")
        prior = _number(hyperparameters, PER_TENSOR, name, "prior_precision")
        if prior is None:
            prior = _number(hyperparameters, "prior_precision")
        rows.append(
            TensorReport(
                name=name,
                shape=tuple(center.shape),
                num_weights=center.numel(),
                num_random=len(spread),
                width=quantiles(spread),
                signal_to_noise=quantiles(ratios[-1]),
                start_share=share if len(spread) else None,
                prior_precision=prior,
                determined=_determined(spread / scaled, share, prior),
            )
        )
    return PosteriorReport(tuple(rows), _total(rows, torch.cat(widths), torch.cat(ratios)), scaled=scaled)


def overall_share(rows: Sequence[tuple[float | None, int]]) -> float | None:
    """Mean of the shares over weights, from pairs of a tensor's share and number of weights; None is left out."""
    counted = [(share, count) for share, count in rows if share is not None and count]
    return sum(share * count for share, count in counted) / sum(count for _, count in counted) if counted else None


def quantiles(values: Tensor) -> Quantiles | None:
    """Quantiles at ``LEVELS``, each of them one of the values (the nearest from below); ``None`` without values."""
    if not len(values):
        return None
    low, middle, high = (float(values.kthvalue(1 + int(level * (len(values) - 1))).values) for level in LEVELS)
    return low, middle, high


def _number(value: Any, *keys: str) -> float | None:
    """The number at nested keys of hyper-parameters, which may be any JSON values; ``None`` if there is none."""
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _determined(spread: Tensor, share: float | None, prior: float | None) -> float | None:
    if prior is None or not len(spread):
        return None
    count = len(spread)
    free = count * (1.0 - (share or 0.0)) - prior * float(spread.double().square().sum())
    return min(max(free, 0.0), float(count))


def _total(rows: Sequence[TensorReport], spread: Tensor, ratio: Tensor) -> TensorReport:
    determined = [row.determined for row in rows if row.num_random]
    numbers = [value for value in determined if value is not None]
    return TensorReport(
        name="all",
        shape=(),
        num_weights=sum(row.num_weights for row in rows),
        num_random=len(spread),
        width=quantiles(spread),
        signal_to_noise=quantiles(ratio),
        start_share=overall_share([(row.start_share, row.num_random) for row in rows]),
        prior_precision=None,
        determined=sum(numbers) if numbers and len(numbers) == len(determined) else None,
    )


def _about_start(share: float) -> str:
    some = "less than 1%" if share < 0.01 else f"{share:.0%}"
    if share > 0.5:
        return f"{some} of the width still comes from the initial precision: the posterior has not learned it."
    if share > 0.1:
        return f"{some} of the width still comes from the initial precision: the posterior has learned it in part."
    return f"{some} of the width comes from the initial precision: the gradients determine the rest."


def _when(steps: int | None) -> str:
    if steps is None:
        return ""
    if not steps:
        return "Before the first step, "
    return f"After {steps:,} step{'s' * (steps > 1)}, "


def _cells(row: TensorReport) -> list[str]:
    weights = " x ".join(map(str, row.shape)) if row.shape else f"{row.num_weights:,}"
    share = "-" if row.start_share is None else f"{row.start_share:.0%}"
    data = "-" if row.determined is None else f"{row.determined:,.0f} of {row.num_random:,}"
    return [row.name, weights, _three(row.width) or "not random", share, _three(row.signal_to_noise) or "-", data]


def _three(values: Quantiles | None) -> str:
    return "" if values is None else "  ".join(f"{value:<8.3g}" for value in values).rstrip()
