"""Training of the networks for all splits of a data set together, with parameters stacked along a new first axis."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

import bayesadam as ba
from bayesadam.optim import half_cosine
from experiments.experiment import Progress
from experiments.uci_table1.protocol import Part

CURVE = 20
"""Number of points of the curve of the training loss."""


@dataclass(frozen=True)
class Fitted:
    """A trained network, with frozen parameters.

    Attributes:
        model: The network.
        posterior: Posterior of the network's weights.
        likelihood: Likelihood with the learned noise, in standardised units.
    """

    model: nn.Module
    posterior: ba.posterior.NetworkDistribution
    likelihood: ba.Gaussian


class Member(nn.Module):
    """A network for one split, and its noise."""

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
        """Return the mean loss of the data points without the divergence, or the divergence if ``data`` is ``None``."""
        if data is None:
            return self.net.kl_divergence()
        return -self._fit(self.likelihood, self.net(data[0]), data[1]).mean(-1)

    def fitted(self) -> Fitted:
        """Return the network with its current parameters."""
        posterior = self.net.posterior()
        self.likelihood.requires_grad_(False)
        return Fitted(self.net.weights.model, posterior, self.likelihood)


def fit(
    parts: Sequence[Part], seeds: Sequence[int], config: Mapping[str, Any], progress: Progress
) -> tuple[list[Fitted], list[list[float]]]:
    """Train one network per part, by Adam.

    Args:
        parts: Training and held-out parts, all of the same shapes.
        seeds: Seeds of the weights and of the order of the data, one per part.
        config: hidden, weights, scales, objective, covariance, initial_std, noise_sd (in standardised units), lr,
            batch_size, iterations; and drawn_std, the standard deviation of the draws around 0 with which all
            parameters start, if they do.
        progress: Function that is called regularly with the progress.

    Returns:
        The networks, and for each the curve of its training loss per data point, averaged over ``CURVE`` equal pieces.

    Raises:
        FloatingPointError: A loss is not finite at the end.
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
        # The layers support leading axes, so that only the divergence must be mapped over the networks.
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
    """Return the factor of the step size: 1 in the first half, then a cosine that falls to 0."""
    return half_cosine(done, flat=0.5)


def minibatches(size: int, batch_size: int, seeds: Sequence[int]) -> Iterator[Tensor]:
    """Yield rows ``(networks, batch)`` endlessly: complete minibatches of one permutation after another."""
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    batch = min(batch_size, size)
    while True:
        order = torch.stack([torch.randperm(size, generator=generator) for generator in generators])
        for start in range(0, size - batch + 1, batch):
            yield order[:, start : start + batch]
