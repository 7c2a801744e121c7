"""All splits of a data set are trained side by side: their parameters are stacked along a new first axis."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

import bayesadam as ba
from experiments.experiment import Progress
from experiments.uci_table1.protocol import Part

CURVE = 20
"""Points of the curve of the training loss."""


@dataclass(frozen=True)
class Fitted:
    """A trained network, with frozen parameters.

    Attributes:
        model: The network.
        posterior: Of its weights.
        likelihood: With the learned noise, in standardised units.
    """

    model: nn.Module
    posterior: ba.posterior.NetworkDistribution
    likelihood: ba.Gaussian


class Member(nn.Module):
    """A network and its noise, of one split."""

    def __init__(self, inputs: int, outputs: int, seed: int, config: Mapping[str, Any]) -> None:
        super().__init__()
        hidden, generator = config["hidden"], torch.Generator().manual_seed(seed)
        model = nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, outputs))
        for layer in model:
            if isinstance(layer, nn.Linear):
                nn.init.normal_(layer.weight, 0.0, layer.in_features**-0.5, generator)
                nn.init.zeros_(layer.bias)
        self.net = ba.fawn(
            model,
            weights=config["weights"],
            initial_std=config["initial_std"],
            covariance=config.get("covariance", False),
            scales=config.get("scales", "outputs"),
        )
        if (drawn := config.get("drawn_std")) is not None:
            for parameter in self.net.parameters():
                nn.init.normal_(parameter, 0.0, drawn, generator)
        self.likelihood = ba.Gaussian(torch.full((1, outputs), config["noise_sd"] ** -2), learned=True)
        self._fit = {"ropd": ba.moments.log_predictive, "vi": ba.moments.expected_log_likelihood}[config["objective"]]

    def forward(self, data: tuple[Tensor, Tensor] | None) -> Tensor:
        """Mean loss of the data points without the divergence; ``None``: the divergence."""
        if data is None:
            return self.net.kl_divergence()
        return -self._fit(self.likelihood, self.net(data[0]), data[1]).mean(-1)

    def fitted(self) -> Fitted:
        """As it stands."""
        posterior = self.net.posterior()
        self.likelihood.requires_grad_(False)
        return Fitted(self.net.weights.model, posterior, self.likelihood)


def fit(
    parts: Sequence[Part], seeds: Sequence[int], config: Mapping[str, Any], progress: Progress
) -> tuple[list[Fitted], list[list[float]]]:
    """Train one network per part, by Adam.

    Args:
        parts: Of the same shapes.
        seeds: Of the weights and the order of the data, one per part.
        config: hidden, weights, scales, objective, covariance, initial_std, noise_sd (in standardised units), lr,
            batch_size, iterations; and drawn_std, if all parameters start with draws of this deviation around 0.
        progress: Told now and then.

    Returns:
        The networks, and the curve of each one's training loss per data point: means over ``CURVE`` equal pieces.

    Raises:
        FloatingPointError: A loss is not finite in the end.
    """
    x, y = (torch.stack([part.train[i] for part in parts]) for i in (0, 1))
    members = [Member(x.shape[-1], y.shape[-1], seed, config) for seed in seeds]
    base, state = members[0], stack_module_state(members)
    learned = {name: p for name, p in state[0].items() if base.get_parameter(name).requires_grad}
    everything = {**state[0], **state[1]}

    def divergence(one: dict[str, Tensor]) -> Tensor:
        found: Tensor = functional_call(base, one, (None,))
        return found

    divergences = vmap(divergence)
    optimizer = torch.optim.Adam(learned.values(), lr=config["lr"], fused=True)
    size, iterations, network = x.shape[1], config["iterations"], torch.arange(len(parts))[:, None]
    rows = minibatches(size, config["batch_size"], seeds)
    totals = torch.zeros(CURVE, len(parts), dtype=torch.float64)
    for step in range(iterations):
        optimizer.param_groups[0]["lr"] = config["lr"] * decay(step / iterations)
        optimizer.zero_grad()
        chosen = next(rows)
        # The layers take leading axes, so that only the divergence has to be mapped over the networks.
        loss = functional_call(base, everything, ((x[network, chosen], y[network, chosen]),))
        loss = loss + divergences(learned) / size
        torch.autograd.backward(loss.sum())
        optimizer.step()
        totals[CURVE * step // iterations] += loss.detach()
        if step % 50 == 0:
            progress(step, iterations)
    if not loss.isfinite().all():
        raise FloatingPointError(f"loss must be finite, got {loss.tolist()} after {iterations} iterations")
    with torch.no_grad():
        for i, member in enumerate(members):
            for name, values in learned.items():
                member.get_parameter(name).copy_(values[i])
    steps = torch.bincount(CURVE * torch.arange(iterations) // iterations, minlength=CURVE)
    return [member.fitted() for member in members], (totals / steps[:, None]).T.tolist()


def decay(done: float) -> float:
    """Of the step size: 1 in the first half, then by a cosine to 0."""
    return 1.0 if done < 0.5 else 0.5 * (1.0 + math.cos(math.pi * (2.0 * done - 1.0)))


def minibatches(size: int, batch_size: int, seeds: Sequence[int]) -> Iterator[Tensor]:
    """Rows ``(networks, batch)`` without end: whole minibatches of one permutation after the other."""
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    batch = min(batch_size, size)
    while True:
        order = torch.stack([torch.randperm(size, generator=generator) for generator in generators])
        for start in range(0, size - batch + 1, batch):
            yield order[:, start : start + batch]
