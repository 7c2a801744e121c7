"""FAWN-ROPD under the same protocol: it propagates moments and maximises the density of the targets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

import bayesadam as ba
from bayesadam import population
from experiments.uci_table1.protocol import OnEpoch, Part, Precisions, network, score, together


class Density(population.Objective):
    """The loss ``-log N(y | mean, variance + 1 / noise precision)`` and the divergence from
    ``N(0, 1 / prior precision)``.

    Args:
        noise: Noise precision in standardised units.
        prior: Prior precision.
        num_data: Number of the member's training data points.
    """

    def __init__(self, noise: float, prior: float, num_data: int) -> None:
        super().__init__()
        self.likelihood = ba.Gaussian(noise)
        self.prior: Tensor
        self.num_data: Tensor
        self.register_buffer("prior", torch.tensor(prior, dtype=torch.float64))
        self.register_buffer("num_data", torch.tensor(float(num_data), dtype=torch.float64))

    def losses(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        """Return the negative log-density of every target (Bayer et al. 2015, section 3.4)."""
        output = model(x)
        return -self.likelihood.log_expected_density(output.mean, output.spread(), y, None)

    def penalty(self, model: nn.Module) -> Tensor:
        """Return the divergence in closed form, per data point."""
        assert isinstance(model, ba.moments.MomentModule)
        total = torch.zeros((), dtype=torch.float64)
        for weight in model.weights.moments().values():
            assert weight.variance is not None
            ratio = weight.variance.double() * self.prior
            total = total + 0.5 * (weight.mean.double().square() * self.prior + ratio - 1.0 - ratio.log()).sum()
        return total / self.num_data


def fit(
    parts: Sequence[Part],
    candidates: Sequence[Precisions],
    seeds: Sequence[int],
    config: dict[str, Any],
    on_epoch: OnEpoch | None = None,
) -> population.Population:
    """Train one network per part and candidate by Adam, as in :func:`experiments.uci_table1.protocol.fit`."""

    def make() -> nn.Module:
        return ba.fawn(network(parts[0], config["hidden"]), prior=1.0, initial_std=config["initial_std"])

    return population.train(
        population.initialize(make, seeds=seeds),
        [part.train for part in parts],
        objective=[
            Density(math.exp(own.log_noise), math.exp(own.log_prior), len(part.train[0]))
            for own, part in zip(candidates, parts, strict=True)
        ],
        method="adam",
        epochs=config["epochs"],
        batch_size=config["batch_size"],
        seed=list(seeds),
        lr=config["lr"],
        betas=tuple(config["betas"]),
        nonfinite="skip",
        progress=False,
        on_epoch=on_epoch,
    )


@torch.no_grad()
def scores(nets: population.Population, parts: Sequence[Part]) -> dict[str, list[float]]:
    """Return the test scores of every member, by propagated moments."""
    found = []
    model = network(parts[0], nets.mean["weights.model.0.weight"].shape[1])
    for member, (objective, part) in enumerate(zip(nets.objectives, parts, strict=True)):
        own = {name.removeprefix("weights."): value[member] for name, value in nets.mean.items()}
        mean = {name.removeprefix("model."): value for name, value in own.items() if name.startswith("model.")}
        spread = [value.exp() for name, value in own.items() if name.startswith("log_variance.")]
        posterior = ba.DiagonalGaussian(mean, dict(zip(mean, spread, strict=True)))
        assert isinstance(objective, Density)
        prediction = ba.predict(model, posterior, part.x, likelihood=objective.likelihood, method="moments")
        found.append(score(prediction, part))
    return together(found)
