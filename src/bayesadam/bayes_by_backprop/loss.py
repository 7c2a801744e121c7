"""The negative ELBO of a variational network, estimated from a minibatch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from bayesadam.checks import check_count, check_temperature
from bayesadam.likelihoods import Likelihood

Inputs = Tensor | tuple[Any, ...] | Mapping[str, Any]
"""What a network is called with: a tensor; a tuple, ``net(*inputs)``; or a dict, ``net(**inputs)``."""


class Sampled(Protocol):
    """A network whose weights are drawn; ``VariationalModule`` is one."""

    closed_form: bool

    def common_draw(self, *, mirrored: bool = False) -> AbstractContextManager[None]:
        """A context with one sample of the weights."""

    def kl_divergence(self) -> Tensor:
        """The divergence from the prior."""


def negative_elbo(
    net: Sampled,
    forward: nn.Module,
    inputs: Inputs,
    target: Tensor,
    *,
    likelihood: Likelihood,
    num_data: float,
    mc_samples: int,
    antithetic: bool,
    kl_weight: float,
    temperature: float,
    output: Callable[[Any], Tensor] | None,
) -> Tensor:
    """The loss of :meth:`VariationalModule.loss`, with ``forward`` as the module that is called."""
    check_count("mc_samples", mc_samples)
    if antithetic and mc_samples % 2:
        raise ValueError(f"mc_samples must be even when antithetic=True, got {mc_samples!r}")
    scale = kl_scale(num_data, kl_weight, temperature)
    terms = []
    for sample in range(mc_samples):
        with net.common_draw(mirrored=antithetic and sample % 2 == 1):
            nll = likelihood.nll(_output(forward, inputs, output), target)
            if scale and not net.closed_form:
                nll = nll + (scale * net.kl_divergence()).to(nll)
            elif scale and sample == 0:
                nll = nll + (mc_samples * scale * net.kl_divergence()).to(nll)
        terms.append(nll)
    return terms[0] if mc_samples == 1 else torch.stack(terms).mean()


def kl_scale(num_data: float, kl_weight: float, temperature: float) -> float:
    """Factor of the KL divergence in a loss per data point.

    Raises:
        ValueError: A number is out of its range.
    """
    if not 0 < num_data < math.inf:
        raise ValueError(f"num_data must be a positive, finite number, got {num_data!r}")
    if not 0 <= kl_weight < math.inf:
        raise ValueError(f"kl_weight must be finite and not negative, got {kl_weight!r}")
    check_temperature(temperature)
    return kl_weight * temperature / num_data


def call(net: nn.Module, inputs: Inputs) -> Any:
    """What a network returns for a tensor, a tuple or a dict."""
    if isinstance(inputs, Mapping):
        return net(**inputs)
    return net(*inputs) if isinstance(inputs, tuple) else net(inputs)


def _output(net: nn.Module, inputs: Inputs, output: Callable[[Any], Tensor] | None) -> Tensor:
    result = call(net, inputs)
    if output is not None:
        result = output(result)
    if not isinstance(result, Tensor):
        raise TypeError(
            "output must be given for a network that returns no tensor (output=lambda out: out.logits, say), "
            f"got {type(result).__name__}"
        )
    return result
