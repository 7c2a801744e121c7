"""The scores: loss, perplexity and calibration per character, of the mean network and of averages over samples."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import bayesadam as ba
from experiments.char_lm.text import Rows

Block = tuple[slice | Tensor, slice]


def _logits(model: nn.Module, data: Rows) -> Iterator[tuple[Block, Tensor]]:
    """Yield the logits of all blocks in the order of the text; the state is carried from one block to the next."""
    state = None
    for step in range(data.steps):
        rows, columns = data.block(step)
        logits, state = model(data.x[rows, columns], state)
        yield (rows, columns), logits


@torch.no_grad()
def mean_loss(model: nn.Module, data: Rows) -> float:
    """Return the loss in nats per character with the current weights of the network."""
    total = math.fsum(
        float(F.cross_entropy(logits.flatten(0, 1), data.y[block].flatten(), reduction="sum"))
        for block, logits in _logits(model, data)
    )
    return total / data.y.numel()


@torch.no_grad()
def scores(
    model: nn.Module,
    posterior: ba.DiagonalGaussian | None,
    data: Rows,
    counts: Sequence[int] = (),
    passage: int = 0,
) -> dict[str, Any]:
    """Return scores per character of the predictive distributions. Each sample reads the text with its own memory.

    Args:
        model: Network with the posterior mean or the point estimate as weights.
        posterior: Posterior from which weights are sampled.
        data: The text to predict.
        counts: Numbers of samples, in ascending order; predictions are averaged over the first samples.
        passage: Length of the piece of text, from the beginning, of which every character is kept.

    Returns:
        Entries such as ``"mean"`` and ``"samples-8"``, each with ``nll`` in nats, ``perplexity``, ``ece`` in 15 bins
        and ``accuracy``; ``"passage"`` has the NLL and the entropy of every character for the mean network and for the
        largest number of samples, and for the samples also the mutual information.
    """
    probs, _ = _probabilities(model, data)
    target = data.y.flatten()
    found: dict[str, Any] = {"mean": _scored(probs, target)}
    shown = {"codes": target[:passage], **_characters("mean", probs[:passage], target[:passage])}
    if posterior is not None and counts:
        total, inner = torch.zeros_like(probs), torch.zeros(len(probs))
        for number in range(counts[-1]):
            with posterior.applied(model, sample=number):
                probs, entropy = _probabilities(model, data)
            total += probs
            inner += entropy
            if number + 1 in counts:
                found[f"samples-{number + 1}"] = _scored(total / (number + 1), target)
        average = total[:passage] / counts[-1]
        shown |= _characters("samples", average, target[:passage])
        shown["mutual_information"] = (_entropy(average) - inner[:passage] / counts[-1]).clamp(min=0.0)
    if passage:
        found["passage"] = shown
    return found


def _probabilities(model: nn.Module, data: Rows) -> tuple[Tensor, Tensor]:
    """Return the probabilities in the order of the text, ``(n, characters)``, and their entropies, ``(n,)``."""
    probs, entropy = torch.empty(0), torch.empty(data.y.shape)
    for block, logits in _logits(model, data):
        if not len(probs):
            probs = torch.empty(*data.y.shape, logits.shape[-1])
        probs[block] = logits.softmax(-1)
        entropy[block] = _entropy(probs[block])
    return probs.flatten(0, 1), entropy.flatten()


def _entropy(probs: Tensor) -> Tensor:
    found: Tensor = torch.special.entr(probs)
    return found.sum(-1)


def _scored(probs: Tensor, target: Tensor) -> dict[str, float]:
    nll = -float(probs.gather(1, target[:, None]).log().double().mean())
    return {
        "nll": nll,
        "perplexity": math.exp(nll),
        "ece": ba.metrics.expected_calibration_error(probs, target),
        "accuracy": ba.metrics.accuracy(probs, target),
    }


def _characters(name: str, probs: Tensor, target: Tensor) -> dict[str, Tensor]:
    return {f"{name}_nll": -probs.gather(1, target[:, None])[:, 0].log(), f"{name}_entropy": _entropy(probs)}
