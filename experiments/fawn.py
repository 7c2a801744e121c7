"""Shared code of the experiments of Bayer et al. 2015: training and scores of the networks.

The networks for all splits of a data set are trained together, with parameters stacked along a new first axis.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

import bayesadam as ba
from bayesadam.optim import half_cosine
from experiments.framework import Told
from experiments.uci import Part

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
            for name, parameter in self.net.named_parameters():
                nn.init.normal_(parameter, 0.0, drawn, generator)
                if "log_variance" in name:
                    parameter.data.abs_().log_()
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
    parts: Sequence[Part], seeds: Sequence[int], config: Mapping[str, Any], progress: Told
) -> tuple[list[Fitted], list[list[float]]]:
    """Train one network per part, by Adam.

    Args:
        parts: Training and held-out parts, all of the same shapes.
        seeds: Seeds of the weights and of the order of the data, one per part.
        config: hidden, weights, scales, objective, covariance, initial_std, noise_sd (in standardised units), lr,
            batch_size, iterations; and drawn_std, the standard deviation of the draws around 0 with which all
            parameters start, if they do. A variance is then the absolute value of its draw.
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


def predictive(fitted: Fitted, part: Part, *, covariance: bool = False) -> ba.predictive.GaussianPredictive:
    """Return predictions of the held-out inputs by moment propagation, with output covariances if requested."""
    found = ba.predict(fitted.model, fitted.posterior, part.x, likelihood=fitted.likelihood, method="moments")
    assert isinstance(found, ba.predictive.GaussianPredictive)
    if not covariance:
        found = ba.predictive.GaussianPredictive(found.mean, found.epistemic, found.aleatoric)
    return found.rescale(part.scaler.mean, part.scaler.std)


def sampled(fitted: Fitted, part: Part, samples: int, seed: int) -> ba.predictive.RegressionPredictive:
    """Return a mixture over sampled weights of the first layer; the last layer is integrated out in closed form.

    If the weights are Gaussian, the outputs given the hidden units are exactly Gaussian and independent, so that the
    only approximation is the finite number of samples. Samples of all weights would be useless: if the learned noise is
    a thousandth of the variation due to the weights, no sample is near a target.
    """
    q = fitted.posterior
    assert isinstance(q, ba.DiagonalGaussian | ba.posterior.BernoulliPosterior)
    drawn, noise = q.sample(samples, seed=seed), 1.0 / fitted.likelihood.noise_precision
    means, variances = [], []
    for weight, bias in zip(drawn["0.weight"], drawn["0.bias"], strict=True):
        hidden = (part.x @ weight.T + bias).relu()
        means.append(hidden @ q.mean["2.weight"].T + q.mean["2.bias"])
        variances.append(hidden.square() @ q.variance["2.weight"].T + q.variance["2.bias"] + noise)
    found = ba.predictive.RegressionPredictive(torch.stack(means), torch.stack(variances))
    return found.rescale(part.scaler.mean, part.scaler.std)


@torch.no_grad()
def scores(fitted: Fitted, part: Part, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the joint NLL of the outputs per data point, and the RMSE; the prefix ``sampled_`` means :func:`sampled`.

    ``noise_sd`` is the standard deviation of the learned noise of every output, ``sd`` the root of the mean predictive
    variance, including the noise, and ``epistemic`` the share of this variance that is due to the weights.
    """
    found = predictive(fitted, part, covariance=config.get("covariance", False))
    mixture = sampled(fitted, part, config["mc_samples"], config["seed"])
    noise = fitted.likelihood.noise_precision.double().rsqrt()[0] * part.scaler.std
    return {
        "nll": ba.metrics.nll(found, part.y),
        "rmse": ba.metrics.rmse(found.mean, part.y),
        "sampled_nll": ba.metrics.nll(mixture, part.y),
        "sampled_rmse": ba.metrics.rmse(mixture.mean, part.y),
        "noise_sd": noise,
        "sd": found.variance.double().mean().sqrt(),
        "epistemic": found.epistemic.double().mean() / found.variance.double().mean(),
    }
