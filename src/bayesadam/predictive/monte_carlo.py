"""Outputs of an uncertain network at samples of it."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from bayesadam.modules.calls import call
from bayesadam.posterior import NetworkDistribution
from bayesadam.predictive.batches import (
    Chunked,
    Rows,
    as_batches,
    draws_in_eval_mode,
    groups,
    joined,
    no_batches,
)
from bayesadam.predictive.plan import Options
from bayesadam.progress import progress_bar

Put = Callable[[int | None], None]
"""Writes a sample by its number, or the mean for ``None``, into a network."""
Run = Callable[[Rows], Tensor]
"""From the rows of a batch to the outputs."""

GROUP_BYTES = 2**28
"""Size in bytes up to which batches of a loader are collected, so that samples are drawn once for all of them."""


def itself(model: nn.Module, put: Put, options: Options) -> tuple[Put, Run]:
    """The network itself at samples of its weights."""
    return put, lambda rows: call(model, rows.batch, options.output)


@torch.no_grad()
def outputs_at_samples(
    model: nn.Module,
    posterior: NetworkDistribution,
    inputs: Any,
    repeats: Sequence[int] | None,
    options: Options,
    network: Callable[[nn.Module, Put, Options], tuple[Put, Run]] = itself,
) -> Tensor:
    """Outputs ``(S, N, ...)`` at the first ``S`` samples, or ``(1, N, ...)`` at the mean.

    Args:
        model: See :func:`bayesadam.predict`.
        posterior: See :func:`bayesadam.predict`.
        inputs: See :func:`bayesadam.predict`.
        repeats: For each of the ``S`` samples, the number of the first one that is equal; ``None`` for the mean.
        options: The other arguments of :func:`bayesadam.predict`.
        network: Function that gives what puts samples into the network, and what runs it.
    """
    batches, single = as_batches(inputs)
    device = next(model.parameters(), torch.empty(0)).device
    samples = [None] if repeats is None else repeats
    bar: AbstractContextManager[Any] = nullcontext()
    if options.progress or not single:
        total = operator.length_hint(batches) * len(set(samples)) or None
        bar = progress_bar("predicting", total, options.progress)

    parts = []
    with draws_in_eval_mode(model, posterior, options.seed) as put_weights, bar as advance:
        put, run = network(model, put_weights, options)

        def checked(rows: Rows) -> tuple[Tensor, ...]:
            output = run(rows)
            rows.check(output)
            return (output,)

        forward = Chunked(checked, options.batch_size)
        for group in groups(batches, device, single, GROUP_BYTES):
            outputs = torch.empty(0)
            for row, number in enumerate(samples):
                if number is not None and number < row:
                    outputs[row] = outputs[number]
                    continue
                put(number)
                chunks: list[Tensor] = []
                for rows in group:
                    chunks += forward(rows)
                    if advance is not None:
                        advance()
                sample = joined(chunks, "outputs")
                if row == 0:  # small results among a pass's large tensors would keep their memory from being used again
                    outputs = sample.new_empty((len(samples), *sample.shape))
                outputs[row] = sample
            parts.append(outputs)
    if not parts:
        raise no_batches()
    return joined(parts, "outputs", axis=1)
