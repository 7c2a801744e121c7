"""Outputs of an uncertain network at samples of it."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bayesadam.posterior import NetworkDistribution
from bayesadam.posterior.calls import call
from bayesadam.predictive.batches import (
    Chunked,
    Rows,
    as_batches,
    draws_in_eval_mode,
    groups,
    joined,
    no_batches,
)
from bayesadam.predictive.how import How
from bayesadam.progress import progress_bar

GROUP_BYTES = 2**28
"""Size in bytes up to which batches of a loader are collected, so that samples are drawn once for all of them."""


@torch.no_grad()
def outputs_at_samples(
    model: nn.Module,
    posterior: NetworkDistribution,
    inputs: Any,
    repeats: Sequence[int] | None,
    how: How,
) -> Tensor:
    """Outputs ``(S, N, ...)`` at the first ``S`` samples, or ``(1, N, ...)`` at the mean.

    Args:
        model: See :func:`bayesadam.predict`.
        posterior: See :func:`bayesadam.predict`.
        inputs: See :func:`bayesadam.predict`.
        repeats: For each of the ``S`` samples, the number of the first one that is equal; ``None`` for the mean.
        how: The other arguments of :func:`bayesadam.predict`.
    """
    device = next(model.parameters(), torch.empty(0)).device
    batches, single = as_batches(inputs)

    def run(rows: Rows) -> tuple[Tensor, ...]:
        found = call(model, rows.batch, how.output)
        rows.check(found)
        return (found,)

    forward = Chunked(run, how.batch_size)
    parts = []
    samples = [None] if repeats is None else repeats
    total = operator.length_hint(batches) * len(set(samples)) or None
    with (
        draws_in_eval_mode(model, posterior, how.seed) as put,
        progress_bar("predicting", total, how.progress, shown=not single) as advance,
    ):
        for group in groups(batches, device, single, GROUP_BYTES):
            rows, outputs = [Rows(batch) for batch in group], torch.empty(0)
            for row, number in enumerate(samples):
                if number is not None and number < row:
                    outputs[row] = outputs[number]
                    continue
                put(number)
                chunks: list[Tensor] = []
                for batch in rows:
                    chunks += forward(batch)
                    advance()
                sample = joined(chunks, "outputs")
                if row == 0:  # small results among a pass's large tensors would keep their memory from being used again
                    outputs = sample.new_empty((len(samples), *sample.shape))
                outputs[row] = sample
            parts.append(outputs)
    if not parts:
        raise no_batches()
    return joined(parts, "outputs", axis=1)
